//! The supervisor serves a cell's notification within a million instructions, under any other load.
//!
//! The supervisor measures the longest possible wait of a notification, and logs one above a millisecond. On these
//! machines an instruction takes a nanosecond, so the host's load does not matter.

use isola_abi::id::CellId;
use isola_abi::management::{
    CellSpec, CellState, Change, JournalEvent, Mode, RequestBody, ResponseBody, RestartPolicy,
};
use isola_abi::report::CellPhase;
use isola_abi::size::ByteSize;
use isola_tests::management::{cell, digest, spec};
use isola_tests::qemu::ClockSource;
use isola_tests::supervised::{MachineSetup, SupervisedMachine, probe};
use std::time::Duration;

/// The longest wait for a response.
const TIMEOUT: Duration = Duration::from_secs(120);

/// The supervisor's message about late notifications.
const LATE: &str = "notifications of cells waited";

fn boot(cores: usize, memory_mib: usize) -> SupervisedMachine {
    SupervisedMachine::boot(MachineSetup {
        cores,
        memory_mib,
        time: ClockSource::Instructions,
        ..MachineSetup::default()
    })
}

/// Runs a cell of `mib` MiB that writes to all its memory and ends, so that the memory is dirty. Returns the length of
/// the serial output so far: earlier messages do not count. The emulator runs processors in turns of up to 100 ms. A
/// cell that computes without a pause can therefore stop the supervisor's processor within a pass for this long, and
/// the supervisor then logs a wait that did not happen.
fn soil(machine: &mut SupervisedMachine, mib: u64) -> usize {
    machine.client.create(probe(), spec("soil", 1, mib, &["memory"]));
    machine.client.start("soil");
    machine.client.wait_for_end("soil");
    machine.client.destroy("soil");
    machine.serial().len()
}

/// Checks that no notification was late after the first `printed` bytes of output. The supervisor cannot tell the turns of
/// some 0.5 ms, for which the emulator runs another core while it ends a cell, from its own work: two of them are permitted.
fn was_never_late_since(machine: &mut SupervisedMachine, printed: usize) {
    let serial = machine.serial();
    let lines = serial[printed..].lines();
    let late: Vec<&str> = lines.filter(|line| waited_us(line).is_some_and(|us| us > 1500)).collect();
    assert!(late.is_empty(), "{late:#?}");
}

/// Returns the time in the supervisor's message about late notifications, in microseconds.
fn waited_us(line: &str) -> Option<u64> {
    let (_, rest) = line.split_once(LATE)?;
    rest.split(' ').find_map(|word| word.parse().ok())
}

fn entry(
    machine: &mut SupervisedMachine,
    name: &str,
    what: impl Fn(&JournalEvent) -> bool,
) -> (u64, Duration) {
    let events = machine.client.events(0);
    let entry = events.iter().find(|entry| entry.cell.as_deref() == Some(name) && what(&entry.event));
    let entry = entry.unwrap_or_else(|| panic!("{name}: {events:?}"));
    (entry.number, Duration::from_nanos(entry.duration_ns))
}

#[test]
fn a_cell_grows_while_a_large_one_is_created_enlarged_and_restarted_on_dirty_memory() {
    let mut machine = boot(4, 1024);
    let soiled = soil(&mut machine, 900);
    let grows = CellSpec { memory_max: Some(ByteSize(64 << 20)), ..spec("grows", 1, 4, &["ask", "2"]) };
    machine.client.create(probe(), grows);
    // The large cell ends at once; its restart policy starts it again.
    let large = CellSpec {
        image: digest(probe()),
        restart: RestartPolicy::Always,
        ..spec("large", 1, 700, &["exit", "1"])
    };
    let asked = machine.client.send(RequestBody::Create(large.into()));
    machine.client.start("grows");
    let grown = machine.client.wait_for_end("grows");
    assert_eq!((grown.state, grown.memory_given), (CellState::Exited, ByteSize(64 << 20)), "{grown:?}");
    let created = machine.client.wait(asked, TIMEOUT).expect("the large cell is created");
    assert_eq!(cell(created.body).state, CellState::Created);
    // The other cell first grew thirty times and ended.
    let (ended, _) = entry(&mut machine, "grows", |event| matches!(event, JournalEvent::Exit(_)));
    let (created, took) = entry(&mut machine, "large", |event| *event == JournalEvent::Create);
    assert!(ended < created && took > Duration::from_millis(20), "{ended} {created} {took:?}");
    was_never_late_since(&mut machine, soiled);

    machine.client.create(probe(), spec("grows-on-request", 1, 8, &["serve"]));
    machine.client.start("grows-on-request");
    machine.client.wait_for("grows-on-request", |info| info.phase == CellPhase::Running);
    let (name, memory) = ("grows-on-request".into(), Change::More(ByteSize(128 << 20)));
    let resized = machine.client.ask(RequestBody::ResizeMemory { name, memory, mode: Mode::Apply });
    assert!(matches!(resized, Ok(ResponseBody::MemoryResized(_))), "{resized:?}");
    was_never_late_since(&mut machine, soiled);

    machine.client.start("large");
    machine.client.wait_for("large", |info| info.restarts.count >= 1);
    machine.client.stop("large", 0);
    was_never_late_since(&mut machine, soiled);
}

#[test]
fn images_lists_journals_and_logs_do_not_delay_notifications() {
    let mut machine = boot(4, 256);
    for number in 0..20 {
        let name = format!("cell-{number}");
        machine.client.create(probe(), spec(&name, 3, 8, &["print", "2000"]));
        machine.client.start(&name);
        machine.client.wait_for_end(&name);
        machine.client.logs(&name);
    }
    machine.client.flood(RequestBody::List { from: CellId(0) }, 50);
    machine.client.flood(RequestBody::Events { from: 0, max_entries: u32::MAX }, 50);
    assert_eq!(machine.client.machine().cores.len(), 4);
    was_never_late_since(&mut machine, 0);
}
