//! A single value that all cores read and that changes rarely: a configuration, a routing table.

use crate::retired::{check, retire};
use crate::sync::{AtomicPtr, Ordering};
use alloc::boxed::Box;
use core::fmt;
use core::marker::PhantomData;
use isola_events::quiescence::{self, Domain};
use spin::Mutex;

/// A value that the cores of a cell share. It belongs to the cell that creates it, for example as a representative of
/// an Ebb.
pub struct RcuCell<T> {
    value: AtomicPtr<T>,
    writers: Mutex<()>,
    domain: Domain,
    owned: PhantomData<T>,
}

// SAFETY: several cores read the value at the same time (`Sync`), and any core may drop it (`Send`).
unsafe impl<T: Send + Sync> Sync for RcuCell<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Send for RcuCell<T> {}

impl<T: Send + Sync + 'static> RcuCell<T> {
    /// Creates the value, for the calling core's cell.
    pub fn new(value: T) -> Self {
        let value = AtomicPtr::new(Box::into_raw(Box::new(value)));
        Self { value, writers: Mutex::new(()), domain: Domain::current(), owned: PhantomData }
    }

    /// Calls `look` with the value.
    ///
    /// # Panics
    /// Panics on a core of another cell.
    #[inline]
    pub fn read<R>(&self, look: impl FnOnce(&T) -> R) -> R {
        check(self.domain);
        quiescence::read(|| {
            // SAFETY: the pointer is from a box, which is freed only after this event (the crate's soundness argument).
            look(unsafe { &*self.value.load(Ordering::Acquire) })
        })
    }

    /// Replaces the value.
    ///
    /// # Panics
    /// Panics on a core of another cell.
    pub fn set(&self, value: T) {
        check(self.domain);
        let next = Box::into_raw(Box::new(value));
        let writing = self.writers.lock();
        self.replace(next);
        drop(writing);
    }

    /// Replaces the value by the result of `change`, without other writers in between. `change` must not write to this
    /// cell itself.
    ///
    /// # Panics
    /// Panics on a core of another cell.
    pub fn update(&self, change: impl FnOnce(&T) -> T) {
        check(self.domain);
        let writing = self.writers.lock();
        let next = self.read(change);
        self.replace(Box::into_raw(Box::new(next)));
        drop(writing);
    }

    fn replace(&self, next: *mut T) {
        let before = self.value.swap(next, Ordering::AcqRel);
        // SAFETY: the swap gave the pointer to this caller alone; it is from a box, and later readers do not find it.
        unsafe { retire(before) };
    }
}

impl<T> Drop for RcuCell<T> {
    fn drop(&mut self) {
        // SAFETY: the cell has no other owner, and readers do not outlive their borrow of it.
        drop(unsafe { Box::from_raw(self.value.load(Ordering::Relaxed)) });
    }
}

impl<T: Send + Sync + fmt::Debug + 'static> fmt::Debug for RcuCell<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.read(|value| f.debug_tuple("RcuCell").field(value).finish())
    }
}
