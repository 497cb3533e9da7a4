//! Atomic types and a lock. For the models, loom's versions replace them and try all interleavings (`cargo xtask test
//! models`).

#[cfg(not(loom))]
pub(crate) use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

/// A lock that is held for a few instructions, and never on a fast path.
#[cfg(not(loom))]
#[derive(Default)]
pub(crate) struct Lock<T> {
    inner: spin::Mutex<T>,
}

#[cfg(not(loom))]
impl<T> Lock<T> {
    /// Creates an unlocked lock.
    pub fn new(inner: T) -> Self {
        Self { inner: spin::Mutex::new(inner) }
    }

    /// Calls `with` under mutual exclusion.
    pub fn with<R>(&self, with: impl FnOnce(&mut T) -> R) -> R {
        with(&mut self.inner.lock())
    }
}

#[cfg(loom)]
#[derive(Default)]
pub(crate) struct Lock<T> {
    inner: loom::sync::Mutex<T>,
}

#[cfg(loom)]
impl<T> Lock<T> {
    pub fn new(inner: T) -> Self {
        Self { inner: loom::sync::Mutex::new(inner) }
    }

    pub fn with<R>(&self, with: impl FnOnce(&mut T) -> R) -> R {
        with(&mut self.inner.lock().expect("no model panics with the lock held"))
    }
}
