//! Processes as open files (`pidfd_open`).

use crate::process::Process;
use alloc::sync::Arc;
use alloc::vec::Vec;
use isola_linux_abi::numbers::O_RDWR;
use isola_linux_files::{Events, FileObject, InodeKind, Metadata, OpenFile, Pollee};

/// A file that stands for a process. It is readable once the process has ended.
pub struct ProcessFile {
    process: Arc<Process>,
}

impl ProcessFile {
    /// Opens a file for a process.
    pub fn open(process: Arc<Process>, flags: u32) -> Arc<OpenFile> {
        OpenFile::of_object(Arc::new(Self { process }), O_RDWR | flags)
    }

    /// Returns the process.
    pub fn process(&self) -> &Arc<Process> {
        &self.process
    }
}

impl FileObject for ProcessFile {
    fn can_be_read(&self) -> bool {
        false
    }

    fn ready(&self) -> Events {
        if self.process.has_ended() { Events::IN } else { Events::NONE }
    }

    fn pollee(&self) -> Option<&Pollee> {
        Some(&self.process.end_events)
    }

    fn metadata(&self) -> Metadata {
        Metadata::anonymous(InodeKind::File, 0, 0o600)
    }

    fn description(&self) -> Vec<u8> {
        b"anon_inode:[pidfd]".to_vec()
    }
}
