//! The machine layer on every machine type: hardware discovery is correct, discovered devices work, faults of cells are
//! contained, and ended cells return all resources.

use isola_tests::qemu::{MACHINE_TYPES, Machine, MachineType, Outcome};
use std::time::{SystemTime, UNIX_EPOCH};

/// Boots `hello-machine`, which tests the discovered hardware and prints the results.
fn hello(kind: MachineType, cores: usize, cpu: &str) -> Outcome {
    let network = ["-netdev", "user,id=n0,restrict=on"];
    let machine = Machine::new(kind, "hello-machine").cores(cores).cpu(cpu).command_line("-- a b");
    let machine = network.into_iter().fold(machine, Machine::argument).virtio("net", ",netdev=n0");
    let outcome = machine.run();
    let what = format!("{kind:?}, {cores} cores, {cpu}:\n{}", outcome.serial);
    assert_eq!(outcome.exit_code, Some(0), "{what}");
    assert!(outcome.serial.contains(&format!("cores: {cores}, parked {}, lost 0", cores - 1)), "{what}");
    assert_eq!(outcome.serial.matches(", Some(Network)").count(), 1, "{what}");
    assert!(outcome.serial.contains("arguments: [\"a\", \"b\"]"), "{what}");
    for tried in ["timer", "interrupts", "calls", "memory"] {
        assert!(outcome.serial.contains(&format!("{tried}: ok")), "{what}");
    }
    outcome
}

/// Returns the number after `label` in the serial output.
fn number(outcome: &Outcome, label: &str) -> u64 {
    let rest = outcome.serial.split_once(label).unwrap_or_else(|| panic!("{label}: {}", outcome.serial)).1;
    let digits: String = rest.trim_start().chars().take_while(char::is_ascii_digit).collect();
    digits.parse().expect("a number")
}

#[test]
fn every_machine_type_boots_with_1_2_and_4_cores() {
    for kind in MACHINE_TYPES {
        for cores in [1, 2, 4] {
            hello(kind, cores, "max");
        }
    }
}

#[test]
fn processors_without_x2apic_and_1_gib_pages_work() {
    for kind in MACHINE_TYPES {
        let outcome = hello(kind, 2, "qemu64");
        assert!(outcome.serial.contains("apic mode: XApic"), "{}", outcome.serial);
    }
}

#[test]
fn sixteen_cores_are_parked() {
    hello(MachineType::Q35, 16, "max");
}

#[test]
fn clock_rates_and_time_are_correct() {
    for kind in MACHINE_TYPES {
        let outcome = hello(kind, 1, "max");
        // QEMU's APIC timer counts nanoseconds. The tolerance allows for other tests on the host.
        let apic_hz = number(&outcome, "apic timer:");
        assert!(apic_hz.abs_diff(1_000_000_000) < 50_000_000, "{apic_hz}");
        let host = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        assert!(number(&outcome, "time:").abs_diff(host) < 120, "{kind:?} {host}: {}", outcome.serial);
    }
}

#[test]
fn memory_above_4_gib_is_found() {
    for cpu in ["max", "qemu64"] {
        let machine = Machine::new(MachineType::Q35, "hello-machine").cpu(cpu).memory_mib(6144);
        let outcome = machine.command_line("-- quick").run();
        assert_eq!(outcome.exit_code, Some(0), "{}", outcome.serial);
        // QEMU's q35 maps 2 GiB of this memory below 4 GiB.
        assert!(
            outcome.serial.contains("memory: 0x100000000..0x200000000, node 0, Zero"),
            "{}",
            outcome.serial
        );
    }
}

#[test]
fn a_core_s_heap_has_memory_of_the_core_s_node() {
    let outcome = Machine::new(MachineType::Q35, "nodes").cores(2).topology(1, 2).run();
    assert_eq!(outcome.exit_code, Some(0), "{}", outcome.serial);
    for core in ["core 0: near", "core 1: near"] {
        assert!(outcome.serial.contains(core), "{}", outcome.serial);
    }
}

/// QEMU's emulator ends MWAIT at once, so the core is often awake and takes some wakeups as interrupts. The test shows
/// that memory writes wake it the other times, and that it still takes interrupts.
#[test]
fn a_core_in_mwait_wakes_without_an_interrupt() {
    for (mode, interrupts) in [("hlt", 196..=200), ("mwait", 0..=180)] {
        let machine = Machine::new(MachineType::Q35, "nodes").cores(2);
        let outcome = machine.command_line(&format!("halt={mode} -- wakes")).run();
        assert_eq!(outcome.exit_code, Some(0), "{mode}: {}", outcome.serial);
        let output = outcome.serial.split_once("200 wakes, ").expect(&outcome.serial).1;
        let taken: u64 = output.split_once(' ').unwrap().0.parse().unwrap();
        assert!(interrupts.contains(&taken), "{mode}: {taken} interrupts");
    }
}

