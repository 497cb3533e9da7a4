//! The supervisor on real machines, through the management protocol: creation, start, faults and end of cells.

use isola_abi::frame::MAX_FRAME;
use isola_abi::id::CellId;
use isola_abi::management::{
    CellInfo, CellSpec, CellState, Change, CoreOwner, ImageFault, JournalEvent, ManagementError, Mode,
    NetworkSpec, RequestBody, ResponseBody, Text,
};
use isola_abi::note::BOOT_ALONE;
use isola_abi::report::{CellPhase, CrashKind};
use isola_abi::size::ByteSize;
use isola_tests::management::{Client, digest, spec};
use isola_tests::qemu::MachineType;
use isola_tests::supervised::{MachineSetup, SupervisedMachine, free_cores, image, probe};
use std::time::Duration;

/// The longest wait for a response.
const TIMEOUT: Duration = Duration::from_secs(60);

const BOTH: [MachineType; 2] = [MachineType::Q35, MachineType::Microvm];

/// Creates and starts a cell, and waits for its end.
fn run(machine: &mut SupervisedMachine, spec: CellSpec) -> CellInfo {
    let name = spec.name.clone();
    machine.client.create(probe(), spec);
    machine.client.start(&name);
    machine.client.wait_for_end(&name)
}

/// Returns the CPU time that QEMU uses in an interval of length `time`.
fn used_in(machine: &SupervisedMachine, time: Duration) -> Duration {
    let before = machine.cpu_time();
    std::thread::sleep(time);
    machine.cpu_time() - before
}

#[test]
fn the_supervisor_boots_on_both_machine_types_with_any_number_of_cores() {
    for kind in BOTH {
        for (cores, cpu) in [(1, "max"), (2, "max,-x2apic"), (4, "max"), (3, "qemu64")] {
            let mut machine =
                SupervisedMachine::boot(MachineSetup { kind, cores, cpu, ..MachineSetup::default() });
            let info = machine.client.machine();
            assert_eq!(info.cores.len(), cores);
            assert_eq!(info.cores[0].owner, CoreOwner::Supervisor);
            assert_eq!(free_cores(&info), cores - 1);
            assert_eq!((info.devices_total, info.devices_free), (2, 2));
            assert!(info.memory_total.0 >= 108 << 20 && info.memory_free == info.memory_total);
            assert!(info.memory_supervisor.0 < 16 << 20);
            if cores > 1 {
                let exited = run(&mut machine, spec("first", cores as u32 - 1, 8, &["exit", "3"]));
                assert_eq!((exited.state, exited.exit_code), (CellState::Exited, Some(3)));
                assert_eq!(
                    machine.client.logs("first"),
                    format!("hello from first on {} cores\n", cores - 1)
                );
            }
            let outcome = machine.power_off();
            assert!(outcome.switched_off, "{}", outcome.serial);
        }
    }
}

#[test]
fn two_hundred_cells_in_sequence_return_all_resources() {
    for kind in BOTH {
        let mut machine = SupervisedMachine::boot(MachineSetup { kind, cores: 3, ..MachineSetup::default() });
        let before = machine.resources();
        for number in 0..200 {
            let name = format!("cell-{number}");
            let network = if number % 2 == 0 { NetworkSpec::Dhcp } else { NetworkSpec::None };
            // Various sizes; some are larger than the memory of the cell before.
            let mib = 2 + 2 * (number % 7);
            let arguments: &[&str] = match number % 4 {
                0 => &["exit"],
                1 => &["panic"],
                2 => &["spin"],
                _ => &["cores"],
            };
            let cores = 1 + number as u32 % 2;
            machine.client.create(probe(), CellSpec { network, ..spec(&name, cores, mib, arguments) });
            machine.client.start(&name);
            let ended = match number % 4 {
                2 => machine.client.stop(&name, 0),
                _ => machine.client.wait_for_end(&name),
            };
            let expected = [CellState::Exited, CellState::Crashed, CellState::Killed, CellState::Exited]
                [number as usize % 4];
            assert_eq!(ended.state, expected, "{ended:?}");
            if number % 20 == 0 {
                assert_eq!(machine.resources(), before, "{name} has ended");
            }
            machine.client.destroy(&name);
            if number % 20 == 10 {
                assert_eq!(machine.resources(), before, "after {name}");
            }
        }
        assert_eq!(machine.resources(), before);
    }
}

