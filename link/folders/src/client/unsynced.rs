//! Changes of contents and attributes that the service has executed, and may lose: it makes them permanent at the next sync.
//!
//! Each is absolute, as the bytes at an offset or a length. So repeating all of them in their order, on a file system that
//! has a first part of them, has the same result as executing them once.

use super::connection::{Connection, Lost, Request};
use crate::link::Link;
use alloc::vec::Vec;
use isola_block::BlockError;
use isola_volumes::{FileError, FileId};

/// The most bytes and requests without a sync: beyond, the client syncs by itself.
const MOST_BYTES: usize = 1 << 20;
const MOST_REQUESTS: usize = 1024;

/// The changes since the latest sync.
#[derive(Default)]
pub(super) struct Unsynced {
    requests: Vec<Request>,
    bytes: usize,
    /// Whether the next incarnation of the service did not accept a change.
    is_one_lost: bool,
}

impl Unsynced {
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Keeps a change that the service has executed. Returns whether a sync is due.
    #[must_use]
    pub fn keep(&mut self, request: Request) -> bool {
        self.bytes += request.arguments.len();
        self.requests.push(request);
        self.bytes >= MOST_BYTES || self.requests.len() >= MOST_REQUESTS
    }

    /// Notes that the service has made all changes permanent.
    ///
    /// # Errors
    /// An error of the disk, once, if one of them was lost.
    pub fn synced(&mut self) -> Result<(), FileError> {
        self.forget();
        match core::mem::take(&mut self.is_one_lost) {
            true => Err(FileError::Disk(BlockError::Io)),
            false => Ok(()),
        }
    }

    /// Notes that all changes are permanent, by a change of names. An error is for the next sync.
    pub fn forget(&mut self) {
        self.requests.clear();
        self.bytes = 0;
    }

    /// Repeats all changes, but those of files that the service does not have any more: these had no name.
    pub async fn repeat<L: Link>(
        &mut self,
        connection: &mut Connection<L>,
        is_lost: impl Fn(FileId) -> bool,
    ) -> Result<(), Lost> {
        self.requests.retain(|request| !is_lost(request.file));
        for request in &self.requests {
            self.is_one_lost |= connection.request(request).await?.is_err();
        }
        Ok(())
    }
}
