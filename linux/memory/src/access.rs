//! Copies from and to a program, by its addresses.

use crate::fault::note_write;
use crate::map::PAGES_AT_ONCE;
use crate::pages::page_of;
use crate::{Errno, FaultError, FramePart, ProcessMemory, UserBuffer};
use alloc::vec::Vec;
use isola_events::yield_now;
use isola_user_mode::{Access, PAGE_SIZE, USER_END};
use smallvec::SmallVec;

/// The most bytes of one `read` or `write`. Longer ones are cut, as in Linux.
pub const MAX_TRANSFER: u64 = 0x7fff_f000;

/// The most elements of an array of buffers.
pub const MAX_BUFFERS: u64 = 1024;

/// The most bytes of a path, with the zero at its end.
pub const MAX_PATH: usize = 4096;

/// The number of buffers up to which an array of them takes no memory of the heap.
const FEW_BUFFERS: usize = 8;

/// The most parts of a buffer that is resolved without a wait: 64 KiB at any address.
const MOST_PARTS: usize = 17;

/// The size of `struct iovec`.
const IOVEC_SIZE: u64 = 16;

/// The most parts for which a buffer reserves memory in advance.
const MAX_RESERVED_PARTS: u64 = 64;

impl ProcessMemory {
    /// Returns the part of a page at `address`, of `len` bytes, without a wait: `None` if the bytes are not within one page,
    /// or the page is not in memory, or its rights do not permit the access yet.
    pub fn try_part(&self, address: u64, len: usize, access: Access) -> Option<FramePart> {
        let offset = (address % PAGE_SIZE) as usize;
        if address >= USER_END || offset.checked_add(len)? > PAGE_SIZE as usize {
            return None;
        }
        let mapped = self.space.page_at(page_of(address))?;
        let permitted = match access {
            Access::Read => true,
            Access::Write => mapped.rights.writable,
            Access::Execute => mapped.rights.executable,
        };
        if !permitted {
            return None;
        }
        if access == Access::Write && mapped.frame.owners() == 0 {
            // A page of an object, whose contents the caller changes without the processor's dirty flag.
            let state = self.state.lock();
            note_write(state.mappings.find(address)?, page_of(address));
        }
        Some(FramePart { frame: mapped.frame, offset, len })
    }

    /// Resolves a buffer within one page, as [`Self::buffer`], without a wait: `None` if that needs one, or more pages.
    pub fn try_buffer(&self, address: u64, len: usize, access: Access) -> Option<UserBuffer> {
        let buffer = UserBuffer::of_part(self.try_part(address, len, access)?);
        is_own(&buffer, access).then_some(buffer)
    }

    /// Returns the part of a page at `address`, of `len` bytes within the page. May wait for the page.
    async fn part(&self, address: u64, len: usize, access: Access) -> Result<FramePart, FaultError> {
        loop {
            if let Some(part) = self.try_part(address, len, access) {
                return Ok(part);
            }
            self.fault(address, access).await?;
        }
    }

    /// Resolves a buffer of the program: for [`Access::Read`], from which the call reads; for [`Access::Write`], to which it
    /// writes. The buffer ends before the first page that cannot be accessed, so that a call is partial as in Linux, and
    /// after [`MAX_TRANSFER`] bytes.
    ///
    /// All pages are in memory then: a call that may transfer less than asked limits `len`.
    ///
    /// # Errors
    /// [`Errno::EFAULT`] if the first byte cannot be accessed, or the range is not within a program's addresses;
    /// [`Errno::ENOMEM`].
    pub async fn buffer(&self, address: u64, len: u64, access: Access) -> Result<UserBuffer, Errno> {
        if (1..=PAGE_SIZE).contains(&len)
            && let Some(buffer) = self.try_buffer(address, len as usize, access)
        {
            return Ok(buffer);
        }
        let mut buffer = UserBuffer::default();
        check_range(address, len)?;
        self.resolve(address, len.min(MAX_TRANSFER), access, &mut buffer).await?;
        Ok(buffer)
    }