#[test]
fn every_fault_is_reported_and_contained() {
    let mut machine = SupervisedMachine::boot(MachineSetup { cores: 3, ..MachineSetup::default() });
    machine.client.create(probe(), spec("bystander", 1, 4, &["serve"]));
    machine.client.start("bystander");
    let before = machine.resources();
    for (action, kind, vector, message) in [
        ("panic", CrashKind::Panic, 0, "is unlucky"),
        ("null", CrashKind::Exception, 14, "page fault"),
        ("foreign-memory", CrashKind::Exception, 14, "page fault"),
        ("own-code", CrashKind::Exception, 14, "page fault"),
        ("descriptor", CrashKind::Exception, 14, "page fault"),
        ("tables", CrashKind::Exception, 14, "page fault"),
        ("own-data", CrashKind::Exception, 14, "page fault"),
        ("no-instruction", CrashKind::Exception, 6, "invalid instruction"),
        ("overflow", CrashKind::DoubleFault, 8, "double fault"),
    ] {
        let crashed = run(&mut machine, spec("bad", 1, 4, &[action]));
        assert_eq!(crashed.state, CellState::Crashed, "{action}: {crashed:?}");
        let crash = crashed.crash.unwrap();
        assert_eq!((crash.kind, crash.vector), (kind, vector), "{action}: {crash:?}");
        assert!(crash.message.contains(message), "{action}: {crash:?}");
        assert!(crash.core.is_some() && !crash.backtrace.is_empty(), "{action}: {crash:?}");
        assert_eq!(machine.resources(), before, "{action}: an ended cell's record holds no resources");
        machine.client.destroy("bad");
        assert_eq!(machine.resources(), before, "{action}");
    }
    let events = machine.client.events(0);
    assert!(events.iter().any(|entry| entry.event == JournalEvent::Crash(CrashKind::DoubleFault)));
    let bystander = machine.client.inspect("bystander");
    assert_eq!((bystander.state, bystander.phase), (CellState::Running, CellPhase::Running));
    let stopped = machine.client.stop("bystander", 60_000);
    assert_eq!((stopped.state, stopped.exit_code), (CellState::Exited, Some(0)));
    assert_eq!(machine.client.logs("bystander"), "stopping, as asked\n");
}

#[test]
fn a_cell_that_writes_to_the_exit_port_does_not_end_the_machine() {
    for kind in BOTH {
        let mut machine = SupervisedMachine::boot(MachineSetup { kind, cores: 3, ..MachineSetup::default() });
        machine.client.create(probe(), spec("rogue", 1, 4, &["debug-exit"]));
        machine.client.start("rogue");
        machine.client.wait_for("rogue", |info| info.phase == CellPhase::Running);
        let ended = run(&mut machine, spec("other", 1, 4, &["exit", "7"]));
        assert_eq!((ended.state, ended.exit_code), (CellState::Exited, Some(7)));
        assert_eq!(machine.client.stop("rogue", 0).state, CellState::Killed);
        assert!(machine.power_off().switched_off, "the supervisor powers the machine off by ACPI");
    }
}

#[test]
fn a_cell_has_memory_for_its_image_without_the_standalone_boot_code() {
    let (mut machine, image) = (SupervisedMachine::boot(MachineSetup::default()), probe());
    let word = |at: usize| u64::from_le_bytes(image[at..at + 8].try_into().unwrap());
    let half = |at: usize| u16::from_le_bytes(image[at..at + 2].try_into().unwrap()) as usize;
    let headers = (0..half(56)).map(|index| word(32) as usize + index * 56);
    // The program header's first word has the segment's type in the lower half and its flags in the upper half.
    let loaded = headers.filter(|header| word(*header) as u32 == 1);
    let bytes = |header: usize| word(header + 40).next_multiple_of(4096);
    let (alone, cell): (Vec<usize>, Vec<usize>) =
        loaded.partition(|header| (word(*header) >> 32) as u32 & BOOT_ALONE != 0);
    assert!(alone.iter().copied().map(bytes).sum::<u64>() > 0);
    let info = machine.client.create(image, spec("probe", 1, 4, &[]));
    assert_eq!(info.image.0 + info.text.0, cell.iter().copied().map(bytes).sum::<u64>());
}

