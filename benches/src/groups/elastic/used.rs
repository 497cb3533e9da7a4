//! The cost of operations on a cell that has served: launch until its first answer, end with dirty memory, and unplug
//! of memory that was in use.

use super::{NAME, move_core, quiet, small};
use crate::error::BenchError;
use crate::load::generator::Generator;
use crate::load::mix::Mix;
use crate::record::Record;
use crate::session::{Counting, Service, Session};
use crate::supervised::{LIMIT, SupervisedMachine, spec};
use isola_abi::management::{Change, Mode};
use isola_abi::size::ByteSize;
use std::io::{Read, Write};
use std::time::Duration;

/// The memory of the cell, in MiB.
const CELL_MIB: u64 = 128;

/// The number of records, which fill most of it.
const RECORDS: usize = 60_000;

/// The memory to unplug, part of which was in use.
const LESS: ByteSize = ByteSize(32 << 20);

/// The number of the client's connections, and the duration of its load.
const CONNECTIONS: usize = 16;
const TRAFFIC: Duration = Duration::from_secs(1);

/// Takes one run.
pub fn run(session: &Session, record: &mut Record) -> Result<(), BenchError> {
    let mut supervised = SupervisedMachine::boot(session, small(), Counting::On)?;
    let image = session.images.cell_image(Service::Kv.image())?;
    supervised.provide(&image)?;
    let before = total(&quiet(&mut supervised));
    supervised.client.create(spec(NAME, &image, 1, CELL_MIB))?;
    supervised.client.start(NAME)?;
    let mut stream = Service::Kv.first_answer(&mut supervised.machine)?;
    record.isola("elastic-launch-answer", since(&supervised, before));

    drop(Generator::connect(Service::Kv.address(), CONNECTIONS, Mix::large(RECORDS))?);
    let flushed = stream.write_all(b"flush_all\r\n").and_then(|()| stream.read_exact(&mut [0; 4]));
    flushed.map_err(BenchError::connection("the key-value service"))?;
    let before = total(&quiet(&mut supervised));
    supervised.client.resize_memory(NAME, Change::Less(LESS), Mode::Apply)?;
    record.isola("elastic-memory-offline-used", since(&supervised, before));

    move_core(&mut supervised.client, Change::More(1), Mode::Apply)?;
    Generator::connect(Service::Kv.address(), CONNECTIONS, Mix::etc())?.closed(TRAFFIC)?;
    let before = total(&quiet(&mut supervised));
    supervised.client.stop(NAME, 0, LIMIT)?;
    supervised.client.destroy(NAME)?;
    record.isola("elastic-destroy-used", since(&supervised, before));
    Ok(())
}

fn total(counts: &[u64]) -> u64 {
    counts.iter().sum()
}

/// Returns the instructions of all cores since the count `before`.
fn since(supervised: &SupervisedMachine, before: u64) -> f64 {
    (total(&supervised.machine.instructions_by_processor()) - before) as f64
}
