//! Memory that processes share without a file: `MAP_SHARED | MAP_ANONYMOUS`, `memfd_create`, files of a memory file system.

use crate::{BoxFuture, Errno, Mapper, Mappers, MemoryCharge, PageSource, UserBuffer};
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};
use isola_memory::frame::{FRAME_SIZE, Frame};
use isola_user_mode::PAGE_SIZE;
use spin::Mutex;

/// The device number of all shared memory, which no device has.
const DEVICE: u64 = 1;

/// The inode number of the next object.
static NEXT_INODE: AtomicU64 = AtomicU64::new(1);

/// The largest size, in bytes (`loff_t`).
pub const MAX_SIZE: u64 = i64::MAX as u64;

/// Pages in memory with a size. Pages that were never written are holes: they read as zeros and use no memory.
pub struct SharedMemory {
    inode: u64,
    path: Vec<u8>,
    charge: Arc<dyn MemoryCharge>,
    contents: Mutex<Contents>,
    mappers: Mappers,
}

struct Contents {
    frames: BTreeMap<u64, Frame>,
    size: u64,
}

impl SharedMemory {
    /// Creates memory of zeros, `size` bytes. `path` is its name in `/proc/PID/maps`.
    pub fn new(path: &[u8], size: u64, charge: Arc<dyn MemoryCharge>) -> Arc<Self> {
        Arc::new(Self {
            inode: NEXT_INODE.fetch_add(1, Ordering::Relaxed),
            path: path.to_vec(),
            charge,
            contents: Mutex::new(Contents { frames: BTreeMap::new(), size: size.min(MAX_SIZE) }),
            mappers: Mappers::default(),
        })
    }

    /// Returns the size, in bytes.
    pub fn size(&self) -> u64 {
        self.contents.lock().size
    }

    /// Returns the number of pages in memory.
    pub fn resident(&self) -> u64 {
        self.contents.lock().frames.len() as u64
    }

    /// Changes the size (`ftruncate`). Bytes behind the end are lost, and mapped pages behind it are unmapped.
    ///
    /// # Errors
    /// [`Errno::EFBIG`] above [`MAX_SIZE`].
    pub async fn set_size(&self, size: u64) -> Result<(), Errno> {
        if size > MAX_SIZE {
            return Err(Errno::EFBIG);
        }
        let first = size.div_ceil(PAGE_SIZE);
        let removed = {
            let mut contents = self.contents.lock();
            let shrinks = size < contents.size;
            contents.size = size;
            if shrinks {
                contents.clear_in_page(size, PAGE_SIZE);
            }
            contents.frames.split_off(&first)
        };
        self.charge.give_back(removed.len() as u64);
        if !removed.is_empty() {
            self.mappers.forget(self.identity(), first, u64::MAX, false).await;
        }
        Ok(())
    }

    /// Makes bytes zeros (`fallocate` with `FALLOC_FL_PUNCH_HOLE`). Pages that lie wholly within use no memory then.
    pub async fn punch_hole(&self, start: u64, len: u64) {
        let end = start.saturating_add(len).min(self.size().next_multiple_of(PAGE_SIZE));
        let (first, last) = (start.div_ceil(PAGE_SIZE), end / PAGE_SIZE);
        let removed = {
            let mut contents = self.contents.lock();
            if first > last {
                // Within one page.
                contents.clear_in_page(start, end % PAGE_SIZE);
                return;
            }
            contents.clear_in_page(start, PAGE_SIZE);
            contents.clear_in_page(last * PAGE_SIZE, end % PAGE_SIZE);
            let mut removed = contents.frames.split_off(&first);
            let mut above = removed.split_off(&last);
            contents.frames.append(&mut above);
            removed
        };
        self.charge.give_back(removed.len() as u64);
        if !removed.is_empty() {
            self.mappers.forget(self.identity(), first, last - first, true).await;
        }
    }

    /// Copies bytes from `offset` on to a buffer, up to the end. Returns their number.
    pub fn read(&self, offset: u64, buffer: &mut UserBuffer) -> usize {
        let left = self.size().saturating_sub(offset);
        let mut left = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
        let (mut position, mut done) = (offset, 0);
        let mut page = [0; FRAME_SIZE];
        while left > 0 {
            let within = (position % PAGE_SIZE) as usize;
            let now = (FRAME_SIZE - within).min(left);
            let copied = match self.frame(position / PAGE_SIZE) {
                Some(frame) => {
                    frame.read(within, &mut page[..now]);
                    buffer.write(&page[..now])
                }
                None => buffer.clear(now),
            };
            (position, done, left) = (position + copied as u64, done + copied, left - copied);
            if copied < now {
                break;
            }
        }
        done
    }

