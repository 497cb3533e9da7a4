//! Group `elastic`: creation, end, growth and shrinking of cells on a running machine, in instructions of its cores.
//!
//! There are two ways to count. Without a network device of the cell, the machine can pause in between and its clocks
//! can count its instructions; the supervisor's journal then has the instructions of all cores during an operation. For
//! core moves, the emulator counts the instructions of each core until all are idle again. This count includes the
//! request over the console and its response.
//!
//! | module | contents |
//! |---|---|
//! | this | the cost of operations |
//! | [`used`] | the cost of operations on a cell that has served traffic |
//! | [`latency`] | the delay of requests by core moves |
//!
//! The README has RainForest's figures (table 4), which are times of whole subOSes on dedicated machines.

mod latency;
mod used;

use crate::error::BenchError;
use crate::machine::{MEMORY_MIB, Pace};
use crate::record::Record;
use crate::session::{Counting, Service, Session};
use crate::statistics::median;
use crate::supervised::{LIMIT, MachineSize, SupervisedMachine, spec};
use isola_abi::management::{CellSpec, Change, JournalEntry, Mode, NetworkSpec};
use isola_abi::size::ByteSize;
use isola_host::client::{Client, ClientError};
use isola_host::image::CellImage;
use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

/// The processors of the machine for large cells, and its memory in MiB, most of which is never touched.
const LARGE: (u32, u32) = (8, 20 << 10);

/// The processors of the machine for core moves: the supervisor's, the cell's, and the one that moves.
const CORES: u32 = 3;

/// The cores of a large cell.
const CELL_CORES: u32 = 6;

/// The sizes of created cells, in MiB, and their figures.
const CREATED: [(u64, &str); 3] =
    [(4, "elastic-create-4m"), (512, "elastic-create-512m"), (16 << 10, "elastic-create-16g")];

/// The memory of the smallest cell and of a growing one, in MiB, and the memory that the latter gains.
const SMALLEST_MIB: u64 = 4;
const CELL_MIB: u64 = 64;
const MOVED: ByteSize = ByteSize(512 << 20);

/// The memory that regions fill in a cell of that size, and the cell's size after the resize, in MiB.
const SCATTERED_MIB: u64 = 48;
const REST_MIB: u64 = 24;

/// The name of each cell.
const NAME: &str = "bench";

/// The limit for a core to leave, in ms; generous, because the core may wait for the host.
const LEAVE_LIMIT_MS: u32 = 5_000;

/// The number of repetitions of operations whose cost varies.
const ROUNDS: usize = 5;

/// A machine is quiet if its counts stay the same for this many reads in a row; and the interval of reads. A busy host
/// may delay a processor.
const QUIET_LOOKS: u32 = 4;
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// Returns the description of the load.
pub fn load() -> BTreeMap<String, String> {
    [
        (
            "create, destroy, memory",
            format!(
                "{} processors, {} GiB, one instruction a ns, image echo without network",
                LARGE.0,
                LARGE.1 >> 10
            ),
        ),
        (
            "cores",
            format!("{CORES} processors, image kv with network and no load, the median of {ROUNDS} rounds"),
        ),
        ("p99", latency::load()),
    ]
    .map(|(what, how)| (what.to_owned(), how))
    .into()
}

/// Takes one run.
pub fn run(session: &Session, record: &mut Record) -> Result<(), BenchError> {
    life_cycles(session, record)?;
    memory(session, record)?;
    scattered(session, record)?;
    cores(session, record)?;
    used::run(session, record)?;
    latency::run(session, record)
}

/// Measures creation, launch and end of cells of several sizes.
fn life_cycles(session: &Session, record: &mut Record) -> Result<(), BenchError> {
    let mut supervised = large(session)?;
    let image = session.images.cell_image(Service::Echo.image())?;
    supervised.provide(&image)?;
    for (memory_mib, figure) in CREATED {
        let created = took(&mut supervised.client, |client| create(client, &image, CELL_CORES, memory_mib))?;
        record.isola(figure, created);
        let destroyed = took(&mut supervised.client, |client| client.destroy(NAME))?;
        // The largest cell comes last, and its memory is scrubbed in the background: no need to wait.
        if memory_mib << 20 > MOVED.0 {
            record.isola("elastic-destroy", destroyed);
            return Ok(());
        }
        quiet(&mut supervised);
        if memory_mib == SMALLEST_MIB {
            let launched = took(&mut supervised.client, |client| {
                create(client, &image, 1, SMALLEST_MIB)?;
                client.start(NAME).map(|_| ())
            })?;
            record.isola("elastic-launch", launched);
            quiet(&mut supervised);
            let durations = supervised.client.inspect(NAME)?.durations;
            let until_sign = [durations.create_ns, durations.start_ns, durations.first_sign_ns];
            record.isola("elastic-launch-sign", until_sign.into_iter().flatten().sum::<u64>() as f64);
            supervised.client.stop(NAME, 0, LIMIT)?;
            supervised.client.destroy(NAME)?;
            quiet(&mut supervised);
        }
    }
    Ok(())
}

/// Measures memory plug and unplug.
fn memory(session: &Session, record: &mut Record) -> Result<(), BenchError> {
    let mut supervised = large(session)?;
    let image = session.images.cell_image(Service::Echo.image())?;
    supervised.provide(&image)?;
    create(&mut supervised.client, &image, 1, CELL_MIB)?;
    supervised.client.start(NAME)?;
    let mut rounds: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for _ in 0..ROUNDS {
        for (figure, change) in
            [("elastic-memory-online", Change::More(MOVED)), ("elastic-memory-offline", Change::Less(MOVED))]
        {
            quiet(&mut supervised);
            let resize = |client: &mut Client| client.resize_memory(NAME, change, Mode::Apply).map(|_| ());
            rounds.entry(figure).or_default().push(took(&mut supervised.client, resize)?);
        }
    }
    rounds.iter().for_each(|(figure, counts)| record.isola(figure, median(counts)));
    Ok(())
}

