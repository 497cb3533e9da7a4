//! The length and storage of an open file: truncation, allocation, seals, and synchronisation with the device.

use super::{Body, MOST_OFFSET, OpenFile};
use crate::Errno;
use crate::inode::Allocation;
use crate::metadata::InodeKind;
use crate::watch;
use isola_linux_abi::numbers as linux;

impl OpenFile {
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
    /// As [`Inode::seals`](crate::inode::Inode::seals).
    pub fn seals(&self) -> Result<u32, Errno> {
        match &self.body {
            Body::Inode => self.file_inode()?.seals(),
            Body::Object(_) | Body::Path => Err(Errno::EINVAL),
        }
    }

    /// Adds seals (`F_ADD_SEALS`).
    ///
    /// # Errors
    /// As [`Inode::add_seals`](crate::inode::Inode::add_seals); [`Errno::EPERM`] if the file is not open for writing.
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
}
