//! Open files.

use crate::Errno;
use crate::async_lock::AsyncLock;
use crate::dentry::Location;
use crate::events::{Events, Pollee, WaiterKey};
use crate::inode::{Allocation, CallerIds, Inode, SeekTarget, WritePosition};
use crate::metadata::{DirectoryEntry, InodeKind, Metadata};
use crate::object::FileObject;
use crate::watch;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use core::task::Waker;
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

#[derive(Default)]
struct Position {
    /// The offset; in a directory the number of the next entry, with `.` and `..` as the first two.
    offset: u64,
    /// The entries of the directory when it was read from its beginning.
    entries: Option<Arc<[DirectoryEntry]>>,
}

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// The largest offset in a file.
pub const MOST_OFFSET: u64 = i64::MAX as u64;

/// Checks that the region of a read or write is within the offsets of files.
fn check_region(offset: u64, len: usize) -> Result<(), Errno> {
    let end = offset.checked_add(len as u64);
    if end.is_none_or(|end| end > MOST_OFFSET) { Err(Errno::EINVAL) } else { Ok(()) }
}

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

    /// Reads at the position, and advances it. Waits for data unless the file is non-blocking.
    ///
    /// If the future is dropped, the bytes that were read are those by which the buffer's position has advanced.
    ///
    /// # Errors
    /// [`Errno::EBADF`] if it is not open for reading, [`Errno::EISDIR`], [`Errno::EAGAIN`], and those of the file.
    pub async fn read(&self, buffer: &mut UserBuffer) -> Result<usize, Errno> {
        self.check_readable()?;
        let count = match &self.body {
            Body::Object(object) if !object.has_offsets() => self.read_stream(&**object, buffer).await?,
            _ => {
                let position = self.position.hold().await;
                let offset = position.get().offset;
                let count = self.read_file(offset, buffer).await?;
                position.get().offset = offset.saturating_add(count as u64);
                count
            }
        };
        self.note_bytes(linux::IN_ACCESS, count);
        Ok(count)
    }

    /// Reads from an object that has bytes, without a wait: `None` if [`Self::read`] is needed. `buffer` returns the buffer, or
    /// `None`; the object is asked first.
    pub fn read_at_once(&self, buffer: impl FnOnce() -> Option<UserBuffer>) -> Option<Result<usize, Errno>> {
        let Body::Object(object) = &self.body else { return None };
        if object.has_offsets() || !object.ready().intersects(Events::IN) {
            return None;
        }
        if let Err(error) = self.check_readable() {
            return Some(Err(error));
        }
        match object.read(&mut buffer()?) {
            Err(Errno::EAGAIN) => None,
            result => Some(result.inspect(|count| self.note_bytes(linux::IN_ACCESS, *count))),
        }
    }

    /// Makes bytes to read, an error or a hang-up wake a waker, until [`Self::end_wait`]. `None` without a wait: for a file
    /// that cannot be read, a non-blocking one, one without such events, and if one of them is true already.
    pub fn begin_read_wait(&self, waker: impl FnOnce() -> Waker) -> Option<WaiterKey> {
        let events = Events::IN | Events::ALWAYS;
        let Body::Object(object) = &self.body else { return None };
        if !self.is_readable() || self.is_nonblocking() || object.has_offsets() {
            return None;
        }
        let key = WaiterKey(object.pollee()?.add_waiter(events, waker()));
        // Only now: an event between the check and the registration would be lost.
        if object.ready().intersects(events) {
            self.end_wait(key);
            return None;
        }
        Some(key)
    }

    /// Ends a wait that has begun.
    pub fn end_wait(&self, WaiterKey(key): WaiterKey) {
        if let Some(pollee) = self.pollee() {
            pollee.remove_waiter(Some(key));
        }
    }

    /// Writes to an object that has space, without a wait: `None` if [`Self::write`] is needed. Only for as many bytes as an
    /// object takes undivided.
    pub fn write_at_once(&self, buffer: impl FnOnce() -> Option<UserBuffer>) -> Option<Result<usize, Errno>> {
        let Body::Object(object) = &self.body else { return None };
        if object.has_offsets() {
            return None;
        }
        if let Err(error) = self.check_writable() {
            return Some(Err(error));
        }
        match object.write(&mut buffer()?) {
            // The writer without a reader also gets a signal.
            Err(Errno::EAGAIN | Errno::EPIPE) => None,
            result => Some(result.inspect(|count| self.note_bytes(linux::IN_MODIFY, *count))),
        }
    }

    async fn read_stream(&self, object: &dyn FileObject, buffer: &mut UserBuffer) -> Result<usize, Errno> {
        loop {
            match object.read(buffer) {
                Err(Errno::EAGAIN) if !self.is_nonblocking() => self.wait_again(object, Events::IN).await?,
                result => return result,
            }
        }
    }

    async fn read_file(&self, offset: u64, buffer: &mut UserBuffer) -> Result<usize, Errno> {
        check_region(offset, buffer.len())?;
        match &self.body {
            Body::Object(object) => object.read_at(offset, buffer).await,
            Body::Inode if self.kind() == InodeKind::Directory => Err(Errno::EISDIR),
            Body::Inode => {
                let inode = self.file_inode()?;
                let count = inode.read_at(offset, buffer).await?;
                if self.flags() & linux::O_NOATIME == 0 {
                    inode.touch();
                }
                Ok(count)
            }
            Body::Path => Err(Errno::EBADF),
        }
    }

    /// Reads from an offset (`pread`).
    ///
    /// # Errors
    /// As [`Self::read`], and [`Errno::ESPIPE`] if the file has no offsets.
    pub async fn read_at(&self, offset: u64, buffer: &mut UserBuffer) -> Result<usize, Errno> {
        self.check_readable()?;
        self.check_offsets()?;
        let count = self.read_file(offset, buffer).await?;
        self.note_bytes(linux::IN_ACCESS, count);
        Ok(count)
    }

    /// Reads up to `len` bytes from an offset, fewer only at the end. For the kernel's own reads, such as those of `exec`.
    ///
    /// # Errors
    /// As [`Self::read_at`], and [`Errno::ENOMEM`].
    pub async fn read_bytes(&self, offset: u64, len: usize) -> Result<Vec<u8>, Errno> {
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(len).map_err(|_| Errno::ENOMEM)?;
        bytes.resize(len, 0);
        let mut buffer = UserBuffer::of_bytes(&bytes);
        let mut contents = buffer.clone();
        let mut count = 0;
        while !buffer.is_empty() {
            let now = self.read_file(offset.saturating_add(count as u64), &mut buffer).await?;
            if now == 0 {
                break;
            }
            count += now;
        }
        contents.read(&mut bytes);
        bytes.truncate(count);
        Ok(bytes)
    }

    /// Writes at the position, or at the end with `O_APPEND`, and advances it. Waits for space unless the file is
    /// non-blocking.
    ///
    /// If the future is dropped, the bytes that were written are those by which the buffer's position has advanced.
    ///
    /// # Errors
    /// [`Errno::EBADF`] if it is not open for writing, [`Errno::EAGAIN`], [`Errno::EPIPE`] (the caller sends the signal),
    /// and those of the file.
    pub async fn write(&self, buffer: &mut UserBuffer) -> Result<usize, Errno> {
        self.check_writable()?;
        let count = match &self.body {
            Body::Object(object) if !object.has_offsets() => self.write_stream(&**object, buffer).await?,
            _ => {
                let position = self.position.hold().await;
                let offset = position.get().offset;
                let (count, end) = self.write_file(offset, buffer).await?;
                position.get().offset = end;
                count
            }
        };
        self.note_bytes(linux::IN_MODIFY, count);
        Ok(count)
    }

    /// Waits for another attempt.
    async fn wait_again(&self, object: &dyn FileObject, events: Events) -> Result<(), Errno> {
        match object.wait(events) {
            Some(wait) => wait.await,
            None => {
                self.wait(events).await;
                Ok(())
            }
        }
    }

    async fn write_stream(&self, object: &dyn FileObject, buffer: &mut UserBuffer) -> Result<usize, Errno> {
        let mut total = 0;
        loop {
            match object.write(buffer) {
                Ok(count) => {
                    total += count;
                    if buffer.is_empty() || !object.writes_all() {
                        return Ok(total);
                    }
                }
                Err(Errno::EAGAIN) if !self.is_nonblocking() => {
                    if let Err(error) = self.wait_again(object, Events::OUT).await {
                        return if total > 0 { Ok(total) } else { Err(error) };
                    }
                }
                Err(_) if total > 0 => return Ok(total),
                Err(error) => return Err(error),
            }
        }
    }

    async fn write_file(&self, offset: u64, buffer: &mut UserBuffer) -> Result<(usize, u64), Errno> {
        let position = match self.flags() & linux::O_APPEND {
            0 => WritePosition::At(offset),
            _ => WritePosition::End,
        };
        self.write_to(position, offset, buffer).await
    }

    async fn write_to(
        &self,
        position: WritePosition,
        offset: u64,
        buffer: &mut UserBuffer,
    ) -> Result<(usize, u64), Errno> {
        // Also of the position that an append does not use, as on Linux.
        check_region(offset, buffer.len())?;
        match &self.body {
            Body::Object(object) => {
                let count = object.write_at(offset, buffer).await?;
                Ok((count, offset + count as u64))
            }
            Body::Inode if buffer.is_empty() => Ok((0, offset)),
            Body::Inode => {
                let inode = self.file_inode()?;
                let written = inode.write_at(position, buffer).await?;
                // O_SYNC contains this bit.
                if self.flags() & linux::O_DSYNC != 0 {
                    inode.sync().await?;
                }
                Ok(written)
            }
            Body::Path => Err(Errno::EBADF),
        }
    }

    /// Writes at an offset (`pwrite`); with `O_APPEND` at the end, as Linux does.
    ///
    /// # Errors
    /// As [`Self::write`], and [`Errno::ESPIPE`] if the file has no offsets.
    pub async fn write_at(&self, offset: u64, buffer: &mut UserBuffer) -> Result<usize, Errno> {
        self.check_writable()?;
        self.check_offsets()?;
        let (count, _) = self.write_file(offset, buffer).await?;
        self.note_bytes(linux::IN_MODIFY, count);
        Ok(count)
    }

    /// Writes at the end, as with `O_APPEND` (`RWF_APPEND`). Without an offset, the position is behind the bytes then.
    ///
    /// # Errors
    /// As [`Self::write`].
    pub async fn write_at_end(&self, offset: Option<u64>, buffer: &mut UserBuffer) -> Result<usize, Errno> {
        self.check_writable()?;
        if !self.has_offsets() {
            return if offset.is_some() { Err(Errno::ESPIPE) } else { self.write(buffer).await };
        }
        let count = match offset {
            Some(offset) => self.write_to(WritePosition::End, offset, buffer).await?.0,
            None => {
                let position = self.position.hold().await;
                let offset = position.get().offset;
                let (count, end) = self.write_to(WritePosition::End, offset, buffer).await?;
                position.get().offset = end;
                count
            }
        };
        self.note_bytes(linux::IN_MODIFY, count);
        Ok(count)
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

    /// Sets the position (`lseek`). Returns it.
    ///
    /// # Errors
    /// [`Errno::ESPIPE`], [`Errno::EINVAL`] for a position before the beginning or behind the largest one and for an
    /// unknown `whence`, [`Errno::ENXIO`].
    pub async fn seek(&self, offset: i64, whence: u32) -> Result<u64, Errno> {
        self.check_offsets()?;
        let position = self.position.hold().await;
        if self.object().is_some_and(|object| object.stays_at_beginning()) {
            position.get().offset = 0;
            return Ok(0);
        }
        let base = match whence {
            linux::SEEK_SET => 0,
            linux::SEEK_CUR => position.get().offset,
            linux::SEEK_END if self.kind() == InodeKind::Directory => return Err(Errno::EINVAL),
            linux::SEEK_END => match &self.body {
                Body::Object(object) => object.contents_len().unwrap_or(0),
                _ => self.metadata().len,
            },
            linux::SEEK_DATA | linux::SEEK_HOLE => {
                let target = if whence == linux::SEEK_DATA { SeekTarget::Data } else { SeekTarget::Hole };
                let from = u64::try_from(offset).map_err(|_| Errno::ENXIO)?;
                if self.kind() != InodeKind::File {
                    return Err(Errno::EINVAL);
                }
                let found = self.file_inode()?.seek(target, from).await?;
                position.get().offset = found;
                return Ok(found);
            }
            _ => return Err(Errno::EINVAL),
        };
        let end = i128::from(base) + i128::from(offset);
        let end = u64::try_from(end).ok().filter(|end| *end <= MOST_OFFSET).ok_or(Errno::EINVAL)?;
        let mut position = position.get();
        position.offset = end;
        if end == 0 {
            position.entries = None;
        }
        Ok(end)
    }

    /// Writes entries of the directory from the position on, as `struct linux_dirent64` (`getdents64`). Returns the number
    /// of bytes: 0 at the end. The entries are those of the moment in which the directory was read from its beginning.
    ///
    /// # Errors
    /// [`Errno::ENOTDIR`], [`Errno::EINVAL`] if the buffer is too short for the next entry, [`Errno::ENOENT`] if the
    /// directory was removed.
    pub async fn read_entries(&self, buffer: &mut UserBuffer, caller: CallerIds) -> Result<usize, Errno> {
        if self.is_path() {
            return Err(Errno::EBADF);
        }
        let location = self.location.as_ref().ok_or(Errno::ENOTDIR)?;
        if location.dentry.kind() != InodeKind::Directory {
            return Err(Errno::ENOTDIR);
        }
        if location.dentry.is_removed() {
            return Err(Errno::ENOENT);
        }
        let position = self.position.hold().await;
        let known = position.get().entries.clone();
        let entries = match known {
            Some(entries) => entries,
            None => {
                let entries: Arc<[_]> = location.inode().list(caller).await?.into();
                position.get().entries = Some(entries.clone());
                location.inode().touch();
                entries
            }
        };
        let mut index = position.get().offset;
        let (mut total, mut bytes) = (0, Vec::new());
        loop {
            let own = |name: &[u8], inode: &Arc<dyn Inode>| DirectoryEntry {
                name: name.to_vec(),
                inode: inode.metadata().inode,
                kind: InodeKind::Directory,
            };
            let dots;
            let entry = match index {
                0 => {
                    dots = own(b".", location.inode());
                    &dots
                }
                1 => {
                    dots = own(b"..", location.parent().inode());
                    &dots
                }
                _ => match usize::try_from(index - 2).ok().and_then(|index| entries.get(index)) {
                    Some(entry) => entry,
                    None => break,
                },
            };
            if entry.encoded_len() > buffer.len() {
                if total == 0 {
                    return Err(Errno::EINVAL);
                }
                break;
            }
            index += 1;
            bytes.clear();
            entry.encode(index, &mut bytes);
            total += buffer.write(&bytes);
        }
        position.get().offset = index;
        self.note(linux::IN_ACCESS);
        Ok(total)
    }

    /// Sets the length (`ftruncate`).
    ///
    /// # Errors
    /// [`Errno::EINVAL`] if it is no file open for writing or the length is negative, [`Errno::EFBIG`].
    pub async fn truncate(&self, len: i64) -> Result<(), Errno> {
        let len = u64::try_from(len).map_err(|_| Errno::EINVAL)?;
        if !matches!(self.body, Body::Inode) || self.kind() != InodeKind::File || !self.is_writable() {
            return Err(if self.is_path() { Errno::EBADF } else { Errno::EINVAL });
        }
        self.file_inode()?.truncate(len).await?;
        if let Some(location) = &self.location {
            watch::note_change(&location.dentry, linux::IN_MODIFY);
        }
        Ok(())
    }

    /// Reserves or frees storage (`fallocate`), with the call's mode.
    ///
    /// # Errors
    /// [`Errno::EBADF`], [`Errno::EINVAL`], [`Errno::EFBIG`], [`Errno::ESPIPE`] for a pipe, [`Errno::ENODEV`] for other
    /// objects, [`Errno::EOPNOTSUPP`] for a mode that the file system does not support.
    pub async fn allocate(&self, mode: u32, offset: i64, len: i64) -> Result<(), Errno> {
        const PUNCH: u32 = linux::FALLOC_FL_PUNCH_HOLE | linux::FALLOC_FL_KEEP_SIZE;
        const ZERO: u32 = linux::FALLOC_FL_ZERO_RANGE;
        const ZERO_KEEP: u32 = linux::FALLOC_FL_ZERO_RANGE | linux::FALLOC_FL_KEEP_SIZE;
        if self.is_path() {
            return Err(Errno::EBADF);
        }
        let offset = u64::try_from(offset).map_err(|_| Errno::EINVAL)?;
        let len = u64::try_from(len).ok().filter(|len| *len > 0).ok_or(Errno::EINVAL)?;
        let allocation = match mode {
            0 => Allocation::Reserve,
            linux::FALLOC_FL_KEEP_SIZE => Allocation::ReserveKeepLen,
            PUNCH => Allocation::PunchHole,
            ZERO => Allocation::Zero,
            ZERO_KEEP => Allocation::ZeroKeepLen,
            _ => return Err(Errno::EOPNOTSUPP),
        };
        self.check_writable()?;
        match self.kind() {
            InodeKind::File if matches!(self.body, Body::Inode) => {}
            InodeKind::Fifo => return Err(Errno::ESPIPE),
            InodeKind::Directory => return Err(Errno::EISDIR),
            _ => return Err(Errno::ENODEV),
        }
        if offset + len > MOST_OFFSET {
            return Err(Errno::EFBIG);
        }
        self.file_inode()?.allocate(allocation, offset, len).await?;
        self.note(linux::IN_MODIFY);
        Ok(())
    }

    /// Returns the seals (`F_GET_SEALS`).
    ///
    /// # Errors
    /// As [`Inode::seals`].
    pub fn seals(&self) -> Result<u32, Errno> {
        match &self.body {
            Body::Inode => self.file_inode()?.seals(),
            Body::Object(_) | Body::Path => Err(Errno::EINVAL),
        }
    }

    /// Adds seals (`F_ADD_SEALS`).
    ///
    /// # Errors
    /// As [`Inode::add_seals`]; [`Errno::EPERM`] if the file is not open for writing.
    pub fn add_seals(&self, seals: u32) -> Result<(), Errno> {
        if !self.is_writable() {
            return Err(Errno::EPERM);
        }
        match &self.body {
            Body::Inode => self.file_inode()?.add_seals(seals),
            Body::Object(_) | Body::Path => Err(Errno::EINVAL),
        }
    }

    /// Makes the changes of the file permanent (`fsync`, `fdatasync`).
    ///
    /// # Errors
    /// [`Errno::EINVAL`] for a pipe, socket or device, and those of the device.
    pub async fn sync(&self) -> Result<(), Errno> {
        match &self.body {
            Body::Inode => self.file_inode()?.sync().await,
            Body::Object(_) => Err(Errno::EINVAL),
            Body::Path => Err(Errno::EBADF),
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
