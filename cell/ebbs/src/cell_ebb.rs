//! Ebbs with one representative for all cores of a cell.

use crate::core_block::current;
use crate::factory::EbbInUse;
use crate::representative::Representative;
use crate::table::Slot;
use alloc::boxed::Box;
use core::marker::PhantomData;
use core::ops::Deref;
use core::sync::atomic::Ordering;

/// A reference to an Ebb with one representative for all cores of a cell, created at the first use.
pub struct CellEbb<T> {
    slot: Slot,
    makes: PhantomData<fn() -> T>,
}

impl<T: Representative + Send + Sync> CellEbb<T> {
    /// Creates a reference to a new Ebb, for a `static`.
    pub const fn new() -> Self {
        Self { slot: Slot::new(), makes: PhantomData }
    }

    /// Replaces the factory, like [`Ebb::replace`](crate::Ebb::replace).
    ///
    /// # Errors
    /// [`EbbInUse`] if the Ebb was already used or replaced in this cell.
    pub fn replace(&self, create: fn() -> T) -> Result<(), EbbInUse> {
        // SAFETY: the slot belongs to this Ebb, whose representatives have the type `T`.
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
        // SAFETY: the slot belongs to this Ebb, whose representatives have the type `T`.
        let made: *mut T = core
            .constructing(number, || Box::into_raw(Box::new(unsafe { core.cell.factories.make(number) })));
        // Two cores may create a representative at the same time; the first one publishes its own, and the other drops
        // its own.
        match entry.compare_exchange(core::ptr::null_mut(), made.cast(), Ordering::AcqRel, Ordering::Acquire)
        {
            // SAFETY: just created, and never freed from now on.
            Ok(_) => unsafe { &*made },
            Err(winner) => {
                // SAFETY: just created, and not published.
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
        // SAFETY: only `fault` writes the word of a slot, with a leaked `T` of the one Ebb that has the slot; it lives
        // forever, and `T` may be shared between cores.
        unsafe { &*representative }
    }
}
