//! A file of Linux as a device that interrupts: a socket, a pipe, a TAP interface. `epoll` watches it for the core that
//! attached it.

use crate::core::HostedCore;
use rustix::event::epoll::EventFlags;
use rustix::fd::{AsFd, OwnedFd};
use std::io;
use std::sync::Arc;

/// What of a file is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// That it can be read.
    Readable,
    /// That it can be written to.
    Writable,
}

/// Raises a vector on a core when a file is ready. Masked after each time, as a driver wants it, until
/// [`Self::unmask`]. Dropped, it interrupts no longer.
#[derive(Debug)]
pub struct FileInterrupt {
    file: Arc<OwnedFd>,
    core: &'static HostedCore,
    interest: EventFlags,
    vector: u8,
}

impl FileInterrupt {
    /// Has `file` raise `vector` on the calling core, from now on.
    ///
    /// # Errors
    /// [`io::ErrorKind::Unsupported`] on a thread that is no core; otherwise what Linux says, as of a file
    /// that is always ready, such as one on a disk.
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

    /// Lets the interrupt in again. Where the file is ready it comes at once.
    pub fn unmask(&self) {
        // It is watched for as long as this lives.
        let _ = self.core.rearm(self.file.as_fd(), self.interest, self.vector);
    }
}

impl Drop for FileInterrupt {
    fn drop(&mut self) {
        self.core.forget(self.file.as_fd());
    }
}
