//! Idle handlers.

use crate::Outcome;
use alloc::rc::Rc;
use core::cell::Cell;
use core::time::Duration;
use isola_events::idle::{Idle, on_idle};
use isola_events::sleep;

pub async fn an_idle_handler_runs_until_it_is_dropped() -> Outcome {
    let polls = Rc::new(Cell::new(0));
    let counted = polls.clone();
    let handler = on_idle(move || {
        counted.set(counted.get() + 1);
        Idle::KeepPolling
    });
    while polls.get() < 1_000 {
        sleep(Duration::from_micros(100)).await;
    }
    drop(handler);
    let after = polls.get();
    sleep(Duration::from_millis(2)).await;
    ensure!(polls.get() == after, "polled {} times after it was dropped", polls.get() - after);
    Ok(())
}
