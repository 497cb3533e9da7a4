//! Machines: QEMU processes that outlive the commands that work on them.
//!
//! | module | contents |
//! |---|---|
//! | this | [`LockedMachine`]: a machine that is up, and this command's lock on it |
//! | [`state`] | the folder of each machine |
//! | [`record`] | the record of a machine, and the detection of dead or abandoned machines |
//! | [`cells`] | the host's records of cells |
//! | [`lock`] | the lock by which commands take turns |
//! | [`process`] | processes that are not children |
//! | [`options`] | the options of a machine |
//! | [`qemu`] | QEMU's command line |
//! | [`accel`] | whether KVM works |
//! | [`boot`] | the start of a machine |
//! | [`network`] | addresses for cells |
//! | [`switch`] | start and control of the software switch between network devices |
//! | [`qmp`], [`socket`] | QEMU's control channel |
//!
//! [`crate::client`] sends requests to the supervisor inside a machine.

pub mod accel;
pub mod boot;
pub mod cells;
pub mod disks;
pub mod lock;
pub mod network;
pub mod network_choice;
pub mod options;
pub mod process;
pub mod qemu;
pub mod qmp;
pub mod record;
pub mod socket;
pub mod state;
pub mod switch;

use crate::client::{Client, ClientError};
use cells::CellStore;
use lock::{LockError, MachineLock};
use process::Process;
use qmp::{Qmp, QmpError};
use record::{Health, MachineKind, MachineRecord, RecordError};
use state::{MachineDir, StateError, StateRoot};
use std::path::PathBuf;
use std::process::Child;
use std::time::Duration;
use thiserror::Error;

/// How long QEMU may take to end on request.
const END_GRACE: Duration = Duration::from_secs(5);

/// The number of log lines shown of a dead machine.
const TAIL_LINES: usize = 12;

/// A machine that is up, and this command's lock on it.
#[derive(Debug)]
pub struct LockedMachine {
    /// The machine's folder.
    pub dir: MachineDir,
    /// The machine's record.
    pub record: MachineRecord,
    /// QEMU, if it is a child of this process.
    pub(crate) child: Option<Child>,
    _lock: MachineLock,
}

/// The reasons why a machine is not available.
#[derive(Debug, Error)]
pub enum MachineError {
    /// The machine is not up.
    #[error(
        "machine {name:?} is not up: start it with `isola up{}`{}",
        name_argument(name),
        others_hint(others)
    )]
    NotUp {
        /// The machine's name.
        name: String,
        /// The other machines that are up.
        others: Vec<String>,
    },
    /// The machine was up, and has ended. Its files remain until `isola down` or `isola up`.
    #[error(
        "machine {name:?} has ended unexpectedly; `isola down{}` removes its files{}",
        name_argument(name),
        tail_text(tail)
    )]
    Died {
        /// The machine's name.
        name: String,
        /// The end of its logs.
        tail: String,
    },
    /// The machine's owner was killed. The machine remains until `isola down` or `isola up`.
    #[error(
        "machine {name:?} belonged to a command that has ended; `isola down{}` ends it and removes its files",
        name_argument(name)
    )]
    Abandoned {
        /// The machine's name.
        name: String,
    },
    /// The machine was started on another host or in another container.
    #[error(
        "machine {name:?} was started on another host or in another container (PID namespace): use isola there; \
         if that has ended, remove the folder {path}"
    )]
    Elsewhere {
        /// The machine's name.
        name: String,
        /// The machine's folder.
        path: PathBuf,
    },
    /// The machine's record cannot be read, so the machine may run.
    #[error("machine {name:?}: {error}")]
    Record {
        /// The machine's name.
        name: String,
        /// The cause.
        error: RecordError,
    },
    /// The machine is up already.
    #[error(
        "machine {name:?} is up already: use it, end it with `isola down{}`, or give another name",
        name_argument(name)
    )]
    Exists {
        /// The machine's name.
        name: String,
    },
    /// The machine runs a standalone image.
    #[error("{name:?} is a standalone image, without a supervisor: it supports `logs`, `stop` and `rm`")]
    Standalone {
        /// The machine's name.
        name: String,
    },
    /// Another command holds the machine's lock.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// The machine's files cannot be used.
    #[error(transparent)]
    State(#[from] StateError),
}

fn name_argument(name: &str) -> String {
    if name == crate::names::DEFAULT_MACHINE { String::new() } else { format!(" {name}") }
}

fn others_hint(others: &[String]) -> String {
    match others {
        [] => String::new(),
        others => format!(", or choose one that is up with --on: {}", others.join(", ")),
    }
}

fn tail_text(tail: &str) -> String {
    if tail.is_empty() { String::new() } else { format!("; the end of its log:\n{tail}") }
}

impl LockedMachine {
    /// Takes a turn at a machine that is up. Changes nothing about any other machine.
    ///
    /// # Errors
    /// [`MachineError`].
    pub fn take(root: &StateRoot, dir: &MachineDir) -> Result<Self, MachineError> {
        let (locked, health) = Self::inspect(root, dir)?;
        let name = || dir.name.to_string();
        match health {
            Health::Up => Ok(locked),
            // A standalone image ends by itself: its output remains until it is removed.
            Health::Dead
                if matches!(locked.record.kind, MachineKind::Standalone { .. })
                    && locked.record.qemu.is_some() =>
            {
                Ok(locked)
            }
            Health::Dead => Err(MachineError::Died { name: name(), tail: logs_tail(dir) }),
            Health::Abandoned => Err(MachineError::Abandoned { name: name() }),
            Health::Elsewhere => Err(MachineError::Elsewhere { name: name(), path: dir.path().to_owned() }),
        }
    }

