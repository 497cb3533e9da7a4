//! A test image: allocates the machine to cells and takes all resources back. It gets a cell image as a module (QEMU:
//! `-initrd`), and the number of rounds as an argument.
//!
//! Each round builds a cell with nearly all memory and all other cores, ends it in one of several ways, takes all
//! resources back, and checks that all came back and the memory is zero.
#![no_std]
#![no_main]

extern crate alloc;

use alloc::string::String;
use alloc::vec::Vec;
use core::panic::PanicInfo;
use core::sync::atomic::{AtomicU32, Ordering};
use elf::ElfBytes;
use elf::endian::LittleEndian;
use isola_abi::descriptor::{Descriptor, HaltMode, NotificationTarget, Request};
use isola_abi::id::{CellId, PhysRange};
use isola_abi::network_service::NetworkService;
use isola_abi::note::ImageNote;
use isola_abi::report::{CellPhase, CorePhase, CrashKind, Report};
use isola_machine::apic::local;
use isola_machine::boot::Machine;
use isola_machine::device::Device;
use isola_machine::memory::Region;
use isola_machine::paging::Rights;
use isola_machine::smp::{AwayCore, ParkedCore};
use isola_machine::space::{CellSpace, Plan, Segment, SegmentBytes, needed_bytes};
use isola_machine::{cpu, interrupts, power, serial_line};

isola_machine::machine_image!(main);
isola_machine::static_heap!(2 << 20);

const NOTIFICATION_VECTOR: u8 = 0x50;
const TIMER_VECTOR: u8 = 0x51;

static NOTIFICATIONS: AtomicU32 = AtomicU32::new(0);

/// The cell's argument, and the expected end.
const ENDS: [(&str, CellEnd); 13] = [
    ("exit", CellEnd::Exits),
    ("spin", CellEnd::Hangs),
    ("wait", CellEnd::Stops),
    ("panic", CellEnd::Crashes(CrashKind::Panic, 0)),
    ("overflow", CellEnd::Crashes(CrashKind::DoubleFault, 8)),
    ("NullPointer", CellEnd::Crashes(CrashKind::Exception, 14)),
    ("ForeignMemory", CellEnd::Crashes(CrashKind::Exception, 14)),
    ("OwnCode", CellEnd::Crashes(CrashKind::Exception, 14)),
    ("OwnData", CellEnd::Crashes(CrashKind::Exception, 14)),
    ("OwnStack", CellEnd::Crashes(CrashKind::Exception, 14)),
    ("Descriptor", CellEnd::Crashes(CrashKind::Exception, 14)),
    ("InterruptTable", CellEnd::Crashes(CrashKind::Exception, 14)),
    ("NoInstruction", CellEnd::Crashes(CrashKind::Exception, 6)),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CellEnd {
    Exits,
    Hangs,
    Stops,
    Crashes(CrashKind, u32),
}

#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    isola_machine::image::panic_to_serial(info)
}

fn main(mut machine: Machine) -> ! {
    interrupts::set_interrupt_handler(machine.authority, |vector| {
        if vector == NOTIFICATION_VECTOR {
            NOTIFICATIONS.fetch_add(1, Ordering::Relaxed);
        }
    });
    let rounds: usize = machine.command_line.arguments[0].parse().expect("the number of rounds");
    let module = machine.modules.remove(0);
    let image = &module.memory.bytes()[..module.len_bytes as usize];
    let mut parked: Vec<ParkedCore> = machine.parked.drain(..).collect();
    assert!(!parked.is_empty() && machine.lost.is_empty());
    let mut memory: Vec<Region> = machine.memory.drain(..).map(|(_, region)| region).collect();
    let before = joined(&memory);

    for round in 0..rounds {
        let (argument, expected) = ENDS[round % ENDS.len()];
        let (back, cores) = run_cell(&mut machine, image, memory, parked, argument, expected);
        memory = back;
        parked = cores;
        let after = joined(&memory);
        assert_eq!(before, after, "round {round}: not all memory came back");
        assert_eq!(parked.len() + 1, machine.cores.len(), "round {round}: not all cores came back");
    }
    serial_line!("{rounds} cells, {} notifications", NOTIFICATIONS.load(Ordering::Relaxed));
    power::exit(machine.authority, 0)
}

