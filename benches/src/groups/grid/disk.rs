//! Vortex 4.3 and its figures 7 and 8: 1,023 concurrent reads of three tenants from a device of a limited rate. The reads
//! are of random blocks, of another length for each tenant, past the cache.

use super::guest::{CGROUPS, TenantGuest};
use super::isola::{TenantMachine, VOLUME, weights, wfq};
use super::shares::{EQUAL, WEIGHTS, deviation, percent};
use super::{SETTLE, note};
use crate::error::BenchError;
use crate::record::Record;
use crate::session::{Session, System};
use crate::volume::HostVolume;
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

/// The number of the device in the guest.
const DEVICE: &str = "254:0";

/// Requests per second that do not limit the device.
const MANY: u32 = 100_000;

/// The part of the device's rate that io.cost lets the tenants use, in percent: requests would wait in the device's queue
/// otherwise, where io.cost cannot order them. And the part at first, and its duration, until that queue is empty.
const PART: u32 = 95;
const FIRST_PART: u32 = 50;
const DRAINED: Duration = Duration::from_secs(5);

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

/// Lets the tenants use a part of the device's rate, in percent.
fn use_part(guest: &mut TenantGuest, percent: u32) -> Result<(), BenchError> {
    guest.run(&format!(
        "echo '{DEVICE} enable=1 ctrl=user rpct=0 rlat=5000 wpct=0 wlat=5000 min={percent} max={percent}' \
         >{CGROUPS}/io.cost.qos"
    ))
}

fn linux(guest: &mut TenantGuest, session: &Session) -> Result<(BytesRead, BytesRead), BenchError> {
    // io.cost needs no scheduler of the device. Its model is exact: the device takes a time for each byte and none for a
    // request.
    guest.run("echo none >/sys/block/vda/queue/scheduler")?;
    guest.run(&format!(
        "echo '{DEVICE} ctrl=user model=linear rbps={RATE} wbps={RATE} rseqiops={MANY} rrandiops={MANY} wseqiops={MANY} \
         wrandiops={MANY}' >{CGROUPS}/io.cost.model"
    ))?;
    use_part(guest, FIRST_PART)?;
    guest.set("io.weight", WEIGHTS)?;
    for (name, len) in NAMES.into_iter().zip(LENGTHS) {
        guest.tenant(name, &format!("linux-tenants disk /dev/vda {len} {READERS}"));
    }
    // The first requests of all tenants have reached the device, 29 MB, before io.cost distinguishes them.
    sleep(DRAINED);
    use_part(guest, PART)?;
    let read = |guest: &mut TenantGuest, time: Duration| {
        sleep(SETTLE);
        let growth = guest.measure(time, "io.stat", "rbytes")?;
        Ok::<_, BenchError>(BytesRead { bytes: growth.used, seconds: growth.elapsed_us / 1e6 })
    };
    let weighted = read(guest, session.plan.load)?;
    guest.set("io.weight", EQUAL)?;
    Ok((weighted, read(guest, session.plan.load / 2)?))
}
