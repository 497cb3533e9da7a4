//! Tasks: `async` code on events.

use crate::{Outcome, others};
use alloc::rc::Rc;
use alloc::sync::Arc;
use core::cell::Cell;
use core::future::{pending, poll_fn};
use core::sync::atomic::{AtomicBool, Ordering};
use core::task::Poll;
use isola_ebbs::current_core;
use isola_events::{spawn_on, spawn_task, yield_now};

pub async fn an_awaited_task_returns_its_output() -> Outcome {
    let double = |n: u32| {
        spawn_task(async move {
            yield_now().await;
            2 * n
        })
    };
    let (four, five) = (double(4), double(5));
    let sum = four.await + five.await;
    ensure!(sum == 18, "{sum}");
    Ok(())
}

pub async fn a_task_that_is_cancelled_is_dropped() -> Outcome {
    struct Dropped(Rc<Cell<bool>>);
    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.set(true);
        }
    }
    let dropped = Rc::new(Cell::new(false));
    let guard = Dropped(dropped.clone());
    let endless = spawn_task(async move {
        let _guard = guard;
        pending::<()>().await;
    });
    yield_now().await;
    ensure!(!dropped.get(), "dropped while it waits");
    endless.cancel();
    ensure!(dropped.get(), "there after it was cancelled");
    Ok(())
}

pub async fn a_task_that_yields_lets_others_run() -> Outcome {
    let turns = Rc::new(Cell::new(0));
    let counted = turns.clone();
    let other = spawn_task(async move {
        for _ in 0..10 {
            counted.set(counted.get() + 1);
            yield_now().await;
        }
    });
    while turns.get() < 10 {
        let before = turns.get();
        yield_now().await;
        ensure!(turns.get() > before, "the other task did not get its turn");
    }
    other.await;
    Ok(())
}

pub async fn a_task_is_woken_from_another_core() -> Outcome {
    let here = current_core();
    for core in others() {
        let woken = Arc::new(AtomicBool::new(false));
        let mut asked = false;
        poll_fn(|context| {
            if !core::mem::replace(&mut asked, true) {
                let (waker, woken) = (context.waker().clone(), woken.clone());
                spawn_on(core, move || {
                    woken.store(true, Ordering::Release);
                    waker.wake();
                });
                return Poll::Pending;
            }
            if woken.load(Ordering::Acquire) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        ensure!(current_core() == here, "a task of {here:?} goes on at {:?}", current_core());
    }
    Ok(())
}
