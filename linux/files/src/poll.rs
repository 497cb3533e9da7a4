//! `poll` and `select`: one task that waits for several open files.

use crate::events::Events;
use crate::open_file::OpenFile;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::task::Waker;

/// The places of a task in the lists of several open files.
pub struct FileWaiters {
    files: Vec<(Arc<OpenFile>, Events)>,
    /// The keys in the lists of the files.
    keys: Vec<Option<u64>>,
}

impl FileWaiters {
    /// Creates the places, for files and the events that the task waits for.
    pub fn new(files: Vec<(Arc<OpenFile>, Events)>) -> Self {
        let keys = alloc::vec![None; files.len()];
        Self { files, keys }
    }

    /// Returns the files.
    pub fn files(&self) -> &[(Arc<OpenFile>, Events)] {
        &self.files
    }

    /// Wakes the task when one of the events, an error or a hang-up of a file may be true, until the places are dropped.
    /// The caller then has to check the files, as an event may have been before.
    pub fn register(&mut self, waker: &Waker) {
        for ((file, events), key) in self.files.iter().zip(&mut self.keys) {
            // The events of a file without a list never change.
            if let Some(pollee) = file.pollee() {
                pollee.set_waiter(key, *events | Events::ALWAYS, waker);
            }
        }
    }
}

impl Drop for FileWaiters {
    fn drop(&mut self) {
        for ((file, _), key) in self.files.iter().zip(&self.keys) {
            if let Some(pollee) = file.pollee() {
                pollee.remove_waiter(*key);
            }
        }
    }
}

impl fmt::Debug for FileWaiters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileWaiters").field("files", &self.files).finish_non_exhaustive()
    }
}
