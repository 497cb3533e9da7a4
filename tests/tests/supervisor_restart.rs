//! Faults and restarts of the supervisor: cells keep running, and the restarted supervisor manages them again.

use isola_abi::management::{
    CellInfo, CellSpec, CellState, Fault, JournalEvent, LendingSpec, MachineInfo, ManagementError,
    NetworkSpec, RequestBody, ResponseBody, RestartCause, RestartPolicy, Text,
};
use isola_abi::report::CellPhase;
use isola_abi::size::ByteSize;
use isola_abi::unplug::CHUNK;
use isola_tests::kv::Load;
use isola_tests::management::spec;
use isola_tests::qemu::{ClockSource, MachineType};
use isola_tests::steady::{Latencies, SteadyLoad};
use isola_tests::supervised::{MachineSetup, SupervisedMachine, free_cores, image, probe};
use isola_tests::wait::{self, TIMEOUT};
use std::thread::sleep;
use std::time::Duration;

const FOR_TESTS: MachineSetup = MachineSetup {
    threads: 1,
    nodes: 1,
    kind: MachineType::Q35,
    cores: 4,
    memory_mib: 256,
    cpu: "max",
    time: ClockSource::Host,
    network_devices: 2,
    command_line: "isola.test-faults=1",
    forwards: None,
    tap: None,
    addresses: (&[], 0),
};

/// Injects a supervisor fault, waits for the restart, and returns the journal's entry of it.
fn go_wrong(machine: &mut SupervisedMachine, fault: Fault) -> JournalEvent {
    let before = machine.client.machine().restarts;
    machine.client.send(RequestBody::GoWrong(fault));
    if fault == Fault::Hang {
        // The NMI handler restarts only a supervisor without a recent sign of life, so several NMIs may be needed.
        wait::until_true("the supervisor's hang is detected", || {
            machine.inject_nmi();
            let asked = machine.client.send(RequestBody::Hello { version: isola_abi::VERSION });
            machine.client.wait(asked, Duration::from_millis(500)).is_some()
        });
    }
    machine.client.hello();
    assert_eq!(machine.client.machine().restarts, before + 1);
    last_restart(machine)
}

fn last_restart(machine: &mut SupervisedMachine) -> JournalEvent {
    let events = machine.client.events(0).into_iter().rev();
    events.map(|entry| entry.event).find(|event| matches!(event, JournalEvent::Restart { .. })).unwrap()
}

/// Waits until a restarted supervisor says hello.
fn wait_for_the_next(machine: &mut SupervisedMachine) {
    let response = machine.client.wait(0, TIMEOUT).expect("the restarted supervisor says hello");
    assert_eq!(response.body, Err(ManagementError::Restarted));
    machine.client.hello();
}

/// Boots a machine with the key-value server in a running cell, and a created cell that was not started.
fn with_service(kind: MachineType) -> (SupervisedMachine, MachineInfo, Load) {
    with_service_on(MachineSetup { kind, ..FOR_TESTS })
}

fn with_service_on(setup: MachineSetup) -> (SupervisedMachine, MachineInfo, Load) {
    let mut machine =
        SupervisedMachine::boot(MachineSetup { forwards: Some(11211), network_devices: 1, ..setup });
    let empty = machine.resources();
    let cache = CellSpec {
        network: NetworkSpec::Dhcp,
        memory_max: Some(ByteSize(64 << 20)),
        ..spec("cache", 2, 32, &[])
    };
    machine.client.create(&image("kv"), cache);
    machine.client.start("cache");
    machine.client.create(probe(), spec("waiting", 1, 4, &["exit", "5"]));
    let load = Load::start(machine.forwarded(), 2);
    (machine, empty, load)
}

/// Injects a supervisor fault, and checks that the supervisor recovers its state and that the service answers
/// meanwhile.
fn go_wrong_beside(machine: &mut SupervisedMachine, load: &Load, fault: Fault, cause: RestartCause) {
    let (resources, cell) = (machine.resources(), machine.client.inspect("cache"));
    let mut journal = machine.client.events(0);
    let event = go_wrong(machine, fault);
    let restart = machine.client.events(journal.last().unwrap().number + 1);
    assert_eq!(restart[0].event, event, "the first entry of the restarted supervisor");
    journal.extend(restart);
    assert_eq!(machine.client.events(0), journal);
    let number = machine.client.machine().restarts;
    assert_eq!(event, JournalEvent::Restart { cause, number, found: 2, gone: 0 }, "{fault:?}");
    assert_eq!(machine.resources(), resources, "{fault:?}");
    let now = machine.client.inspect("cache");
    assert_eq!((now.id, now.state, now.spec), (cell.id, CellState::Running, cell.spec));
    assert_eq!((now.memory, now.image, now.started_unix_ns), (cell.memory, cell.image, cell.started_unix_ns));
    load.wait_for(50);
}