#[test]
fn cores_and_memory_are_assigned_to_their_nodes() {
    let outcome = Machine::new(MachineType::Q35, "hello-machine").cores(2).topology(1, 2).run();
    let serial = &outcome.serial;
    assert!(
        serial.contains("core 0: apic 0, node 0") && serial.contains("core 1: apic 1, node 1"),
        "{serial}"
    );
    let of_node = |node: u32, below: bool| {
        serial.lines().filter(|line| line.contains(&format!(", node {node}, "))).all(|line| {
            let start = line.split_once("0x").unwrap().1.split_once("..").unwrap().0;
            (u64::from_str_radix(start, 16).unwrap() < 32 << 20) == below
        })
    };
    assert!(of_node(0, true) && of_node(1, false), "{serial}");
    assert_eq!(outcome.exit_code, Some(0));
}

#[test]
fn memory_after_a_reset_is_not_assumed_to_be_zero() {
    for kind in MACHINE_TYPES {
        let machine = Machine::new(kind, "hello-machine").memory_mib(96).reboots();
        let outcome = machine.command_line("-- reset-once").run();
        let serial = &outcome.serial;
        assert_eq!(outcome.exit_code, Some(0), "{serial}");
        let (first, second) = serial.split_once("resetting").expect(serial);
        assert!(first.contains(", Zero") && !second.contains(", Zero"), "{serial}");
        assert!(second.contains("memory: ok"), "{serial}");
    }
}

#[test]
fn a_cell_image_boots_standalone_on_every_machine_type() {
    for (kind, cores) in MACHINE_TYPES.into_iter().flat_map(|kind| [(kind, 1), (kind, 4)]) {
        let outcome = Machine::new(kind, "small-cell").cores(cores).run();
        assert_eq!(outcome.exit_code, Some(0), "{}", outcome.serial);
        assert!(outcome.serial.contains(&format!("Exited with {cores} cores")), "{}", outcome.serial);
    }
}

#[test]
fn a_standalone_cell_reports_illegal_accesses() {
    for (fault, vector) in [("NullPointer", 14), ("OwnCode", 14), ("InterruptTable", 14), ("overflow", 8)] {
        let machine = Machine::new(MachineType::Microvm, "small-cell");
        let outcome = machine.command_line(&format!("-- {fault}")).run();
        assert_eq!(outcome.exit_code, Some(1), "{fault}: {}", outcome.serial);
        assert!(outcome.serial.contains(&format!("(vector {vector},")), "{fault}: {}", outcome.serial);
        assert!(outcome.serial.contains("Crashed"), "{fault}: {}", outcome.serial);
    }
}

#[test]
fn the_hardened_allocator_reports_invalid_frees_and_writes() {
    let run = |argument: &str| {
        let machine = Machine::new(MachineType::Microvm, "hardened");
        machine.command_line(&format!("-- {argument}")).run()
    };
    let correct = run("nothing");
    assert_eq!(correct.exit_code, Some(0), "{}", correct.serial);
    for (misdeed, says) in [
        ("FreeTwice", "was freed twice"),
        ("FreeAsLarger", "was freed as one of 32 bytes"),
        ("WriteBehind", "was written to 0 bytes behind its end"),
        ("WriteBefore", "was written to 1 bytes in front of its start"),
        ("WriteAfterFree", "was written to at offset 8 after it was freed"),
    ] {
        let outcome = run(misdeed);
        assert_eq!(outcome.exit_code, Some(101), "{misdeed}: {}", outcome.serial);
        assert!(outcome.serial.contains("of 24 bytes, aligned at 8"), "{misdeed}: {}", outcome.serial);
        assert!(outcome.serial.contains(says), "{misdeed}: {}", outcome.serial);
    }
}

/// Runs the image `divide`, which ends cells in every possible way and checks that all resources return.
fn divide(kind: MachineType, cores: usize, cpu: &str, rounds: usize) {
    let machine = Machine::new(kind, "divide").cores(cores).cpu(cpu).memory_mib(40).module("small-cell");
    let machine = machine.argument("-netdev").argument("user,id=n0,restrict=on").virtio("net", ",netdev=n0");
    let outcome = machine.command_line(&format!("-- {rounds}")).run();
    assert_eq!(outcome.exit_code, Some(0), "{kind:?}, {cores} cores: {}", outcome.serial);
    assert!(
        outcome.serial.contains(&format!("{rounds} cells, {rounds} notifications")),
        "{}",
        outcome.serial
    );
}

#[test]
fn two_hundred_cells_in_sequence_return_all_resources() {
    divide(MachineType::Q35, 2, "max", 200);
}

#[test]
fn cells_of_several_cores_return_all_resources() {
    divide(MachineType::Q35, 4, "qemu64", 24);
    divide(MachineType::Microvm, 4, "max", 24);
    divide(MachineType::MicrovmWithoutAcpi, 3, "max", 12);
}