    /// Takes a turn at a machine that has a record, in any health.
    fn inspect(root: &StateRoot, dir: &MachineDir) -> Result<(Self, Health), MachineError> {
        let absent = || match dir.is_occupied() {
            true => StateError::Occupied(dir.path().to_owned()).into(),
            false => MachineError::NotUp { name: dir.name.to_string(), others: up_beside(root, dir) },
        };
        if !dir.has_record() {
            return Err(absent());
        }
        let lock = MachineLock::take(dir)?;
        // The machine may have ended while another command had its turn.
        let record = MachineRecord::load(dir)
            .map_err(|error| MachineError::Record { name: dir.name.to_string(), error })?
            .ok_or_else(absent)?;
        let health = record.health();
        Ok((Self { dir: dir.clone(), record, child: None, _lock: lock }, health))
    }

    /// Takes a turn at a machine that has a supervisor.
    ///
    /// # Errors
    /// [`MachineError`].
    pub fn take_supervised(root: &StateRoot, dir: &MachineDir) -> Result<Self, MachineError> {
        let locked = Self::take(root, dir)?;
        match locked.record.kind {
            MachineKind::Supervised => Ok(locked),
            MachineKind::Standalone { .. } => Err(MachineError::Standalone { name: dir.name.to_string() }),
        }
    }

    /// Connects to the machine's supervisor.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn client(&self) -> Result<Client, ClientError> {
        Client::connect(self.dir.path())
    }

    /// Connects to the machine's QEMU.
    ///
    /// # Errors
    /// [`QmpError`].
    pub fn qmp(&self) -> Result<Qmp, QmpError> {
        Qmp::connect(&self.dir)
    }

    /// Returns the host's records of the machine's cells.
    pub fn cells(&self) -> CellStore {
        CellStore::of(&self.dir)
    }

    /// Returns whether QEMU still runs.
    pub fn is_running(&self) -> bool {
        self.record.qemu.as_ref().is_some_and(Process::is_alive)
    }

    /// Ends QEMU, by QMP if it answers and by signals otherwise, and leaves the machine's files.
    pub fn end_qemu(&self) {
        let Some(qemu) = self.record.qemu.as_ref().filter(|qemu| qemu.is_alive()) else { return };
        let quit = self.qmp().and_then(|mut qmp| qmp.quit());
        if quit.is_err() || !qemu.wait(END_GRACE) {
            qemu.end(END_GRACE);
        }
    }

    /// Ends the machine and removes its folder.
    ///
    /// # Errors
    /// [`StateError`] if files cannot be removed; the machine has ended in that case, too.
    pub fn down(self) -> Result<(), StateError> {
        if self.record.kind == MachineKind::Supervised
            && self.is_running()
            && self.client().and_then(|mut client| client.power_off()).is_ok()
            && let Some(qemu) = &self.record.qemu
        {
            qemu.wait(Duration::from_secs(2));
        }
        self.remove()
    }

    /// Ends QEMU and removes the machine's folder.
    pub(crate) fn remove(self) -> Result<(), StateError> {
        self.end_qemu();
        // If a command was killed while it started QEMU, the record lacks QEMU's process.
        if self.record.qemu.is_none() {
            for process in Process::with_pid_file(&self.dir.pid_file()) {
                process.end(END_GRACE);
            }
        }
        self.dir.remove()
    }
}

/// Removes the files of a machine that has ended, and ends a machine whose owner was killed.
///
/// Has no effect on any other machine.
///
/// # Errors
/// [`MachineError`], except [`MachineError::NotUp`], [`MachineError::Died`] and [`MachineError::Abandoned`].
pub fn clean_up(root: &StateRoot, dir: &MachineDir) -> Result<(), MachineError> {
    match LockedMachine::take(root, dir) {
        Ok(_) | Err(MachineError::NotUp { .. }) => return Ok(()),
        Err(MachineError::Died { .. } | MachineError::Abandoned { .. }) => {}
        Err(error) => return Err(error),
    }
    // Another command may have had its turn meanwhile.
    match LockedMachine::inspect(root, dir) {
        Ok((locked, Health::Dead | Health::Abandoned)) => Ok(locked.remove()?),
        Ok(_) | Err(MachineError::NotUp { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Returns the names of the other machines that are up.
fn up_beside(root: &StateRoot, dir: &MachineDir) -> Vec<String> {
    let others = root.machines().into_iter().filter(|other| other.name != dir.name);
    others.filter(is_up).map(|other| other.name.to_string()).collect()
}

/// Returns whether the machine is known to be up.
pub(crate) fn is_up(dir: &MachineDir) -> bool {
    MachineRecord::load(dir).is_ok_and(|record| record.is_some_and(|record| record.health() == Health::Up))
}

/// Returns the end of the machine's logs, with QEMU's last.
pub(crate) fn logs_tail(dir: &MachineDir) -> String {
    let serial = MachineDir::tail(&dir.serial_log(), TAIL_LINES);
    let qemu = MachineDir::tail(&dir.qemu_log(), TAIL_LINES);
    [serial, qemu].into_iter().filter(|text| !text.is_empty()).collect::<Vec<_>>().join("\n")
}
