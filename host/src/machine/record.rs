//! The record of a machine, by which later commands find it or detect its end.
//!
//! ```text
//! (no folder) --up--> starting: owner = the command that starts it --ready--> up: no owner
//!      ^                 |                                                     |
//!      |                 | the owner has ended                                 | QEMU has ended
//!      +---- removed by the next `up` or `down` <------------------------------+
//! ```
//!
//! A machine that a command starts for its own use, such as the demo's, keeps its owner. After the owner has ended,
//! `isola down` or `isola up` with the machine's name ends the machine.
//!
//! If this version cannot read a record, the machine may still run, so commands leave it alone.

use super::options::{Accelerator, MachineOptions};
use super::process::{Liveness, Process};
use super::state::{MachineDir, StateError};
use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::path::PathBuf;
use thiserror::Error;

/// The format that this version writes in [`MachineRecord::format`].
pub const FORMAT: u32 = 2;

/// The record of a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineRecord {
    /// [`FORMAT`] of the version that wrote the record.
    pub format: u32,
    /// The kind of software on the machine.
    pub kind: MachineKind,
    /// The machine's options.
    pub options: MachineOptions,
    /// The accelerator that executes it.
    pub accelerator: Accelerator,
    /// The process that the machine belongs to. After its end the machine counts as abandoned.
    pub owner: Option<Process>,
    /// The QEMU process; `None` until it has started.
    pub qemu: Option<Process>,
    /// The time of its start, in ms since 1970-01-01 UTC.
    pub started_unix_ms: u64,
    /// The time from the start of QEMU to the supervisor's first answer, in us.
    pub ready_us: Option<u64>,
}

/// The kind of software on a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MachineKind {
    /// The supervisor, which runs cells.
    Supervised,
    /// A standalone cell image.
    Standalone {
        /// The image's name.
        image: String,
    },
}

/// The health of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// The machine runs.
    Up,
    /// QEMU has ended.
    Dead,
    /// The owner has ended.
    Abandoned,
    /// The machine belongs to another host or another PID namespace, where it may run.
    Elsewhere,
}

/// The reasons why a record cannot be read.
#[derive(Debug, Error)]
pub enum RecordError {
    /// Another version of isola wrote the record.
    #[error(
        "another version of isola started this machine: {path} has format {format}, and this version reads {FORMAT}; \
         manage the machine, and end it, with that version"
    )]
    OtherVersion {
        /// The record's file.
        path: PathBuf,
        /// Its format.
        format: u32,
    },
    /// The record is damaged, or its file cannot be read.
    #[error(
        "cannot read the machine's record {path}: {reason}; the machine may still run: repair the file, or end the \
         process in qemu.pid beside it and remove the folder"
    )]
    Damaged {
        /// The record's file.
        path: PathBuf,
        /// The cause.
        reason: String,
    },
}

/// The part of a record that all formats have in common.
#[derive(Deserialize)]
struct Header {
    format: u32,
}

impl MachineRecord {
    /// Reads a machine's record; returns `None` if the machine has none.
    ///
    /// # Errors
    /// [`RecordError`]. The machine may run.
    pub fn load(dir: &MachineDir) -> Result<Option<Self>, RecordError> {
        let path = dir.record_file();
        let damaged = |reason: String| RecordError::Damaged { path: path.clone(), reason };
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                return Ok(None);
            }
            Err(error) => return Err(damaged(error.to_string())),
        };
        let header: Header = serde_json::from_slice(&bytes).map_err(|error| damaged(error.to_string()))?;
        if header.format != FORMAT {
            return Err(RecordError::OtherVersion { path, format: header.format });
        }
        serde_json::from_slice(&bytes).map(Some).map_err(|error| damaged(error.to_string()))
    }

    /// Creates the machine's folder with this record in it.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn create(&self, dir: &MachineDir) -> Result<(), StateError> {
        dir.create(&self.to_bytes())
    }

    /// Replaces the record atomically.
    ///
    /// # Errors
    /// [`StateError::Unusable`].
    pub fn save(&self, dir: &MachineDir) -> Result<(), StateError> {
        write_whole(&dir.record_file(), &self.to_bytes())
            .map_err(|error| StateError::Unusable { path: dir.record_file(), error })
    }

    fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec_pretty(self).unwrap_or_default()
    }

    /// Returns the machine's health.
    pub fn health(&self) -> Health {
        let [owner, qemu] = [&self.owner, &self.qemu].map(|process| process.as_ref().map(Process::liveness));
        if [owner, qemu].contains(&Some(Liveness::Unknown)) {
            Health::Elsewhere
        } else if owner == Some(Liveness::Ended) {
            Health::Abandoned
        } else if qemu == Some(Liveness::Runs) {
            Health::Up
        } else {
            Health::Dead
        }
    }
}

/// Writes a file atomically: a reader finds the old content or the new one, even if the writer is killed.
///
/// # Errors
/// The errors of the file system.
pub fn write_whole(path: &std::path::Path, bytes: &[u8]) -> io::Result<()> {
    let new = path.with_extension("new");
    fs::write(&new, bytes)?;
    fs::rename(&new, path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::options::Uplink;
    use crate::machine::state::StateRoot;

    fn record() -> MachineRecord {
        MachineRecord {
            format: FORMAT,
            kind: MachineKind::Supervised,
            options: MachineOptions {
                uplink: Uplink::Tap { interface: "tap0".into(), queues: None },
                ..crate::test_data::machine_options()
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
    fn records_round_trip() {
        let temporary = tempfile::tempdir().unwrap();
        let dir = StateRoot::at(temporary.path()).unwrap().machine(&"m".parse().unwrap());
        assert!(MachineRecord::load(&dir).unwrap().is_none());
        fs::create_dir_all(dir.path().parent().unwrap()).unwrap();
        record().create(&dir).unwrap();
        assert_eq!(MachineRecord::load(&dir).unwrap(), Some(record()));
        let ready = MachineRecord { ready_us: Some(1), ..record() };
        ready.save(&dir).unwrap();
        assert_eq!(MachineRecord::load(&dir).unwrap(), Some(ready));
    }

    #[test]
    fn the_error_of_an_unreadable_record_names_the_file() {
        let temporary = tempfile::tempdir().unwrap();
        let dir = StateRoot::at(temporary.path()).unwrap().machine(&"m".parse().unwrap());
        fs::create_dir_all(dir.path().parent().unwrap()).unwrap();
        record().create(&dir).unwrap();
        for (text, words) in [
            ("{\"format\": 3, \"kind\": \"unheard of\"}", "has format 3, and this version reads 2"),
            ("{\"format\": 2, \"ki", "repair the file"),
            ("{\"format\": 2, \"kind\": \"unheard of\"}", "repair the file"),
            ("{\"name\": \"another program's\"}", "repair the file"),
            ("", "repair the file"),
        ] {
            fs::write(dir.record_file(), text).unwrap();
            let error = MachineRecord::load(&dir).unwrap_err().to_string();
            let file = dir.record_file().display().to_string();
            assert!(error.contains(words) && error.contains(&file), "{error}");
        }
        fs::remove_file(dir.record_file()).unwrap();
        fs::create_dir(dir.record_file()).unwrap();
        assert!(MachineRecord::load(&dir).is_err(), "a folder passed as a record");
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