/// Returns the ranges of memory, with adjacent regions joined.
fn joined(memory: &[Region]) -> Vec<PhysRange> {
    let mut ranges: Vec<PhysRange> = memory.iter().map(Region::range).collect();
    ranges.sort_by_key(|range| range.start);
    let mut joined: Vec<PhysRange> = Vec::new();
    for range in ranges {
        match joined.last_mut() {
            Some(last) if last.end() == range.start => last.len_bytes += range.len_bytes,
            _ => joined.push(range),
        }
    }
    joined
}

fn run_cell(
    machine: &mut Machine,
    image: &[u8],
    memory: Vec<Region>,
    parked: Vec<ParkedCore>,
    argument: &str,
    expected: CellEnd,
) -> (Vec<Region>, Vec<ParkedCore>) {
    let descriptor = Descriptor {
        version: isola_abi::VERSION,
        cell: CellId(1),
        name: "small".into(),
        arguments: alloc::vec![String::from(argument)],
        cores: parked.iter().map(|core| core.core()).collect(),
        core_slot_count: parked.len() as u32,
        core_request_ns: 0,
        pool: Vec::new(),
        memory_bytes: 0,
        memory_max_bytes: 0,
        region_tables: PhysRange::default(),
        image: Vec::new(),
        devices: Vec::new(),
        volumes: Vec::new(),
        served_volumes: Vec::new(),
        network_service: NetworkService::None,
        clock: machine.clock,
        address: None,
        supervisor: Some(NotificationTarget { apic: local::id(), vector: NOTIFICATION_VECTOR }),
        halt_mode: HaltMode::Hlt,
        grid: isola_abi::grid::GridSetup::default(),
        interrupt_mode: local::mode(),
    };
    let plan = plan(image, memory, machine.devices.iter_mut().collect(), descriptor);
    let space = CellSpace::build(plan, &machine.space, &mut machine.lines)
        .unwrap_or_else(|failure| panic!("{}", failure.error));

    let rung = NOTIFICATIONS.load(Ordering::Relaxed);
    let away: Vec<AwayCore> = parked
        .into_iter()
        .enumerate()
        .map(|(index, core)| space.enter(core, index).unwrap_or_else(|error| panic!("{error:?}")))
        .collect();
    let space = space.dissolve().expect_err("cores are in the space");
    let report = space.report();
    wait_for(machine, "the cell runs", || phase(report) != CellPhase::Silent);
    match expected {
        CellEnd::Exits | CellEnd::Crashes(..) => {}
        CellEnd::Stops => space.request(Request::Stop),
        CellEnd::Hangs => {
            let passes = report.cores[0].passes.load(Ordering::Relaxed);
            wait_for(machine, "the cell spins", || report.cores[0].passes.load(Ordering::Relaxed) > passes);
            away[0].interrupt_by_force();
        }
    }
    wait_for(machine, "the cell ends", || phase(report) as u32 > CellPhase::Running as u32);
    while NOTIFICATIONS.load(Ordering::Relaxed) == rung {
        interrupts::halt();
    }
    check_end(report, expected);
    for core in &report.cores[1..away.len()] {
        wait_for(machine, "other cores", || core.phase.load(Ordering::Acquire) == CorePhase::Halted as u32);
    }

    let (cores, lost) = AwayCore::reclaim_all(away);
    assert!(lost.is_empty(), "{} cores are lost", lost.len());
    let space = if machine.devices.iter().any(|device| device.kind().is_some()) {
        space.dissolve().expect_err("devices work for the space")
    } else {
        space
    };
    for device in machine.devices.iter_mut() {
        device.reset().expect("the device stops");
    }
    let mut memory = space.dissolve().expect("the space is not in use");
    memory.iter_mut().for_each(Region::scrub);
    (memory, cores)
}

