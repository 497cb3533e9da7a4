//! The failures of a cell.

use crate::cell_report::{self, print};
use core::hint::black_box;
use core::sync::atomic::Ordering;
use isola_abi::id::{ApicId, NodeId};
use isola_abi::query::SampleAccount;
use isola_abi::report::{CellPhase, CorePhase};
use isola_abi::unplug::CHUNK;
use isola_fault_injection::{InjectedFault, inject, offer_and_keep, send_reserved_vector};
use isola_machine::apic::local;
use isola_machine::cell::samples::SampleSource;
use isola_machine::cell::suspended::{self, NmiAction};
use isola_machine::cell::{self, Cell, report};
use isola_machine::interrupts::{self, NonMaskable, SPURIOUS_VECTOR};
use isola_machine::{cpu, power};

/// Causes the failure with that name.
pub fn cause(fault: &str, number: u64) -> ! {
    match fault {
        "panic" => panic!("number {number} is unlucky"),
        "null" => inject(InjectedFault::NullPointer),
        "foreign-memory" => inject(InjectedFault::ForeignMemory),
        "own-code" => inject(InjectedFault::OwnCode),
        "own-data" => inject(InjectedFault::OwnData),
        "descriptor" => inject(InjectedFault::Descriptor),
        "tables" => inject(InjectedFault::InterruptTable),
        "no-instruction" => inject(InjectedFault::NoInstruction),
        "overflow" => print(format_args!("{}\n", overflow(number))),
        "spin" => spin(),
        "spin-halted" => power::stop(),
        "debug-exit" => power::exit(cell_report::authority(), 0),
        "busy" => busy(),
        "silent" => {
            cell_report::report_phase(CellPhase::Silent);
            spin()
        }
        "flood" => flood(),
        "lie" => lie(),
        "greed" => greed(),
        "strike" => strike(number),
        other => panic!("no fault is called {other:?}"),
    }
    panic!("{fault} went well")
}

#[expect(unconditional_recursion, reason = "the stack has to end somewhere")]
fn overflow(number: u64) -> u64 {
    let frame = black_box([number; 64]);
    overflow(frame[7] + 1) + frame[3]
}

/// Runs with interrupts disabled.
#[inline(never)]
fn spin() -> ! {
    cell_report::core_phase(0, CorePhase::Running);
    loop {
        core::hint::spin_loop();
    }
}

/// Runs, with passes of its loop.
fn busy() -> ! {
    cell_report::core_phase(0, CorePhase::Running);
    loop {
        interrupts::window();
        cell_report::pass();
    }
}

/// Prints and notifies the supervisor endlessly.
fn flood() -> ! {
    loop {
        print(format_args!("{:01000}\n", 0));
        cell_report::report_phase(CellPhase::Running);
    }
}

/// Fills the report with invalid values, then reports a crash.
fn lie() -> ! {
    let report = report();
    report.activity_count.store(u32::MAX, Ordering::Relaxed);
    report.console.written.store(u64::MAX, Ordering::Relaxed);
    report.crash.claimed_by.store(u32::MAX, Ordering::Relaxed);
    report.crash.kind.store(u32::MAX, Ordering::Relaxed);
    report.crash.core_index.store(u32::MAX, Ordering::Relaxed);
    report.crash.message.iter().for_each(|byte| byte.store(0xff, Ordering::Relaxed));
    report.crash.backtrace.iter().for_each(|word| word.store(u64::MAX, Ordering::Relaxed));
    report.cores.iter().for_each(|core| core.phase.store(u32::MAX, Ordering::Relaxed));
    for record in cell::ledger().records() {
        record.name.iter().for_each(|byte| byte.store(0xff, Ordering::Relaxed));
        record.generation.claim();
        record.generation.give_out();
    }
    let counters =
        cell::ledger().records().iter().map(|record| &record.before).chain(cell::ledger().counters());
    for used in counters {
        let words = [&used.cycles, &used.events, &used.memory_bytes];
        words.into_iter().for_each(|word| word.store(u64::MAX, Ordering::Relaxed));
    }
    cell_report::report_phase(CellPhase::Crashed);
    power::stop()
}

/// Requests memory endlessly, with valid and invalid sizes, and ignores the answers.
fn greed() -> ! {
    for number in 0_u64.. {
        let sizes = [0, 1, 2 << 20, 3 << 20, 1 << 30, (1 << 30) + 1, u64::MAX - 1, u64::MAX];
        let [least, most] = [number, number / 8].map(|number| sizes[(number % 8) as usize]);
        cell::request_memory(least, most, NodeId(number as u32));
        if number % 3 == 0 {
            // The number of an earlier request, or of none.
            report().memory_request.number.store(number as u32 % 5, Ordering::Release);
        }
        cell_report::report_phase(CellPhase::Running);
    }
    unreachable!("numbers have no end")
}

/// Sends each exception vector and the spurious vector as an interrupt to all other cores of a machine with `cores`
/// cores, repeatedly.
fn strike(cores: u64) -> ! {
    for _ in 0..20 {
        for vector in (16..32).chain([SPURIOUS_VECTOR]) {
            let others = (0..cores as u32).map(ApicId).filter(|apic| *apic != local::id());
            others.for_each(|apic| send_reserved_vector(cell_report::authority(), apic, vector));
            let start = cpu::cycles();
            while cpu::cycles() - start < 1_000_000 {
                core::hint::spin_loop();
            }
        }
    }
    cell_report::exit(0)
}

/// Offers memory and continues to read it: acknowledges all requests of the supervisor, but does not unmap the memory.
pub fn remember(cell: Cell) -> ! {
    const NO_SAMPLES: SampleSource = SampleSource { account: |_| SampleAccount::Idle, region_word: |_| None };
    let stop_if_asked =
        |frame: &_| match suspended::non_maskable(cell_report::authority(), frame, || {}, &NO_SAMPLES) {
            NmiAction::Stop => NonMaskable::Fatal,
            _ => NonMaskable::Handled,
        };
    interrupts::set_non_maskable_handler(cell_report::authority(), stop_if_asked);
    let chunk_bytes = CHUNK as usize;
    let of = |memory: &[u8]| {
        let start = memory.as_ptr().addr().next_multiple_of(chunk_bytes);
        (start + chunk_bytes <= memory.as_ptr().addr() + memory.len()).then_some(start)
    };
    let block = cell.pool.iter().find_map(|(_, memory)| of(memory)).expect("a whole chunk");
    let number = loop {
        inject(InjectedFault::ReadAt(block));
        let (number, _) = cell::unplug_request();
        if number != cell::settlement().number {
            break number;
        }
    };
    offer_and_keep(cell_report::authority(), number, block, chunk_bytes);
    cell_report::report_phase(CellPhase::Running);
    while cell::settlement().number != number {
        inject(InjectedFault::ReadAt(block));
    }
    inject(InjectedFault::ReadAt(block));
    panic!("memory that is another's can be read");
}
