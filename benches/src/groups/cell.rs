//! Group `cell`: cells on a machine with a supervisor, as seen by a user of the management protocol. The peer is the
//! Linux guest, which a user without cells would boot for the same purpose.

use crate::error::BenchError;
use crate::linux::MEMORY_ANSWER;
use crate::load;
use crate::machine::{MEMORY_MIB, Pace};
use crate::record::Record;
use crate::session::{Counting, Service, Session, System, mib, ms, ms_since};
use crate::supervised::{LIMIT, MachineSize, SupervisedMachine, spec};
use isola_abi::management::{CellInfo, ManagementError};
use isola_host::client::ClientError;
use isola_host::image::CellImage;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Cores of the machine: one for the supervisor, two for a cell.
const CORES: u32 = 3;

/// Memory of a cell, in MiB.
const CELL_MIB: u64 = 64;

/// The unit of a cell's memory.
const CHUNK_MIB: u64 = 2;

/// The longest time for a cell to stop by itself, in ms.
const STOP_MS: u32 = 10_000;

/// The longest wait for an answer of a cell that may be too small.
const SMALL_LIMIT: Duration = Duration::from_secs(2);

/// The time after a cell's first answer until its memory use is read.
const SETTLING: Duration = Duration::from_millis(500);

/// The name of each cell.
const NAME: &str = "bench";

/// Takes one run of the group.
pub fn run(session: &Session, system: System, record: &mut Record) -> Result<(), BenchError> {
    match system {
        System::Isola => isola(session, record),
        System::Linux => linux(session, record),
    }
}

fn linux(session: &Session, record: &mut Record) -> Result<(), BenchError> {
    let mut guest = session.start(System::Linux, Service::Kv, Counting::Off)?;
    record.peer("cell-up", ms(guest.answered));
    let used_kib = guest.machine.ask("memory", MEMORY_ANSWER)?;
    record.peer("cell-memory", mib(used_kib << 10));
    Ok(())
}

fn isola(session: &Session, record: &mut Record) -> Result<(), BenchError> {
    let size = MachineSize { cores: CORES, queues: 1, memory_mib: MEMORY_MIB, pace: Pace::Host };
    let mut supervised = SupervisedMachine::boot(session, size, Counting::Off)?;
    record.isola("cell-supervisor", ms(supervised.ready));
    let kv = session.images.cell_image(Service::Kv.image())?;

    let life = run_life_cycle(&mut supervised, &kv, 1)?;
    record.isola("cell-create", life.create_ms);
    record.isola("cell-start", life.start_ms);
    record.isola("cell-up", life.create_ms + life.start_ms);
    record.isola("cell-destroy", life.destroy_ms);
    record.isola("cell-memory", mib(life.used_bytes));

    let life = run_life_cycle(&mut supervised, &kv, 2)?;
    record.isola("cell-up-2-cores", life.create_ms + life.start_ms);

    let echo = session.images.cell_image(Service::Echo.image())?;
    record.isola("cell-smallest", smallest(&mut supervised, &echo)? as f64);
    Ok(())
}

/// Durations and memory of one cell.
struct LifeCycle {
    create_ms: f64,
    start_ms: f64,
    destroy_ms: f64,
    /// Memory in use after the first answer, in bytes.
    used_bytes: u64,
}

/// Creates and starts a cell, waits for an answer, stops and destroys the cell.
fn run_life_cycle(
    supervised: &mut SupervisedMachine,
    image: &CellImage,
    cores: u32,
) -> Result<LifeCycle, BenchError> {
    let start = Instant::now();
    supervised.provide(image)?;
    supervised.client.create(spec(NAME, image, cores, CELL_MIB))?;
    let create_ms = ms_since(start);

    let start = Instant::now();
    supervised.client.start(NAME)?;
    Service::Kv.first_answer(&mut supervised.machine)?;
    let start_ms = ms_since(start);
    // A cell publishes its memory use with a delay.
    sleep(SETTLING);
    let used_bytes = used(&supervised.client.inspect(NAME)?);

    let start = Instant::now();
    supervised.client.stop(NAME, STOP_MS, LIMIT)?;
    supervised.client.destroy(NAME)?;
    Ok(LifeCycle { create_ms, start_ms, destroy_ms: ms_since(start), used_bytes })
}

/// Returns the memory of the smallest cell in which an image answers, in MiB.
fn smallest(supervised: &mut SupervisedMachine, image: &CellImage) -> Result<u64, BenchError> {
    for mib in (CHUNK_MIB..CELL_MIB).step_by(CHUNK_MIB as usize) {
        supervised.provide(image)?;
        match supervised.client.create(spec(NAME, image, 1, mib)) {
            Ok(_) => {}
            Err(ClientError::Refused(ManagementError::MemoryTooSmall { .. })) => continue,
            Err(error) => return Err(error.into()),
        }
        supervised.client.start(NAME)?;
        let answered = load::echoes_within(Service::Echo.address(), SMALL_LIMIT)?;
        // A failed cell has already ended.
        let _ = supervised.client.stop(NAME, STOP_MS, LIMIT);
        supervised.client.destroy(NAME)?;
        if answered {
            return Ok(mib);
        }
    }
    Ok(CELL_MIB)
}

/// Returns the memory of a cell that is not available to the application: in use, or taken by image, stacks and tables.
fn used(info: &CellInfo) -> u64 {
    let left = info.memory_usage.total.0.saturating_sub(info.memory_usage.used.0);
    info.memory.0.saturating_sub(left)
}
