//! Cells on a divided machine, as the user of the management protocol sees them. Beside them the Linux guest: what
//! would be started for the same purpose where there are no cells.

use crate::error::BenchError;
use crate::linux::MEMORY_ANSWER;
use crate::machine::{Boot, MEMORY_MIB, Machine, Pace};
use crate::network::GUEST;
use crate::record::Record;
use crate::session::{Counting, Service, Session, System, mib, ms, ms_since};
use crate::{interrupt, load};
use isola_abi::descriptor::NetworkAddress;
use isola_abi::management::{CellInfo, CellSpec, CorePlacement, ManagementError, NetworkSpec, RestartPolicy};
use isola_abi::size::ByteSize;
use isola_host::client::{Client, ClientError, SOCKET};
use isola_host::image::{CellImage, SUPERVISOR};
use std::ops::ControlFlow;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Cores of the machine: one for the supervisor, two for a cell.
const CORES: u32 = 3;

/// Memory of a cell, in MiB.
const CELL_MIB: u64 = 64;

/// A cell's memory is a multiple of this.
const CHUNK_MIB: u64 = 2;

/// How long the supervisor may take to come up, and a cell to stop.
const LIMIT: Duration = Duration::from_secs(60);

/// How long a cell may take to stop by itself, in ms.
const STOP_MS: u32 = 10_000;

/// How long a cell that is too small is waited for.
const SMALL_LIMIT: Duration = Duration::from_secs(2);

/// How long after its first answer a cell is asked for its memory.
const SETTLING: Duration = Duration::from_millis(500);

/// The name of each cell.
const NAME: &str = "bench";

/// A run.
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
    let mut divided = Divided::boot(session)?;
    record.isola("cell-supervisor", ms(divided.ready));
    let kv = session.images.cell_image(Service::Kv.image())?;

    let life = divided.live(&kv, 1)?;
    record.isola("cell-create", life.create_ms);
    record.isola("cell-start", life.start_ms);
    record.isola("cell-up", life.create_ms + life.start_ms);
    record.isola("cell-destroy", life.destroy_ms);
    record.isola("cell-memory", mib(life.used_bytes));

    let life = divided.live(&kv, 2)?;
    record.isola("cell-up-2-cores", life.create_ms + life.start_ms);

    let echo = session.images.cell_image(Service::Echo.image())?;
    record.isola("cell-smallest", divided.smallest(&echo)? as f64);
    Ok(())
}

/// A machine with a supervisor.
struct Divided {
    machine: Machine,
    client: Client,
    /// From the start of QEMU to the supervisor's first answer.
    ready: Duration,
}

/// How a cell lived.
struct Life {
    create_ms: f64,
    start_ms: f64,
    destroy_ms: f64,
    /// Memory in use once it served.
    used_bytes: u64,
}

impl Divided {
    fn boot(session: &Session) -> Result<Self, BenchError> {
        let console = format!("socket,id=management,path={SOCKET},server=on,wait=off");
        let extra = [
            "-chardev",
            &console,
            "-device",
            "virtio-serial-pci,disable-legacy=on",
            "-device",
            "virtserialport,chardev=management",
        ];
        let boot = Boot {
            name: "the divided machine".into(),
            kernel: session.images.find(SUPERVISOR)?,
            initrd: None,
            command_line: String::new(),
            cores: CORES,
            queues: 1,
            memory_mib: MEMORY_MIB,
            pace: Pace::Host,
            extra: extra.map(Into::into).into(),
        };
        let mut machine = session.machine(&boot, Counting::Off)?;
        // What is asked before it listens may be asked again late: it is waited for until it says so.
        machine.wait_for("ready")?;
        let folder = machine.folder().to_owned();
        let client = Client::connect_within(&folder, LIMIT, &mut || match interrupt::asked() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        });
        let client = client.map_err(|error| gone(&mut machine, error))?;
        let ready = machine.started().elapsed();
        Ok(Self { machine, client, ready })
    }

    /// Creates, starts, asks, stops and destroys a cell.
    fn live(&mut self, image: &CellImage, cores: u32) -> Result<Life, BenchError> {
        let start = Instant::now();
        self.client.provide(image, &mut |_| ControlFlow::Continue(()))?;
        self.client.create(spec(image, cores, CELL_MIB))?;
        let create_ms = ms_since(start);

        let start = Instant::now();
        self.client.start(NAME)?;
        Service::Kv.first_answer(&mut self.machine)?;
        let start_ms = ms_since(start);
        // A cell says what it uses when it comes to it.
        sleep(SETTLING);
        let used_bytes = used(&self.client.inspect(NAME)?);

        let start = Instant::now();
        self.client.stop(NAME, STOP_MS, LIMIT)?;
        self.client.destroy(NAME)?;
        Ok(Life { create_ms, start_ms, destroy_ms: ms_since(start), used_bytes })
    }

    /// Memory of the smallest cell in which an image answers, in MiB.
    fn smallest(&mut self, image: &CellImage) -> Result<u64, BenchError> {
        for mib in (CHUNK_MIB..CELL_MIB).step_by(CHUNK_MIB as usize) {
            self.client.provide(image, &mut |_| ControlFlow::Continue(()))?;
            match self.client.create(spec(image, 1, mib)) {
                Ok(_) => {}
                Err(ClientError::Refused(ManagementError::MemoryTooSmall { .. })) => continue,
                Err(error) => return Err(error.into()),
            }
            self.client.start(NAME)?;
            let answered = load::echoes_within(Service::Echo.address(), SMALL_LIMIT)?;
            // One that has failed is stopped already.
            let _ = self.client.stop(NAME, STOP_MS, LIMIT);
            self.client.destroy(NAME)?;
            if answered {
                return Ok(mib);
            }
        }
        Ok(CELL_MIB)
    }
}

fn spec(image: &CellImage, cores: u32, mib: u64) -> CellSpec {
    CellSpec {
        name: NAME.into(),
        image_name: image.name.clone(),
        image: image.digest,
        requirement: Box::default(),
        cores,
        placement: CorePlacement::default(),
        memory: ByteSize(mib << 20),
        memory_max: None,
        arguments: Vec::new(),
        network: NetworkSpec::Static(NetworkAddress { ip: GUEST, prefix_len: 24, gateway: None }),
        restart: RestartPolicy::No,
        watchdog_ms: 0,
    }
}

/// What of a cell's memory is not left to the application: image, stacks and tables included.
fn used(info: &CellInfo) -> u64 {
    let left = info.memory_usage.total.0.saturating_sub(info.memory_usage.used.0);
    info.memory.0.saturating_sub(left)
}

/// Why there is no client: the machine's end explains more than the broken connection.
fn gone(machine: &mut Machine, error: ClientError) -> BenchError {
    match error {
        ClientError::Interrupted => BenchError::Interrupted,
        _ if !machine.is_running() => machine.ended("its supervisor answered"),
        error => error.into(),
    }
}
