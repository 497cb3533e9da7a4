//! A test image: a cell on the machine layer alone. Its first argument selects an action, in most cases a failure.
#![no_std]
#![no_main]

extern crate alloc;

mod grow;
mod said;
mod wrong;

use alloc::string::String;
use alloc::vec::Vec;
use core::panic::PanicInfo;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use isola_abi::descriptor::{Descriptor, FIRST_FREE_VECTOR, REQUEST_VECTOR, Request};
use isola_abi::id::NodeId;
use isola_abi::report::{CellPhase, CorePhase, CrashKind};
use isola_machine::apic::local;
use isola_machine::cell::{self, Cell};
use isola_machine::dma::{Access, device_piece};
use isola_machine::interrupts::FIRST_INTERRUPT;
use isola_machine::{clock, cpu, interrupts};
use said::{exit, print, say};

isola_machine::cell_image!(entry);
isola_machine::static_heap!(256 << 10);

/// The interrupt by which the first core wakes another, and another signals the first that it woke.
const WAKE_VECTOR: u8 = FIRST_FREE_VECTOR;
/// The timer's interrupt.
const TIMER_VECTOR: u8 = FIRST_FREE_VECTOR + 1;

/// Whether the other cores should wake. Interrupts only make them check it, as an interrupt before a core is in the
/// cell is lost.
static WAKE: AtomicBool = AtomicBool::new(false);
/// The number of cores that have woken.
static WOKEN: AtomicU32 = AtomicU32::new(0);
static TIMER: AtomicBool = AtomicBool::new(false);

#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    said::crash(CrashKind::Panic, &said::Place::here(), format_args!("{info}"))
}

fn on_interrupt(vector: u8) {
    match vector {
        TIMER_VECTOR => TIMER.store(true, Ordering::Relaxed),
        // The code after the halt acts on these interrupts.
        WAKE_VECTOR | REQUEST_VECTOR => {}
        // Vectors that the action `strike` of another cell sends.
        16..FIRST_INTERRUPT => {}
        other => panic!("unexpected interrupt {other:#x}"),
    }
}

fn entry(core_index: u64) -> ! {
    if core_index > 0 {
        other_core(core_index as usize);
    }
    let cell = Cell::open().expect("a descriptor");
    let authority = said::open(cell.authority);
    interrupts::set_interrupt_handler(authority, on_interrupt);
    interrupts::set_exception_handler(authority, said::exception);
    cell::enter_slot(authority, 0);
    said::begin(&cell.descriptor);
    say(CellPhase::Running);
    let arguments: Vec<&str> = cell.descriptor.arguments.iter().map(String::as_str).collect();
    let number = arguments.get(1).and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
    match arguments.first().copied().unwrap_or("exit") {
        "exit" => {
            print(format_args!(
                "hello from {} on {} cores\n",
                cell.descriptor.name,
                cell.descriptor.cores.len()
            ));
            exit(number as i32)
        }
        "serve" => serve(),
        "rouse" => rouse(&cell.descriptor),
        "print" => print_lines(number),
        "cores" => wake_cores(&cell.descriptor),
        "timer" => wait_for_timer(&cell.descriptor, number),
        "memory" => exit(check_memory(cell.pool)),
        "grow" => grow::go(&cell.descriptor, number, grow::Use::All),
        "ask" => grow::go(&cell.descriptor, number, grow::Use::Nothing),
        "devices" => exit(cell.devices.len() as i32),
        "lend" => exit(lend_image()),
        "remember" => wrong::remember(cell),
        wrong => wrong::go(wrong, number),
    }
}

/// The code of all cores but the first: halts until woken, signals the first core, and halts again.
fn other_core(index: usize) -> ! {
    cell::enter_slot(said::authority(), index);
    while !WAKE.load(Ordering::SeqCst) {
        interrupts::halt();
    }
    said::core_phase(index, CorePhase::Running);
    WOKEN.fetch_add(1, Ordering::SeqCst);
    local::send(said::authority(), said::first_core(), WAKE_VECTOR);
    loop {
        said::core_phase(index, CorePhase::Halted);
        interrupts::halt();
    }
}

/// Halts until it is asked to stop.
fn serve() -> ! {
    while cell::request() != Request::Stop {
        said::core_phase(0, CorePhase::Halted);
        interrupts::halt();
        said::core_phase(0, CorePhase::Running);
        said::pass();
    }
    print(format_args!("stopping, as asked\n"));
    exit(0)
}

/// Makes the supervisor check itself for a hang, by repeated NMIs, until it is asked to stop.
fn rouse(descriptor: &Descriptor) -> ! {
    while cell::request() != Request::Stop {
        clock::spin_us(&descriptor.clock, 20_000);
        if let Some(target) = descriptor.supervisor {
            local::send_non_maskable(said::authority(), target.apic);
        }
    }
    exit(0)
}

fn print_lines(count: u64) -> ! {
    for number in 0..count {
        print(format_args!("line {number}\n"));
    }
    exit(0)
}

/// Wakes the other cores, and exits with the number of those that answered.
fn wake_cores(descriptor: &Descriptor) -> ! {
    let others = descriptor.cores.iter().skip(1);
    WAKE.store(true, Ordering::SeqCst);
    for core in others.clone() {
        local::send(said::authority(), core.apic, WAKE_VECTOR);
    }
    while WOKEN.load(Ordering::SeqCst) < others.len() as u32 {
        interrupts::halt();
    }
    exit(WOKEN.load(Ordering::SeqCst) as i32)
}

fn wait_for_timer(descriptor: &Descriptor, ms: u64) -> ! {
    let start = cpu::cycles();
    local::arm_timer(said::authority(), TIMER_VECTOR, descriptor.clock.apic_timer_hz / 1000 * ms);
    while !TIMER.load(Ordering::Relaxed) {
        interrupts::halt();
    }
    let took_ms = (cpu::cycles() - start) / (descriptor.clock.tsc_hz / 1000);
    print(format_args!("{took_ms} ms\n"));
    exit(i32::from(took_ms + 1 < ms))
}

/// Returns the number of errors in the rules that devices may read code, constants and variables, and write to
/// variables only.
fn lend_image() -> i32 {
    static CONSTANT: [u8; 8] = *b"constant";
    let code = entry as fn(u64) -> ! as *const u8;
    let (constant, variable) = (CONSTANT.as_ptr(), WOKEN.as_ptr().cast_const().cast::<u8>());
    let may = |address, access| device_piece(address, 4, access).is_some();
    let reads = [code, constant, variable].map(|address| may(address, Access::DeviceReads));
    let writes = [code, constant, variable].map(|address| may(address, Access::DeviceWrites));
    let expected = [true, true, true, false, false, true];
    reads.iter().chain(&writes).zip(expected).map(|(may, expected)| i32::from(*may != expected)).sum()
}

/// Returns the number of nonzero words, and makes every page nonzero.
fn check_memory(pool: impl IntoIterator<Item = (NodeId, &'static mut [u8])>) -> i32 {
    let mut dirty = 0;
    for (_, memory) in pool {
        let (words, _) = memory.as_chunks_mut::<8>();
        for word in words {
            dirty += i32::from(*word != [0; 8]);
            *word = *b"secret! ";
        }
    }
    dirty
}
