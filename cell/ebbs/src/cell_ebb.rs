//! Ebbs with one representative for all cores of a cell.

use crate::core_block::current;
use crate::ebb::Representative;
use crate::factory::InUse;
use crate::table::Slot;
use alloc::boxed::Box;
use core::marker::PhantomData;
use core::ops::Deref;
use core::sync::atomic::Ordering;

/// A reference to an Ebb with one representative for all cores of a cell, made by the first that needs it.
pub struct CellEbb<T> {
    slot: Slot,
    makes: PhantomData<fn() -> T>,
}

impl<T: Representative + Send + Sync> CellEbb<T> {
    /// A reference. Each is an Ebb of its own: declare it as a `static`.
    pub const fn new() -> Self {
        Self { slot: Slot::new(), makes: PhantomData }
    }

    /// As [`Ebb::replace`](crate::Ebb::replace).
    ///
    /// # Errors
    /// [`InUse`], where the Ebb was invoked in this cell or replaced already.
    pub fn replace(&self, create: fn() -> T) -> Result<(), InUse> {
        // SAFETY: the slot is this Ebb's, whose representatives are of type `T`.
        unsafe { current().cell.factories.replace(self.slot.assigned(), create) }
    }

    #[cold]
    #[inline(never)]
    fn fault(&self) -> &'static T {
        let core = current();
        let number = self.slot.assigned();
        let entry = core.cell.representatives.get(number);
        let existing = entry.load(Ordering::Acquire).cast::<T>();
        if !existing.is_null() {
            // SAFETY: see `deref`.
            return unsafe { &*existing };
        }
        // SAFETY: the slot is this Ebb's, whose representatives are of type `T`.
        let made: *mut T =
            core.making(number, || Box::into_raw(Box::new(unsafe { core.cell.factories.make(number) })));
        // Two cores may make one at the same time; the first to publish it wins, and the other's is dropped.
        match entry.compare_exchange(core::ptr::null_mut(), made.cast(), Ordering::AcqRel, Ordering::Acquire)
        {
            // SAFETY: just made, and never freed from here on.
            Ok(_) => unsafe { &*made },
            Err(winner) => {
                // SAFETY: just made, and never published.
                drop(unsafe { Box::from_raw(made) });
                // SAFETY: see `deref`.
                unsafe { &*winner.cast::<T>() }
            }
        }
    }
}

impl<T: Representative + Send + Sync> Default for CellEbb<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Representative + Send + Sync> Deref for CellEbb<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        let slot = self.slot.fast() as usize;
        let representative = current().cell.representatives.first[slot].load(Ordering::Acquire).cast::<T>();
        if representative.is_null() {
            return self.fault();
        }
        // SAFETY: the word of a slot is written by `fault` alone, with a leaked `T` of the one Ebb that has the
        // slot; it lives for good, and `T` may be shared between cores.
        unsafe { &*representative }
    }
}