fn phase(report: &Report) -> CellPhase {
    CellPhase::from_u32(report.phase.load(Ordering::Acquire)).expect("a phase")
}

fn check_end(report: &Report, expected: CellEnd) {
    match expected {
        CellEnd::Exits | CellEnd::Stops => {
            assert_eq!(phase(report), CellPhase::Exited);
            assert_eq!(report.exit_code.load(Ordering::Relaxed), 42);
        }
        CellEnd::Hangs => check_crash(report, CrashKind::Hang, 2),
        CellEnd::Crashes(kind, vector) => check_crash(report, kind, vector),
    }
}

fn check_crash(report: &Report, kind: CrashKind, vector: u32) {
    let crash = &report.crash;
    let found = CrashKind::from_u32(crash.kind.load(Ordering::Relaxed));
    let fault = crash.fault_address.load(Ordering::Relaxed);
    assert_eq!(phase(report), CellPhase::Crashed);
    assert_eq!((found, crash.vector.load(Ordering::Relaxed)), (Some(kind), vector), "address {fault:#x}");
    let addresses = crash.backtrace.iter().map(|address| address.load(Ordering::Relaxed));
    let depth = addresses.take_while(|address| *address >= isola_abi::layout::IMAGE).count();
    assert!(depth >= 1, "a backtrace has at least the entry");
}

/// Waits until `condition` holds, in halts of a millisecond.
fn wait_for(machine: &Machine, what: &str, condition: impl Fn() -> bool) {
    let start = cpu::cycles();
    while !condition() {
        assert!(cpu::cycles() - start < 20 * machine.clock.tsc_hz, "waited 20 s: {what}");
        local::arm_timer(machine.authority, TIMER_VECTOR, machine.clock.apic_timer_hz / 1000);
        interrupts::halt();
    }
}

/// Returns the plan of a cell from a trusted image, made by the tests.
fn plan<'a>(
    image: &'a [u8],
    memory: Vec<Region>,
    devices: Vec<&'a mut Device>,
    descriptor: Descriptor,
) -> Plan<'a> {
    let file = ElfBytes::<LittleEndian>::minimal_parse(image).expect("an ELF file");
    let headers = file.segments().expect("program headers");
    let segments: Vec<Segment<'_>> = headers
        .iter()
        .filter(|header| header.p_type == elf::abi::PT_LOAD)
        .map(|header| Segment {
            virt: header.p_vaddr,
            memory_bytes: header.p_memsz,
            rights: match header.p_flags & 7 {
                5 => Rights::Execute,
                6 => Rights::ReadWrite,
                _ => Rights::Read,
            },
            bytes: SegmentBytes::Copied(file.segment_data(&header).expect("bytes of a segment")),
        })
        .collect();
    let notes = headers.iter().find(|header| header.p_type == elf::abi::PT_NOTE).expect("notes");
    let note = file
        .segment_data_as_notes(&notes)
        .expect("notes")
        .find_map(|note| match note {
            elf::note::Note::Unknown(note) if note.n_type == u64::from(isola_abi::note::TYPE) => {
                ImageNote::decode(note.desc)
            }
            _ => None,
        })
        .expect("an Isola note");
    let image_bytes = segments.iter().map(|segment| segment.memory_bytes.next_multiple_of(4096)).sum();
    let needed = needed_bytes(image_bytes, 0, descriptor.cores.len(), descriptor.core_slot_count as usize);
    assert!(memory.iter().map(Region::len_bytes).sum::<u64>() > needed + 0x10_0000);
    let devices = devices.into_iter().filter(|device| device.kind().is_some()).collect();
    Plan { segments, entry: note.entry, vectors: note.vectors, memory, text: None, devices, descriptor }
}
