//! The state of machines on disk: one folder per machine, below one folder per user.
//!
//! ```text
//! $ISOLA_STATE, or $XDG_RUNTIME_DIR/isola, or /tmp/isola-UID        0700
//!   machines/
//!     default.lock            locked by the command that works on the machine
//!     default/
//!       machine.json          the machine's record: see [`super::record`]
//!       qemu.pid  qemu.log    QEMU's process number and its messages
//!       serial.log            the supervisor's log
//!       management.sock  qmp.sock
//!       switch.sock  portN.sock  switch.log    the switch between cells, where there is one
//!       cells/NAME/cell.json  a cell's published ports: see [`super::cells`]
//!       cells/NAME/image.elf  its image, for names in backtraces
//! ```
//!
//! The lock file is outside of the folder because commands create and remove the folder while they hold the lock.
//!
//! A folder is a machine's only if it holds `machine.json`. Isola prepares a new folder under another name, writes the
//! record, and renames the folder; [`MachineDir::remove`] deletes the record last. So a folder of a machine has its
//! record whenever a command is killed, and Isola never lists or removes a folder without one: it belongs to the user.

use crate::names::MachineName;
use std::env;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Name of the folder of the machines' folders.
const MACHINES: &str = "machines";

/// Name of a machine's record. A folder without it does not belong to a machine.
const RECORD: &str = "machine.json";

/// The folder below which all machines of a user keep their state.
#[derive(Clone, Debug)]
pub struct StateRoot {
    path: PathBuf,
    notice: Notice,
}

/// Prints a notice during a command, for example that it waits for its turn at a machine.
pub type Notice = fn(&str);

/// The folder of one machine. It may not exist, or may remain from a machine that has ended.
#[derive(Clone, Debug)]
pub struct MachineDir {
    /// The machine's name.
    pub name: MachineName,
    /// Receives the notice that a command waits for its turn.
    pub(super) notice: Notice,
    path: PathBuf,
}

/// The reasons why the state of machines cannot be stored.
#[derive(Debug, Error)]
pub enum StateError {
    /// A folder or file cannot be used.
    #[error("cannot use {path}: {error}; set ISOLA_STATE to a folder that you can write to")]
    Unusable {
        /// The path.
        path: PathBuf,
        /// The cause.
        error: io::Error,
    },
    /// The folder belongs to another user: false machines could be put there.
    #[error("{0} belongs to another user: set ISOLA_STATE to a folder of your own")]
    Foreign(PathBuf),
    /// Other users can write to the folder, and could put false machines there.
    #[error(
        "other users can write to {0}: set ISOLA_STATE to a folder that only you can write to, \
         or type `chmod go-w {0}`"
    )]
    WritableByOthers(PathBuf),
    /// A file or folder of the user occupies the machine's name.
    #[error(
        "{0} is not a machine's folder (it has no machine.json), and Isola leaves it as it is: choose another name"
    )]
    Occupied(PathBuf),
}

impl StateRoot {
    /// Returns the folder that the environment selects, and creates it if necessary.
    ///
    /// # Errors
    /// [`StateError`] if it cannot be created, or if other users can write to it.
    pub fn from_environment() -> Result<Self, StateError> {
        let own = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let uid = rustix::process::getuid().as_raw();
        let path = own("ISOLA_STATE")
            .or_else(|| own("XDG_RUNTIME_DIR").filter(|dir| dir.is_dir()).map(|dir| dir.join("isola")))
            .unwrap_or_else(|| env::temp_dir().join(format!("isola-{uid}")));
        Self::at(&path)
    }

    /// Returns the folder at `path`, and creates it if necessary.
    ///
    /// # Errors
    /// [`StateError`] if it cannot be created, or if other users can write to it.
    pub fn at(path: &Path) -> Result<Self, StateError> {
        let unusable = |error| StateError::Unusable { path: path.to_owned(), error };
        DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(unusable)?;
        let path = path.canonicalize().map_err(unusable)?;
        let metadata = fs::metadata(&path).map_err(unusable)?;
        if metadata.uid() != rustix::process::geteuid().as_raw() {
            return Err(StateError::Foreign(path));
        }
        if metadata.mode() & 0o022 != 0 {
            return Err(StateError::WritableByOthers(path));
        }
        Ok(Self { path, notice: |_| () })
    }

    /// Returns the same folder with `notice` as the receiver of notices.
    #[must_use]
    pub fn with_notice(self, notice: Notice) -> Self {
        Self { notice, ..self }
    }

