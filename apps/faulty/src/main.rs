//! Goes wrong on purpose, in the way that its first argument says: for the demo, for tests, and for whoever wants to
//! see what a crash looks like and that nobody else feels it.
//!
//! `faulty panic | null | write | code | overflow | spin | hog | exhaust | exit CODE | wait`
#![no_std]
#![no_main]

use core::hint::black_box;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use core::time::Duration;
use isola::ebbs::{CoreIndex, current_core};
use isola::events::{sleep, spawn_task, spawn_task_on};
use isola::fault_injection::{InjectedFault, inject};
use isola::prelude::*;
use isola::sync::Mutex;

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

/// What the cores of a hog share, and hold half of the time.
static LEDGER: Mutex<u64> = Mutex::new(0);

/// Has each core but the first run one event that does not end until the cell is asked to stop, while the first goes on
/// with short ones; all want the same lock. Tells when all are at work, and what came of it.
async fn hog() -> ExitCode {
    static ROUNDS: AtomicU64 = AtomicU64::new(0);
    static BEGUN: AtomicU32 = AtomicU32::new(0);
    static ENDED: AtomicU32 = AtomicU32::new(0);
    static STOP: AtomicBool = AtomicBool::new(false);
    let others = isola::core_count() as u32 - 1;
    for core in 1..=others {
        spawn_task_on(CoreIndex(core), || async {
            let mine = current_core();
            BEGUN.fetch_add(1, Ordering::Relaxed);
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
    let (mut ticks, mut told) = (0_u64, false);
    while ENDED.load(Ordering::Relaxed) < others {
        sleep(Duration::from_millis(1)).await;
        *LEDGER.lock() += 1;
        ticks += 1;
        if !told && BEGUN.load(Ordering::Relaxed) == others {
            told = true;
            println!("hog: {others} cores");
        }
    }
    let agree = *LEDGER.lock() == ROUNDS.load(Ordering::Relaxed) + ticks;
    println!("hog: ended, {}", if agree { "nothing is lost" } else { "the ledger is wrong" });
    if agree { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

const TERMS: u32 = 2000;
const SUM: (f64, u64) = (1_999_000.0 / 2.0, 1_999_000);

/// A sum that is in registers while it is made, of both kinds.
fn sum() -> (f64, u64) {
    (0..TERMS).fold((0.0, 0), |(halves, whole), term| {
        (black_box(halves + f64::from(term) / 2.0), black_box(whole + u64::from(term)))
    })
}

/// Recurses until the stack ends.
#[expect(unconditional_recursion, reason = "overflowing the stack is the purpose")]
fn descend(depth: u64) -> u64 {
    let here = core::hint::black_box([depth; 64]);
    descend(here[63] + 1) + here[0]
}

/// Takes memory until there is none: first as somebody who can go on without, then as somebody who cannot.
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
