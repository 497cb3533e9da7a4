//! Ebbs that are made and torn down while the cell runs.

use crate::core_block::current;
use crate::id::{EbbId, NoId};
use crate::table::CellTable;
use alloc::boxed::Box;
use alloc::sync::Arc;
use core::fmt;
use core::ops::Deref;
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};
use isola_abi::id::MAX_CORES;

/// What stands for a [`DynamicEbb`] on a core.
///
/// It is `Send` because it is torn down with the last reference, wherever that is dropped.
pub trait RootedRepresentative: Send + Sized + 'static {
    /// What all representatives of an Ebb have in common: given when the Ebb is made.
    type Root: Send + Sync + 'static;

    /// Makes the representative, on the core that first needs it: the Ebb's fault handler.
    ///
    /// It must not invoke the Ebb that it is made for.
    fn create(root: &Self::Root) -> Self;
}

/// A reference to an Ebb that was made while the cell runs, with one representative a core. Invoked through `Deref`:
/// a few loads and predictable branches, no atomic operation.
///
/// References are counted when they are cloned. With the last one the Ebb is torn down: its representatives on all
/// cores are dropped.
pub struct DynamicEbb<T: RootedRepresentative> {
    instance: Arc<Instance<T>>,
}

struct Instance<T: RootedRepresentative> {
    id: EbbId,
    root: T::Root,
    /// What tells the cell that it was made in from others of the same process, whose cores have the same indices.
    cell: &'static CellTable,
    /// By core of that cell. A core writes its own alone.
    representatives: [AtomicPtr<T>; MAX_CORES],
}

impl<T: RootedRepresentative> DynamicEbb<T> {
    /// Makes an Ebb.
    ///
    /// # Errors
    /// [`NoId`], where this machine has no ids left.
    pub fn new(root: T::Root) -> Result<Self, NoId> {
        let representatives = [const { AtomicPtr::new(ptr::null_mut()) }; MAX_CORES];
        let cell = current().cell;
        Ok(Self { instance: Arc::new(Instance { id: EbbId::fresh()?, root, cell, representatives }) })
    }

    /// Its id, which no other Ebb on any machine of the application has.
    pub fn id(&self) -> EbbId {
        self.instance.id
    }

    /// What its representatives have in common.
    pub fn root(&self) -> &T::Root {
        &self.instance.root
    }

    #[cold]
    #[inline(never)]
    fn fault(&self) -> &T {
        let core = current();
        assert!(ptr::eq(core.cell, self.instance.cell), "a dynamic Ebb is invoked in the cell that made it");
        let made = Box::into_raw(Box::new(T::create(&self.instance.root)));
        let place = &self.instance.representatives[core.index()];
        let empty = place.compare_exchange(ptr::null_mut(), made, Ordering::Relaxed, Ordering::Relaxed);
        assert!(empty.is_ok(), "a representative invoked the Ebb that it was made for");
        // SAFETY: see `deref`.
        unsafe { &*made }
    }
}

impl<T: RootedRepresentative> Deref for DynamicEbb<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        let core = current();
        // SAFETY: a core's index is below `MAX_CORES` (`CoreBlock::new`).
        let place = unsafe { self.instance.representatives.get_unchecked(core.index()) };
        let representative = place.load(Ordering::Relaxed);
        if representative.is_null() || !ptr::eq(core.cell, self.instance.cell) {
            return self.fault();
        }
        // SAFETY: written by `fault` alone, on this core of this cell, with a `T` that lives as long as the instance does,
        // which `self` keeps alive. Other cores reach it only where `T` is `Sync`, as a `&T` can otherwise not be sent.
        unsafe { &*representative }
    }
}

impl<T: RootedRepresentative> Clone for DynamicEbb<T> {
    fn clone(&self) -> Self {
        Self { instance: self.instance.clone() }
    }
}

impl<T: RootedRepresentative> fmt::Debug for DynamicEbb<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DynamicEbb").field(&self.instance.id).finish()
    }
}

impl<T: RootedRepresentative> Drop for Instance<T> {
    fn drop(&mut self) {
        for place in &mut self.representatives {
            let representative = core::mem::replace(place.get_mut(), ptr::null_mut());
            if !representative.is_null() {
                // SAFETY: made in `fault`, by `Box::into_raw`; the last reference to the instance is gone, and with it
                // all borrows of its representatives. `T` is `Send`.
                drop(unsafe { Box::from_raw(representative) });
            }
        }
    }
}
