//! A future of another core, awaited here.

use crate::task::spawn_task_on;
use alloc::sync::Arc;
use core::future::{Future, poll_fn};
use core::task::{Poll, Waker};
use crossbeam_queue::ArrayQueue;
use isola_platform::CoreIndex;

/// What the future that `make` makes on `core` gives, for the activity that asks. The future is made there, so that it
/// need not be `Send`.
///
/// It runs on when who awaits this gives up.
///
/// # Panics
/// Where the cell has no such core.
pub async fn elsewhere<T, F>(core: CoreIndex, make: impl FnOnce() -> F + Send + 'static) -> T
where
    T: Send + 'static,
    F: Future<Output = T> + 'static,
{
    let output = Arc::new(ArrayQueue::<T>::new(1));
    let waiting = Arc::new(ArrayQueue::<Waker>::new(1));
    let (there, waiting_there) = (output.clone(), waiting.clone());
    spawn_task_on(core, move || async move {
        // There is room: this is the only output.
        let _ = there.push(make().await);
        if let Some(waiting) = waiting_there.pop() {
            waiting.wake();
        }
    });
    poll_fn(|context| {
        waiting.force_push(context.waker().clone());
        // After the waker is in place: an output that comes from here on finds it.
        output.pop().map_or(Poll::Pending, Poll::Ready)
    })
    .await
}