    /// Returns the path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the folder of the machine `name`.
    pub fn machine(&self, name: &MachineName) -> MachineDir {
        let path = self.path.join(MACHINES).join(name.as_str());
        MachineDir { name: name.clone(), notice: self.notice, path }
    }

    /// Returns all machines that have a record, sorted by name.
    pub fn machines(&self) -> Vec<MachineDir> {
        let Ok(entries) = fs::read_dir(self.path.join(MACHINES)) else { return Vec::new() };
        let mut names: Vec<MachineName> =
            entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
        names.sort();
        names.iter().map(|name| self.machine(name)).filter(MachineDir::has_record).collect()
    }
}

impl MachineDir {
    /// Returns the path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the path of the machine's record.
    pub fn record_file(&self) -> PathBuf {
        self.path.join(RECORD)
    }

    /// Returns whether the folder belongs to a machine.
    pub fn has_record(&self) -> bool {
        self.record_file().symlink_metadata().is_ok_and(|metadata| metadata.is_file())
    }

    /// Returns whether a file or folder of the user has the name: it exists, is not empty, and has no record.
    pub fn is_occupied(&self) -> bool {
        if self.has_record() {
            return false;
        }
        match fs::read_dir(&self.path) {
            Ok(mut entries) => entries.next().is_some(),
            Err(error) => error.kind() != io::ErrorKind::NotFound,
        }
    }

    /// Returns the path of the file with QEMU's process id. This path is one of QEMU's arguments and identifies the
    /// process.
    pub fn pid_file(&self) -> PathBuf {
        self.path.join("qemu.pid")
    }

    /// Returns the path of QEMU's log.
    pub fn qemu_log(&self) -> PathBuf {
        self.path.join("qemu.log")
    }

    /// Returns the path of the serial line's log: the output of the supervisor or of a standalone image.
    pub fn serial_log(&self) -> PathBuf {
        self.path.join("serial.log")
    }

    /// Returns the path of the cells' folders.
    pub fn cells(&self) -> PathBuf {
        self.path.join("cells")
    }

    /// Returns the path of the lock file.
    pub fn lock_file(&self) -> PathBuf {
        self.path.with_extension("lock")
    }

    /// Creates the folder together with its record, atomically.
    ///
    /// # Errors
    /// [`StateError::Occupied`] if the folder exists and is not empty, or [`StateError::Unusable`].
    pub fn create(&self, record: &[u8]) -> Result<(), StateError> {
        if self.has_record() || self.is_occupied() {
            return Err(StateError::Occupied(self.path.clone()));
        }
        let new = self.path.with_file_name(format!(".{}.new", self.name));
        let made = || {
            // A command that was killed at this point has left such a folder. It contains nothing but a record.
            let _ = fs::remove_file(new.join(RECORD));
            let _ = fs::remove_dir(&new);
            DirBuilder::new().mode(0o700).create(&new)?;
            fs::write(new.join(RECORD), record)?;
            // Replaces an empty folder, and fails if the folder has any content.
            fs::rename(&new, &self.path)
        };
        made().map_err(|error| StateError::Unusable { path: self.path.clone(), error })
    }

