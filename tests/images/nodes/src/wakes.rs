//! The number of interrupts and cycles to wake a halted core.

use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use isola::ebbs::{CoreIndex, cycles};
use isola::events::{sleep, spawn_on, yield_now};
use isola::prelude::*;
use isola_abi::report::{CorePhase, CoreReport};
use isola_ebbs::platform;

/// The core that is woken.
const OTHER: CoreIndex = CoreIndex(1);

const WAKES: u64 = 200;

/// The cycle counter when the other core ran the event; 0 before.
static RAN: AtomicU64 = AtomicU64::new(0);

/// Wakes the other core repeatedly, each time after it has halted.
pub async fn measure() {
    // Here the timer's interrupt ends the halt.
    for _ in 0..20 {
        sleep(Duration::from_millis(1)).await;
    }
    let report = &platform().report().cores[OTHER.0 as usize];
    wake(report).await;
    let before = report.interrupts.load(Ordering::Relaxed);
    let mut least = u64::MAX;
    for _ in 0..WAKES {
        least = least.min(wake(report).await);
    }
    let interrupts = report.interrupts.load(Ordering::Relaxed) - before;
    println!("{WAKES} wakes, {interrupts} interrupts, {least} cycles at least");
}

/// Returns the cycles from the creation of an event to its run on the other core.
async fn wake(report: &CoreReport) -> u64 {
    let halts = || {
        let phase = report.phase.load(Ordering::Relaxed);
        phase == CorePhase::Halted as u32 || phase == CorePhase::Asleep as u32
    };
    while !halts() {
        yield_now().await;
    }
    // The core halts a moment after it reports that.
    let settled = cycles() + 20_000;
    while cycles() < settled {
        yield_now().await;
    }
    RAN.store(0, Ordering::Relaxed);
    let made = cycles();
    spawn_on(OTHER, || RAN.store(cycles(), Ordering::Relaxed));
    loop {
        match RAN.load(Ordering::Relaxed) {
            0 => yield_now().await,
            ran => return ran.saturating_sub(made),
        }
    }
}
