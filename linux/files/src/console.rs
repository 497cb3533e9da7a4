//! The console as a file: output of programs on standard output and error.

use crate::Errno;
use crate::events::Events;
use crate::metadata::{DeviceNumber, InodeKind, Metadata};
use crate::object::FileObject;
use crate::open_file::OpenFile;
use alloc::sync::Arc;
use alloc::vec::Vec;
use isola_linux_abi::numbers as linux;
use isola_linux_memory::UserBuffer;

/// The output of programs, given by the image.
pub trait ConsoleOutput: Send + Sync {
    /// Writes bytes. It neither waits nor fails.
    fn write(&self, bytes: &[u8]);
}

/// The console. It is no terminal: `isatty` is false. A read returns the end of the file.
pub struct Console {
    output: Arc<dyn ConsoleOutput>,
}

/// The bytes that are passed to the output at once.
const PIECE: usize = 1024;

impl Console {
    /// Creates the console.
    pub fn new(output: Arc<dyn ConsoleOutput>) -> Arc<Self> {
        Arc::new(Self { output })
    }

    /// Opens it for reading and writing, for the first descriptors of a process.
    pub fn open(self: &Arc<Self>) -> Arc<OpenFile> {
        OpenFile::of_object(self.clone(), linux::O_RDWR)
    }
}

impl FileObject for Console {
    fn read(&self, _buffer: &mut UserBuffer) -> Result<usize, Errno> {
        Ok(0)
    }

    fn write(&self, buffer: &mut UserBuffer) -> Result<usize, Errno> {
        let mut count = 0;
        let mut bytes = [0; PIECE];
        while !buffer.is_empty() {
            let now = buffer.read(&mut bytes);
            self.output.write(&bytes[..now]);
            count += now;
        }
        Ok(count)
    }

    fn ready(&self) -> Events {
        Events::IN | Events::OUT
    }

    fn metadata(&self) -> Metadata {
        let special = DeviceNumber::new(5, 1);
        Metadata { special, ..Metadata::anonymous(InodeKind::CharacterDevice, 1, 0o600) }
    }

    fn description(&self) -> Vec<u8> {
        b"/dev/console".to_vec()
    }

    /// Servers open `/dev/stderr` and `/dev/stdout` for their logs.
    fn reopen(&self, _flags: u32) -> Option<Result<Arc<dyn FileObject>, Errno>> {
        Some(Ok(Arc::new(Self { output: self.output.clone() })))
    }
}
