//! Machines: QEMU processes that outlive the commands that work on them.
//!
//! | module | what |
//! |---|---|
//! | this | [`Held`]: a machine that is up, while this command has its turn |
//! | [`state`] | the folder of each machine |
//! | [`record`] | what is written down of a machine, and how it is found dead or abandoned |
//! | [`cells`] | what is written down of a cell |
//! | [`lock`] | commands take turns |
//! | [`process`] | processes that are not children |
//! | [`options`] | what a machine shall be |
//! | [`qemu`] | QEMU's command line |
//! | [`accel`] | whether KVM works |
//! | [`boot`] | starting a machine |
//! | [`network`] | addresses for cells |
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

use crate::client::{Client, ClientError};
use cells::CellStore;
use lock::{LockError, MachineLock};
use process::Process;
use qmp::{Qmp, QmpError};
use record::{Health, MachineKind, MachineRecord};
use state::{MachineDir, StateError, StateRoot};
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
    /// It was up, and has ended; what was left has been cleaned up.
    #[error("machine {name:?} has ended unexpectedly; what it left is cleaned up{}", tail_text(tail))]
    Died {
        /// Its name.
        name: String,
        /// The end of its logs.
        tail: String,
    },
    /// The command that started it was ended before it was ready; what was left has been cleaned up.
    #[error("machine {name:?} belonged to a command that has ended; what it left is cleaned up")]
    Abandoned {
        /// Its name.
        name: String,
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
    /// Takes a turn at a machine that is up; cleans up after one that is not any more.
    ///
    /// # Errors
    /// [`MachineError`].
    pub fn take(root: &StateRoot, dir: &MachineDir) -> Result<Self, MachineError> {
        let name = || dir.name.to_string();
        let not_up = || {
            let others = root.machines().into_iter().filter(|other| other.name != dir.name);
            let up =
                others.filter(|other| MachineRecord::load(other).is_some_and(|r| r.health() == Health::Up));
            MachineError::NotUp { name: name(), others: up.map(|other| other.name.to_string()).collect() }
        };
        if !dir.path().exists() {
            return Err(not_up());
        }
        let lock = MachineLock::take(dir)?;
        // It may have gone while another command had its turn.
        if !dir.path().exists() {
            return Err(not_up());
        }
        let Some(record) = MachineRecord::load(dir) else {
            clean(dir)?;
            return Err(MachineError::Abandoned { name: name() });
        };
        match record.health() {
            Health::Up => Ok(Self { dir: dir.clone(), record, child: None, _lock: lock }),
            // An image that runs alone ends by itself: what it printed is kept until it is removed.
            Health::Dead
                if matches!(record.kind, MachineKind::Standalone { .. }) && record.qemu.is_some() =>
            {
                Ok(Self { dir: dir.clone(), record, child: None, _lock: lock })
            }
            Health::Dead => {
                let tail = logs_tail(dir);
                clean(dir)?;
                Err(MachineError::Died { name: name(), tail })
            }
            Health::Abandoned => {
                clean(dir)?;
                Err(MachineError::Abandoned { name: name() })
            }
        }
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

    /// Ends the machine and removes all that is written down of it.
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
        self.end_qemu();
        clean(&self.dir)
    }
}

/// Ends whatever still runs in a machine's folder, and removes the folder. The caller has the machine's lock.
pub(crate) fn clean(dir: &MachineDir) -> Result<(), StateError> {
    for process in Process::with_argument(&dir.pid_file()) {
        process.end(END_GRACE);
    }
    dir.remove()
}

/// The end of what the machine's programs said, QEMU's words last.
pub(crate) fn logs_tail(dir: &MachineDir) -> String {
    let serial = MachineDir::tail(&dir.serial_log(), TAIL_LINES);
    let qemu = MachineDir::tail(&dir.qemu_log(), TAIL_LINES);
    [serial, qemu].into_iter().filter(|text| !text.is_empty()).collect::<Vec<_>>().join("\n")
}
