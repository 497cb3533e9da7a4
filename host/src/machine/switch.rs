//! Starts a machine's switch, and declares the addresses of cells to it.

use super::options::{MachineOptions, Uplink};
use super::state::MachineDir;
use super::{LockedMachine, qemu};
use crate::switch::control::{self, Answer, Request, SwitchSpec};
use crate::switch::fabric::{Address, HostAccess, PortCounters};
use crate::switch::process::{socket_count, socket_name};
use isola_abi::management::{CellInfo, NetworkSpec};
use isola_abi::network_service::NetworkService;
use std::fs::File;
use std::io;
use std::ops::ControlFlow;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};
use thiserror::Error;

/// Name of the switch's log file.
const LOG: &str = "switch.log";

/// How long a switch may take to create its sockets.
const LAUNCH_LIMIT: Duration = Duration::from_secs(20);

/// The reasons why the switch failed.
#[derive(Debug, Error)]
pub enum SwitchError {
    /// It did not start.
    #[error("the machine's network switch did not start: {0}")]
    Launch(String),
    /// QEMU has not connected all network devices to it.
    #[error("{missing} of {count} network devices were not connected to the machine's switch: {reason}")]
    NotConnected {
        /// The number of connections that are missing.
        missing: usize,
        /// The number of all.
        count: usize,
        /// The end of the switch's log.
        reason: String,
    },
    /// It does not answer.
    #[error(
        "the machine's network switch does not answer ({0}): its cells have no network; end the machine with `isola down` and start it anew"
    )]
    Silent(io::Error),
    /// It has no port for a cell's device.
    #[error("cell {0:?} has a network device that the machine's switch does not know")]
    Unknown(String),
}

/// Returns whether a machine with these options needs a switch: it has several devices, or one device on a user-mode
/// network that blocks the host. A TAP interface with queues serves one device directly.
pub fn is_needed(options: &MachineOptions) -> bool {
    match &options.uplink {
        Uplink::User => options.nics > 0,
        Uplink::UserWithHost | Uplink::Tap { queues: None, .. } => options.nics > 1,
        Uplink::Tap { queues: Some(_), .. } => false,
    }
}

/// A running switch to which QEMU has not connected yet. Dropping it kills the switch, unless [`Self::detach`] was called.
#[derive(Debug)]
pub struct StartingSwitch {
    child: Option<Child>,
    folder: PathBuf,
    /// The sockets to which QEMU connects, each of which the switch then removes.
    sockets: Vec<PathBuf>,
}

impl StartingSwitch {
    /// Starts the switch of the machine in `dir` and waits until its control socket exists, which takes a few
    /// milliseconds. `address` is the initial address declaration of all devices.
    ///
    /// # Errors
    /// [`SwitchError::Launch`].
    pub fn begin(dir: &MachineDir, options: &MachineOptions, address: Address) -> Result<Self, SwitchError> {
        let host = if options.uplink == Uplink::User { HostAccess::Closed } else { HostAccess::Open };
        let spec = SwitchSpec { macs: qemu::macs(dir, options), address, host };
        Self::spawn(dir, &spec).map_err(SwitchError::Launch)
    }

    fn spawn(dir: &MachineDir, spec: &SwitchSpec) -> Result<Self, String> {
        let text = |error: io::Error| error.to_string();
        let log = dir.path().join(LOG);
        // The executable of this process, even if its file has been replaced since.
        let child = Command::new("/proc/self/exe")
            .arg0("isola")
            .arg("switch")
            .arg(serde_json::to_string(spec).map_err(|error| error.to_string())?)
            .current_dir(dir.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&log).map_err(text)?)
            .spawn()
            .map_err(text)?;
        let socket = |number| dir.path().join(socket_name(number));
        let sockets = (0..socket_count(spec)).map(socket).collect();
        let mut starting = Self { child: Some(child), folder: dir.path().into(), sockets };
        let end = Instant::now() + LAUNCH_LIMIT;
        while !dir.path().join(control::SOCKET).exists() {
            if starting.has_ended() || Instant::now() >= end {
                return Err(MachineDir::tail(&log, 5));
            }
            sleep(Duration::from_millis(1));
        }
        Ok(starting)
    }

    fn has_ended(&mut self) -> bool {
        self.child.as_mut().is_some_and(|child| child.try_wait().ok().flatten().is_some())
    }

    /// Waits until QEMU has connected all devices, and releases the switch: from now on it ends with QEMU. QEMU connects in
    /// threads, and does not report that it failed; the switch ends if it waits for too long, or if QEMU ends. Calls
    /// `waiting` repeatedly, and breaks off if that does.
    ///
    /// # Errors
    /// [`SwitchError::NotConnected`].
    pub fn detach(
        mut self,
        waiting: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, SwitchError> {
        loop {
            let missing = self.sockets.iter().filter(|socket| socket.exists()).count();
            if missing == 0 {
                self.child.take();
                return Ok(ControlFlow::Continue(()));
            }
            if waiting().is_break() {
                return Ok(ControlFlow::Break(()));
            }
            if self.has_ended() {
                let reason = MachineDir::tail(&self.folder.join(LOG), 5);
                return Err(SwitchError::NotConnected { missing, count: self.sockets.len(), reason });
            }
            sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for StartingSwitch {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill().and_then(|()| child.wait());
        }
    }
}

impl LockedMachine {
    /// Declares to the machine's switch the address of a cell on the cell's device.
    ///
    /// # Errors
    /// [`SwitchError::Silent`] or [`SwitchError::Unknown`].
    pub fn declare_address(&self, cell: &CellInfo) -> Result<(), SwitchError> {
        let address = match (&cell.spec.network_service, cell.spec.network) {
            (_, NetworkSpec::None) => return Ok(()),
            (NetworkService::Server, _) => Address::Switch,
            (_, NetworkSpec::Static(address)) => Address::Fixed(address.ip),
            (_, NetworkSpec::Dhcp) => Address::Dhcp,
        };
        if !is_needed(&self.record.options) {
            return Ok(());
        }
        let unknown = || SwitchError::Unknown(cell.spec.name.clone());
        let mac = qemu::mac_at(&self.dir, &self.record.options, cell.device).ok_or_else(unknown)?;
        match self.ask_switch(&Request::Declare(mac, address))? {
            Answer::Declared => Ok(()),
            _ => Err(unknown()),
        }
    }

    /// Returns the switch's counters of the frames of a cell's device; `None` if the machine has no switch, or the cell
    /// has no device.
    ///
    /// # Errors
    /// [`SwitchError::Silent`].
    pub fn port_counters(&self, cell: &CellInfo) -> Result<Option<PortCounters>, SwitchError> {
        let options = &self.record.options;
        let Some(mac) = qemu::mac_at(&self.dir, options, cell.device).filter(|_| is_needed(options)) else {
            return Ok(None);
        };
        let Answer::Counters(all) = self.ask_switch(&Request::Counters)? else { return Ok(None) };
        Ok(all.into_iter().find(|(own, _)| *own == mac).map(|(_, counters)| counters))
    }

    fn ask_switch(&self, request: &Request) -> Result<Answer, SwitchError> {
        control::ask(self.dir.path(), request).map_err(SwitchError::Silent)
    }
}
