//! Ebbs with one representative per core.

use crate::core_block::{CoreBlock, current};
use crate::factory::EbbInUse;
use crate::representative::Representative;
use crate::table::{Pointers, Slot};
use alloc::boxed::Box;
use core::arch::asm;
use core::marker::PhantomData;
use core::mem::offset_of;
use core::ops::Deref;
use core::sync::atomic::Ordering;

/// A reference to an Ebb with one representative per core, declared as a `static` and called through `Deref`.
///
/// A representative belongs to one core. It needs no locks and no atomics; references to it cannot leave the core
/// unless its type is `Sync`.
pub struct Ebb<T> {
    slot: Slot,
    makes: PhantomData<fn() -> T>,
}

impl<T: Representative> Ebb<T> {
    /// Creates a reference to a new Ebb, for a `static`.
    pub const fn new() -> Self {
        Self { slot: Slot::new(), makes: PhantomData }
    }

    /// Replaces the factory of this cell's representatives: `create` instead of [`Representative::create`]. By this an
    /// application replaces a component of Isola with its own. Other cells of the same process are unaffected.
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
        let entry = core.own.get(number);
        let existing = entry.load(Ordering::Relaxed).cast::<T>();
        if !existing.is_null() {
            // SAFETY: see `deref`.
            return unsafe { &*existing };
        }
        core.constructing(number, || {
            // SAFETY: the slot belongs to this Ebb, whose representatives have the type `T`.
            let made: &'static T = Box::leak(Box::new(unsafe { core.cell.factories.make(number) }));
            entry.store(core::ptr::from_ref(made).cast_mut().cast(), Ordering::Relaxed);
            made
        })
    }
}

impl<T: Representative> Default for Ebb<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Representative> Deref for Ebb<T> {
    type Target = T;

    #[inline(always)]
    #[expect(clippy::pointers_in_nomem_asm_block, reason = "the word read there is final, or empty")]
    fn deref(&self) -> &T {
        let representative: *const T;
        // SAFETY: the GS base is the address of the core's block (see `core_block`), and slots are below `FAST`, so the
        // word is in the block's own table. `nomem` is correct although two words are read: both change once, from
        // empty to their final value, so the compiler may reuse an earlier value. If that was empty, `fault` reads
        // again.
        unsafe {
            asm!("mov {found:e}, [{slot}]",
                 "mov {found}, gs:[{found} * 8 + {offset}]",
                 slot = in(reg) self.slot.address(), found = lateout(reg) representative,
                 offset = const offset_of!(CoreBlock, own) + offset_of!(Pointers, first),
                 options(nostack, pure, nomem, preserves_flags));
        }
        if representative.is_null() {
            return self.fault();
        }
        // SAFETY: only `fault` writes the word of a slot, on this core, with a leaked `T` of the one Ebb that has the
        // slot; it lives forever. Other cores get a reference only if `T` is `Sync`, as a `&T` cannot be sent to them
        // otherwise.
        unsafe { &*representative }
    }
}
