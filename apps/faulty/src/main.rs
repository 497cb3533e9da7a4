//! Fails on purpose, in the way that its first argument selects: for the demo, for tests, and to show that a crash of
//! one cell does not affect others.
//!
//! `faulty panic | null | write | code | overflow | spin | hog | exhaust | exit CODE | wait`
#![no_std]
#![no_main]

use core::hint::black_box;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use core::time::Duration;
use isola::ebbs::{CoreIndex, current_core};
use isola::events::{sleep, spawn_task, spawn_task_on};
use isola::prelude::*;
use isola::sync::Mutex;
use isola_fault_injection::{InjectedFault, inject};

isola::app!(main);

const USAGE: &str =
    "usage: faulty panic | null | write | code | overflow | spin | hog | exhaust | exit CODE | wait";

async fn main(arguments: Arguments) -> ExitCode {
    match (arguments.get(0), arguments.get(1)) {
        (Some("panic"), None) => panic!("asked to"),
        (Some("null"), None) => inject(InjectedFault::NullPointer),
        (Some("write"), None) => inject(InjectedFault::ForeignMemory),
        (Some("code"), None) => inject(InjectedFault::OwnCode),
        (Some("overflow"), None) => println!("{}", descend(1)),
        (Some("spin"), None) => loop {
            core::hint::spin_loop();
        },
        (Some("hog"), None) => return hog().await,
        (Some("exhaust"), None) => exhaust(),
        (Some("exit"), Some(code)) => match code.parse() {
            Ok(code) => return ExitCode(code),
            Err(_) => println!("{USAGE}"),
        },
        (Some("wait"), None) => {
            isola::stop_requested().await;
            return ExitCode::SUCCESS;
        }
        _ => println!("{USAGE}"),
    }
    ExitCode::USAGE
}

/// The counter that all cores of a hog share. They hold its lock half of the time.
static LEDGER: Mutex<u64> = Mutex::new(0);

/// Runs on each core but the first one event that does not end until the cell gets a stop request, while the first core
/// runs short events; all contend for the same lock. Prints a line when all events run, and the result at the end.
async fn hog() -> ExitCode {
    static ROUNDS: AtomicU64 = AtomicU64::new(0);
    static STARTED: AtomicU32 = AtomicU32::new(0);
    static ENDED: AtomicU32 = AtomicU32::new(0);
    static STOP: AtomicBool = AtomicBool::new(false);
    let others = isola::core_count() as u32 - 1;
    for core in 1..=others {
        spawn_task_on(CoreIndex(core), || async {
            let mine = current_core();
            STARTED.fetch_add(1, Ordering::Relaxed);
            while !STOP.load(Ordering::Relaxed) {
                assert_eq!(sum(), SUM, "registers are as they were");
                let mut ledger = LEDGER.lock();
                assert_eq!(sum(), SUM, "registers are as they were");
                assert_eq!(current_core(), mine, "the event is where it began");
                *ledger += 1;
                ROUNDS.fetch_add(1, Ordering::Relaxed);
            }
            ENDED.fetch_add(1, Ordering::Relaxed);
        });
    }
    let stop = spawn_task(async {
        isola::stop_requested().await;
        STOP.store(true, Ordering::Relaxed);
    });
    stop.detach();
    let (mut ticks, mut is_reported) = (0_u64, false);
    while ENDED.load(Ordering::Relaxed) < others {
        sleep(Duration::from_millis(1)).await;
        *LEDGER.lock() += 1;
        ticks += 1;
        if !is_reported && STARTED.load(Ordering::Relaxed) == others {
            is_reported = true;
            println!("hog: {others} cores");
        }
    }
    let agree = *LEDGER.lock() == ROUNDS.load(Ordering::Relaxed) + ticks;
    println!("hog: ended, {}", if agree { "nothing is lost" } else { "the ledger is wrong" });
    if agree { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

const TERMS: u32 = 2000;
const SUM: (f64, u64) = (1_999_000.0 / 2.0, 1_999_000);

/// Computes a sum in general-purpose and floating-point registers.
fn sum() -> (f64, u64) {
    (0..TERMS).fold((0.0, 0), |(halves, whole), term| {
        (black_box(halves + f64::from(term) / 2.0), black_box(whole + u64::from(term)))
    })
}

/// Recurses until the stack overflows.
#[expect(unconditional_recursion, reason = "overflowing the stack is the purpose")]
fn descend(depth: u64) -> u64 {
    let here = core::hint::black_box([depth; 64]);
    descend(here[63] + 1) + here[0]
}

/// Allocates memory until none is left: first with `try_reserve`, which reports an error, then with an allocation that
/// cannot fail without ending the cell.
fn exhaust() {
    const PIECE: usize = 1 << 20;
    let mut taken: Vec<Vec<u8>> = Vec::new();
    let mut piece = Vec::new();
    while piece.try_reserve_exact(PIECE).is_ok() {
        piece.resize(PIECE, 1);
        taken.push(core::mem::take(&mut piece));
    }
    println!("memory ran out after {} MiB, and the cell goes on", taken.len());
    taken.push(vec![1; PIECE]);
}
