//! Open files. `transfers` reads and writes, `position` moves within a file or directory, and `storage` changes the length
//! and the storage of a file.

mod position;
mod storage;
mod transfers;

use self::position::Position;
use crate::Errno;
use crate::async_lock::AsyncLock;
use crate::dentry::Location;
use crate::events::{Events, Pollee};
use crate::inode::Inode;
use crate::metadata::{InodeKind, Metadata};
use crate::object::FileObject;
use crate::watch;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use isola_linux_abi::{numbers as linux, requests};
use isola_linux_memory::{PageSource, UserBuffer};

/// The status flags that `fcntl(F_SETFL)` changes.
const SETTABLE: u32 =
    linux::O_APPEND | linux::O_NONBLOCK | linux::FASYNC | linux::O_DIRECT | linux::O_NOATIME;

/// An open file description: the object that `open` creates, and that `dup` and `fork` share. It is closed when its last
/// reference is dropped.
pub struct OpenFile {
    id: u64,
    body: Body,
    location: Option<Location>,
    flags: AtomicU32,
    is_socket: bool,
    is_terminal: bool,
    position: AsyncLock<Position>,
    pub(crate) watches: crate::epoll::Watches,
}

/// What reads and writes act on.
enum Body {
    /// The inode of the location.
    Inode,
    /// An object.
    Object(Arc<dyn FileObject>),
    /// Nothing (`O_PATH`).
    Path,
}

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// The largest offset in a file.
pub const MOST_OFFSET: u64 = i64::MAX as u64;

impl OpenFile {
    fn new(body: Body, location: Option<Location>, flags: u32) -> Arc<Self> {
        let is_socket = matches!(&body, Body::Object(object) if object.is_socket());
        let is_terminal = matches!(&body, Body::Object(object) if object.is_terminal());
        Arc::new(Self {
            is_socket,
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            body,
            location,
            flags: AtomicU32::new(flags),
            is_terminal,
            position: AsyncLock::default(),
            watches: Default::default(),
        })
    }

    /// Opens an object that has no name in a file system, with access mode and status flags as `open` has them.
    pub fn of_object(object: Arc<dyn FileObject>, flags: u32) -> Arc<Self> {
        Self::new(Body::Object(object), None, flags)
    }

    /// Opens the inode of a location, or the object that the inode opened.
    pub(crate) fn of_location(
        location: Location,
        object: Option<Arc<dyn FileObject>>,
        flags: u32,
    ) -> Arc<Self> {
        let body = match object {
            Some(object) => Body::Object(object),
            None if flags & linux::O_PATH != 0 => Body::Path,
            None => Body::Inode,
        };
        Self::new(body, Some(location), flags)
    }

    /// Returns the identity of the open file.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Returns the name with which it was opened, if it has one.
    pub fn location(&self) -> Option<&Location> {
        self.location.as_ref()
    }

    /// Returns the inode, if it has one.
    pub fn inode(&self) -> Option<&Arc<dyn Inode>> {
        self.location.as_ref().map(Location::inode)
    }

    /// Returns the object, if it is no file or directory.
    pub fn object(&self) -> Option<&Arc<dyn FileObject>> {
        match &self.body {
            Body::Object(object) => Some(object),
            Body::Inode | Body::Path => None,
        }
    }

    /// Returns the object as a certain type.
    pub fn object_as<T: FileObject>(&self) -> Option<&T> {
        self.object().and_then(|object| object.downcast())
    }

    /// Returns the end of a terminal, if it is one.
    #[inline]
    pub fn terminal(&self) -> Option<&crate::TerminalFile> {
        if self.is_terminal { self.object_as() } else { None }
    }

    /// Returns access mode and status flags, as `fcntl(F_GETFL)`.
    pub fn flags(&self) -> u32 {
        self.flags.load(Ordering::Relaxed)
    }

    /// Sets the status flags, as `fcntl(F_SETFL)`.
    pub fn set_flags(&self, flags: u32) {
        let change = |old| Some(old & !SETTABLE | flags & SETTABLE);
        let _ = self.flags.fetch_update(Ordering::Relaxed, Ordering::Relaxed, change);
        if let Body::Object(object) = &self.body {
            object.flags_changed(self.flags());
        }
    }

    /// Returns whether it is a socket.
    pub fn is_socket(&self) -> bool {
        self.is_socket
    }

    /// Returns whether it was opened with `O_PATH`.
    pub fn is_path(&self) -> bool {
        matches!(self.body, Body::Path)
    }

    /// Returns whether it can be read.
    pub fn is_readable(&self) -> bool {
        !self.is_path() && self.flags() & linux::O_ACCMODE != linux::O_WRONLY
    }

    /// Returns whether it can be written.
    pub fn is_writable(&self) -> bool {
        !self.is_path() && matches!(self.flags() & linux::O_ACCMODE, linux::O_WRONLY | linux::O_RDWR)
    }

    /// Returns whether calls return [`Errno::EAGAIN`] instead of waiting.
    pub fn is_nonblocking(&self) -> bool {
        self.flags() & linux::O_NONBLOCK != 0
    }

