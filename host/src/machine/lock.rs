//! The lock by which commands take turns at a machine.
//!
//! It is an advisory lock on a file (flock(2)): the kernel releases it when its holder ends for any reason. Commands
//! that follow output hold it for a few milliseconds at a time, so that others get their turn.

use super::state::{MachineDir, StateError};
use rustix::fs::{FlockOperation, flock};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::thread::sleep;
use std::time::{Duration, Instant};
use thiserror::Error;

/// The interval between attempts to take the lock.
const TRY_INTERVAL: Duration = Duration::from_millis(10);

/// The time after which a waiting command prints a notice.
const NOTICE_AFTER: Duration = Duration::from_secs(1);

/// How long a command waits for its turn.
pub const LOCK_TIMEOUT: Duration = Duration::from_secs(60);

/// The right to work on a machine; released when dropped.
#[derive(Debug)]
pub struct MachineLock {
    _file: File,
}

/// The reasons why the lock was not taken.
#[derive(Debug, Error)]
pub enum LockError {
    /// The lock's file cannot be used.
    #[error(transparent)]
    State(#[from] StateError),
    /// Another command locked the lock throughout the wait.
    #[error(
        "another isola command (process {holder}) has worked on machine {machine:?} for {} s: wait for it, or end it",
        LOCK_TIMEOUT.as_secs()
    )]
    Busy {
        /// The machine.
        machine: String,
        /// The process id that the holder wrote into the file.
        holder: String,
    },
}

impl MachineLock {
    /// Takes the lock of a machine. Waits up to [`LOCK_TIMEOUT`] for another command to release it.
    ///
    /// # Errors
    /// [`LockError`].
    pub fn take(dir: &MachineDir) -> Result<Self, LockError> {
        Self::take_within(dir, LOCK_TIMEOUT)
    }

    /// Takes the lock of a machine. Waits at most `patience`.
    ///
    /// # Errors
    /// [`LockError`].
    pub fn take_within(dir: &MachineDir, patience: Duration) -> Result<Self, LockError> {
        let path = dir.lock_file();
        let unusable = |error| StateError::Unusable { path: path.clone(), error };
        if let Some(folder) = path.parent() {
            DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(unusable)?;
        }
        let mut file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .mode(0o600)
            .open(&path)
            .map_err(unusable)?;
        let begun = Instant::now();
        let end = begun + patience;
        let holder = || fs::read_to_string(&path).unwrap_or_default().trim().to_owned();
        let mut notified = false;
        while flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            if Instant::now() >= end {
                return Err(LockError::Busy { machine: dir.name.to_string(), holder: holder() });
            }
            if !notified && begun.elapsed() > NOTICE_AFTER {
                notified = true;
                (dir.notice)(&format!("waiting for another isola command (process {})", holder()));
            }
            sleep(TRY_INTERVAL);
        }
        // The holder's process id is only for the message above: a failure to write it has no other effect.
        let _ = file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id()));
        Ok(Self { _file: file })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::state::StateRoot;

    #[test]
    fn the_lock_has_one_holder_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let machine = StateRoot::at(dir.path()).unwrap().machine(&"m".parse().unwrap());
        let lock = MachineLock::take(&machine).unwrap();
        let error = MachineLock::take_within(&machine, Duration::from_millis(30)).unwrap_err();
        assert!(error.to_string().contains(&format!("process {}", std::process::id())), "{error}");
        drop(lock);
        assert!(MachineLock::take_within(&machine, Duration::ZERO).is_ok());
    }
}