#[test]
fn code_and_constants_are_not_lent_to_devices_for_writing() {
    let mut machine = SupervisedMachine::boot(MachineSetup::default());
    for text in [Text::Shared, Text::Private] {
        let ended = run(&mut machine, CellSpec { text, ..spec("lender", 1, 4, &["lend"]) });
        assert_eq!((ended.state, ended.exit_code), (CellState::Exited, Some(0)), "{text:?}");
        machine.client.destroy("lender");
    }
}

#[test]
fn a_core_is_reclaimed_in_any_state() {
    for kind in BOTH {
        let mut machine = SupervisedMachine::boot(MachineSetup { kind, cores: 3, ..MachineSetup::default() });
        let before = machine.resources();
        for action in ["spin", "spin-halted", "busy", "silent"] {
            for timeout_ms in [0, 50] {
                machine.client.create(probe(), spec(action, 2, 4, &[action]));
                machine.client.start(action);
                machine
                    .client
                    .wait_for(action, |info| action == "silent" || info.phase == CellPhase::Running);
                let killed = machine.client.stop(action, timeout_ms);
                assert_eq!(killed.state, CellState::Killed, "{action}: {killed:?}");
                if timeout_ms > 0 && action == "spin" {
                    let crash = killed.crash.unwrap();
                    assert_eq!(crash.kind, CrashKind::Hang);
                    assert!(!crash.backtrace.is_empty(), "the backtrace shows the loop: {crash:?}");
                }
                machine.client.destroy(action);
                assert_eq!(machine.resources(), before, "{action}");
            }
        }
    }
}

#[test]
fn the_watchdog_detects_a_spinning_core_and_spares_other_cells() {
    let mut machine = SupervisedMachine::boot(MachineSetup { cores: 4, ..MachineSetup::default() });
    for action in ["spin", "busy", "serve"] {
        machine.client.create(probe(), CellSpec { watchdog_ms: 500, ..spec(action, 1, 4, &[action]) });
        machine.client.start(action);
    }
    let hung = machine.client.wait_for_end("spin");
    assert_eq!(hung.state, CellState::Crashed);
    let crash = hung.crash.unwrap();
    assert_eq!((crash.kind, &*crash.message), (CrashKind::Hang, "non-maskable interrupt"));
    assert!(!crash.backtrace.is_empty());
    std::thread::sleep(Duration::from_secs(2));
    for action in ["busy", "serve"] {
        assert_eq!(machine.client.inspect(action).state, CellState::Running, "{action}");
    }
}

#[test]
fn an_ended_cell_can_be_started_again() {
    let mut machine = SupervisedMachine::boot(MachineSetup::default());
    let before = machine.resources();
    for (action, state) in [("memory", CellState::Exited), ("panic", CellState::Crashed)] {
        let first = run(&mut machine, spec(action, 1, 8, &[action]));
        assert_eq!((first.state, first.memory), (state, ByteSize(0)));
        for _ in 0..3 {
            assert_eq!(machine.client.recreate(action).state, CellState::Created);
            machine.client.start(action);
            let ended = machine.client.wait_for_end(action);
            assert_eq!((ended.id, ended.state), (first.id, state));
            assert!(ended.exit_code.is_none_or(|code| code == 0), "memory was not zeroed: {ended:?}");
        }
        assert_eq!(machine.resources(), before);
        machine.client.destroy(action);
    }
    assert_eq!(machine.resources(), before);
}

#[test]
fn an_ended_cell_is_recreated_with_its_log_once_resources_are_free() {
    let mut machine = SupervisedMachine::boot(MachineSetup { cores: 3, ..MachineSetup::default() });
    let before = machine.resources();
    let wide = CellSpec { network: NetworkSpec::Dhcp, ..spec("wide", 2, 8, &["exit", "3"]) };
    let ended = run(&mut machine, wide);
    assert_eq!((ended.memory, ended.cores.len()), (ByteSize(0), 2));
    assert_eq!(machine.resources(), before);
    // The ended cell has no resources to start with, and another cell occupies the cores that it needs.
    let start = machine.client.ask(RequestBody::Start { name: "wide".into() });
    assert!(matches!(start, Err(ManagementError::WrongState { state: CellState::Exited, .. })), "{start:?}");
    machine.client.create(probe(), spec("thief", 1, 4, &["serve"]));
    machine.client.start("thief");
    let refused = machine.client.ask(RequestBody::Recreate { name: "wide".into() });
    assert_eq!(refused, Err(ManagementError::CoresExhausted { wanted: 2, free: 1 }));
    assert_eq!(machine.client.inspect("wide"), ended);
    machine.client.stop("thief", 0);
    machine.client.recreate("wide");
    machine.client.start("wide");
    machine.client.wait_for_end("wide");
    assert_eq!(machine.client.logs("wide"), "hello from wide on 2 cores\n".repeat(2));
    assert_eq!(machine.resources(), before);
}

