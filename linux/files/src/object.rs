//! The interface of open files that are no files of a file system: pipes, sockets, devices, event counters.

use crate::Errno;
use crate::events::{Events, Pollee};
use crate::metadata::Metadata;
use crate::outcome::Outcome;
use alloc::sync::Arc;
use core::any::Any;
use isola_linux_memory::{BoxFuture, PageSource, UserBuffer};

/// An object with a descriptor that is no file of a file system: an end of a pipe, a socket, a device, an event counter.
///
/// Reads and writes are attempts: they return [`Errno::EAGAIN`] instead of waiting, and [`OpenFile`](crate::OpenFile)
/// waits for [`Self::pollee`] where the program wants that.
pub trait FileObject: Any + Send + Sync {
    /// Reads. Returns the number of bytes: 0 at the end.
    ///
    /// # Errors
    /// [`Errno::EAGAIN`] if there are none yet.
    fn read(&self, _buffer: &mut UserBuffer) -> Result<usize, Errno> {
        Err(Errno::EINVAL)
    }

    /// Returns whether it can be read at all. Otherwise [`Self::read`] fails, and there is nothing to wait for, though the object
    /// may become [ready](Self::ready).
    fn can_be_read(&self) -> bool {
        true
    }

    /// Writes, perhaps only a part. Returns the number of bytes.
    ///
    /// # Errors
    /// [`Errno::EAGAIN`] if there is no space yet, [`Errno::EPIPE`].
    fn write(&self, _buffer: &mut UserBuffer) -> Result<usize, Errno> {
        Err(Errno::EINVAL)
    }

    /// Returns whether the object has offsets; then [`Self::read_at`] and [`Self::write_at`] serve reads and writes.
    fn has_offsets(&self) -> bool {
        false
    }

    /// Returns whether `lseek` leaves the position at 0, as on devices of memory.
    fn stays_at_beginning(&self) -> bool {
        false
    }

    /// Reads from an offset, if the object [has offsets](Self::has_offsets).
    fn read_at<'a>(&'a self, _offset: u64, _buffer: &'a mut UserBuffer) -> Outcome<'a, usize> {
        Outcome::error(Errno::ESPIPE)
    }

    /// Writes at an offset, if the object [has offsets](Self::has_offsets).
    fn write_at<'a>(&'a self, _offset: u64, _buffer: &'a mut UserBuffer) -> Outcome<'a, usize> {
        Outcome::error(Errno::ESPIPE)
    }

    /// Returns whether it is a socket: then the calls of processes send and receive instead of a write and a read.
    fn is_socket(&self) -> bool {
        false
    }

    /// Returns the length, for seeks relative to the end; `None` if the object has none.
    fn contents_len(&self) -> Option<u64> {
        None
    }

    /// Returns the events that are true now.
    fn ready(&self) -> Events;

    /// Returns the list of observers; `None` if the events never change.
    fn pollee(&self) -> Option<&Pollee> {
        None
    }

    /// Waits for one of these events after an attempt returned [`Errno::EAGAIN`]. `None` waits for [`Self::pollee`] without
    /// a limit of time; an object with such a limit returns its own future, which fails at the limit.
    fn wait(&self, _events: Events) -> Option<BoxFuture<'_, Result<(), Errno>>> {
        None
    }

    /// Executes a request of `ioctl`. `argument` is the value of the call, and `buffer` the memory that it refers to if
    /// [`control_argument`](crate::control_argument) says that it is an address.
    fn control<'a>(&'a self, _request: u32, _argument: u64, _buffer: &'a mut UserBuffer) -> Outcome<'a, u64> {
        Outcome::error(Errno::ENOTTY)
    }

    /// Returns whether it is an end of a [terminal](crate::TerminalFile).
    fn is_terminal(&self) -> bool {
        false
    }

    /// Returns the pages, for mappings.
    fn pages(self: Arc<Self>) -> Option<Arc<dyn PageSource>> {
        None
    }

    /// Notes that the status flags of the open file have changed.
    fn flags_changed(&self, _flags: u32) {}

    /// Returns the metadata, for objects without a name in a file system.
    fn metadata(&self) -> Metadata;

    /// Returns whether a waiting write writes all bytes, as that to a pipe does, or returns after the first ones.
    fn writes_all(&self) -> bool {
        true
    }

    /// Returns the name that `/proc/PID/fd` shows, such as `pipe:[17]`.
    fn description(&self) -> alloc::vec::Vec<u8>;

    /// Opens the object anew, by `/proc/PID/fd`; `None` if it cannot be.
    fn reopen(&self, _flags: u32) -> Option<Result<Arc<dyn FileObject>, Errno>> {
        None
    }
}

impl dyn FileObject {
    /// Returns the object as a certain type.
    pub fn downcast<T: FileObject>(&self) -> Option<&T> {
        let any: &dyn Any = self;
        any.downcast_ref()
    }
}
