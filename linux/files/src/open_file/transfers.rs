//! Reads and writes of open files: streams, which wait, and files, at a position or an offset.

use super::{Body, MOST_OFFSET, OpenFile};
use crate::Errno;
use crate::events::{Events, WaiterKey};
use crate::inode::WritePosition;
use crate::metadata::InodeKind;
use crate::object::FileObject;
use alloc::vec::Vec;
use core::task::Waker;
use isola_linux_abi::numbers as linux;
use isola_linux_memory::UserBuffer;

/// Checks that the region of a read or write is within the offsets of files.
fn check_region(offset: u64, len: usize) -> Result<(), Errno> {
    let end = offset.checked_add(len as u64);
    if end.is_none_or(|end| end > MOST_OFFSET) { Err(Errno::EINVAL) } else { Ok(()) }
}

impl OpenFile {
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
}