#[test]
fn a_cell_s_memory_is_zeroed_before_the_next_cell_gets_it() {
    let mut machine = SupervisedMachine::boot(MachineSetup { cores: 3, ..MachineSetup::default() });
    for wait in [false, true] {
        for mib in [2, 40, 80, 4, 100, 16] {
            // The memory is scrubbed on demand, or in the background.
            if wait {
                machine.client.wait_for_scrubbing();
            }
            let ended = run(&mut machine, spec("reader", 1, mib, &["memory"]));
            assert_eq!((ended.state, ended.exit_code), (CellState::Exited, Some(0)), "{mib} MiB: {ended:?}");
            machine.client.destroy("reader");
        }
    }
}

#[test]
fn unused_memory_costs_the_host_nothing() {
    let mut machine = SupervisedMachine::boot(MachineSetup { memory_mib: 1024, ..MachineSetup::default() });
    let large = |machine: &mut SupervisedMachine| {
        run(machine, spec("large", 1, 800, &["exit"]));
        machine.client.wait_for_scrubbing();
        machine.client.destroy("large");
        machine.resident_mib()
    };
    // During the first cell QEMU also translates the code that it runs.
    let resident = [large(&mut machine), large(&mut machine), large(&mut machine)];
    eprintln!("QEMU uses {resident:?} MiB");
    // The cell touches its image and its page tables: some MiB of its 800.
    assert!(resident[0] < 160 && resident[2] <= resident[1] + 4, "QEMU uses {resident:?} MiB");
}

#[test]
fn all_cores_of_a_cell_can_be_woken() {
    for kind in BOTH {
        for cpu in ["max", "max,-x2apic"] {
            let mut machine =
                SupervisedMachine::boot(MachineSetup { kind, cores: 5, cpu, ..MachineSetup::default() });
            let ended = run(&mut machine, spec("wide", 4, 8, &["cores"]));
            assert_eq!((ended.state, ended.exit_code), (CellState::Exited, Some(3)), "{ended:?}");
        }
    }
}

/// Returns whether the order to the cores preceded the cell's first sign of life, by the journal.
fn moved_before_the_first_sign(client: &mut Client, name: &str) -> bool {
    let events = client.events(0);
    let newest = |is_it: fn(&JournalEvent) -> bool| {
        events.iter().rfind(|entry| entry.cell.as_deref() == Some(name) && is_it(&entry.event)).unwrap()
    };
    let start = newest(|event| matches!(event, JournalEvent::Start));
    let is_move =
        |event: &JournalEvent| matches!(event, JournalEvent::CoreCame { .. } | JournalEvent::CoreLeft { .. });
    let moved = newest(is_move);
    let first_sign_ns = client.inspect(name).durations.first_sign_ns;
    first_sign_ns.is_none_or(|sign_ns| moved.unix_ns - moved.duration_ns < start.unix_ns + sign_ns)
}

#[test]
fn cores_can_join_and_leave_during_the_cell_s_initialisation() {
    let mut machine = SupervisedMachine::boot(MachineSetup { cores: 4, ..MachineSetup::default() });
    let echo = image("echo");
    for (change, after) in [(Change::More(1), 3), (Change::Less(1), 1)] {
        // On a busy host the cell may be initialised before the order. Such a round does not count.
        let (mut hits, mut rounds) = (0, 0);
        while hits < 4 {
            let client = &mut machine.client;
            client.create(&echo, spec("early", 2, 8, &[]));
            let start = client.send(RequestBody::Start { name: "early".into() });
            // The limit exceeds the test's patience: a core that never acknowledges its order fails the test.
            let resize = client.send(RequestBody::ResizeCores {
                name: "early".into(),
                change,
                cores: Vec::new(),
                limit_ms: 600_000,
                mode: Mode::Apply,
            });
            client.wait(start, TIMEOUT).expect("a response to start").body.expect("the cell starts");
            match client.wait(resize, TIMEOUT).expect("cores move during the initialisation").body {
                Ok(ResponseBody::CoresResized(resized)) => assert_eq!(resized.after, after),
                other => panic!("{other:?}"),
            }
            hits += u32::from(moved_before_the_first_sign(client, "early"));
            rounds += 1;
            assert!(rounds < 40, "{change:?}: in {hits} of {rounds} rounds the cell was still initialising");
            client.stop("early", 60_000);
            client.destroy("early");
        }
        eprintln!("{change:?}: in {hits} of {rounds} rounds the cell was still initialising");
    }
}

