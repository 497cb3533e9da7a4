//! Futures without an event loop.

use std::future::Future;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

/// The most polls of a future. One that needs more is assumed to wait for an event that the test does not cause.
const MOST_POLLS: usize = 1_000_000;

/// Runs a future to its end.
///
/// # Panics
/// If it does not end.
pub fn run<T>(future: impl Future<Output = T>) -> T {
    run_with(future, || ())
}

/// Runs a future to its end, with a call of `between` after each poll that did not complete it.
///
/// # Panics
/// If it does not end.
pub fn run_with<T>(future: impl Future<Output = T>, mut between: impl FnMut()) -> T {
    let mut future = pin!(future);
    for _ in 0..MOST_POLLS {
        if let Poll::Ready(value) = poll_once(future.as_mut()) {
            return value;
        }
        between();
    }
    panic!("a future is not complete after {MOST_POLLS} polls");
}

/// Polls a future once.
pub fn poll_once<F: Future + ?Sized>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}
