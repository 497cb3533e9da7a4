//! Waking a core that halts: how many interrupts that takes, and how many cycles.

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

/// When the other core ran what it was woken for, by the cycle counter; 0 until then.
static RAN: AtomicU64 = AtomicU64::new(0);

/// Wakes the other core again and again, each time when it halts.
pub async fn measure() {
    // What ends a halt here is the timer's interrupt.
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

/// Cycles from an event's being made to its run on the other core.
async fn wake(report: &CoreReport) -> u64 {
    let halts = || {
        let phase = report.phase.load(Ordering::Relaxed);
        phase == CorePhase::Halted as u32 || phase == CorePhase::Asleep as u32
    };
    while !halts() {
        yield_now().await;
    }
    // From saying that it halts to halting takes it a moment.
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
