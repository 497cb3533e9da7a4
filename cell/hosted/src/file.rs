//! A Linux file as a device that interrupts: a socket, a pipe, a TAP interface. The core that attached it watches it by
//! `epoll`.

use crate::core::HostedCore;
use rustix::event::epoll::EventFlags;
use rustix::fd::{AsFd, OwnedFd};
use std::io;
use std::sync::Arc;

/// The readiness of a file that raises the interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// The file can be read.
    Readable,
    /// The file can be written.
    Writable,
}

/// Raises a vector on a core when a file is ready. Masked after each interrupt, as drivers expect, until
/// [`Self::unmask`]. Dropping it ends the interrupts.
#[derive(Debug)]
pub struct FileInterrupt {
    file: Arc<OwnedFd>,
    core: &'static HostedCore,
    interest: EventFlags,
    vector: u8,
}

impl FileInterrupt {
    /// Makes `file` raise `vector` on the calling core from now on.
    ///
    /// # Errors
    /// [`io::ErrorKind::Unsupported`] on a thread that is not a core; otherwise the error of Linux, for example for a
    /// file that is always ready, such as one on a disk.
    pub fn attach(file: Arc<OwnedFd>, interest: Interest, vector: u8) -> io::Result<Self> {
        let core = HostedCore::current().ok_or_else(|| {
            io::Error::new(io::ErrorKind::Unsupported, "only a core of a cell is interrupted: call it there")
        })?;
        let interest = EventFlags::ONESHOT
            | match interest {
                Interest::Readable => EventFlags::IN,
                Interest::Writable => EventFlags::OUT,
            };
        core.watch(file.as_fd(), interest, vector)?;
        Ok(Self { file, core, interest, vector })
    }

    /// Unmasks the interrupt. If the file is ready, it arrives at once.
    pub fn unmask(&self) {
        // This cannot fail: the file is watched until this value is dropped.
        let _ = self.core.rearm(self.file.as_fd(), self.interest, self.vector);
    }
}

impl Drop for FileInterrupt {
    fn drop(&mut self) {
        self.core.forget(self.file.as_fd());
    }
}
