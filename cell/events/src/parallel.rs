//! Fork-join over the cores of the cell (multicore IncludeOS III): the parts of a computation run one per core, halted
//! cores are woken for them, and the calling core gets the results.

use crate::task::spawn_task_from;
use crate::topology::spreading_order;
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::future::{Future, poll_fn};
use core::panic::Location;
use core::task::{Poll, Waker};
use crossbeam_queue::ArrayQueue;

/// The state that the parts and the waiting task share: a result slot per part, each filled once, a mark per finished
/// part, and the waker for the last one.
struct JoinState<T> {
    results: Box<[ArrayQueue<T>]>,
    done: ArrayQueue<()>,
    waiting: ArrayQueue<Waker>,
}

/// Runs `work(0)` to `work(parts - 1)`, and completes with the results in that order. The first part runs on the
/// calling core, the next ones on one core of each physical core, then on their siblings (see [`spreading_order`]), and
/// so on from the beginning. Each part is a task of its core; the core runs other work while the part awaits.
///
/// Dropping the future discards the results; the parts still run to their end.
#[track_caller]
pub fn parallel<T, F, W>(parts: usize, work: W) -> impl Future<Output = Vec<T>>
where
    T: Send + 'static,
    F: Future<Output = T> + 'static,
    W: Fn(usize) -> F + Send + Sync + 'static,
{
    run_parts(Location::caller(), parts, work)
}

async fn run_parts<T, F, W>(made_at: &'static Location<'static>, parts: usize, work: W) -> Vec<T>
where
    T: Send + 'static,
    F: Future<Output = T> + 'static,
    W: Fn(usize) -> F + Send + Sync + 'static,
{
    let join = Arc::new(JoinState {
        results: (0..parts).map(|_| ArrayQueue::new(1)).collect(),
        done: ArrayQueue::new(parts.max(1)),
        waiting: ArrayQueue::new(1),
    });
    let work = Arc::new(work);
    for (part, core) in (0..parts).zip(spreading_order().into_iter().cycle()) {
        let (join, work) = (join.clone(), work.clone());
        spawn_task_from(made_at, core, move || async move {
            let result = work(part).await;
            // Neither push can fail: each slot gets one result, and `done` has room for a mark per part.
            let _ = join.results[part].push(result);
            let _ = join.done.push(());
            if let Some(waiting) = join.waiting.pop() {
                waiting.wake();
            }
        });
    }
    poll_fn(|context| {
        join.waiting.force_push(context.waker().clone());
        // Checked after the waker is registered, so that no later end of a part goes unnoticed.
        if join.done.len() == parts { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    join.results.iter().filter_map(ArrayQueue::pop).collect()
}
