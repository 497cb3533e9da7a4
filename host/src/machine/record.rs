//! What is written down of a machine, so that later commands find it, or see that it is gone.
//!
//! ```text
//! (no folder) --up--> starting: owner = the command that starts it --ready--> up: no owner
//!      ^                 |                                                     |
//!      |                 | the owner has ended                                 | QEMU has ended
//!      +---- cleaned by whoever looks next <----------------------------------+
//! ```
//!
//! A machine that has an owner lives no longer than that process: so does one that a command made for its own
//! use, such as the demo's.

use super::options::{Accelerator, MachineOptions};
use super::process::Process;
use super::state::{MachineDir, StateError};
use serde::{Deserialize, Serialize};
use std::fs;
use std::io;

/// What this version writes in [`MachineRecord::format`].
pub const FORMAT: u32 = 1;

/// What is written down of a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineRecord {
    /// [`FORMAT`] of the isola that wrote it.
    pub format: u32,
    /// What runs on it.
    pub kind: MachineKind,
    /// What it is.
    pub options: MachineOptions,
    /// What executes it.
    pub accelerator: Accelerator,
    /// The process that the machine must not outlive.
    pub owner: Option<Process>,
    /// QEMU; not known until it has started.
    pub qemu: Option<Process>,
    /// Time of day of its start, in ms since 1970-01-01 UTC.
    pub started_unix_ms: u64,
    /// From the start of QEMU to the supervisor's first answer, in us.
    pub ready_us: Option<u64>,
}

/// What runs on a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MachineKind {
    /// The supervisor, which runs cells.
    Supervised,
    /// A cell image alone.
    Standalone {
        /// Name of the image.
        image: String,
    },
}

/// How a machine is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// It runs.
    Up,
    /// QEMU has ended.
    Dead,
    /// The command that it belongs to has ended.
    Abandoned,
}

impl MachineRecord {
    /// What is written down of the machine; `None` where nothing is, or nothing that can be read.
    pub fn load(dir: &MachineDir) -> Option<Self> {
        let record: Self = serde_json::from_slice(&fs::read(dir.record_file()).ok()?).ok()?;
        (record.format == FORMAT).then_some(record)
    }

    /// Writes it down, whole or not at all.
    ///
    /// # Errors
    /// [`StateError::Unusable`].
    pub fn save(&self, dir: &MachineDir) -> Result<(), StateError> {
        write_whole(&dir.record_file(), &serde_json::to_vec_pretty(self).unwrap_or_default())
            .map_err(|error| StateError::Unusable { path: dir.record_file(), error })
    }

    /// How the machine is.
    pub fn health(&self) -> Health {
        if self.owner.as_ref().is_some_and(|owner| !owner.is_alive()) {
            Health::Abandoned
        } else if self.qemu.as_ref().is_some_and(Process::is_alive) {
            Health::Up
        } else {
            Health::Dead
        }
    }
}

/// Writes a file so that a reader sees the old content or the new one, whenever the writer is killed.
///
/// # Errors
/// Whatever the file system says.
pub fn write_whole(path: &std::path::Path, bytes: &[u8]) -> io::Result<()> {
    let new = path.with_extension("new");
    fs::write(&new, bytes)?;
    fs::rename(&new, path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::options::{MachineModel, Topology, Uplink};
    use crate::machine::state::StateRoot;
    use isola_abi::size::ByteSize;

    fn record() -> MachineRecord {
        MachineRecord {
            format: FORMAT,
            kind: MachineKind::Supervised,
            options: MachineOptions {
                cores: 4,
                topology: Topology::default(),
                memory: ByteSize(1 << 30),
                nics: 8,
                model: MachineModel::Q35,
                cpu: "max".into(),
                uplink: Uplink::Tap { interface: "tap0".into(), queues: None },
            },
            accelerator: Accelerator::Tcg,
            owner: None,
            qemu: Process::this(),
            started_unix_ms: 1,
            ready_us: None,
        }
    }

    fn ended() -> Process {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let process = Process::of(child.id()).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        process
    }

    #[test]
    fn records_read_back_as_written_and_damaged_ones_not_at_all() {
        let temporary = tempfile::tempdir().unwrap();
        let dir = StateRoot::at(temporary.path()).unwrap().machine(&"m".parse().unwrap());
        dir.create().unwrap();
        assert_eq!(MachineRecord::load(&dir), None);
        record().save(&dir).unwrap();
        assert_eq!(MachineRecord::load(&dir), Some(record()));
        MachineRecord { format: FORMAT + 1, ..record() }.save(&dir).unwrap();
        assert_eq!(MachineRecord::load(&dir), None);
        fs::write(dir.record_file(), "{\"format\": 1, \"ki").unwrap();
        assert_eq!(MachineRecord::load(&dir), None);
    }

    #[test]
    fn a_machine_is_no_healthier_than_its_processes() {
        assert_eq!(record().health(), Health::Up);
        assert_eq!(MachineRecord { qemu: Some(ended()), ..record() }.health(), Health::Dead);
        assert_eq!(MachineRecord { qemu: None, ..record() }.health(), Health::Dead);
        assert_eq!(MachineRecord { owner: Some(ended()), ..record() }.health(), Health::Abandoned);
        assert_eq!(MachineRecord { owner: Process::this(), ..record() }.health(), Health::Up);
    }
}
