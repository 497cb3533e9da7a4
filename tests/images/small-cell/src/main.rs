//! A test image: a cell that checks its environment, and ends as its first argument says:
//!
//! | argument | end |
//! |---|---|
//! | none, or another | reports its exit and notifies the supervisor |
//! | `spin` | reports that it runs, and spins with interrupts disabled |
//! | `wait` | halts until it is asked to stop |
//! | `panic` | panics |
//! | `overflow` | overflows the stack |
//! | an injected fault, such as `NullPointer` | injects it |
//!
//! The other cores report that they have entered, and halt. A standalone cell prints its end on the serial line, and
//! ends the machine: with exit code 0 if that was the expected end.
#![no_std]
#![no_main]

extern crate alloc;

use core::panic::PanicInfo;
use core::sync::atomic::{AtomicU32, Ordering};
use isola_abi::descriptor::{NotificationTarget, Request};
use isola_abi::report::{CellPhase, CorePhase, CrashKind, CrashReport};
use isola_fault_injection::{InjectedFault, inject};
use isola_machine::apic::local;
use isola_machine::authority::Authority;
use isola_machine::cell::{Cell, report, request};
use isola_machine::interrupts::{self, ExceptionFrame, vector};
use isola_machine::{backtrace, cpu, power, serial_line};
use spin::Once;

isola_machine::cell_image!(entry);
isola_machine::static_heap!(256 << 10);

const TIMER_VECTOR: u8 = 0x40;

const INJECTED_FAULTS: [InjectedFault; 8] = [
    InjectedFault::NullPointer,
    InjectedFault::ForeignMemory,
    InjectedFault::OwnCode,
    InjectedFault::OwnData,
    InjectedFault::OwnStack,
    InjectedFault::Descriptor,
    InjectedFault::InterruptTable,
    InjectedFault::NoInstruction,
];

/// The destination of notifications: the supervisor's APIC id + 1, and the vector; zero if there is none.
static NOTIFICATION: [AtomicU32; 2] = [const { AtomicU32::new(0) }; 2];

/// The authority for the handlers of exceptions and panics. Empty until the cell is open.
static AUTHORITY: Once<Authority> = Once::new();

#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    if NOTIFICATION[0].load(Ordering::Relaxed) == 0 {
        serial_line!("{info}");
    }
    crash(CrashKind::Panic, backtrace::frame_pointer(), |_| {})
}

fn entry(core_index: u64) -> ! {
    report().cores[core_index as usize].phase.store(CorePhase::Halted as u32, Ordering::Release);
    if core_index != 0 {
        loop {
            interrupts::halt();
        }
    }
    let mut cell = Cell::open().unwrap_or_else(|error| panic!("{error}"));
    AUTHORITY.call_once(|| cell.authority);
    interrupts::set_exception_handler(cell.authority, on_exception);
    if let Some(NotificationTarget { apic, vector }) = cell.descriptor.supervisor {
        NOTIFICATION[1].store(vector.into(), Ordering::Relaxed);
        NOTIFICATION[0].store(apic.0 + 1, Ordering::Relaxed);
    }
    report().version.store(cell.descriptor.version, Ordering::Relaxed);
    check_guarantees(&mut cell);
    report().phase.store(CellPhase::Running as u32, Ordering::Release);
    let argument = cell.descriptor.arguments.first().map_or("", |argument| argument.as_str());
    match argument {
        "spin" => loop {
            report().cores[0].passes.fetch_add(1, Ordering::Relaxed);
            core::hint::spin_loop();
        },
        "panic" => panic!("as the argument says"),
        "overflow" => {
            let used = overflow(1);
            panic!("{used} frames fit on the stack");
        }
        "wait" => {
            while request() != Request::Stop {
                interrupts::halt();
            }
        }
        name => {
            if let Some(fault) = INJECTED_FAULTS.into_iter().find(|fault| alloc::format!("{fault:?}") == name)
            {
                inject(fault);
                panic!("nothing has stopped {fault:?}");
            }
        }
    }
    report().exit_code.store(42, Ordering::Relaxed);
    end(CellPhase::Exited)
}