#[test]
fn a_cell_has_a_timer_and_its_devices() {
    for kind in BOTH {
        let mut machine = SupervisedMachine::boot(MachineSetup { kind, ..MachineSetup::default() });
        let ended = run(&mut machine, spec("timer", 1, 4, &["timer", "100"]));
        assert_eq!((ended.state, ended.exit_code), (CellState::Exited, Some(0)), "{ended:?}");
        machine.client.destroy("timer");
        let one = CellSpec { network: NetworkSpec::Dhcp, ..spec("devices", 1, 4, &["devices"]) };
        assert_eq!(run(&mut machine, one).exit_code, Some(1));
    }
}

#[test]
fn fast_console_output_is_kept_up_to_the_limit_and_gaps_are_noted() {
    let mut machine = SupervisedMachine::boot(MachineSetup::default());
    run(&mut machine, spec("chatty", 1, 4, &["print", "20000"]));
    let log = machine.client.logs("chatty");
    // The supervisor keeps the last 64 KiB of a cell's output; the first line may be incomplete.
    assert!(log.len() > 63 << 10, "{} bytes are kept", log.len());
    let (_, mut log) = log.split_once('\n').expect("lines");
    let mut printed: &str = &(0..20_000).map(|number| format!("line {number}\n")).collect::<String>();
    // From the end: each run of output matches the printed bytes, and each gap has the length in its note.
    while let Some((before, note, run)) = last_gap(log) {
        printed = printed.strip_suffix(run).unwrap_or_else(|| panic!("not in order: {run:.100}"));
        printed = &printed[..printed.len() - note];
        log = before;
    }
    assert!(printed.ends_with(log), "not in order: {log:.100}");
}

/// Splits a log at the last note of a gap: the log before it, the number of lost bytes, and the output after it.
fn last_gap(log: &str) -> Option<(&str, usize, &str)> {
    let (before, end) = log.rsplit_once("\n[")?;
    let (lost, run) = end.split_once(" bytes of output are lost]\n")?;
    Some((before, lost.parse().expect("a number"), run))
}

#[test]
fn lying_and_flooding_cells_affect_no_other_cell() {
    let mut machine = SupervisedMachine::boot(MachineSetup { cores: 3, ..MachineSetup::default() });
    let before = machine.resources();
    let liar = run(&mut machine, spec("liar", 1, 4, &["lie"]));
    assert_eq!(liar.state, CellState::Crashed);
    machine.client.destroy("liar");
    machine.client.create(probe(), spec("flood", 1, 4, &["flood"]));
    machine.client.start("flood");
    let other = run(&mut machine, spec("other", 1, 4, &["exit", "5"]));
    assert_eq!(other.exit_code, Some(5));
    assert_eq!(machine.client.stop("flood", 0).state, CellState::Killed);
    machine.client.destroy("flood");
    machine.client.destroy("other");
    assert_eq!(machine.resources(), before);
}

#[test]
fn a_cell_grows_by_zeroed_memory_to_its_limit_and_returns_all() {
    for kind in BOTH {
        let mut machine = SupervisedMachine::boot(MachineSetup { kind, ..MachineSetup::default() });
        let before = machine.resources();
        for mib in [1, 8, 64] {
            // The memory that the previous cell wrote to is zero again, whether it was scrubbed in the background or on
            // demand.
            let elastic =
                CellSpec { memory_max: Some(ByteSize(50 << 20)), ..spec("elastic", 1, 4, &["grow"]) };
            let ended =
                run(&mut machine, CellSpec { arguments: vec!["grow".into(), mib.to_string()], ..elastic });
            assert_eq!((ended.state, ended.exit_code), (CellState::Exited, Some(0)), "{ended:?}");
            assert_eq!((ended.memory_given, ended.memory), (ByteSize(50 << 20), ByteSize(0)), "{ended:?}");
            assert_eq!(machine.client.logs("elastic"), "50 MiB in the end: Limit\n");
            assert_eq!(machine.resources(), before);
            machine.client.destroy("elastic");
        }
        let grown =
            |event: &JournalEvent| matches!(event, JournalEvent::Grow { to: ByteSize(0x320_0000), .. });
        let events = machine.client.events(0);
        assert_eq!(events.iter().filter(|entry| grown(&entry.event)).count(), 3, "{events:?}");
    }
}

