//! The supervisor goes wrong: cells do not notice, and are managed again by the one that comes after it.

use isola_abi::management::{
    CellInfo, CellSpec, CellState, Fault, JournalEvent, MachineInfo, ManagementError, NetworkSpec,
    RequestBody, ResponseBody, RestartCause, RestartPolicy, Text,
};
use isola_abi::report::CellPhase;
use isola_abi::size::ByteSize;
use isola_abi::unplug::GRANULE;
use isola_tests::kv::Load;
use isola_tests::management::spec;
use isola_tests::qemu::{MachineType, Time};
use isola_tests::supervised::{Setup, Supervised, free_cores, image, probe};
use isola_tests::wait::{self, PATIENCE};
use std::time::Duration;

const FOR_TESTS: Setup = Setup {
    threads: 1,
    nodes: 1,
    kind: MachineType::Q35,
    cores: 4,
    memory_mib: 256,
    cpu: "max",
    time: Time::Host,
    network_devices: 2,
    command_line: "isola.test-faults=1",
    forwards: None,
    tap: None,
    addresses: (&[], 0),
};

/// Has the supervisor go wrong, and waits until the next one answers. Returns what that has entered in its journal.
fn go_wrong(machine: &mut Supervised, fault: Fault) -> JournalEvent {
    let before = machine.client.machine().restarts;
    machine.client.send(RequestBody::GoWrong(fault));
    if fault == Fault::Hang {
        // A supervisor that has not stood still for long is not disturbed: so it takes several.
        wait::until_true("the supervisor is found to stand still", || {
            machine.inject_nmi();
            let asked = machine.client.send(RequestBody::Hello { version: isola_abi::VERSION });
            machine.client.wait(asked, Duration::from_millis(500)).is_some()
        });
    }
    machine.client.hello();
    assert_eq!(machine.client.machine().restarts, before + 1);
    last_restart(machine)
}

fn last_restart(machine: &mut Supervised) -> JournalEvent {
    let events = machine.client.events(0).into_iter().rev();
    events.map(|entry| entry.event).find(|event| matches!(event, JournalEvent::Restart { .. })).unwrap()
}

/// Waits until a supervisor says that it comes after another one.
fn wait_for_the_next(machine: &mut Supervised) {
    let said = machine.client.wait(0, PATIENCE).expect("the next one says so");
    assert_eq!(said.body, Err(ManagementError::Restarted));
    machine.client.hello();
}

/// A machine with the key-value server in a cell, and a cell that was created and not started.
fn with_service(kind: MachineType) -> (Supervised, MachineInfo, Load) {
    with_service_on(Setup { kind, ..FOR_TESTS })
}

