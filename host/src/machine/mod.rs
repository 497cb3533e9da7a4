//! Machines: QEMU processes that outlive the commands that work on them.
//!
//! | module | what |
//! |---|---|
//! | this | [`Held`]: a machine that is up, while this command has its turn |
//! | [`state`] | the folder of each machine |
//! | [`record`] | the record of a machine, and how a dead or abandoned one is recognised |
//! | [`cells`] | what is written down of a cell |
//! | [`lock`] | commands take turns |
//! | [`process`] | processes that are not children |
//! | [`options`] | what a machine shall be |
//! | [`qemu`] | QEMU's command line |
//! | [`accel`] | whether KVM works |
//! | [`boot`] | starting a machine |
//! | [`network`] | addresses for cells |
//! | [`switch`] | the process that moves frames between network devices |
//! | [`qmp`], [`socket`] | QEMU's control channel |
//!
//! What runs inside a machine is asked of its supervisor: see [`crate::client`].

pub mod accel;
pub mod boot;
pub mod cells;
pub mod lock;
pub mod network;
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

/// How long QEMU may take to end after it was asked to.
const END_GRACE: Duration = Duration::from_secs(5);

/// How many lines of a dead machine's log are shown.
const TAIL_LINES: usize = 12;

/// A machine that is up, while this command has its turn at it.
#[derive(Debug)]
pub struct Held {
    /// Its folder.
    pub dir: MachineDir,
    /// What is written down of it.
    pub record: MachineRecord,
    /// QEMU, where it is this process' child.
    pub(crate) child: Option<Child>,
    _lock: MachineLock,
}

/// Why a machine cannot be worked on.
#[derive(Debug, Error)]
pub enum MachineError {
    /// It is not up.
    #[error(
        "machine {name:?} is not up: start it with `isola up{}`{}",
        name_argument(name),
        others_hint(others)
    )]
    NotUp {
        /// Its name.
        name: String,
        /// Machines that are.
        others: Vec<String>,
    },
    /// It was up, and has ended. Its files are kept until `isola down` or `isola up`.
    #[error(
        "machine {name:?} has ended unexpectedly; `isola down{}` removes its files{}",
        name_argument(name),
        tail_text(tail)
    )]
    Died {
        /// Its name.
        name: String,
        /// The end of its logs.
        tail: String,
    },
    /// The command that it belonged to was killed. It is kept until `isola down` or `isola up`.
    #[error(
        "machine {name:?} belonged to a command that has ended; `isola down{}` ends it and removes its files",
        name_argument(name)
    )]
    Abandoned {
        /// Its name.
        name: String,
    },
    /// It was started on another host or in another container.
    #[error(
        "machine {name:?} was started on another host or in another container (PID namespace): use isola there; \
         if that has ended, remove the folder {path}"
    )]
    Elsewhere {
        /// Its name.
        name: String,
        /// Its folder.
        path: PathBuf,
    },
    /// Its record cannot be read, so that it may run.
    #[error("machine {name:?}: {error}")]
    Record {
        /// Its name.
        name: String,
        /// Why not.
        error: RecordError,
    },
    /// It is up already.
    #[error(
        "machine {name:?} is up already: use it, end it with `isola down{}`, or give another name",
        name_argument(name)
    )]
    Exists {
        /// Its name.
        name: String,
    },
    /// An image runs alone on it.
    #[error("{name:?} is an image that runs alone, without a supervisor: it knows `logs`, `stop` and `rm`")]
    Standalone {
        /// Its name.
        name: String,
    },
    /// Another command works on it.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// Its files cannot be used.
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

impl Held {
    /// Takes a turn at a machine that is up. Changes nothing about a machine that is not.
    ///
    /// # Errors
    /// [`MachineError`].
    pub fn take(root: &StateRoot, dir: &MachineDir) -> Result<Self, MachineError> {
        let (held, health) = Self::look(root, dir)?;
        let name = || dir.name.to_string();
        match health {
            Health::Up => Ok(held),
            // An image that runs alone ends by itself: its output is kept until it is removed.
            Health::Dead
                if matches!(held.record.kind, MachineKind::Standalone { .. })
                    && held.record.qemu.is_some() =>
            {
                Ok(held)
            }
            Health::Dead => Err(MachineError::Died { name: name(), tail: logs_tail(dir) }),
            Health::Abandoned => Err(MachineError::Abandoned { name: name() }),
            Health::Elsewhere => Err(MachineError::Elsewhere { name: name(), path: dir.path().to_owned() }),
        }
    }

    /// Takes a turn at a machine that has a record, whatever its health.
    fn look(root: &StateRoot, dir: &MachineDir) -> Result<(Self, Health), MachineError> {
        let absent = || match dir.is_occupied() {
            true => StateError::Occupied(dir.path().to_owned()).into(),
            false => MachineError::NotUp { name: dir.name.to_string(), others: up_beside(root, dir) },
        };
        if !dir.has_record() {
            return Err(absent());
        }
        let lock = MachineLock::take(dir)?;
        // It may have gone while another command had its turn.
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
        let held = Self::take(root, dir)?;
        match held.record.kind {
            MachineKind::Supervised => Ok(held),
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

    /// What is written down of the machine's cells.
    pub fn cells(&self) -> CellStore {
        CellStore::of(&self.dir)
    }

    /// Whether its QEMU still runs.
    pub fn is_running(&self) -> bool {
        self.record.qemu.as_ref().is_some_and(Process::is_alive)
    }

    /// Ends QEMU, politely where it listens, and leaves the machine's files.
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
    /// [`StateError`] where files cannot be removed; the machine has ended then, too.
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
        // A command that was killed while it started QEMU did not get to record its process.
        if self.record.qemu.is_none() {
            for process in Process::with_pid_file(&self.dir.pid_file()) {
                process.end(END_GRACE);
            }
        }
        self.dir.remove()
    }
}

/// Removes the files of a machine that has ended, and ends one whose command was killed.
///
/// Nothing happens where neither is so.
///
/// # Errors
/// [`MachineError`], except [`MachineError::NotUp`], [`MachineError::Died`] and [`MachineError::Abandoned`].
pub fn clean_up(root: &StateRoot, dir: &MachineDir) -> Result<(), MachineError> {
    match Held::take(root, dir) {
        Ok(_) | Err(MachineError::NotUp { .. }) => return Ok(()),
        Err(MachineError::Died { .. } | MachineError::Abandoned { .. }) => {}
        Err(error) => return Err(error),
    }
    // Another command may have had its turn meanwhile.
    match Held::look(root, dir) {
        Ok((held, Health::Dead | Health::Abandoned)) => Ok(held.remove()?),
        Ok(_) | Err(MachineError::NotUp { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

/// The names of the other machines that are up.
fn up_beside(root: &StateRoot, dir: &MachineDir) -> Vec<String> {
    let others = root.machines().into_iter().filter(|other| other.name != dir.name);
    others.filter(is_up).map(|other| other.name.to_string()).collect()
}

/// Whether the machine is known to be up.
pub(crate) fn is_up(dir: &MachineDir) -> bool {
    MachineRecord::load(dir).is_ok_and(|record| record.is_some_and(|record| record.health() == Health::Up))
}

/// The end of what the machine's programs said, QEMU's words last.
pub(crate) fn logs_tail(dir: &MachineDir) -> String {
    let serial = MachineDir::tail(&dir.serial_log(), TAIL_LINES);
    let qemu = MachineDir::tail(&dir.qemu_log(), TAIL_LINES);
    [serial, qemu].into_iter().filter(|text| !text.is_empty()).collect::<Vec<_>>().join("\n")
}