    /// Notifies the watches of the file of an event.
    fn note(&self, events: u32) {
        if watch::are_any()
            && let Some(location) = &self.location
        {
            watch::note(&location.dentry, events);
        }
    }

    /// Notifies the watches of the file of a read or write of so many bytes.
    #[inline]
    fn note_bytes(&self, events: u32, count: usize) {
        if count > 0 {
            self.note(events);
        }
    }

    fn check_readable(&self) -> Result<(), Errno> {
        if self.is_readable() { Ok(()) } else { Err(Errno::EBADF) }
    }

    fn check_writable(&self) -> Result<(), Errno> {
        if self.is_writable() { Ok(()) } else { Err(Errno::EBADF) }
    }

    /// Returns the inode of a file that is read and written by its file system.
    fn file_inode(&self) -> Result<&Arc<dyn Inode>, Errno> {
        self.inode().ok_or(Errno::EBADF)
    }

    /// Returns the metadata.
    pub fn metadata(&self) -> Metadata {
        match (&self.location, &self.body) {
            (Some(location), _) => location.inode().metadata(),
            (None, Body::Object(object)) => object.metadata(),
            (None, Body::Inode | Body::Path) => unreachable!("an open file without object has a location"),
        }
    }

    /// Returns the type.
    pub fn kind(&self) -> InodeKind {
        match &self.location {
            Some(location) => location.dentry.kind(),
            None => self.metadata().kind,
        }
    }

    /// Returns what `/proc/PID/fd` shows: a path, or the name of the object.
    pub fn description(&self) -> Vec<u8> {
        match (&self.location, &self.body) {
            (Some(location), _) => location.path(None),
            (None, Body::Object(object)) => object.description(),
            (None, Body::Inode | Body::Path) => Vec::new(),
        }
    }

    /// Returns whether reads and writes have offsets.
    pub fn has_offsets(&self) -> bool {
        self.check_offsets().is_ok()
    }

    /// Records that contents were read other than by a read.
    pub(crate) fn was_read(&self) {
        if let (Body::Inode, Some(inode)) = (&self.body, self.inode())
            && self.flags() & linux::O_NOATIME == 0
        {
            inode.touch();
        }
        self.note(linux::IN_ACCESS);
    }

    fn check_offsets(&self) -> Result<(), Errno> {
        match &self.body {
            Body::Object(object) if !object.has_offsets() => Err(Errno::ESPIPE),
            Body::Path => Err(Errno::EBADF),
            Body::Object(_) | Body::Inode => Ok(()),
        }
    }

    /// Returns the pages for a mapping (`mmap`). The caller checks the access mode.
    ///
    /// # Errors
    /// [`Errno::ENODEV`] if it cannot be mapped, [`Errno::EBADF`].
    pub fn pages(&self) -> Result<Arc<dyn PageSource>, Errno> {
        match &self.body {
            Body::Inode => self.file_inode()?.clone().pages().ok_or(Errno::ENODEV),
            Body::Object(object) => object.clone().pages().ok_or(Errno::ENODEV),
            Body::Path => Err(Errno::EBADF),
        }
    }

    /// Executes a request of `ioctl`, except those on the descriptor itself. `argument` is the value of the call, and
    /// `buffer` the memory that it refers to, by [`control_argument`](crate::control_argument).
    ///
    /// # Errors
    /// [`Errno::ENOTTY`] for a request that the file does not support.
    pub async fn control(&self, request: u32, argument: u64, buffer: &mut UserBuffer) -> Result<u64, Errno> {
        match &self.body {
            Body::Object(object) => object.control(request, argument, buffer).await,
            Body::Inode if request == requests::FIONREAD && self.kind() == InodeKind::File => {
                let position = self.position.hold().await.get().offset;
                let left = self.metadata().len.saturating_sub(position).min(i32::MAX as u64) as i32;
                buffer.write(&left.to_ne_bytes());
                Ok(0)
            }
            Body::Inode => Err(Errno::ENOTTY),
            Body::Path => Err(Errno::EBADF),
        }
    }

    /// Returns the events that are true now. Files and directories are always ready.
    pub fn ready(&self) -> Events {
        match &self.body {
            Body::Object(object) => object.ready(),
            Body::Inode | Body::Path => Events::IN | Events::OUT,
        }
    }

    /// Returns the list of observers; `None` if the events never change.
    pub fn pollee(&self) -> Option<&Pollee> {
        self.object().and_then(|object| object.pollee())
    }

    /// Waits until one of these events, or an error or hang-up, is true.
    pub async fn wait(&self, events: Events) {
        match self.pollee() {
            Some(pollee) => {
                pollee.wait(events, || self.ready()).await;
            }
            // Such an object is always ready.
            None => core::future::ready(()).await,
        }
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        crate::locks::open_file_closed(self);
        if !self.is_path() {
            self.note(if self.is_writable() { linux::IN_CLOSE_WRITE } else { linux::IN_CLOSE_NOWRITE });
        }
        self.watches.end();
    }
}

impl fmt::Debug for OpenFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = alloc::string::String::from_utf8_lossy(&self.description()).into_owned();
        f.debug_struct("OpenFile").field("id", &self.id).field("name", &name).finish()
    }
}
