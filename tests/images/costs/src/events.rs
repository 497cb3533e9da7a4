//! Costs of events: from the creation of an event, or from its cause, to the handler.

use crate::say;
use alloc::rc::Rc;
use alloc::sync::Arc;
use core::cell::Cell;
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use isola::alloc;
use isola::ebbs::{CoreIndex, current_core, cycles};
use isola::events::interrupt::allocate_interrupt;
use isola::events::{Alarm, must_yield, now, spawn, spawn_on, spawn_task, start_task, yield_now};
use isola_ebbs::platform;

/// The operations of a round.
const COUNT: u64 = 10_000;

const ROUNDS: u32 = 20;

/// The time by which alarms are in the future: longer than setting one takes.
const AHEAD: Duration = Duration::from_micros(50);

/// Measures all kinds of events.
pub async fn measure() {
    let mut least = [u64::MAX; 7];
    for _ in 0..ROUNDS {
        let round = [
            chain().await,
            tasks().await,
            started(),
            yields().await,
            checks().await,
            interrupts().await,
            alarms().await,
        ];
        least.iter_mut().zip(round).for_each(|(least, cycles)| *least = (*least).min(cycles));
    }
    let names = ["spawn", "task", "start-task", "yield", "yield-check", "interrupt", "alarm"];
    names.iter().zip(least).for_each(|(name, cycles)| say(name, cycles, COUNT));
    if isola::core_count() > 1 {
        let mut least = u64::MAX;
        for _ in 0..ROUNDS {
            least = least.min(other_core().await);
        }
        say("other-core", least, COUNT);
    }
}

/// Returns the rate of the cycle counter.
pub fn cycles_per_second() -> u64 {
    let clock = platform().clock();
    let here = now();
    clock.cycles(here + Duration::from_secs(1)) - clock.cycles(here)
}

/// An event that creates the next one.
async fn chain() -> u64 {
    fn next(left: u64, done: Rc<Cell<bool>>) {
        match left {
            0 => done.set(true),
            _ => spawn(move || next(left - 1, done)),
        }
    }
    let start = cycles();
    let done = Rc::new(Cell::new(false));
    next(COUNT, done.clone());
    while !done.get() {
        yield_now().await;
    }
    // Half of the events were the yields.
    (cycles() - start) / 2
}

/// Tasks that are queued, run and awaited.
async fn tasks() -> u64 {
    let start = cycles();
    for _ in 0..COUNT {
        spawn_task(async {}).await;
    }
    cycles() - start
}

/// Tasks that are ready at once, and are not queued.
fn started() -> u64 {
    let start = cycles();
    for _ in 0..COUNT {
        start_task(async {}).detach();
    }
    cycles() - start
}

async fn yields() -> u64 {
    let start = cycles();
    for _ in 0..COUNT {
        yield_now().await;
    }
    cycles() - start
}

/// Checks whether to yield, in events that need not.
async fn checks() -> u64 {
    const IN_AN_EVENT: u64 = 1_000;
    let mut sum = 0;
    for _ in 0..COUNT / IN_AN_EVENT {
        yield_now().await;
        let start = cycles();
        for _ in 0..IN_AN_EVENT {
            core::hint::black_box(must_yield());
        }
        sum += cycles() - start;
    }
    sum
}

/// Raises an interrupt on this core, up to its handler.
async fn interrupts() -> u64 {
    let at = Rc::new(Cell::new(0));
    let handled = at.clone();
    let Ok(interrupt) = allocate_interrupt(move || handled.set(cycles())) else { return u64::MAX };
    let mut sum = 0;
    for _ in 0..COUNT {
        at.set(0);
        let start = cycles();
        platform().interrupt(current_core(), interrupt.vector());
        while at.get() == 0 {
            yield_now().await;
        }
        sum += at.get() - start;
    }
    sum
}

/// The time from an alarm's deadline to its handler, on an idle core: the core is halted until the hardware timer's
/// interrupt. Uses the least of a hundred for all.
async fn alarms() -> u64 {
    let mut least = u64::MAX;
    for _ in 0..100 {
        let at = Rc::new(Cell::new(0));
        let rung = at.clone();
        let alarm = Alarm::new(move || rung.set(cycles()));
        let deadline = now() + AHEAD;
        let due = platform().clock().cycles(deadline);
        alarm.set(Some(deadline));
        // Another alarm wakes this task later.
        isola::events::sleep_until(deadline + AHEAD).await;
        least = least.min(at.get().saturating_sub(due));
    }
    least.saturating_mul(COUNT)
}

/// An event on another core, and its answer; both cores are awake.
async fn other_core() -> u64 {
    const TRIPS: u64 = 500;
    let start = cycles();
    for _ in 0..TRIPS {
        let answered = Arc::new(AtomicBool::new(false));
        let answer = answered.clone();
        spawn_on(CoreIndex(1), move || answer.store(true, Ordering::Release));
        while !answered.load(Ordering::Acquire) {
            yield_now().await;
        }
    }
    (cycles() - start) * COUNT / TRIPS
}