#[test]
fn a_cell_grows_to_the_machine_s_free_memory_and_another_reuses_it() {
    let mut machine = SupervisedMachine::boot(MachineSetup { cores: 3, ..MachineSetup::default() });
    let before = machine.resources();
    let boundless =
        |name| CellSpec { memory_max: Some(ByteSize(1 << 40)), ..spec(name, 1, 4, &["grow", "64"]) };
    for name in ["first", "second"] {
        let ended = run(&mut machine, boundless(name));
        assert_eq!(ended.exit_code, Some(0), "{ended:?}");
        assert!(ended.memory_given.0 > before.memory_free.0 - (4 << 20), "all but its image: {ended:?}");
        assert!(machine.client.logs(name).ends_with("Exhausted\n"));
    }
    assert_eq!(machine.resources(), before);
}

#[test]
fn unplugged_memory_is_inaccessible_even_if_the_cell_lies_about_its_tlb_flush() {
    let mut machine = SupervisedMachine::boot(MachineSetup { cores: 3, ..MachineSetup::default() });
    let before = machine.resources();
    machine.client.create(probe(), spec("liar", 1, 8, &["remember"]));
    machine.client.start("liar");
    machine.client.wait_for("liar", |info| info.phase == CellPhase::Running);
    let memory = Change::To(ByteSize(6 << 20));
    machine.client.send(RequestBody::ResizeMemory { name: "liar".into(), memory, mode: Mode::Apply });
    let liar = machine.client.wait_for_end("liar");
    assert_eq!(liar.state, CellState::Crashed);
    let crash = liar.crash.unwrap();
    assert_eq!((crash.kind, crash.vector), (CrashKind::Exception, 14), "{crash:?}");
    assert_eq!(machine.client.machine().restarts, 0);
    assert_eq!(machine.resources(), before);
}

#[test]
fn a_greedy_cell_grows_to_its_limit_and_affects_no_other_cell() {
    let mut machine = SupervisedMachine::boot(MachineSetup { cores: 3, ..MachineSetup::default() });
    let before = machine.resources();
    let greedy = CellSpec { memory_max: Some(ByteSize(20 << 20)), ..spec("greedy", 1, 4, &["greed"]) };
    machine.client.create(probe(), greedy);
    machine.client.start("greedy");
    machine.client.wait_for("greedy", |info| info.memory == ByteSize(20 << 20));
    let other = CellSpec { memory_max: Some(ByteSize(30 << 20)), ..spec("other", 1, 4, &["grow", "8"]) };
    let other = run(&mut machine, other);
    assert_eq!((other.exit_code, other.memory_given), (Some(0), ByteSize(30 << 20)), "{other:?}");
    assert_eq!(machine.client.inspect("greedy").memory, ByteSize(20 << 20));
    assert!(machine.client.events(0).len() < 30, "the journal has its rejected requests once");
    machine.client.stop("greedy", 0);
    assert_eq!(machine.resources(), before);
}