    /// Resolves an array of `count` buffers (`struct iovec`) at `array`, as [`Self::buffer`].
    ///
    /// # Errors
    /// [`Errno::EINVAL`] if there are more than [`MAX_BUFFERS`] or a length is negative; otherwise as [`Self::buffer`].
    pub async fn buffers(&self, array: u64, count: u64, access: Access) -> Result<UserBuffer, Errno> {
        if count > MAX_BUFFERS {
            return Err(Errno::EINVAL);
        }
        let mut descriptors = SmallVec::<[u8; FEW_BUFFERS * IOVEC_SIZE as usize]>::new();
        descriptors.resize((count * IOVEC_SIZE) as usize, 0);
        self.read_to(array, &mut descriptors).await?;
        let mut ranges = SmallVec::<[(u64, u64); FEW_BUFFERS]>::new();
        let mut left = MAX_TRANSFER;
        let (words, _) = descriptors.as_chunks::<8>();
        for words in words.chunks_exact(2) {
            let (address, len) = (u64::from_le_bytes(words[0]), u64::from_le_bytes(words[1]));
            if len > i64::MAX as u64 {
                return Err(Errno::EINVAL);
            }
            check_range(address, len)?;
            ranges.push((address, len.min(left)));
            left -= len.min(left);
        }
        let mut buffer = UserBuffer::default();
        for (address, len) in ranges {
            if !self.resolve(address, len, access, &mut buffer).await? {
                break;
            }
        }
        Ok(buffer)
    }

    /// Resolves a buffer of a few pages, as [`Self::buffer`], without a wait: `None` if that needs one, or for more pages.
    pub fn try_range(&self, address: u64, len: u64, access: Access) -> Option<UserBuffer> {
        let mut buffer = UserBuffer::default();
        self.try_add(address, len, access, &mut buffer)?;
        is_own(&buffer, access).then_some(buffer)
    }

    /// Resolves up to `most` bytes of an array of a few buffers, as [`Self::buffers`], without a wait: `None` if that needs one,
    /// for more buffers or pages, and for an array that is not within one page.
    pub fn try_buffers(&self, array: u64, count: u64, most: u64, access: Access) -> Option<UserBuffer> {
        let mut bytes = [0; FEW_BUFFERS * IOVEC_SIZE as usize];
        let bytes = bytes.get_mut(..usize::try_from(count.checked_mul(IOVEC_SIZE)?).ok()?)?;
        let part = self.try_part(array, bytes.len(), Access::Read)?;
        part.frame.read(part.offset, bytes);
        let (mut buffer, mut room) = (UserBuffer::default(), most);
        let (words, _) = bytes.as_chunks::<8>();
        for words in words.chunks_exact(2) {
            let (address, len) = (u64::from_le_bytes(words[0]), u64::from_le_bytes(words[1]));
            check_range(address, len).ok()?;
            self.try_add(address, len.min(room), access, &mut buffer)?;
            room -= len.min(room);
        }
        is_own(&buffer, access).then_some(buffer)
    }

    /// Adds the parts of a buffer, if all are in memory and they are few.
    fn try_add(&self, mut address: u64, len: u64, access: Access, buffer: &mut UserBuffer) -> Option<()> {
        check_range(address, len).ok()?;
        let end = address + len;
        while address < end {
            let now = (page_of(address) + PAGE_SIZE).min(end) - address;
            if buffer.parts() == MOST_PARTS {
                return None;
            }
            buffer.push(self.try_part(address, now as usize, access)?);
            address += now;
        }
        Some(())
    }

    /// Adds the parts of a buffer. Returns whether all of it can be accessed.
    async fn resolve(
        &self,
        start: u64,
        len: u64,
        access: Access,
        buffer: &mut UserBuffer,
    ) -> Result<bool, Errno> {
        let end = start + len;
        buffer.reserve((len / PAGE_SIZE + 1).min(MAX_RESERVED_PARTS) as usize);
        let mut address = start;
        while address < end {
            let now = (page_of(address) + PAGE_SIZE).min(end) - address;
            match self.part(address, now as usize, access).await {
                Ok(part) => {
                    let frame = part.frame.clone();
                    buffer.push(part);
                    // A `fork` before the pin may have shared the frame; one after it does not.
                    if access == Access::Write && frame.owners() > 1 {
                        buffer.pop();
                        yield_now().await;
                        continue;
                    }
                }
                Err(error) if buffer.parts() == 0 => return Err(error.errno()),
                Err(_) => return Ok(false),
            }
            address += now;
            if (buffer.parts() as u64).is_multiple_of(PAGES_AT_ONCE) {
                yield_now().await;
            }
        }
        Ok(true)
    }

    /// Reads `N` bytes without a wait: `None` if [`Self::read_bytes`] is needed.
    pub fn try_read_bytes<const N: usize>(&self, address: u64) -> Option<[u8; N]> {
        let part = self.try_part(address, N, Access::Read)?;
        let mut bytes = [0; N];
        part.frame.read(part.offset, &mut bytes);
        Some(bytes)
    }

    /// Writes bytes without a wait: false if [`Self::write_bytes`] is needed.
    pub fn try_write_bytes(&self, address: u64, bytes: &[u8]) -> bool {
        let part = self.try_part(address, bytes.len(), Access::Write);
        part.is_some_and(|part| {
            part.frame.write(part.offset, bytes);
            true
        })
    }

