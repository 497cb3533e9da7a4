//! Results that are mostly there at once.

use crate::Errno;
use alloc::boxed::Box;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll};
use isola_linux_memory::BoxFuture;

/// The result of an operation of a file system: known at once where no device takes part, and then without an allocation,
/// otherwise a future.
#[must_use = "the operation may wait for a device"]
pub enum Outcome<'a, T> {
    /// The operation is complete.
    Done(Result<T, Errno>),
    /// The operation waits. Dropping the future cancels the wait.
    Waits(BoxFuture<'a, Result<T, Errno>>),
    /// The result was taken.
    Taken,
}

impl<'a, T> Outcome<'a, T> {
    /// Returns a complete operation with this value.
    pub fn ok(value: T) -> Self {
        Self::Done(Ok(value))
    }

    /// Returns a failed operation.
    pub fn error(error: Errno) -> Self {
        Self::Done(Err(error))
    }

    /// Returns an operation that waits for this future.
    pub fn of(future: impl Future<Output = Result<T, Errno>> + 'a) -> Self {
        Self::Waits(Box::pin(future))
    }
}

impl<T> From<Result<T, Errno>> for Outcome<'_, T> {
    fn from(result: Result<T, Errno>) -> Self {
        Self::Done(result)
    }
}

// The result is moved, never pinned.
impl<T> Unpin for Outcome<'_, T> {}

impl<T> Future for Outcome<'_, T> {
    type Output = Result<T, Errno>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match core::mem::replace(&mut *self, Self::Taken) {
            Self::Done(result) => Poll::Ready(result),
            Self::Waits(mut future) => {
                let poll = future.as_mut().poll(context);
                if poll.is_pending() {
                    *self = Self::Waits(future);
                }
                poll
            }
            Self::Taken => unreachable!("the operation was polled after its end"),
        }
    }
}
