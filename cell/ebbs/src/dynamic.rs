//! Ebbs that are created and dropped at run time.

use crate::cell_table::CellTable;
use crate::core_block::current;
use crate::id::{EbbId, IdError};
use alloc::boxed::Box;
use alloc::sync::Arc;
use core::fmt;
use core::ops::Deref;
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};
use isola_abi::id::MAX_CORES;

/// A representative of a [`DynamicEbb`] on one core.
///
/// It is `Send` because the core that drops the last reference drops all representatives.
pub trait RootedRepresentative: Send + Sized + 'static {
    /// The state that all representatives of an Ebb share, given at the Ebb's creation.
    type Root: Send + Sync + 'static;

    /// Creates the representative, on the core of its first use: the Ebb's fault handler.
    ///
    /// It must not call the Ebb itself.
    fn create(root: &Self::Root) -> Self;
}

/// A reference to an Ebb that was created at run time, with one representative per core. A call through `Deref` costs a
/// few loads and predictable branches, and no atomic operation.
///
/// Clones of the reference are counted. Dropping the last one drops the representatives on all cores.
pub struct DynamicEbb<T: RootedRepresentative> {
    instance: Arc<Instance<T>>,
}

struct Instance<T: RootedRepresentative> {
    id: EbbId,
    root: T::Root,
    /// Identifies the cell that created the Ebb, as other cells of the same process have cores with the same indices.
    cell: &'static CellTable,
    /// The representatives, by core of that cell. A core writes only its own entry.
    representatives: [AtomicPtr<T>; MAX_CORES],
}

impl<T: RootedRepresentative> DynamicEbb<T> {
    /// Creates an Ebb.
    ///
    /// # Errors
    /// [`IdError`] if this machine has no ids left.
    pub fn new(root: T::Root) -> Result<Self, IdError> {
        let representatives = [const { AtomicPtr::new(ptr::null_mut()) }; MAX_CORES];
        let cell = current().cell;
        Ok(Self { instance: Arc::new(Instance { id: EbbId::fresh()?, root, cell, representatives }) })
    }

    /// Returns the Ebb's id, unique on all machines of the application.
    pub fn id(&self) -> EbbId {
        self.instance.id
    }

    /// Returns the state that the representatives share.
    pub fn root(&self) -> &T::Root {
        &self.instance.root
    }

    #[cold]
    #[inline(never)]
    fn fault(&self) -> &T {
        let core = current();
        assert!(ptr::eq(core.cell, self.instance.cell), "a dynamic Ebb is invoked in the cell that made it");
        let made = Box::into_raw(Box::new(T::create(&self.instance.root)));
        let entry = &self.instance.representatives[core.index()];
        let empty = entry.compare_exchange(ptr::null_mut(), made, Ordering::Relaxed, Ordering::Relaxed);
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
        let entry = unsafe { self.instance.representatives.get_unchecked(core.index()) };
        let representative = entry.load(Ordering::Relaxed);
        if representative.is_null() || !ptr::eq(core.cell, self.instance.cell) {
            return self.fault();
        }
        // SAFETY: only `fault` writes the word, on this core of this cell, with a `T` that lives as long as the
        // instance, which `self` keeps alive. Other cores get a reference only if `T` is `Sync`, as a `&T` cannot be
        // sent otherwise.
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
        for entry in &mut self.representatives {
            let representative = core::mem::replace(entry.get_mut(), ptr::null_mut());
            if !representative.is_null() {
                // SAFETY: `fault` created the representative by `Box::into_raw`. The last reference to the instance is
                // gone, and with it all borrows of its representatives. `T` is `Send`.
                drop(unsafe { Box::from_raw(representative) });
            }
        }
    }
}