#[test]
fn bad_frames_images_and_requests_are_rejected_and_cost_nothing() {
    let mut machine = SupervisedMachine::boot(MachineSetup { cores: 3, ..MachineSetup::default() });
    machine.client.create(probe(), spec("bystander", 1, 4, &["serve"]));
    machine.client.start("bystander");
    let before = machine.resources();

    machine.client.send_bytes(b"\0this is no frame\0");
    machine.client.send_bytes(&vec![7; 3 * MAX_FRAME]);
    machine.client.send_bytes(&[0]);
    let malformed = machine.client.wait(0, Duration::from_secs(30)).expect("a response to a malformed frame");
    assert_eq!(malformed.body, Err(ManagementError::Malformed));
    machine.client.hello();

    let good = probe();
    let fault = |machine: &mut SupervisedMachine, image: &[u8]| {
        machine.client.upload(image);
        let spec = CellSpec { image: digest(image), ..spec("bad", 1, 4, &[]) };
        match machine.client.ask(RequestBody::Create(spec.into())) {
            Err(ManagementError::ImageRejected(fault)) => fault,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(fault(&mut machine, b"#!/bin/sh\nexit 0\n"), ImageFault::NotElf);
    assert_eq!(fault(&mut machine, &good[..good.len() / 2]), ImageFault::Malformed);
    let mut other = good.to_vec();
    other[16] = 3;
    assert_eq!(fault(&mut machine, &other), ImageFault::NotStatic);
    let host_program = std::fs::read(std::env::current_exe().unwrap()).unwrap();
    assert_eq!(fault(&mut machine, &host_program[..host_program.len().min(4 << 20)]), ImageFault::NotStatic);
    // The image stays stored after a rejected request.
    machine.client.upload(good);
    let too_many = RequestBody::Create(spec("bad", 9, 4, &[]).into());
    assert_eq!(machine.client.ask(too_many), Err(ManagementError::CoresExhausted { wanted: 9, free: 1 }));
    let too_large = RequestBody::Create(spec("bad", 1, 4096, &[]).into());
    assert!(matches!(machine.client.ask(too_large), Err(ManagementError::MemoryExhausted { .. })));
    let small =
        RequestBody::Create(CellSpec { memory: ByteSize(1), ..spec("small", 1, 4, &["exit"]) }.into());
    assert!(matches!(machine.client.ask(small), Ok(ResponseBody::Cell(_))));
    machine.client.destroy("small");
    let missing =
        RequestBody::Create(CellSpec { image: digest(b"never sent"), ..spec("bad", 1, 4, &[]) }.into());
    assert_eq!(machine.client.ask(missing), Err(ManagementError::NoImage));

    assert_eq!(machine.resources(), before);
    assert_eq!(machine.client.inspect("bystander").state, CellState::Running);
}

/// QEMU drops output that the peer does not read; the supervisor must not accumulate responses either.
#[test]
fn a_peer_that_never_reads_responses_does_no_harm() {
    for kind in BOTH {
        let mut machine = SupervisedMachine::boot(MachineSetup { kind, ..MachineSetup::default() });
        machine.client.create(probe(), spec("bystander", 1, 4, &["serve"]));
        machine.client.start("bystander");
        machine.client.flood(RequestBody::List { from: CellId(0) }, 20_000);
        machine.client.hello();
        assert_eq!(machine.client.inspect("bystander").state, CellState::Running);
    }
}

#[test]
fn a_pending_stop_delays_no_other_request() {
    let mut machine = SupervisedMachine::boot(MachineSetup { cores: 3, ..MachineSetup::default() });
    machine.client.create(probe(), spec("stubborn", 1, 4, &["spin"]));
    machine.client.start("stubborn");
    let stop = machine.client.send(RequestBody::Stop { name: "stubborn".into(), timeout_ms: 600_000 });
    assert_eq!(machine.client.inspect("stubborn").state, CellState::Stopping);
    run(&mut machine, spec("other", 1, 4, &["exit"]));
    assert_eq!(machine.client.inspect("stubborn").state, CellState::Stopping);
    let now = machine.client.send(RequestBody::Stop { name: "stubborn".into(), timeout_ms: 0 });
    machine.client.wait(now, Duration::from_secs(30)).expect("an immediate response");
    let stopped =
        machine.client.wait(stop, Duration::from_secs(30)).expect("a response once the cell has ended");
    assert!(matches!(stopped.body, Ok(ResponseBody::Cell(info)) if info.state == CellState::Killed));
}

#[test]
fn an_idle_supervisor_uses_no_cpu_time() {
    for kind in BOTH {
        let mut machine = SupervisedMachine::boot(MachineSetup { kind, cores: 4, ..MachineSetup::default() });
        machine.client.create(probe(), spec("idle", 2, 4, &["serve"]));
        machine.client.start("idle");
        machine.client.wait_for("idle", |info| info.phase == CellPhase::Running);
        machine.client.wait_for_scrubbing();
        std::thread::sleep(Duration::from_millis(500));
        let used = used_in(&machine, Duration::from_secs(4));
        assert!(used < Duration::from_millis(200), "{used:?} of CPU time in 4 s");
    }
}
