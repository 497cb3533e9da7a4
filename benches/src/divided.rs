//! A divided machine: one with a supervisor, which makes cells.

use crate::error::BenchError;
use crate::interrupt;
use crate::machine::{Boot, Machine, Network, Pace};
use crate::network::GUEST;
use crate::session::{Counting, Session};
use isola_abi::descriptor::NetworkAddress;
use isola_abi::management::{CellSpec, CorePlacement, NetworkSpec, RestartPolicy};
use isola_abi::size::ByteSize;
use isola_host::client::{Client, ClientError, SOCKET};
use isola_host::image::{CellImage, ImageStore, SUPERVISOR};
use std::ffi::OsString;
use std::ops::ControlFlow;
use std::thread;
use std::time::{Duration, Instant};

/// How long the supervisor may take to come up, and a cell to stop.
pub const LIMIT: Duration = Duration::from_secs(60);

/// How often a cell's log is looked at.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// A machine with a supervisor.
#[derive(Debug)]
pub struct Divided {
    /// The machine.
    pub machine: Machine,
    /// Who talks to its supervisor.
    pub client: Client,
    /// From the start of QEMU to the supervisor's first answer.
    pub ready: Duration,
}

/// How large a divided machine is, and what its clocks go by.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// Processors, that of the supervisor among them.
    pub cores: u32,
    /// Pairs of queues of its network device.
    pub queues: u32,
    /// Memory, in MiB.
    pub memory_mib: u32,
    /// What its clocks go by.
    pub pace: Pace,
}

impl Divided {
    /// Boots one, and waits until its supervisor answers.
    ///
    /// # Errors
    /// What goes wrong on the way.
    pub fn boot(session: &Session, size: Size, counting: Counting) -> Result<Self, BenchError> {
        Self::boot_with(session, size, counting, Vec::new())
    }

    /// The same with `more` arguments of QEMU.
    ///
    /// # Errors
    /// What goes wrong on the way.
    pub fn boot_with(
        session: &Session,
        size: Size,
        counting: Counting,
        more: Vec<OsString>,
    ) -> Result<Self, BenchError> {
        Self::start(&session.images, size, more, |boot| session.machine(boot, counting))
    }

    /// The same on a machine that `start` starts.
    ///
    /// # Errors
    /// What goes wrong on the way.
    pub fn start(
        images: &ImageStore,
        size: Size,
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
            name: "the divided machine".into(),
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

    /// Sends an image, unless the supervisor has it.
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
                false if Instant::now() < deadline => thread::sleep(LOOK_INTERVAL),
                false => {
                    let (what, awaited) = (format!("cell {cell}"), format!("{awaited:?} in its log"));
                    return Err(BenchError::TooLate { what, awaited, limit_s: LIMIT.as_secs(), log });
                }
            }
        }
    }
}

/// A cell of that name, with the machine's network device, that gets no more memory than it begins with.
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
    }
}

/// Why there is no client: the machine's end explains more than the broken connection.
fn gone(machine: &mut Machine, error: ClientError) -> BenchError {
    match error {
        ClientError::Interrupted => BenchError::Interrupted,
        _ if !machine.is_running() => machine.ended("its supervisor answered"),
        error => error.into(),
    }
}
