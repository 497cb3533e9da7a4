//! What the event loop itself costs, on threads as cores: `cargo bench -p isola-events`.
//!
//! Each figure is the least of several rounds, as whatever else the machine does only adds. Figures across cores
//! mean something only where the machine has a processor for each.

use isola_ebbs::cycles;
use isola_events::interrupt::on_interrupt;
use isola_events::{Alarm, exit, now, run, spawn, spawn_on, spawn_task, start_task, yield_now};
use isola_hosted::{Hosted, Settings};
use isola_platform::{CoreIndex, Platform};
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

/// Things done in a round.
const COUNT: u64 = 100_000;
const ROUNDS: usize = 20;

fn main() {
    let settings = Settings { cores: 2, ..Settings::default() };
    isola_hosted::run(settings, Vec::new(), |platform| {
        if isola_ebbs::current_core() == CoreIndex(0) {
            spawn_task(measure(platform)).detach();
        }
        run()
    });
}

async fn measure(platform: &'static Hosted) {
    let mut least = [u64::MAX; 7];
    for _ in 0..ROUNDS {
        let round = [
            chain().await,
            batch().await,
            tasks().await,
            started(),
            yields().await,
            other_core().await,
            interrupts(platform).await,
        ];
        least.iter_mut().zip(round).for_each(|(least, cycles)| *least = (*least).min(cycles));
    }
    let names = [
        "spawn to run, one after the other",
        "spawn to run, queued together",
        "task spawned to awaited",
        "ready task started and dropped",
        "yield to next poll",
        "spawn on another core and back",
        "interrupt to handler to task",
    ];
    let second_cycles = platform.clock().cycles(now() + Duration::from_secs(1)) - cycles();
    for (name, cycles) in names.iter().zip(least) {
        let ns = cycles as f64 / COUNT as f64 * 1e9 / second_cycles as f64;
        println!("{name:<36} {ns:>9.1} ns {:>9.1} cycles", cycles as f64 / COUNT as f64);
    }
    println!("{:<36} {:>9.1} ns", "alarm due to handler", alarm().await);
    exit(0);
}

/// An event that makes the next.
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

/// Many events, made before the first of them runs.
async fn batch() -> u64 {
    let mut spent = 0;
    for _ in 0..COUNT / 100 {
        let start = cycles();
        for _ in 0..100 {
            spawn(|| ());
        }
        yield_now().await;
        spent += cycles() - start;
    }
    spent
}

async fn tasks() -> u64 {
    let start = cycles();
    for _ in 0..COUNT {
        spawn_task(async {}).await;
    }
    cycles() - start
}

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

/// A message to the second core, which answers; both run, so that nobody is woken.
async fn other_core() -> u64 {
    const TRIPS: u64 = 1_000;
    let start = cycles();
    for _ in 0..TRIPS {
        let (core, waker) = (CoreIndex(1), std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false)));
        let answered = waker.clone();
        spawn_on(core, move || answered.store(true, std::sync::atomic::Ordering::Release));
        while !waker.load(std::sync::atomic::Ordering::Acquire) {
            yield_now().await;
        }
    }
    (cycles() - start) * (COUNT / TRIPS)
}

async fn interrupts(platform: &'static Hosted) -> u64 {
    const VECTOR: u8 = 0x41;
    let came = Rc::new(Cell::new(0));
    let count = came.clone();
    let _interrupt = on_interrupt(VECTOR, move || count.set(count.get() + 1));
    let start = cycles();
    for number in 1..=COUNT {
        platform.interrupt(CoreIndex(0), VECTOR);
        while came.get() < number {
            yield_now().await;
        }
    }
    cycles() - start
}

/// How late an alarm rings on a core that is awake.
async fn alarm() -> f64 {
    let mut least = f64::MAX;
    for _ in 0..1_000 {
        let deadline = now() + Duration::from_micros(20);
        let rung = Rc::new(Cell::new(None));
        let at = rung.clone();
        let alarm = Alarm::new(move || at.set(Some(now())));
        alarm.set(Some(deadline));
        while rung.get().is_none() {
            yield_now().await;
        }
        least = rung.get().map_or(least, |rung| least.min((rung - deadline).as_nanos() as f64));
    }
    least
}
