//! Group `service`: disk reads through a service cell, beside those of a cell with a disk of its own, and the shares of three
//! clients of a service cell.
//!
//! A plugin counts the instructions of the processors of both cells; the supervisor's processor answers the benchmark's
//! requests and does not count. Rates are measured without it.

use super::grid::isola::{bytes_of, weights, wfq};
use super::grid::shares::{WEIGHTS, deviation};
use crate::error::BenchError;
use crate::machine::{MEMORY_MIB, Pace};
use crate::record::Record;
use crate::session::{Counting, Session};
use crate::supervised::{MachineSize, SupervisedMachine, spec};
use isola_abi::grid::{GridSetup, Resource};
use isola_abi::management::{CellSpec, DeviceLocation, NetworkSpec};
use isola_abi::service::ServedVolume;
use isola_abi::size::ByteSize;
use isola_abi::volume::{VolumeAccess, VolumeMount};
use isola_host::volume::VolumeName;
use isola_host::volume::parts::PartSpec;
use isola_host::volume::store::{VolumeError, VolumeStore};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::thread::sleep;
use std::time::Duration;

/// The volumes of the service cell, and the cells that use them.
const NAMES: [&str; 3] = ["first", "second", "third"];

/// The service cell.
const STORE: &str = "store";

/// The slots of the disks on the bus: that of the service cell, and one that a cell has alone.
const POOL_SLOT: u8 = 16;
const OWN_SLOT: u8 = 17;

/// The memory of a cell, in MiB.
const CELL_MIB: u64 = 64;

/// The reads of a measurement, and those at a time.
const READS: u32 = 8000;
const DEPTH: u32 = 16;

/// The concurrent reads of the three cells that share the disk: the last one floods the service cell.
const READERS: [u32; 3] = [64, 64, 256];

/// The rate of the shared disk, in bytes/s.
const RATE: u64 = 16_000_000;

/// The time before counters are read, after which a machine without work is idle; and the time until shares are stable.
const IDLE: Duration = Duration::from_millis(300);
const SETTLE: Duration = Duration::from_secs(1);

/// Returns the description of the load.
pub fn load(session: &Session) -> BTreeMap<String, String> {
    let seconds = session.plan.load.as_secs_f64();
    [
        ("reads", format!("{READS} random blocks of 4 KiB within 8 MiB, {DEPTH} at a time")),
        ("shares", format!("{RATE} bytes/s; {READERS:?} reads at a time, {seconds} s")),
        ("network", super::service_network::load(seconds)),
        ("cells", "one core each".to_owned()),
    ]
    .map(|(what, how)| (what.to_owned(), how))
    .into()
}

/// Measures once.
pub fn run(session: &Session, record: &mut Record) -> Result<(), BenchError> {
    let disks = Disks::make()?;
    for counting in [Counting::On, Counting::Off] {
        let figure = if counting == Counting::On { "service-read" } else { "service-reads" };
        record.isola(figure, reads(session, &disks, counting, Source::Service)?);
        record.peer(figure, reads(session, &disks, counting, Source::OwnDisk)?);
    }
    record.isola("service-shares", shares(session, &disks)?);
    Ok(())
}

/// The disk that a client reads.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Source {
    Service,
    OwnDisk,
}

/// The files of the two disks, removed on drop.
struct Disks {
    folder: tempfile::TempDir,
}

impl Disks {
    fn make() -> Result<Self, BenchError> {
        let folder = tempfile::tempdir().map_err(BenchError::file(std::env::temp_dir()))?;
        let store = VolumeStore::at(folder.path());
        let broken = |output| BenchError::Program { line: "isola volume create".into(), output };
        let part = |name| format!("{name}=16M").parse::<PartSpec>();
        let parts = NAMES.into_iter().map(part).collect::<Result<Vec<_>, _>>();
        let parts = parts.map_err(|error| broken(error.to_string()))?;
        let name = |text: &str| text.parse::<VolumeName>().map_err(|error| broken(error.to_string()));
        let text = |error: VolumeError| broken(error.to_string());
        store.create_parts(&name("pool")?, &parts).map_err(text)?;
        store.create(&name("own")?, ByteSize(16 << 20), None).map_err(text)?;
        Ok(Self { folder })
    }

    /// Returns QEMU's arguments for both disks; the service cell's transfers at most `rate` bytes/s, if there is one.
    fn arguments(&self, rate: Option<u64>) -> Result<Vec<OsString>, BenchError> {
        let limit = rate.map(|rate| format!(",throttling.bps-total={rate}")).unwrap_or_default();
        let file = |name: &str| -> Result<String, BenchError> {
            let store = VolumeStore::at(self.folder.path());
            let volume = name.parse().ok().and_then(|name| store.find(&name).ok());
            let file = volume.map(|volume| volume.file.display().to_string());
            file.ok_or_else(|| BenchError::Program { line: "isola volume".into(), output: name.into() })
        };
        let disk = |name: &str, slot: u8, limit: &str| -> Result<[String; 4], BenchError> {
            let drive = format!("if=none,id={name},file={},format=raw,snapshot=on{limit}", file(name)?);
            let device = format!("virtio-blk-pci,drive={name},disable-legacy=on,addr={slot:#x}");
            Ok(["-drive".into(), drive, "-device".into(), device])
        };
        let all = [disk("pool", POOL_SLOT, &limit)?, disk("own", OWN_SLOT, "")?];
        Ok(all.into_iter().flatten().map(OsString::from).collect())
    }
}

