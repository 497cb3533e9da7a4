//! Ebbs with one representative a core.

use crate::core_block::{CoreBlock, current};
use crate::factory::InUse;
use crate::table::{Pointers, Slot};
use alloc::boxed::Box;
use core::arch::asm;
use core::marker::PhantomData;
use core::mem::offset_of;
use core::ops::Deref;
use core::sync::atomic::Ordering;

/// What stands for an Ebb on a core, or in a cell.
pub trait Representative: Sized + 'static {
    /// Makes the representative, on the core that first needs it: the Ebb's fault handler.
    ///
    /// It must not invoke the Ebb that it is made for.
    fn create() -> Self;
}

/// A reference to an Ebb with one representative a core, declared as a `static` and invoked through `Deref`.
///
/// A representative belongs to its core alone: it needs no locks and no atomics, and references to it cannot
/// leave the core unless its type may be shared between cores anyway (`Sync`).
pub struct Ebb<T> {
    slot: Slot,
    makes: PhantomData<fn() -> T>,
}

impl<T: Representative> Ebb<T> {
    /// A reference. Each is an Ebb of its own: declare it as a `static`.
    pub const fn new() -> Self {
        Self { slot: Slot::new(), makes: PhantomData }
    }

    /// Has `create` make the representatives of this cell in place of [`Representative::create`]: how an application puts
    /// its own component in the place of Isola's. Other cells of the process, where it has any, are not concerned.
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
        let entry = core.own.get(number);
        let existing = entry.load(Ordering::Relaxed).cast::<T>();
        if !existing.is_null() {
            // SAFETY: see `deref`.
            return unsafe { &*existing };
        }
        core.making(number, || {
            // SAFETY: the slot is this Ebb's, whose representatives are of type `T`.
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
    #[expect(
        clippy::pointers_in_nomem_asm_block,
        reason = "what is read there is what it is for good, or nothing"
    )]
    fn deref(&self) -> &T {
        let representative: *const T;
        // SAFETY: the segment's base is the core's block (see `core_block`), and slots are below `FAST`, so that the
        // word read is in the block's own table. `nomem`, though two words are read: both change once, from nothing to
        // what they are for good, so that the compiler may use what it read before. Should that be nothing, `fault`
        // looks again.
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
        // SAFETY: the word of a slot is written by `fault` alone, with a leaked `T` of the one Ebb that has the
        // slot, made on this core; it lives for good. Other cores reach it only where `T` is `Sync`, as a
        // `&T` can otherwise not be sent to them.
        unsafe { &*representative }
    }
}