    /// Removes the folder of a machine that has ended; the record goes last.
    ///
    /// # Errors
    /// [`StateError::Occupied`] if it has no record, or [`StateError::Unusable`].
    pub fn remove(&self) -> Result<(), StateError> {
        if self.is_occupied() {
            return Err(StateError::Occupied(self.path.clone()));
        }
        // A process of the machine that ends at the same time removes its own sockets.
        let unless_removed = |removed: io::Result<()>| match removed {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        };
        let removed = || {
            for entry in fs::read_dir(&self.path)? {
                let entry = entry?;
                if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    unless_removed(fs::remove_dir_all(entry.path()))?;
                } else if entry.file_name() != RECORD {
                    unless_removed(fs::remove_file(entry.path()))?;
                }
            }
            fs::remove_file(self.record_file())?;
            fs::remove_dir(&self.path)
        };
        match removed() {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(StateError::Unusable { path: self.path.clone(), error })
            }
            _ => Ok(()),
        }
    }

    /// Returns the last `lines` lines of one of the machine's logs; empty if the log does not exist.
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

    /// Returns all files below a folder.
    fn files(folder: &Path) -> Vec<PathBuf> {
        let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let mut all: Vec<PathBuf> =
            entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect();
        all.sort();
        all
    }

    #[test]
    fn only_folders_with_a_record_are_machines() {
        let dir = tempfile::tempdir().unwrap();
        let root = StateRoot::at(&dir.path().join("state")).unwrap();
        assert!(root.machines().is_empty());
        fs::create_dir(root.path().join(MACHINES)).unwrap();
        for name in ["b", "a"] {
            root.machine(&name.parse().unwrap()).create(b"{}").unwrap();
        }
        fs::write(root.path().join("machines/a.lock"), "").unwrap();
        for other in ["machines/.probe", "machines/documents", "src", "machines/nested/machine.json"] {
            fs::create_dir_all(root.path().join(other)).unwrap();
        }
        let names: Vec<String> = root.machines().iter().map(|dir| dir.name.to_string()).collect();
        assert_eq!(names, ["a", "b"]);
        let a = root.machine(&"a".parse().unwrap());
        assert_eq!(a.lock_file(), root.path().join("machines/a.lock"));
        fs::create_dir_all(a.cells().join("kv")).unwrap();
        fs::write(a.cells().join("kv/cell.json"), "").unwrap();
        fs::write(a.qemu_log(), "").unwrap();
        a.remove().unwrap();
        assert!(!a.path().exists());
        a.remove().unwrap();
        assert_eq!(root.machines().len(), 1);
    }

    #[test]
    fn folders_of_the_user_are_neither_used_nor_removed() {
        let dir = tempfile::tempdir().unwrap();
        let root = StateRoot::at(dir.path()).unwrap();
        let [thesis, source] = ["machines/Documents/thesis.txt", "machines/src/main.rs"];
        for file in [thesis, source] {
            fs::create_dir_all(dir.path().join(file).parent().unwrap()).unwrap();
            fs::write(dir.path().join(file), "text").unwrap();
        }
        fs::write(dir.path().join("machines/notes"), "text").unwrap();
        let before = files(dir.path());
        for name in ["Documents", "src", "notes"] {
            let machine = root.machine(&name.parse().unwrap());
            assert!(machine.is_occupied());
            for error in [machine.create(b"{}").unwrap_err(), machine.remove().unwrap_err()] {
                assert!(matches!(error, StateError::Occupied(_)), "{error}");
            }
        }
        assert_eq!(files(dir.path()), before);
    }

    /// A command may be killed at any step of the creation or removal of a folder; the next command must succeed.
    #[test]
    fn remains_of_a_killed_command_do_not_block_the_next_one() {
        let dir = tempfile::tempdir().unwrap();
        let machine = StateRoot::at(dir.path()).unwrap().machine(&"m".parse().unwrap());
        let new = dir.path().join("machines/.m.new");
        // During creation: the folder under its other name, without and with its record.
        fs::create_dir_all(&new).unwrap();
        machine.create(b"1").unwrap();
        fs::create_dir_all(&new).unwrap();
        fs::write(new.join(RECORD), "0").unwrap();
        machine.remove().unwrap();
        machine.create(b"2").unwrap();
        assert_eq!(fs::read(machine.record_file()).unwrap(), b"2");
        // During removal: the record is the last file; after it the folder is empty.
        fs::remove_file(machine.record_file()).unwrap();
        assert!(!machine.is_occupied());
        machine.create(b"3").unwrap();
        assert_eq!(files(dir.path()), [machine.record_file()]);
    }

    #[test]
    fn a_root_that_others_can_write_to_is_rejected() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        for (mode, accepted) in [(0o700, true), (0o755, true), (0o775, false), (0o1777, false)] {
            fs::set_permissions(dir.path(), fs::Permissions::from_mode(mode)).unwrap();
            match StateRoot::at(dir.path()) {
                Ok(_) => assert!(accepted, "{mode:o}"),
                Err(error) => {
                    assert!(!accepted && error.to_string().contains("ISOLA_STATE"), "{mode:o}: {error}")
                }
            }
        }
    }

    #[test]
    fn the_error_names_a_folder_that_cannot_be_created() {
        let error = StateRoot::at(Path::new("/proc/isola")).unwrap_err();
        assert!(error.to_string().contains("/proc/isola"), "{error}");
    }

    #[test]
    fn tail_returns_the_last_lines_of_a_log() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        fs::write(&log, "a\nb\nc\n").unwrap();
        assert_eq!(MachineDir::tail(&log, 2), "b\nc");
        assert_eq!(MachineDir::tail(&log, 9), "a\nb\nc");
        assert_eq!(MachineDir::tail(&dir.path().join("none"), 2), "");
    }
}
