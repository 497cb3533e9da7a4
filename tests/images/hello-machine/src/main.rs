//! A test image: prints the machine's properties on the serial line, tries its parts, and ends the machine with exit
//! code 0. The tests read the lines.
#![no_std]
#![no_main]

extern crate alloc;

use alloc::vec::Vec;
use core::panic::PanicInfo;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use isola_machine::apic::local;
use isola_machine::boot::Machine;
use isola_machine::memory::Contents;
use isola_machine::{cpu, interrupts, power, serial_line};

isola_machine::machine_image!(main);
isola_machine::static_heap!(1 << 20);

#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    isola_machine::image::panic_to_serial(info)
}

const TIMER_VECTOR: u8 = 0x40;
const IPI_VECTOR: u8 = 0x41;

static TIMER_CYCLES: AtomicU64 = AtomicU64::new(0);
static IPIS: AtomicU32 = AtomicU32::new(0);
static CALLS: AtomicU64 = AtomicU64::new(0);

fn on_interrupt(vector: u8) {
    match vector {
        TIMER_VECTOR => TIMER_CYCLES.store(cpu::cycles(), Ordering::Relaxed),
        IPI_VECTOR => {
            IPIS.fetch_add(1, Ordering::Relaxed);
        }
        other => panic!("unexpected interrupt {other:#x}"),
    }
}

fn main(mut machine: Machine) -> ! {
    interrupts::set_interrupt_handler(machine.authority, on_interrupt);
    print_inventory(&machine);
    reset_once(&machine);
    try_timer(&machine);
    try_own_interrupt(&machine);
    try_cores(&mut machine);
    if !has_argument(&machine, "quick") {
        try_memory(&mut machine);
    }
    serial_line!("done");
    power::exit(machine.authority, 0)
}

fn print_inventory(machine: &Machine) {
    serial_line!("apic mode: {:?}", local::mode());
    serial_line!(
        "cores: {}, parked {}, lost {}",
        machine.cores.len(),
        machine.parked.len(),
        machine.lost.len()
    );
    for core in &machine.cores {
        serial_line!("core {}: apic {}, node {}", core.id, core.apic.0, core.node.0);
    }
    for (node, region) in &machine.memory {
        let range = region.range();
        serial_line!(
            "memory: {:#x}..{:#x}, node {}, {:?}",
            range.start.0,
            range.end().0,
            node.0,
            region.contents()
        );
    }
    serial_line!("own: {} KiB", machine.own_bytes / 1024);
    let cycles = cpu::cycles() - machine.started_cycles;
    serial_line!("boot: {} us", cycles / (machine.clock.tsc_hz / 1_000_000));
    for device in &machine.devices {
        serial_line!("device: {device}, {:?}", device.kind());
    }
    for module in &machine.modules {
        serial_line!("module: {} bytes", module.len_bytes);
    }
    serial_line!("arguments: {:?}", machine.command_line.arguments);
    serial_line!("tsc: {} Hz", machine.clock.tsc_hz);
    serial_line!("apic timer: {} Hz", machine.clock.apic_timer_hz);
    serial_line!("time: {} s", machine.clock.unix_ns_at_epoch / 1_000_000_000);
}

fn has_argument(machine: &Machine, word: &str) -> bool {
    machine.command_line.arguments.iter().any(|argument| argument == word)
}

/// Resets the machine once, if the argument `reset-once` is given. Memory that is known to be zero shows that no reset
/// has happened yet.
fn reset_once(machine: &Machine) {
    if has_argument(machine, "reset-once")
        && machine.memory.iter().any(|(_, region)| region.contents() == Contents::Zero)
    {
        serial_line!("resetting");
        power::reset(machine.authority);
    }
}

/// A timer of 20 ms ends a halt after 20 ms, not before, and not much later.
fn try_timer(machine: &Machine) {
    let start = cpu::cycles();
    local::arm_timer(machine.authority, TIMER_VECTOR, machine.clock.apic_timer_hz / 50);
    while TIMER_CYCLES.load(Ordering::Relaxed) == 0 {
        interrupts::halt();
    }
    let took_us = (TIMER_CYCLES.load(Ordering::Relaxed) - start) / (machine.clock.tsc_hz / 1_000_000);
    assert!((19_000..2_000_000).contains(&took_us), "a timer of 20 ms took {took_us} us");
    serial_line!("timer: ok");
}

/// An interrupt that is pending before an interrupt window is handled in it; likewise before a halt.
fn try_own_interrupt(machine: &Machine) {
    local::send(machine.authority, local::id(), IPI_VECTOR);
    assert_eq!(IPIS.load(Ordering::Relaxed), 0, "interrupts come in windows alone");
    interrupts::window();
    assert_eq!(IPIS.load(Ordering::Relaxed), 1);
    local::send(machine.authority, local::id(), IPI_VECTOR);
    interrupts::halt();
    assert_eq!(IPIS.load(Ordering::Relaxed), 2);
    interrupts::window();
    assert_eq!(IPIS.load(Ordering::Relaxed), 2);
    serial_line!("interrupts: ok");
}

/// Each core runs a function, a hundred times.
fn try_cores(machine: &mut Machine) {
    for round in 1..=100 {
        for core in &mut machine.parked {
            core.call(|argument| _ = CALLS.fetch_add(argument, Ordering::Relaxed), 1 << (8 * round / 100))
                .expect("the core is idle");
        }
        while !machine.parked.iter().all(|core| core.is_idle()) {
            core::hint::spin_loop();
        }
    }
    let expected: u64 = (1..=100).map(|round| 1 << (8 * round / 100)).sum();
    assert_eq!(CALLS.load(Ordering::Relaxed), expected * machine.parked.len() as u64);
    serial_line!("calls: ok");
}

/// All memory can be written and read back, and memory marked as zero is zero.
fn try_memory(machine: &mut Machine) {
    let mut regions: Vec<_> = machine.memory.drain(..).map(|(_, region)| region).collect();
    for region in &mut regions {
        if region.contents() == Contents::Zero {
            assert!(is_zero(region.bytes()), "{region:?} is not zero");
        }
        let len = region.bytes().len();
        for offset in (0..len).step_by(4096) {
            region.bytes_mut()[offset] = (offset >> 12) as u8;
        }
        assert!((0..len).step_by(4096).all(|offset| region.bytes()[offset] == (offset >> 12) as u8));
        region.scrub();
        assert!((0..len).step_by(4096).all(|offset| region.bytes()[offset] == 0));
    }
    serial_line!("memory: ok");
}

/// Returns whether all bytes are zero; compares eight at a time.
fn is_zero(bytes: &[u8]) -> bool {
    let (words, _) = bytes.as_chunks::<8>();
    words.iter().all(|word| u64::from_ne_bytes(*word) == 0)
}
