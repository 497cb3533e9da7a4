//! A lock that may be held while an operation waits for a device.

use alloc::vec::Vec;
use core::future::poll_fn;
use core::task::{Poll, Waker};
use spin::{Mutex, MutexGuard};

/// A value with a lock that tasks wait for. Without contention it costs as much as a spin lock.
#[derive(Default)]
pub(crate) struct AsyncLock<T> {
    state: Mutex<State>,
    value: Mutex<T>,
}

#[derive(Default)]
struct State {
    is_held: bool,
    waiters: Vec<Waker>,
}

/// The right to access the value of an [`AsyncLock`].
pub(crate) struct AsyncLockGuard<'a, T>(&'a AsyncLock<T>);

impl<T> AsyncLock<T> {
    pub fn new(value: T) -> Self {
        Self { state: Mutex::default(), value: Mutex::new(value) }
    }

    /// Waits for the lock and takes it.
    pub async fn hold(&self) -> AsyncLockGuard<'_, T> {
        poll_fn(|context| {
            let mut state = self.state.lock();
            if !state.is_held {
                state.is_held = true;
                return Poll::Ready(AsyncLockGuard(self));
            }
            if !state.waiters.iter().any(|waiter| waiter.will_wake(context.waker())) {
                state.waiters.push(context.waker().clone());
            }
            Poll::Pending
        })
        .await
    }
}

impl<T> AsyncLockGuard<'_, T> {
    /// Returns the value, for a moment.
    pub fn get(&self) -> MutexGuard<'_, T> {
        self.0.value.lock()
    }
}

impl<T> Drop for AsyncLockGuard<'_, T> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.is_held = false;
        // All of them, as one that was dropped meanwhile would not pass the lock on.
        let waiters = core::mem::take(&mut state.waiters);
        drop(state);
        waiters.into_iter().for_each(Waker::wake);
    }
}