#[test]
fn a_service_survives_supervisor_faults_and_is_managed_again() {
    let (mut machine, empty, load) = with_service(MachineType::Q35);
    for (fault, cause) in [
        (Fault::Panic, RestartCause::Panic),
        (Fault::PageFault, RestartCause::Exception),
        (Fault::StackOverflow, RestartCause::Exception),
        (Fault::Hang, RestartCause::Hang),
    ] {
        go_wrong_beside(&mut machine, &load, fault, cause);
    }
    // The restarted supervisor starts a cell that was created before, and creates new cells from free resources.
    machine.client.start("waiting");
    assert_eq!(machine.client.wait_for_end("waiting").exit_code, Some(5));
    machine.client.create(probe(), spec("new", 1, 8, &["exit", "6"]));
    machine.client.start("new");
    assert_eq!(machine.client.wait_for_end("new").exit_code, Some(6));
    assert!(load.end() >= 200);
    assert_eq!(machine.client.stop("cache", 10_000).state, CellState::Exited);
    assert_eq!(machine.resources(), empty);
    assert!(machine.power_off().switched_off);
}

#[test]
fn supervisor_restarts_do_not_delay_answers() {
    const SETTLED: Duration = Duration::from_secs(1);
    let (mut machine, _, load) = with_service(MachineType::Q35);
    load.end();
    let load = SteadyLoad::start(machine.forwarded(), 4, Duration::from_millis(16));
    sleep(SETTLED);
    load.take();
    sleep(4 * SETTLED);
    let at_rest = load.take();
    let mut beside = Latencies::default();
    for fault in [Fault::Panic, Fault::PageFault, Fault::Panic, Fault::StackOverflow] {
        load.take();
        go_wrong(&mut machine, fault);
        beside.add(load.take());
        // The supervisor stops for good after too many restarts within a minute.
        sleep(SETTLED);
    }
    assert!(load.end() > 0);
    beside.assert_near(&at_rest, "while the supervisor was restarted");
    assert_eq!(machine.client.stop("cache", 10_000).state, CellState::Exited);
    assert!(machine.power_off().switched_off);
}

#[test]
fn interrupts_with_exception_or_spurious_vectors_affect_neither_supervisor_nor_cells() {
    for cpu in ["max", "max,-x2apic"] {
        let (mut machine, empty, load) = with_service_on(MachineSetup { cpu, ..FOR_TESTS });
        machine.client.destroy("waiting");
        let cores = machine.client.machine().cores.len().to_string();
        machine.client.create(probe(), spec("striker", 1, 4, &["strike", &cores]));
        machine.client.start("striker");
        let striker = machine.client.wait_for_end("striker");
        assert_eq!((striker.state, striker.exit_code), (CellState::Exited, Some(0)), "{striker:?}");
        load.wait_for(50);
        load.end();
        assert_eq!(machine.client.machine().restarts, 0, "{cpu}");
        let count = |event: &JournalEvent| match event {
            JournalEvent::StrayInterrupts { count } => Some(*count),
            _ => None,
        };
        let noted = machine.client.events(0).iter().filter_map(|entry| count(&entry.event)).max();
        assert!(noted >= Some(17), "{noted:?}");
        assert_eq!(machine.client.stop("cache", 10_000).state, CellState::Exited);
        assert_eq!(machine.resources(), empty);
    }
}

#[test]
fn a_restart_leaves_interrupt_lines_of_cells_unchanged() {
    let (mut machine, empty, load) = with_service(MachineType::Microvm);
    go_wrong_beside(&mut machine, &load, Fault::Panic, RestartCause::Panic);
    load.end();
    assert_eq!(machine.client.stop("cache", 10_000).state, CellState::Exited);
    machine.client.destroy("waiting");
    assert_eq!(machine.resources(), empty);
}