    /// Reads a structure of `N` bytes.
    ///
    /// # Errors
    /// [`Errno::EFAULT`] if not all of it can be read; [`Errno::ENOMEM`].
    pub async fn read_bytes<const N: usize>(&self, address: u64) -> Result<[u8; N], Errno> {
        if let Some(bytes) = self.try_read_bytes(address) {
            return Ok(bytes);
        }
        let mut bytes = [0; N];
        self.read_to(address, &mut bytes).await?;
        Ok(bytes)
    }

    /// Reads bytes.
    ///
    /// # Errors
    /// As [`Self::read_bytes`].
    pub async fn read_to(&self, address: u64, bytes: &mut [u8]) -> Result<(), Errno> {
        check_range(address, bytes.len() as u64)?;
        let mut done = 0;
        while done < bytes.len() {
            let from = address + done as u64;
            let now = ((page_of(from) + PAGE_SIZE - from) as usize).min(bytes.len() - done);
            let part = self.part(from, now, Access::Read).await.map_err(FaultError::errno)?;
            part.frame.read(part.offset, &mut bytes[done..done + now]);
            done += now;
        }
        Ok(())
    }

    /// Writes bytes, all or those of the pages before the first that cannot be written.
    ///
    /// # Errors
    /// As [`Self::read_bytes`].
    pub async fn write_bytes(&self, address: u64, bytes: &[u8]) -> Result<(), Errno> {
        check_range(address, bytes.len() as u64)?;
        let mut done = 0;
        while done < bytes.len() {
            let to = address + done as u64;
            let now = ((page_of(to) + PAGE_SIZE - to) as usize).min(bytes.len() - done);
            let part = self.part(to, now, Access::Write).await.map_err(FaultError::errno)?;
            part.frame.write(part.offset, &bytes[done..done + now]);
            done += now;
        }
        Ok(())
    }

    /// Writes bytes as a debugger does: also to pages that the program itself may not write, if they are its own and not shared
    /// with other processes or files. A page of a file is copied before.
    ///
    /// # Errors
    /// As [`Self::write_bytes`].
    pub async fn poke(&self, address: u64, bytes: &[u8]) -> Result<(), Errno> {
        check_range(address, bytes.len() as u64)?;
        let mut done = 0;
        while done < bytes.len() {
            let to = address + done as u64;
            let page = page_of(to);
            let now = ((page + PAGE_SIZE - to) as usize).min(bytes.len() - done);
            let part = match self.part(to, now, Access::Write).await {
                Err(FaultError::NotPermitted) => {
                    self.make_own(page).await.map_err(FaultError::errno)?;
                    let frame = self.space.page_at(page).ok_or(Errno::EFAULT)?.frame;
                    FramePart { frame, offset: (to - page) as usize, len: now }
                }
                part => part.map_err(FaultError::errno)?,
            };
            part.frame.write(part.offset, &bytes[done..done + now]);
            done += now;
        }
        Ok(())
    }

    /// Reads a string that ends with a zero byte, which is not part of the result. `limit` includes it.
    ///
    /// # Errors
    /// [`Errno::ENAMETOOLONG`] if none of the first `limit` bytes is zero; otherwise as [`Self::read_bytes`].
    pub async fn string(&self, address: u64, limit: usize) -> Result<Vec<u8>, Errno> {
        let mut string = Vec::new();
        while string.len() < limit {
            let from = address.checked_add(string.len() as u64).ok_or(Errno::EFAULT)?;
            check_range(from, 1)?;
            let now = ((page_of(from) + PAGE_SIZE - from) as usize).min(limit - string.len());
            let part = self.part(from, now, Access::Read).await.map_err(FaultError::errno)?;
            let before = string.len();
            string.resize(before + now, 0);
            part.frame.read(part.offset, &mut string[before..]);
            if let Some(end) = string[before..].iter().position(|byte| *byte == 0) {
                string.truncate(before + end);
                return Ok(string);
            }
        }
        Err(Errno::ENAMETOOLONG)
    }

    /// Reads a path, of less than [`MAX_PATH`] bytes.
    ///
    /// # Errors
    /// As [`Self::string`].
    pub async fn path(&self, address: u64) -> Result<Vec<u8>, Errno> {
        self.string(address, MAX_PATH).await
    }
}

/// Returns whether a call may access a buffer that is pinned now. A `fork` before the pin may have shared a frame to write to; one
/// after it does not.
fn is_own(buffer: &UserBuffer, access: Access) -> bool {
    access != Access::Write || buffer.most_owners() <= 1
}

/// Checks that bytes are at a program's addresses.
fn check_range(address: u64, len: u64) -> Result<(), Errno> {
    let within = address.checked_add(len).is_some_and(|end| end <= USER_END);
    if within { Ok(()) } else { Err(Errno::EFAULT) }
}
