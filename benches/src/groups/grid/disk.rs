//! Vortex 4.3 and its figures 7 and 8: 1,023 concurrent reads of three tenants from a device of a limited rate. The reads
//! are of random blocks, of another length for each tenant, past the cache.

use super::guest::TenantGuest;
use super::isola::{TenantMachine, VOLUME, weights, wfq};
use super::shares::{EQUAL, WEIGHTS, deviation, percent};
use super::volume::HostVolume;
use super::{SETTLE, note};
use crate::error::BenchError;
use crate::record::Record;
use crate::session::{Session, System};
use isola_abi::grid::{GridSetup, Resource};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The tenants, and the lengths of their reads in bytes.
const NAMES: [&str; 3] = ["first", "second", "third"];
const LENGTHS: [usize; 3] = [4096, 65536, 16384];

/// The concurrent reads of a tenant, as in Isola's image.
const READERS: usize = 341;

/// The rate of the device, in bytes/s.
pub const RATE: u64 = 16_000_000;

/// Takes one run.
pub fn run(
    session: &Session,
    volume: &HostVolume,
    system: System,
    record: &mut Record,
) -> Result<(), BenchError> {
    let arguments = volume.arguments(Some(RATE));
    let (weighted, equal) = match system {
        System::Isola => isola(&mut TenantMachine::boot(session, arguments)?, session)?,
        System::Linux => linux(&mut TenantGuest::boot(session, NAMES, arguments)?, session)?,
    };
    note(record, system, "grid-disk-error", deviation(weighted.bytes, WEIGHTS));
    let could = RATE as f64 * weighted.seconds;
    note(record, system, "grid-disk-link", percent(weighted.bytes.iter().sum(), could));
    note(record, system, "grid-disk-equal", deviation(equal.bytes, EQUAL));
    Ok(())
}

/// The bytes that the tenants have read.
struct BytesRead {
    bytes: [f64; 3],
    seconds: f64,
}

fn isola(machine: &mut TenantMachine, session: &Session) -> Result<(BytesRead, BytesRead), BenchError> {
    let mut changes = vec![wfq(Resource::Disk, 1, None)];
    changes.extend(weights(Resource::Disk, NAMES, WEIGHTS));
    let tenants = [0, 1, 2].map(|index| format!("disk:{VOLUME}:{}:{}", NAMES[index], LENGTHS[index]));
    machine.start(&tenants, GridSetup { changes, rules: Vec::new() })?;
    let read = |machine: &mut TenantMachine, time: Duration| {
        sleep(SETTLE);
        let (begin, before) = (Instant::now(), machine.bytes(Resource::Disk, NAMES)?);
        sleep(time);
        let (seconds, after) = (begin.elapsed().as_secs_f64(), machine.bytes(Resource::Disk, NAMES)?);
        Ok::<_, BenchError>(BytesRead { bytes: [0, 1, 2].map(|index| after[index] - before[index]), seconds })
    };
    let weighted = read(machine, session.plan.load)?;
    machine.change(weights(Resource::Disk, NAMES, EQUAL))?;
    Ok((weighted, read(machine, session.plan.load / 2)?))
}

fn linux(guest: &mut TenantGuest, session: &Session) -> Result<(BytesRead, BytesRead), BenchError> {
    for setting in ["scheduler bfq", "nr_requests 1024", "iosched/low_latency 0"] {
        let (file, value) = setting.split_once(' ').unwrap_or_default();
        guest.run(&format!("echo {value} >/sys/block/vda/queue/{file}"))?;
    }
    guest.set("io.bfq.weight", WEIGHTS)?;
    for (name, len) in NAMES.into_iter().zip(LENGTHS) {
        guest.tenant(name, &format!("linux-tenants disk /dev/vda {len} {READERS}"));
    }
    let read = |guest: &mut TenantGuest, time: Duration| {
        sleep(SETTLE);
        let growth = guest.measure(time, "io.stat", "rbytes")?;
        Ok::<_, BenchError>(BytesRead { bytes: growth.used, seconds: growth.elapsed_us / 1e6 })
    };
    let weighted = read(guest, session.plan.load)?;
    guest.set("io.bfq.weight", EQUAL)?;
    Ok((weighted, read(guest, session.plan.load / 2)?))
}