/// Checks the guarantees to a cell: its memory is zero and its own, and its timer fires.
fn check_guarantees(cell: &mut Cell) {
    let descriptor = &cell.descriptor;
    assert_eq!(local::id(), descriptor.cores[0].apic);
    assert!(
        cell.pool.iter().map(|(_, range)| range.len()).sum::<usize>() > 0x8_0000,
        "the pool is too small"
    );
    for (_, range) in &mut cell.pool {
        let (words, rest) = range.as_chunks_mut::<8>();
        assert!(
            rest.is_empty() && words.iter().all(|word| u64::from_ne_bytes(*word) == 0),
            "the pool is zero"
        );
        words.fill([0xff; 8]);
    }
    let start = cpu::cycles();
    local::arm_timer(cell.authority, TIMER_VECTOR, descriptor.clock.apic_timer_hz / 1000);
    interrupts::halt();
    let took = cpu::cycles() - start;
    assert!(took > descriptor.clock.tsc_hz / 1100, "a timer of 1 ms took {took} cycles");
}

/// Uses stack endlessly. Returns the number of frames, if the recursion ends.
#[expect(unconditional_recursion, reason = "the overflow is intended")]
#[inline(never)]
fn overflow(depth: u64) -> u64 {
    let frame = [depth; 64];
    core::hint::black_box(&frame);
    overflow(depth + 1) + frame[(depth % 64) as usize]
}

fn on_exception(frame: &ExceptionFrame) -> ! {
    let kind = match frame.vector {
        vector::DOUBLE_FAULT => CrashKind::DoubleFault,
        vector::NON_MASKABLE => CrashKind::Hang,
        _ => CrashKind::Exception,
    };
    if NOTIFICATION[0].load(Ordering::Relaxed) == 0 {
        serial_line!("{frame}, address {:#x}", cpu::fault_address());
    }
    crash(kind, frame.rbp, |crash| {
        crash.vector.store(frame.vector as u32, Ordering::Relaxed);
        crash.error_code.store(frame.error_code, Ordering::Relaxed);
        crash.fault_address.store(cpu::fault_address(), Ordering::Relaxed);
        crash.instruction.store(frame.rip, Ordering::Relaxed);
        crash.stack_pointer.store(frame.rsp, Ordering::Relaxed);
    })
}

fn crash(kind: CrashKind, frame_pointer: u64, fill: impl FnOnce(&CrashReport)) -> ! {
    let crash = &report().crash;
    if crash.claimed_by.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed).is_err() {
        power::stop();
    }
    crash.kind.store(kind as u32, Ordering::Relaxed);
    fill(crash);
    let mut addresses = [0; 32];
    backtrace::walk(frame_pointer, &mut addresses);
    for (place, address) in crash.backtrace.iter().zip(addresses) {
        place.store(address, Ordering::Relaxed);
    }
    end(CellPhase::Crashed)
}

/// Reports the cell's end to the supervisor or, standalone, on the serial line; and ends the cell.
fn end(phase: CellPhase) -> ! {
    report().phase.store(phase as u32, Ordering::Release);
    let supervisor = NOTIFICATION[0].load(Ordering::Relaxed);
    if supervisor == 0 {
        let cores = report().cores.iter();
        let cores =
            cores.filter(|core| core.phase.load(Ordering::Acquire) == CorePhase::Halted as u32).count();
        serial_line!("{phase:?} with {cores} cores");
        let Some(authority) = AUTHORITY.get() else { power::stop() };
        power::exit(*authority, if phase == CellPhase::Exited { 0 } else { 1 });
    }
    if let Some(authority) = AUTHORITY.get() {
        let vector = NOTIFICATION[1].load(Ordering::Relaxed) as u8;
        local::send(*authority, isola_abi::id::ApicId(supervisor - 1), vector);
    }
    power::stop()
}
