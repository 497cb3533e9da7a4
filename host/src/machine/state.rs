//! Where machines keep what outlives a command: a folder each, below one folder a user.
//!
//! ```text
//! $ISOLA_STATE, or $XDG_RUNTIME_DIR/isola, or /tmp/isola-UID        0700
//!   default.lock            held by the command that works on the machine
//!   default/
//!     machine.json          what the machine is: see [`super::record`]
//!     qemu.pid  qemu.log    QEMU's process number, and what it had to say
//!     serial.log            the supervisor's log
//!     management.sock  qmp.sock
//!     cells/NAME/cell.json  a cell's published ports: see [`super::cells`]
//!     cells/NAME/image.elf  its image, for names in backtraces
//! ```
//!
//! The lock's file stands beside the folder, as the folder comes and goes.

use crate::names::MachineName;
use std::env;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use thiserror::Error;

/// The folder below which all machines of a user keep their state.
#[derive(Clone, Debug)]
pub struct StateRoot {
    path: PathBuf,
    notice: Notice,
}

/// Who is told that a command waits for its turn at a machine.
pub type Notice = fn(&str);

/// The folder of one machine. That it exists does not mean that the machine is up.
#[derive(Clone, Debug)]
pub struct MachineDir {
    /// The machine's name.
    pub name: MachineName,
    /// Who is told that a command waits for its turn.
    pub(super) notice: Notice,
    path: PathBuf,
}

/// Why the state of machines cannot be kept.
#[derive(Debug, Error)]
pub enum StateError {
    /// A folder or file cannot be used.
    #[error("cannot use {path}: {error}; set ISOLA_STATE to a folder that you can write to")]
    Unusable {
        /// Which one.
        path: PathBuf,
        /// Why not.
        error: io::Error,
    },
    /// The folder belongs to somebody else, who could put false machines there.
    #[error("{0} belongs to another user: set ISOLA_STATE to a folder of your own")]
    Foreign(PathBuf),
}

impl StateRoot {
    /// The folder that the environment says, made where it does not exist.
    ///
    /// # Errors
    /// [`StateError`] where it cannot be made, or is not the user's own.
    pub fn from_environment() -> Result<Self, StateError> {
        let own = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let uid = rustix::process::getuid().as_raw();
        let path = own("ISOLA_STATE")
            .or_else(|| own("XDG_RUNTIME_DIR").filter(|dir| dir.is_dir()).map(|dir| dir.join("isola")))
            .unwrap_or_else(|| env::temp_dir().join(format!("isola-{uid}")));
        Self::at(&path)
    }

    /// The folder at `path`, made where it does not exist.
    ///
    /// # Errors
    /// [`StateError`] where it cannot be made, or is not the user's own.
    pub fn at(path: &Path) -> Result<Self, StateError> {
        let unusable = |error| StateError::Unusable { path: path.to_owned(), error };
        DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(unusable)?;
        let path = path.canonicalize().map_err(unusable)?;
        let metadata = fs::metadata(&path).map_err(unusable)?;
        if metadata.uid() != rustix::process::geteuid().as_raw() {
            return Err(StateError::Foreign(path));
        }
        Ok(Self { path, notice: |_| () })
    }

    /// The same folder, where `notice` is told that a command waits for its turn at a machine.
    #[must_use]
    pub fn with_notice(self, notice: Notice) -> Self {
        Self { notice, ..self }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The folder of the machine `name`.
    pub fn machine(&self, name: &MachineName) -> MachineDir {
        MachineDir { name: name.clone(), notice: self.notice, path: self.path.join(name.as_str()) }
    }

    /// All machines that have a folder, in the order of their names.
    pub fn machines(&self) -> Vec<MachineDir> {
        let Ok(entries) = fs::read_dir(&self.path) else { return Vec::new() };
        let mut names: Vec<MachineName> = entries
            .flatten()
            .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .collect();
        names.sort();
        names.iter().map(|name| self.machine(name)).collect()
    }
}

impl MachineDir {
    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The machine's record.
    pub fn record_file(&self) -> PathBuf {
        self.path.join("machine.json")
    }

    /// QEMU's process number. Its path identifies the process: it stands in QEMU's arguments.
    pub fn pid_file(&self) -> PathBuf {
        self.path.join("qemu.pid")
    }

    /// What QEMU printed.
    pub fn qemu_log(&self) -> PathBuf {
        self.path.join("qemu.log")
    }

    /// The serial line: the supervisor's log, or the output of an image that runs alone.
    pub fn serial_log(&self) -> PathBuf {
        self.path.join("serial.log")
    }

    /// The cells' folders.
    pub fn cells(&self) -> PathBuf {
        self.path.join("cells")
    }

    /// The file whose lock says who works on the machine.
    pub fn lock_file(&self) -> PathBuf {
        self.path.with_extension("lock")
    }

    /// Makes the folder.
    ///
    /// # Errors
    /// [`StateError::Unusable`].
    pub fn create(&self) -> Result<(), StateError> {
        DirBuilder::new()
            .mode(0o700)
            .create(&self.path)
            .map_err(|error| StateError::Unusable { path: self.path.clone(), error })
    }

    /// Removes the folder with everything in it.
    ///
    /// # Errors
    /// [`StateError::Unusable`].
    pub fn remove(&self) -> Result<(), StateError> {
        match fs::remove_dir_all(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(StateError::Unusable { path: self.path.clone(), error })
            }
            _ => Ok(()),
        }
    }

    /// The last `lines` lines of one of the machine's logs; empty where it has none.
    pub fn tail(log: &Path, lines: usize) -> String {
        let bytes = fs::read(log).unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes);
        let all: Vec<&str> = text.lines().collect();
        all[all.len().saturating_sub(lines)..].join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_folders_with_a_machine_s_name_are_machines() {
        let dir = tempfile::tempdir().unwrap();
        let root = StateRoot::at(&dir.path().join("state")).unwrap();
        for name in ["b", "a"] {
            root.machine(&name.parse().unwrap()).create().unwrap();
        }
        fs::write(root.path().join("a.lock"), "").unwrap();
        fs::create_dir(root.path().join(".probe")).unwrap();
        let names: Vec<String> = root.machines().iter().map(|dir| dir.name.to_string()).collect();
        assert_eq!(names, ["a", "b"]);
        let a = root.machine(&"a".parse().unwrap());
        assert_eq!(a.lock_file(), root.path().join("a.lock"));
        a.remove().unwrap();
        a.remove().unwrap();
        assert_eq!(root.machines().len(), 1);
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_named() {
        let error = StateRoot::at(Path::new("/proc/isola")).unwrap_err();
        assert!(error.to_string().contains("/proc/isola"), "{error}");
    }

    #[test]
    fn the_end_of_a_log_is_shown() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        fs::write(&log, "a\nb\nc\n").unwrap();
        assert_eq!(MachineDir::tail(&log, 2), "b\nc");
        assert_eq!(MachineDir::tail(&log, 9), "a\nb\nc");
        assert_eq!(MachineDir::tail(&dir.path().join("none"), 2), "");
    }
}