/// A machine with two disks.
struct Rig<'s> {
    session: &'s Session,
    machine: SupervisedMachine,
}

impl<'s> Rig<'s> {
    fn boot(
        session: &'s Session,
        cores: u32,
        counting: Counting,
        disks: Vec<OsString>,
    ) -> Result<Self, BenchError> {
        let size = MachineSize { cores, queues: 1, memory_mib: MEMORY_MIB, pace: Pace::Host };
        Ok(Self { session, machine: SupervisedMachine::boot_with(session, size, counting, disks)? })
    }

    fn start(&mut self, image: &str, spec: impl FnOnce(CellSpec) -> CellSpec) -> Result<(), BenchError> {
        let image = self.session.images.cell_image(image)?;
        self.machine.provide(&image)?;
        let general = CellSpec { network: NetworkSpec::None, ..self::spec(&image.name, &image, 1, CELL_MIB) };
        let spec = spec(general);
        let name = spec.name.clone();
        self.machine.client.create(spec)?;
        self.machine.client.start(&name)?;
        Ok(())
    }

    /// Starts the service cell.
    fn serve(&mut self, grid: GridSetup) -> Result<(), BenchError> {
        let volumes = vec![own_volume("pool", POOL_SLOT, "/pool")];
        self.start("block", |spec| CellSpec {
            name: STORE.into(),
            accept: vec!["*".into()],
            volumes,
            grid,
            ..spec
        })?;
        self.machine.wait_for_log(STORE, "serving first, second, third")
    }

    /// Returns the instructions of all processors but the supervisor's.
    fn instructions(&self) -> f64 {
        self.machine.machine.instructions_by_processor().iter().skip(1).sum::<u64>() as f64
    }
}

fn own_volume(name: &str, slot: u8, path: &str) -> VolumeMount {
    VolumeMount {
        device: DeviceLocation::Pci { bus: 0, device: slot, function: 0 },
        name: name.into(),
        path: path.into(),
        access: VolumeAccess::ReadWrite,
    }
}

fn served_volume(name: &str) -> ServedVolume {
    ServedVolume {
        cell: STORE.into(),
        name: name.into(),
        path: "/data".into(),
        access: VolumeAccess::ReadWrite,
    }
}

/// Returns the instructions of a read, or the reads of a second.
fn reads(session: &Session, disks: &Disks, counting: Counting, source: Source) -> Result<f64, BenchError> {
    let mut rig = Rig::boot(session, 3, counting, disks.arguments(None)?)?;
    if source == Source::Service {
        rig.serve(GridSetup::default())?;
    }
    let client = "client";
    rig.start("volume-client", |spec| CellSpec {
        name: client.into(),
        arguments: vec!["reads".into(), READS.to_string(), DEPTH.to_string()],
        volumes: if source == Source::OwnDisk {
            vec![own_volume("own", OWN_SLOT, "/data")]
        } else {
            Vec::new()
        },
        served_volumes: if source == Source::Service { vec![served_volume("first")] } else { Vec::new() },
        ..spec
    })?;
    // The client reads after a pause.
    rig.machine.wait_for_log(client, "ready")?;
    sleep(IDLE);
    let before = rig.instructions();
    rig.machine.wait_for_log(client, " ns")?;
    sleep(IDLE);
    let instructions = rig.instructions() - before;
    let log = String::from_utf8_lossy(&rig.machine.client.logs(client, 0)?.bytes).into_owned();
    let took = log.split_once("took ").and_then(|(_, rest)| rest.split_once(" ns")?.0.parse::<f64>().ok());
    let took_ns = took.ok_or_else(|| BenchError::WrongAnswer {
        service: "a cell".into(),
        request: "reads".into(),
        answer: log,
    })?;
    Ok(if counting == Counting::On {
        instructions / f64::from(READS)
    } else {
        f64::from(READS) * 1e9 / took_ns
    })
}

/// Returns the greatest deviation of a client's share of the disk, in percentage points.
fn shares(session: &Session, disks: &Disks) -> Result<f64, BenchError> {
    let mut rig = Rig::boot(session, 5, Counting::Off, disks.arguments(Some(RATE))?)?;
    let mut changes = vec![wfq(Resource::Disk, 1, None)];
    changes.extend(weights(Resource::Disk, NAMES, WEIGHTS));
    rig.serve(GridSetup { changes, rules: Vec::new() })?;
    for (name, readers) in NAMES.into_iter().zip(READERS) {
        // So many reads that the cell reads until the machine ends.
        let arguments = vec!["reads".into(), u32::MAX.to_string(), readers.to_string()];
        let served_volumes = vec![served_volume(name)];
        rig.start("volume-client", |spec| CellSpec { name: name.into(), arguments, served_volumes, ..spec })?;
    }
    for name in NAMES {
        rig.machine.wait_for_log(name, "ready")?;
    }
    // The clients wait two seconds before they read.
    sleep(2 * SETTLE + SETTLE);
    let client = &mut rig.machine.client;
    let before = bytes_of(client, STORE, Resource::Disk, NAMES)?;
    sleep(session.plan.load);
    let after = bytes_of(client, STORE, Resource::Disk, NAMES)?;
    Ok(deviation([0, 1, 2].map(|index| after[index] - before[index]), WEIGHTS))
}