#[test]
fn a_cell_s_end_during_a_fault_is_completed_after_the_restart() {
    let mut machine = SupervisedMachine::boot(FOR_TESTS);
    let empty = machine.resources();
    for name in ["ending", "bystander"] {
        let networked = CellSpec { network: NetworkSpec::Dhcp, ..spec(name, 1, 4, &["serve"]) };
        machine.client.create(probe(), networked);
        machine.client.start(name);
    }
    assert_eq!(machine.client.ask(RequestBody::GoWrong(Fault::PanicAtEnd)), Ok(ResponseBody::Done));
    machine.client.send(RequestBody::Stop { name: "ending".into(), timeout_ms: 0 });
    wait_for_the_next(&mut machine);
    let event = last_restart(&mut machine);
    let cause = RestartCause::Panic;
    assert_eq!(event, JournalEvent::Restart { cause, number: 1, found: 1, gone: 1 });
    let ended = machine.client.inspect("ending");
    assert_eq!((ended.state, ended.memory), (CellState::Killed, ByteSize(0)));
    let info = machine.client.machine();
    assert_eq!((free_cores(&info), info.devices_free), (2, 1));

    // This cell exits at once each time, and its policy restarts it, also after a fault during its end.
    let (restart, network) = (RestartPolicy::Always, NetworkSpec::Dhcp);
    let again = CellSpec { restart, network, ..spec("again", 1, 4, &["exit"]) };
    machine.client.create(probe(), again);
    machine.client.start("again");
    let ends = machine.client.wait_for("again", |info| info.restarts.count > 0);
    assert_eq!(machine.client.ask(RequestBody::GoWrong(Fault::PanicAtEnd)), Ok(ResponseBody::Done));
    wait_for_the_next(&mut machine);
    go_wrong(&mut machine, Fault::Panic);
    let found = machine.client.wait_for("again", |info| info.restarts.count > ends.restarts.count + 1);
    assert_eq!((found.id, found.spec), (ends.id, ends.spec));
    machine.client.stop("again", 0);

    // This cell exits during a hang, which is detected only after seconds.
    machine.client.create(probe(), spec("later", 1, 4, &["timer", "1000"]));
    machine.client.start("later");
    go_wrong(&mut machine, Fault::Hang);
    assert_eq!(machine.client.wait_for_end("later").state, CellState::Exited);
    assert_eq!(machine.client.stop("bystander", 10_000).exit_code, Some(0));
    assert_eq!(machine.resources(), empty);
}

#[test]
fn shared_image_text_stays_mapped_for_every_cell_across_restarts() {
    let mut machine = SupervisedMachine::boot(MachineSetup { memory_mib: 128, ..FOR_TESTS });
    let empty = machine.resources();
    for name in ["one", "two"] {
        machine.client.create(probe(), spec(name, 1, 4, &["serve"]));
        machine.client.start(name);
    }
    let (one, two) = (machine.client.inspect("one"), machine.client.inspect("two"));
    assert!(one.text.0 > 0 && one.text == two.text, "{one:?} {two:?}");
    // A write to the text, shared or private, ends the writing cell only, also after its restart.
    for text in [Text::Shared, Text::Private] {
        let restart = RestartPolicy::OnFailure { most: Some(1) };
        let writer = CellSpec { text, restart, ..spec("writer", 1, 4, &["own-code"]) };
        machine.client.create(probe(), writer);
        machine.client.start("writer");
        let used_up = |info: &CellInfo| info.restarts.count == 1 && info.state == CellState::Crashed;
        let crashed = machine.client.wait_for("writer", used_up);
        assert_eq!(crashed.crash.map(|crash| crash.vector), Some(14));
        assert_eq!(crashed.image.0 + crashed.text.0, one.image.0 + one.text.0);
        machine.client.destroy("writer");
    }
    go_wrong(&mut machine, Fault::Panic);
    assert_eq!(machine.client.stop("one", 10_000).exit_code, Some(0));
    machine.client.destroy("one");
    // A cell with all free memory gets no text of the other cell. The restarted supervisor has no stored image; the new
    // upload takes whole chunks of free memory.
    let image_bytes = (probe().len() as u64).next_multiple_of(CHUNK);
    let free_mib = (machine.client.machine().memory_free.0 - image_bytes) >> 20;
    machine.client.create(probe(), spec("all", 1, free_mib, &["memory"]));
    machine.client.start("all");
    assert_eq!(machine.client.wait_for_end("all").exit_code, Some(0));
    go_wrong(&mut machine, Fault::Panic);
    assert_eq!(machine.client.stop("two", 10_000).exit_code, Some(0));
    assert_eq!(machine.resources(), empty);
}

#[test]
fn a_cell_s_text_is_recovered_from_its_ownership_record_without_a_checkpoint() {
    let mut machine = SupervisedMachine::boot(MachineSetup { memory_mib: 128, ..FOR_TESTS });
    let empty = machine.resources();
    machine.client.create(probe(), spec("one", 1, 4, &["serve"]));
    machine.client.start("one");
    machine.client.wait_for("one", |info| info.phase == CellPhase::Running);
    let before = machine.client.machine();
    let event = go_wrong(&mut machine, Fault::PanicWithoutCheckpoint);
    let cause = RestartCause::Panic;
    assert_eq!(event, JournalEvent::Restart { cause, number: 1, found: 1, gone: 0 });
    assert_eq!(machine.client.ask(RequestBody::Images), Ok(ResponseBody::Images(Vec::new())));
    let after = machine.client.machine();
    assert_eq!((after.memory_images, after.memory_free), (before.memory_images, before.memory_free));
    // The image of further cells is uploaded again, into other memory. A cell with the rest of the memory writes to all
    // of it.
    let rest_mib = (after.memory_free.0 - after.memory_images.0) >> 20;
    machine.client.create(probe(), spec("all", 1, rest_mib, &["memory"]));
    assert_eq!(machine.client.machine().memory_free, ByteSize(0));
    machine.client.start("all");
    assert_eq!(machine.client.wait_for_end("all").exit_code, Some(0));
    assert_eq!(machine.client.stop("one", 10_000).exit_code, Some(0));
    assert_eq!(machine.client.logs("one"), "stopping, as asked\n");
    assert_eq!(machine.resources(), empty);
    assert_eq!(machine.client.machine().memory_images, before.memory_images, "the first cell's text is free");
}