fn with_service_on(setup: Setup) -> (Supervised, MachineInfo, Load) {
    let mut machine = Supervised::boot(Setup { forwards: Some(11211), network_devices: 1, ..setup });
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

/// Has the supervisor go wrong, and sees that it knows all again that it knew, and that the service answers on.
fn go_wrong_beside(machine: &mut Supervised, load: &Load, fault: Fault, cause: RestartCause) {
    let (resources, cell) = (machine.resources(), machine.client.inspect("cache"));
    let mut journal = machine.client.events(0);
    let event = go_wrong(machine, fault);
    let restart = machine.client.events(journal.last().unwrap().number + 1);
    assert_eq!(restart[0].event, event, "the first entry of the next supervisor");
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
fn a_service_answers_on_while_the_supervisor_goes_wrong_and_is_managed_again() {
    let (mut machine, empty, load) = with_service(MachineType::Q35);
    for (fault, cause) in [
        (Fault::Panic, RestartCause::Panic),
        (Fault::PageFault, RestartCause::Exception),
        (Fault::StackOverflow, RestartCause::Exception),
        (Fault::Hang, RestartCause::Hang),
    ] {
        go_wrong_beside(&mut machine, &load, fault, cause);
    }
    // What one supervisor has created another one starts; and new cells get what is free.
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
fn interrupts_with_vectors_of_exceptions_or_of_spurious_ones_harm_neither_the_supervisor_nor_cells() {
    for cpu in ["max", "max,-x2apic"] {
        let (mut machine, empty, load) = with_service_on(Setup { cpu, ..FOR_TESTS });
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
fn interrupt_lines_of_cells_are_left_alone() {
    let (mut machine, empty, load) = with_service(MachineType::Microvm);
    go_wrong_beside(&mut machine, &load, Fault::Panic, RestartCause::Panic);
    load.end();
    assert_eq!(machine.client.stop("cache", 10_000).state, CellState::Exited);
    machine.client.destroy("waiting");
    assert_eq!(machine.resources(), empty);
}

#[test]
fn what_was_just_ending_has_ended_and_what_ended_meanwhile_is_seen_to_have_ended() {
    let mut machine = Supervised::boot(FOR_TESTS);
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

    // It ends all the time, and is started again by whoever is there, in the middle of an end as well.
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

    // It ends while the supervisor stands still, which it is only found to do after seconds.
    machine.client.create(probe(), spec("later", 1, 4, &["timer", "1000"]));
    machine.client.start("later");
    go_wrong(&mut machine, Fault::Hang);
    assert_eq!(machine.client.wait_for_end("later").state, CellState::Exited);
    assert_eq!(machine.client.stop("bystander", 10_000).exit_code, Some(0));
    assert_eq!(machine.resources(), empty);
}

#[test]
fn what_cells_share_of_their_image_stays_as_long_as_one_of_them_whichever_supervisor_there_is() {
    let mut machine = Supervised::boot(Setup { memory_mib: 128, ..FOR_TESTS });
    let empty = machine.resources();
    for name in ["one", "two"] {
        machine.client.create(probe(), spec(name, 1, 4, &["serve"]));
        machine.client.start(name);
    }
    let (one, two) = (machine.client.inspect("one"), machine.client.inspect("two"));
    assert!(one.text.0 > 0 && one.text == two.text, "{one:?} {two:?}");
    // Who writes to it, shared or its own, ends, and nobody else; again and again.
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
    // Whoever gets all that is free gets nothing that the other one executes.
    // The restarted supervisor has no image: the one that it gets takes whole chunks of what is free.
    let image_bytes = (probe().len() as u64).next_multiple_of(GRANULE);
    let free_mib = (machine.client.machine().memory_free.0 - image_bytes) >> 20;
    machine.client.create(probe(), spec("all", 1, free_mib, &["memory"]));
    machine.client.start("all");
    assert_eq!(machine.client.wait_for_end("all").exit_code, Some(0));
    go_wrong(&mut machine, Fault::Panic);
    assert_eq!(machine.client.stop("two", 10_000).exit_code, Some(0));
    assert_eq!(machine.resources(), empty);
}

#[test]
fn what_a_cell_executes_is_nobody_else_s_where_its_deed_alone_says_so() {
    let mut machine = Supervised::boot(Setup { memory_mib: 128, ..FOR_TESTS });
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
    // The image is sent once more for others, and lies in other memory; whoever gets the rest writes to all of it.
    let rest_mib = (after.memory_free.0 - after.memory_images.0) >> 20;
    machine.client.create(probe(), spec("all", 1, rest_mib, &["memory"]));
    assert_eq!(machine.client.machine().memory_free, ByteSize(0));
    machine.client.start("all");
    assert_eq!(machine.client.wait_for_end("all").exit_code, Some(0));
    assert_eq!(machine.client.stop("one", 10_000).exit_code, Some(0));
    assert_eq!(machine.client.logs("one"), "stopping, as asked\n");
    assert_eq!(machine.resources(), empty);
    assert_eq!(machine.client.machine().memory_images, before.memory_images, "what one stood on is free");
}

#[test]
fn a_cell_brings_a_supervisor_back_that_stands_still_and_disturbs_none_that_works() {
    let mut machine = Supervised::boot(FOR_TESTS);
    machine.client.create(probe(), spec("rouser", 1, 4, &["rouse"]));
    machine.client.start("rouser");
    // Enough for it to work at.
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
fn a_supervisor_that_works_is_not_disturbed_and_goes_wrong_only_where_tests_are_allowed() {
    let mut machine = Supervised::boot(Setup { command_line: "", ..FOR_TESTS });
    for fault in [Fault::Panic, Fault::Hang, Fault::PanicAtEnd] {
        assert_eq!(machine.client.ask(RequestBody::GoWrong(fault)), Err(ManagementError::NotForTests));
    }
    for _ in 0..20 {
        machine.inject_nmi();
        machine.client.machine();
    }
    assert_eq!(machine.client.machine().restarts, 0);
}