/// Measures memory unplug that requires page migration: the image fills regions, and then keeps every eighth page.
fn scattered(session: &Session, record: &mut Record) -> Result<(), BenchError> {
    let mut supervised = large(session)?;
    let image = session.images.cell_image("regions")?;
    supervised.provide(&image)?;
    let arguments = vec!["sparse".into(), SCATTERED_MIB.to_string(), REST_MIB.to_string()];
    let spec = CellSpec { network: NetworkSpec::None, arguments, ..spec(NAME, &image, 1, CELL_MIB) };
    supervised.client.create(spec)?;
    supervised.client.start(NAME)?;
    supervised.wait_for_log(NAME, "sparse: filled")?;
    let less = Change::To(ByteSize(REST_MIB << 20));
    let mut outcome = None;
    let took = took(&mut supervised.client, |client| {
        outcome = Some(client.resize_memory(NAME, less, Mode::Apply)?);
        Ok(())
    })?;
    if outcome.is_none_or(|resized| resized.has != resized.wanted || resized.moved == ByteSize(0)) {
        return Err(BenchError::NotResized { wanted_mib: REST_MIB, outcome: format!("{outcome:?}") });
    }
    record.isola("elastic-memory-offline-moved", took);
    Ok(())
}

/// Measures core moves of a cell with a network device. The first move has separate figures; for the others the median
/// counts.
fn cores(session: &Session, record: &mut Record) -> Result<(), BenchError> {
    let mut supervised = SupervisedMachine::boot(session, small(), Counting::On)?;
    start_kv(session, &mut supervised)?;
    let mut rounds: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for round in 0..=ROUNDS {
        // The first move allocates the cell's per-core state.
        let which = if round == 0 { "-first" } else { "" };
        for (figure, change) in
            [("elastic-core-online", Change::More(1)), ("elastic-core-offline", Change::Less(1))]
        {
            let before = quiet(&mut supervised);
            move_core(&mut supervised.client, change, Mode::Apply)?;
            let after = quiet(&mut supervised);
            let mut counts = after.iter().zip(&before).map(|(after, before)| after - before);
            let supervisor = counts.next().unwrap_or_default();
            for (whose, count) in [("supervisor", supervisor), ("cell", counts.sum())] {
                rounds.entry(format!("{figure}{which}-{whose}")).or_default().push(count as f64);
            }
        }
    }
    rounds.iter().for_each(|(figure, counts)| record.isola(figure, median(counts)));
    Ok(())
}

fn move_core(client: &mut Client, change: Change<u32>, mode: Mode) -> Result<(), ClientError> {
    client.resize_cores(NAME, change, Vec::new(), LEAVE_LIMIT_MS, mode).map(|_| ())
}

/// Boots the machine with room for large cells, whose clocks count its instructions.
fn large(session: &Session) -> Result<SupervisedMachine, BenchError> {
    let (cores, memory_mib) = LARGE;
    SupervisedMachine::boot(
        session,
        MachineSize { cores, queues: 1, memory_mib, pace: Pace::Instructions },
        Counting::On,
    )
}

/// Returns the size of the machine for core moves.
fn small() -> MachineSize {
    MachineSize { cores: CORES, queues: CORES - 1, memory_mib: MEMORY_MIB, pace: Pace::Host }
}

fn start_kv(session: &Session, supervised: &mut SupervisedMachine) -> Result<(), BenchError> {
    let image = session.images.cell_image(Service::Kv.image())?;
    supervised.provide(&image)?;
    supervised.client.create(spec(NAME, &image, 1, CELL_MIB))?;
    supervised.client.start(NAME)?;
    Service::Kv.first_answer(&mut supervised.machine).map(|_| ())
}

/// Creates a cell without a network device.
fn create(client: &mut Client, image: &CellImage, cores: u32, memory_mib: u64) -> Result<(), ClientError> {
    let spec = CellSpec { network: NetworkSpec::None, ..spec(NAME, image, cores, memory_mib) };
    client.create(spec).map(|_| ())
}

/// Returns the supervisor's total time for `work`, in ns of the machine's clock, from its journal.
fn took(
    client: &mut Client,
    work: impl FnOnce(&mut Client) -> Result<(), ClientError>,
) -> Result<f64, BenchError> {
    let next = |client: &mut Client, from: u64| -> Result<(u64, Vec<JournalEntry>), ClientError> {
        let entries = client.events(from)?;
        Ok((entries.last().map_or(from, |entry| entry.number + 1), entries))
    };
    let (from, _) = next(client, 0)?;
    work(client)?;
    let (_, entries) = next(client, from)?;
    Ok(entries.iter().map(|entry| entry.duration_ns as f64).sum())
}

/// Waits until all cores are idle; returns the instructions that each has executed.
fn quiet(supervised: &mut SupervisedMachine) -> Vec<u64> {
    let deadline = Instant::now() + LIMIT;
    let (mut last, mut same) = (supervised.machine.instructions_by_processor(), 0);
    while same < QUIET_LOOKS && Instant::now() < deadline {
        thread::sleep(LOOK_INTERVAL);
        let now = supervised.machine.instructions_by_processor();
        same = if now == last { same + 1 } else { 0 };
        last = now;
    }
    last
}
