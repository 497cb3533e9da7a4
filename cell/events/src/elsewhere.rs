//! Futures of another core, awaited on this one.

use crate::task::spawn_task_on;
use alloc::sync::Arc;
use core::future::{Future, poll_fn};
use core::task::{Poll, Waker};
use crossbeam_queue::ArrayQueue;
use isola_platform::CoreIndex;

/// Runs the future that `make` creates on `core`, for the current activity, and completes with its output. `make` runs
/// on that core, so its future need not be `Send`.
///
/// If the caller drops this future, the other one still runs to its end.
///
/// # Panics
/// If the cell has no such core.
pub async fn elsewhere<T, F>(core: CoreIndex, make: impl FnOnce() -> F + Send + 'static) -> T
where
    T: Send + 'static,
    F: Future<Output = T> + 'static,
{
    let output = Arc::new(ArrayQueue::<T>::new(1));
    let waiting = Arc::new(ArrayQueue::<Waker>::new(1));
    let (there, waiting_there) = (output.clone(), waiting.clone());
    spawn_task_on(core, move || async move {
        // This cannot fail: it is the only output.
        let _ = there.push(make().await);
        if let Some(waiting) = waiting_there.pop() {
            waiting.wake();
        }
    });
    poll_fn(|context| {
        waiting.force_push(context.waker().clone());
        // Checked after the waker is registered, so that no later output goes unnoticed.
        output.pop().map_or(Poll::Pending, Poll::Ready)
    })
    .await
}
