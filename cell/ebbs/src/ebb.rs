//! References to Ebbs, and the tables in which a core and a cell find the representatives.

use crate::core_block::current;
use alloc::boxed::Box;
use core::arch::asm;
use core::marker::PhantomData;
use core::mem::offset_of;
use core::ops::Deref;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use crate::CoreBlock;

/// Most Ebbs of an image.
pub const MAX_EBBS: usize = 64;

/// The id of an Ebb that has none yet. Its word in every table stays empty, so that the path of an invocation
/// needs no second test: an Ebb without an id looks like one without a representative.
const UNASSIGNED: u32 = 0;

static NEXT_ID: AtomicU32 = AtomicU32::new(UNASSIGNED + 1);

/// Representatives by Ebb id: of one core, or of a cell.
#[repr(C)]
pub struct EbbTable {
    slots: [AtomicPtr<()>; MAX_EBBS],
}

impl EbbTable {
    /// A table of none.
    pub const fn new() -> Self {
        Self { slots: [const { AtomicPtr::new(core::ptr::null_mut()) }; MAX_EBBS] }
    }
}

impl Default for EbbTable {
    fn default() -> Self {
        Self::new()
    }
}

/// What stands for an Ebb on a core, or in a cell.
pub trait Representative: Sized + 'static {
    /// Makes the representative, on the core that first needs it: the Ebb's fault handler.
    ///
    /// It must not invoke the Ebb that it is made for.
    fn create() -> Self;
}

/// The id in `id`, given out now where there is none.
fn assigned(id: &AtomicU32) -> usize {
    let known = id.load(Ordering::Relaxed);
    if known != UNASSIGNED {
        return known as usize;
    }
    let fresh = NEXT_ID.fetch_add(1, Ordering::Relaxed);
    assert!((fresh as usize) < MAX_EBBS, "an image has at most {MAX_EBBS} Ebbs");
    match id.compare_exchange(UNASSIGNED, fresh, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => fresh as usize,
        Err(other) => other as usize,
    }
}

/// A reference to an Ebb with one representative a core, declared as a `static` and invoked through `Deref`.
///
/// A representative belongs to its core alone: it needs no locks and no atomics, and references to it cannot
/// leave the core unless its type may be shared between cores anyway (`Sync`).
pub struct Ebb<T> {
    id: AtomicU32,
    representative: PhantomData<fn() -> T>,
}

impl<T: Representative> Ebb<T> {
    /// A reference. Each is an Ebb of its own: declare it as a `static`.
    pub const fn new() -> Self {
        Self { id: AtomicU32::new(UNASSIGNED), representative: PhantomData }
    }

    #[cold]
    #[inline(never)]
    fn fault(&self) -> &'static T {
        let slot = &current().own.slots[assigned(&self.id)];
        let existing = slot.load(Ordering::Relaxed).cast::<T>();
        if !existing.is_null() {
            // SAFETY: see `deref`.
            return unsafe { &*existing };
        }
        let made: &'static T = Box::leak(Box::new(T::create()));
        slot.store(core::ptr::from_ref(made).cast_mut().cast(), Ordering::Relaxed);
        made
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
    fn deref(&self) -> &T {
        let id = self.id.load(Ordering::Relaxed) as u64;
        let representative: *const T;
        // SAFETY: the segment's base is the core's block (see `core_block`), and ids are below `MAX_EBBS` by
        // `assigned`, so that the word read is in the block's own table.
        unsafe {
            asm!("mov {}, gs:[{} * 8 + {offset}]", out(reg) representative, in(reg) id,
                 offset = const offset_of!(CoreBlock, own) + offset_of!(EbbTable, slots),
                 options(nostack, pure, readonly, preserves_flags));
        }
        if representative.is_null() {
            return self.fault();
        }
        // SAFETY: the word of an id is written by `fault` alone, with a leaked `T` of the one Ebb that has the
        // id, made on this core; it lives for good. Other cores reach it only where `T` is `Sync`, as a
        // `&T` can otherwise not be sent to them.
        unsafe { &*representative }
    }
}

/// A reference to an Ebb with one representative for all cores of a cell, made by the first that needs it.
pub struct CellEbb<T> {
    id: AtomicU32,
    representative: PhantomData<fn() -> T>,
}

impl<T: Representative + Send + Sync> CellEbb<T> {
    /// A reference. Each is an Ebb of its own: declare it as a `static`.
    pub const fn new() -> Self {
        Self { id: AtomicU32::new(UNASSIGNED), representative: PhantomData }
    }

    #[cold]
    #[inline(never)]
    fn fault(&self) -> &'static T {
        let slot = &current().cell.slots[assigned(&self.id)];
        let made = Box::into_raw(Box::new(T::create()));
        // Two cores may make one at the same time; the first to publish it wins, and the other's is dropped.
        match slot.compare_exchange(core::ptr::null_mut(), made.cast(), Ordering::AcqRel, Ordering::Acquire) {
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
        let id = self.id.load(Ordering::Relaxed) as usize;
        let representative = current().cell.slots[id].load(Ordering::Acquire).cast::<T>();
        if representative.is_null() {
            return self.fault();
        }
        // SAFETY: the word of an id is written by `fault` alone, with a leaked `T` of the one Ebb that has the
        // id; it lives for good, and `T` may be shared between cores.
        unsafe { &*representative }
    }
}
