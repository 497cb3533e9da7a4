//! Blocking code on fibers.

use crate::{BrokenGuarantee, Outcome};
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::Cell;
use core::time::Duration;
use isola_ebbs::current_core;
use isola_events::future::join_all;
use isola_events::{parallel, sleep, spawn_task, yield_now};
use isola_fibers::{FiberError, block_on, spawn_fiber};

/// Blocks at a call depth of `depth`, with data on the stack of each call.
fn descend(depth: u64) -> u64 {
    let on_stack = core::hint::black_box([depth; 8]);
    if depth == 0 {
        block_on(sleep(Duration::from_micros(50)));
        return 0;
    }
    if depth.is_multiple_of(5) {
        block_on(yield_now());
    }
    descend(depth - 1) + on_stack[7]
}

fn no_stack(error: FiberError) -> BrokenGuarantee {
    BrokenGuarantee(alloc::format!("{error}"))
}

pub async fn fibers_block_at_any_call_depth_while_events_run() -> Outcome {
    let turns = Rc::new(Cell::new(0));
    let count = turns.clone();
    let turning = spawn_task(async move {
        loop {
            count.set(count.get() + 1);
            yield_now().await;
        }
    })
    .cancel_on_drop();
    let fibers =
        (0..20).map(|_| spawn_fiber(|| descend(30))).collect::<Result<Vec<_>, _>>().map_err(no_stack)?;
    let sums = join_all(fibers).await;
    drop(turning);
    ensure!(sums.iter().all(|sum| *sum == 465), "{sums:?}");
    ensure!(turns.get() > 5, "events ran {} times beside fibers", turns.get());
    Ok(())
}

pub async fn fibers_stay_on_their_core_and_use_stacks_again() -> Outcome {
    let cores = parallel(2 * crate::cores(), |_| async {
        let mut cores = Vec::new();
        for _ in 0..20 {
            let fiber = spawn_fiber(|| {
                block_on(yield_now());
                current_core()
            });
            match fiber {
                Ok(fiber) => cores.push(fiber.await == current_core()),
                Err(_) => cores.push(false),
            }
        }
        cores
    })
    .await;
    ensure!(cores.iter().flatten().all(|stayed| *stayed), "a fiber moved, or had no stack: {cores:?}");
    Ok(())
}
