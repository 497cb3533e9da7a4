//! A machine with a supervisor, and its management client.

use crate::error::BenchError;
use crate::interrupt;
use crate::machine::{Boot, Machine, Network, Pace};
use crate::network::GUEST;
use crate::session::{Counting, Session};
use isola_abi::descriptor::NetworkAddress;
use isola_abi::management::{CellSpec, CorePlacement, NetworkSpec, RestartPolicy};
use isola_abi::network_service::NetworkService;
use isola_abi::size::ByteSize;
use isola_host::client::{Client, ClientError, SOCKET};
use isola_host::image::{CellImage, ImageStore, SUPERVISOR};
use std::ffi::OsString;
use std::ops::ControlFlow;
use std::thread;
use std::time::{Duration, Instant};

/// The longest time for the supervisor to boot, or for a cell to stop.
pub const LIMIT: Duration = Duration::from_secs(60);

/// The interval at which a cell's log is read.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// A machine with a supervisor.
#[derive(Debug)]
pub struct SupervisedMachine {
    /// The machine.
    pub machine: Machine,
    /// The client of its supervisor.
    pub client: Client,
    /// The time from the start of QEMU to the supervisor's first response.
    pub ready: Duration,
}

/// The size of the machine, and its clocks.
#[derive(Clone, Copy, Debug)]
pub struct MachineSize {
    /// The number of processors, including the supervisor's.
    pub cores: u32,
    /// The number of queue pairs of its network device.
    pub queues: u32,
    /// The memory, in MiB.
    pub memory_mib: u32,
    /// The source of its clocks.
    pub pace: Pace,
}

impl SupervisedMachine {
    /// Boots a machine, and waits until its supervisor responds.
    ///
    /// # Errors
    /// As [`Session::machine`]; [`BenchError::Image`], [`BenchError::Supervisor`], [`BenchError::Ended`],
    /// [`BenchError::TooLate`], [`BenchError::Interrupted`].
    pub fn boot(session: &Session, size: MachineSize, counting: Counting) -> Result<Self, BenchError> {
        Self::boot_with(session, size, counting, Vec::new())
    }

    /// As [`Self::boot`], with `more` arguments of QEMU.
    ///
    /// # Errors
    /// As [`Self::boot`].
    pub fn boot_with(
        session: &Session,
        size: MachineSize,
        counting: Counting,
        more: Vec<OsString>,
    ) -> Result<Self, BenchError> {
        Self::start(&session.images, size, more, |boot| session.machine(boot, counting))
    }

    /// As [`Self::boot`], on a machine that `start` starts.
    ///
    /// # Errors
    /// As [`Self::boot`], and those of `start`.
    pub fn start(
        images: &ImageStore,
        size: MachineSize,
        more: Vec<OsString>,
        start: impl FnOnce(&Boot) -> Result<Machine, BenchError>,
    ) -> Result<Self, BenchError> {
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
            name: "the supervised machine".into(),
            kernel: images.find(SUPERVISOR)?,
            initrd: None,
            command_line: String::new(),
            cores: size.cores,
            queues: size.queues,
            memory_mib: size.memory_mib,
            pace: size.pace,
            network: Network::Tap,
            extra: extra.into_iter().map(Into::into).chain(more).collect(),
        };
        let mut machine = start(&boot)?;
        // A request before the supervisor listens would be repeated only after a delay: wait for its message first.
        machine.wait_for("ready")?;
        let folder = machine.folder().to_owned();
        let client = Client::connect_within(&folder, LIMIT, &mut || match interrupt::is_requested() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        });
        let client = client.map_err(|error| supervisor_ended(&mut machine, error))?;
        let ready = machine.started().elapsed();
        Ok(Self { machine, client, ready })
    }

    /// Uploads an image, unless the supervisor has it.
    ///
    /// # Errors
    /// [`BenchError::Supervisor`].
    pub fn provide(&mut self, image: &CellImage) -> Result<(), BenchError> {
        Ok(self.client.provide(image, &mut |_| ControlFlow::Continue(()))?)
    }

    /// Waits until a cell has printed `awaited`.
    ///
    /// # Errors
    /// [`BenchError::Supervisor`]; [`BenchError::TooLate`].
    pub fn wait_for_log(&mut self, cell: &str, awaited: &str) -> Result<(), BenchError> {
        let deadline = Instant::now() + LIMIT;
        loop {
            let piece = self.client.logs(cell, 0)?;
            let log = String::from_utf8_lossy(&piece.bytes).into_owned();
            match log.contains(awaited) {
                true => return Ok(()),
                false if Instant::now() < deadline => thread::sleep(POLL_INTERVAL),
                false => {
                    let (what, awaited) = (format!("cell {cell}"), format!("{awaited:?} in its log"));
                    return Err(BenchError::TooLate { what, awaited, limit_s: LIMIT.as_secs(), log });
                }
            }
        }
    }
}

/// Returns the specification of a cell with the machine's network device and a fixed amount of memory.
pub fn spec(name: &str, image: &CellImage, cores: u32, memory_mib: u64) -> CellSpec {
    CellSpec {
        name: name.into(),
        image_name: image.name.clone(),
        image: image.digest,
        requirement: Box::default(),
        cores,
        placement: CorePlacement::default(),
        memory: ByteSize(memory_mib << 20),
        memory_max: None,
        arguments: Vec::new(),
        network: NetworkSpec::Static(NetworkAddress { ip: GUEST, prefix_len: 24, gateway: None }),
        restart: RestartPolicy::No,
        watchdog_ms: 0,
        lending: Default::default(),
        text: Default::default(),
        grid: Default::default(),
        volumes: Vec::new(),
        accept: Vec::new(),
        loop_with: Vec::new(),
        served_volumes: Vec::new(),
        network_service: NetworkService::None,
    }
}

/// Returns the cause of a failed connection: the machine's end explains more than the client's error.
fn supervisor_ended(machine: &mut Machine, error: ClientError) -> BenchError {
    match error {
        ClientError::Interrupted => BenchError::Interrupted,
        _ if !machine.is_running() => machine.ended("its supervisor answered"),
        error => error.into(),
    }
}
