//! Fork-join over the cores of the cell (multicore IncludeOS III): the parts of one piece of work run one a core,
//! cores that sleep are woken for it, and the core that asked gets the results.

use crate::task::spawn_task_from;
use crate::topology::spreading_order;
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::future::{Future, poll_fn};
use core::panic::Location;
use core::task::{Poll, Waker};
use crossbeam_queue::ArrayQueue;

/// What the parts and the asking task share: a slot a part, each filled once, and whom to wake for the last.
struct Join<T> {
    results: Box<[ArrayQueue<T>]>,
    done: ArrayQueue<()>,
    waiting: ArrayQueue<Waker>,
}

/// Runs `work(0)` to `work(parts - 1)`, and completes with the results in that order. The first part runs on the calling
/// core, the next ones on a physical core each, then on their siblings (see [`spreading_order`]), and so on from the
/// beginning. Each part is a task of its core: where it awaits, the core goes on with other work.
///
/// Dropping the future loses the results; the parts run to their end.
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
    let join = Arc::new(Join {
        results: (0..parts).map(|_| ArrayQueue::new(1)).collect(),
        done: ArrayQueue::new(parts.max(1)),
        waiting: ArrayQueue::new(1),
    });
    let work = Arc::new(work);
    for (part, core) in (0..parts).zip(spreading_order().into_iter().cycle()) {
        let (join, work) = (join.clone(), work.clone());
        spawn_task_from(made_at, core, move || async move {
            let result = work(part).await;
            // Both have room: a slot takes its one result, and `done` a mark a part.
            let _ = join.results[part].push(result);
            let _ = join.done.push(());
            if let Some(waiting) = join.waiting.pop() {
                waiting.wake();
            }
        });
    }
    poll_fn(|context| {
        join.waiting.force_push(context.waker().clone());
        // After the waker is in place: a part that ends from here on finds it.
        if join.done.len() == parts { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    join.results.iter().filter_map(ArrayQueue::pop).collect()
}
