//! Operations that are not complete, and their cancellation.

use crate::system::System;
use core::future::{Future, poll_fn};
use core::pin::pin;
use core::sync::atomic::{AtomicBool, Ordering};
use core::task::{Poll, Waker};
use spin::Mutex;

/// An operation that is not complete.
pub struct InFlight {
    /// The program's name for it.
    pub user_data: u64,
    /// The descriptor or index of its file.
    pub descriptor: i32,
    /// Whether it is a timeout.
    pub is_timeout: bool,
    is_cancelled: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

/// How a wait for an operation ended.
pub enum End<T> {
    /// The operation is complete.
    Done(T),
    /// It was cancelled.
    Cancelled,
    /// Its time is over.
    TimedOut,
}

impl InFlight {
    /// Creates the state of an operation.
    pub fn new(user_data: u64, descriptor: i32, is_timeout: bool) -> Self {
        let (is_cancelled, waker) = (AtomicBool::new(false), Mutex::new(None));
        Self { user_data, descriptor, is_timeout, is_cancelled, waker }
    }

    /// Returns whether the operation was cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.is_cancelled.load(Ordering::SeqCst)
    }

    /// Cancels the operation. Returns whether it was not cancelled before.
    pub fn cancel(&self) -> bool {
        let is_first = !self.is_cancelled.swap(true, Ordering::SeqCst);
        let waker = self.waker.lock().take();
        waker.into_iter().for_each(Waker::wake);
        is_first
    }

    /// Waits for a future until the operation is cancelled, or a time of the monotonic clock. A complete future counts
    /// before both.
    pub async fn bounded<F: Future>(
        &self,
        system: &System,
        until_ns: Option<u64>,
        future: F,
    ) -> End<F::Output> {
        let mut future = pin!(future);
        let mut timer = until_ns.map(|until_ns| system.environment.sleep_until(until_ns));
        poll_fn(|context| {
            *self.waker.lock() = Some(context.waker().clone());
            if let Poll::Ready(value) = future.as_mut().poll(context) {
                return Poll::Ready(End::Done(value));
            }
            if self.is_cancelled() {
                return Poll::Ready(End::Cancelled);
            }
            let timed_out = timer.as_mut().is_some_and(|timer| timer.as_mut().poll(context).is_ready());
            if timed_out { Poll::Ready(End::TimedOut) } else { Poll::Pending }
        })
        .await
    }
}