#[test]
fn a_memory_loan_survives_restarts_and_the_lender_gets_its_memory_back() {
    let mut machine = SupervisedMachine::boot(MachineSetup { memory_mib: 128, ..FOR_TESTS });
    let lending = |priority, memory_low| LendingSpec { priority, memory_low, ..LendingSpec::default() };
    let service =
        CellSpec { network: NetworkSpec::Dhcp, lending: lending(9, None), ..spec("service", 1, 24, &[]) };
    machine.client.create(&image("kv"), service);
    machine.client.start("service");
    let rest_mib = machine.client.machine().memory_free.0 >> 20;
    let batch = CellSpec {
        network: NetworkSpec::Dhcp,
        lending: lending(1, Some(ByteSize(24 << 20))),
        ..spec("batch", 1, rest_mib, &[])
    };
    machine.client.create(&image("kv"), batch);
    machine.client.start("batch");
    let all = machine.client.wait_for("batch", |info| info.phase == CellPhase::Running).memory;
    assert_eq!(machine.client.machine().memory_free, ByteSize(0));
    let memory = ByteSize(16 << 20);
    let borrow = || RequestBody::BorrowMemory { name: "service".into(), memory, lease_ms: 3_600_000 };
    machine.client.ask(borrow()).unwrap();
    let lent = machine.client.wait_for("service", |info| info.memory == ByteSize(40 << 20)).memory_loans;
    assert_eq!((lent[0].memory, lent[0].from.as_deref()), (memory, Some("batch")));
    assert_eq!(machine.client.inspect("batch").memory, ByteSize(all.0 - memory.0));
    for fault in [Fault::Panic, Fault::PageFault] {
        go_wrong(&mut machine, fault);
        let loans = machine.client.inspect("service").memory_loans;
        assert_eq!((loans[0].memory, loans[0].from.as_deref()), (memory, Some("batch")), "{fault:?}");
        assert_eq!(machine.client.inspect("batch").memory_lent, memory, "{fault:?}");
    }
    let back = RequestBody::GiveMemoryBack { name: "service".into(), memory };
    machine.client.ask(back).unwrap();
    machine.client.wait_for("batch", |info| info.memory == all);
    // The supervisor fails while the memory is on its way, in either direction.
    machine.client.ask(borrow()).unwrap();
    go_wrong(&mut machine, Fault::Panic);
    machine.client.wait_for("batch", |info| info.memory.0 + info.memory_lent.0 == all.0);
    machine.client.send(RequestBody::Stop { name: "service".into(), timeout_ms: 0 });
    go_wrong(&mut machine, Fault::Panic);
    machine.client.wait_for("batch", |info| info.memory == all && info.memory_lent == ByteSize(0));
}

#[test]
fn a_cell_restarts_a_hung_supervisor_but_not_a_working_one() {
    let mut machine = SupervisedMachine::boot(FOR_TESTS);
    machine.client.create(probe(), spec("rouser", 1, 4, &["rouse"]));
    machine.client.start("rouser");
    // Keeps the supervisor busy.
    for number in 0..10 {
        machine.client.create(probe(), spec("other", 1, 16 + number % 2, &["exit"]));
        machine.client.start("other");
        machine.client.wait_for_end("other");
        machine.client.destroy("other");
    }
    assert_eq!(machine.client.machine().restarts, 0);
    machine.client.send(RequestBody::GoWrong(Fault::Hang));
    machine.client.hello();
    assert_eq!(machine.client.machine().restarts, 1);
    assert_eq!(machine.client.stop("rouser", 10_000).exit_code, Some(0));
}

#[test]
fn a_working_supervisor_ignores_nmis_and_injects_faults_only_for_tests() {
    let mut machine = SupervisedMachine::boot(MachineSetup { command_line: "", ..FOR_TESTS });
    for fault in [Fault::Panic, Fault::Hang, Fault::PanicAtEnd] {
        assert_eq!(machine.client.ask(RequestBody::GoWrong(fault)), Err(ManagementError::NotForTests));
    }
    for _ in 0..20 {
        machine.inject_nmi();
        machine.client.machine();
    }
    assert_eq!(machine.client.machine().restarts, 0);
}