    /// Copies bytes from a buffer to `offset`, and extends the size. Returns their number.
    ///
    /// # Errors
    /// [`Errno::EFBIG`] if the first byte is behind [`MAX_SIZE`]; [`Errno::ENOSPC`] if no memory is left for it.
    pub fn write(&self, offset: u64, buffer: &mut UserBuffer) -> Result<usize, Errno> {
        let (mut position, mut done) = (offset, 0);
        let mut page = [0; FRAME_SIZE];
        while !buffer.is_empty() {
            let within = (position % PAGE_SIZE) as usize;
            let room = MAX_SIZE.saturating_sub(position);
            let now =
                (FRAME_SIZE - within).min(usize::try_from(room).unwrap_or(usize::MAX)).min(buffer.len());
            let frame = if now == 0 { Err(Errno::EFBIG) } else { self.frame_to_write(position, now) };
            let frame = match frame {
                Ok(frame) => frame,
                Err(errno) if done == 0 => return Err(errno),
                Err(_) => break,
            };
            let copied = buffer.read(&mut page[..now]);
            frame.write(within, &page[..copied]);
            (position, done) = (position + copied as u64, done + copied);
        }
        Ok(done)
    }

    /// Returns the frame at a position, a new one for a hole, and extends the size by the bytes that will be written.
    fn frame_to_write(&self, position: u64, len: usize) -> Result<Frame, Errno> {
        let mut contents = self.contents.lock();
        let frame = contents.frame_or_new(position / PAGE_SIZE, &*self.charge).ok_or(Errno::ENOSPC)?;
        contents.size = contents.size.max(position + len as u64);
        Ok(frame)
    }
}

impl Contents {
    fn frame_or_new(&mut self, index: u64, charge: &dyn MemoryCharge) -> Option<Frame> {
        if let Some(frame) = self.frames.get(&index) {
            return Some(frame.clone());
        }
        if !charge.take(1) {
            return None;
        }
        let frame = Frame::zeroed();
        self.frames.insert(index, frame.clone());
        Some(frame)
    }

    /// Clears the bytes from `start` on, up to the offset `end` in its page.
    fn clear_in_page(&mut self, start: u64, end: u64) {
        let offset = start % PAGE_SIZE;
        if offset < end
            && (offset > 0 || end < PAGE_SIZE)
            && let Some(frame) = self.frames.get(&(start / PAGE_SIZE))
        {
            frame.clear(offset as usize, (end - offset) as usize);
        }
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        self.charge.give_back(self.contents.get_mut().frames.len() as u64);
    }
}

impl PageSource for SharedMemory {
    fn frame(&self, index: u64) -> Option<Frame> {
        self.contents.lock().frames.get(&index).cloned()
    }

    fn fetch(&self, index: u64) -> BoxFuture<'_, Result<Frame, Errno>> {
        let mut contents = self.contents.lock();
        let result = if index >= contents.size.div_ceil(PAGE_SIZE) {
            Err(Errno::EFAULT)
        } else {
            contents.frame_or_new(index, &*self.charge).ok_or(Errno::ENOMEM)
        };
        Box::pin(core::future::ready(result))
    }

    fn mark_dirty(&self, _index: u64) {}

    fn sync(&self, _first: u64, _count: u64) -> BoxFuture<'_, Result<(), Errno>> {
        Box::pin(core::future::ready(Ok(())))
    }

    fn path(&self) -> Vec<u8> {
        self.path.clone()
    }

    fn identity(&self) -> (u64, u64) {
        (DEVICE, self.inode)
    }

    fn is_memory(&self) -> bool {
        true
    }

    fn punch(&self, first: u64, count: u64) -> BoxFuture<'_, Result<(), Errno>> {
        let (start, len) = (first.saturating_mul(PAGE_SIZE), count.saturating_mul(PAGE_SIZE));
        Box::pin(async move {
            self.punch_hole(start, len).await;
            Ok(())
        })
    }

    fn attach(&self, mapper: Weak<dyn Mapper>) {
        self.mappers.attach(mapper);
    }
}
