//! Vortex 4.1 and its figure 4: three tenants on one core, each of which opens a cached file, reads 32 KiB and closes it,
//! in a loop.

use super::guest::TenantGuest;
use super::isola::{Ledger, TenantMachine, VOLUME, weights, wfq};
use super::shares::{EQUAL, WEIGHTS, deviation, percent};
use super::{SETTLE, note};
use crate::error::BenchError;
use crate::record::Record;
use crate::session::{Session, System};
use crate::volume::HostVolume;
use isola_abi::grid::{GridSetup, Resource};
use std::thread::sleep;
use std::time::Duration;

/// The tenants.
const NAMES: [&str; 3] = ["first", "second", "third"];

/// The name of the file, and its length in bytes (Vortex, 4.1).
pub const FILE: &str = "file";
pub const FILE_LEN: usize = 32 << 10;

/// Takes one run.
pub fn run(
    session: &Session,
    volume: &HostVolume,
    system: System,
    record: &mut Record,
) -> Result<(), BenchError> {
    match system {
        System::Isola => isola(session, volume, record),
        System::Linux => linux(session, volume, record),
    }
}

fn isola(session: &Session, volume: &HostVolume, record: &mut Record) -> Result<(), BenchError> {
    let mut machine = TenantMachine::boot(session, volume.arguments(None))?;
    let tenant = |name: &str| format!("read:{VOLUME}/{FILE}:{name}");
    let grid = || {
        let mut changes = vec![wfq(Resource::Processor, 1, None)];
        changes.extend(weights(Resource::Processor, NAMES, WEIGHTS));
        GridSetup { changes, rules: Vec::new() }
    };
    let half = session.plan.load / 2;

    machine.start(&[tenant(NAMES[0])], grid())?;
    let alone = read(&mut machine, half)?;
    record.isola("grid-processor-alone", alone.tenants_percent());

    machine.start(&NAMES.map(tenant), grid())?;
    let used = read(&mut machine, session.plan.load)?;
    record.isola("grid-processor-error", deviation(used.tenants, WEIGHTS));
    record.isola("grid-processor-rest", 100.0 - used.tenants_percent());

    machine.change(weights(Resource::Processor, NAMES, EQUAL))?;
    let used = read(&mut machine, half)?;
    record.isola("grid-processor-equal", deviation(used.tenants, EQUAL));
    Ok(())
}

/// Returns the cycles of a time, after the tenants have settled.
fn read(machine: &mut TenantMachine, time: Duration) -> Result<Ledger, BenchError> {
    sleep(SETTLE);
    let before = machine.ledger(NAMES)?;
    sleep(time);
    Ok(machine.ledger(NAMES)?.since(&before))
}

fn linux(session: &Session, volume: &HostVolume, record: &mut Record) -> Result<(), BenchError> {
    let mut guest = TenantGuest::boot(session, NAMES, volume.arguments(None))?;
    guest.run("busybox mount -t ext4 -o ro,noatime /dev/vda /data")?;
    let program = format!("linux-tenants read /data/{FILE}");
    let half = session.plan.load / 2;
    let measure = |guest: &mut TenantGuest, time| {
        sleep(SETTLE);
        guest.measure(time, "cpu.stat", "usage_usec")
    };

    guest.set("cpu.weight", WEIGHTS)?;
    guest.tenant(NAMES[0], &program);
    let alone = measure(&mut guest, half)?;
    record.peer("grid-processor-alone", percent(alone.used.iter().sum(), alone.elapsed_us));

    for name in &NAMES[1..] {
        guest.tenant(name, &program);
    }
    let all = measure(&mut guest, session.plan.load)?;
    note(record, System::Linux, "grid-processor-error", deviation(all.used, WEIGHTS));
    record.peer("grid-processor-rest", 100.0 - percent(all.used.iter().sum(), all.elapsed_us));

    guest.set("cpu.weight", EQUAL)?;
    let equal = measure(&mut guest, half)?;
    record.peer("grid-processor-equal", deviation(equal.used, EQUAL));
    Ok(())
}
