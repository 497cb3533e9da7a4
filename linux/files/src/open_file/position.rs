//! The position of an open file, and the entries of a directory from there on.

use super::{Body, MOST_OFFSET, OpenFile};
use crate::Errno;
use crate::inode::{CallerIds, Inode, SeekTarget};
use crate::metadata::{DirectoryEntry, InodeKind};
use alloc::sync::Arc;
use alloc::vec::Vec;
use isola_linux_abi::numbers as linux;
use isola_linux_memory::UserBuffer;

#[derive(Default)]
pub(super) struct Position {
    /// The offset; in a directory the number of the next entry, with `.` and `..` as the first two.
    pub offset: u64,
    /// The entries of the directory when it was read from its beginning.
    pub entries: Option<Arc<[DirectoryEntry]>>,
}

impl OpenFile {
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
}
