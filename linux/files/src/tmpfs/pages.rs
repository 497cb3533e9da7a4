//! The contents of files in memory.

use super::Shared;
use super::inode::{Content, TmpInode};
use crate::Errno;
use crate::inode::{Allocation, SeekTarget, WritePosition};
use crate::open_file::MOST_OFFSET;
use crate::outcome::Outcome;
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use isola_linux_memory::{BoxFuture, Mapper, PageSource, UserBuffer};
use isola_memory::frame::{FRAME_SIZE, Frame};
use spin::Mutex;

const PAGE: u64 = FRAME_SIZE as u64;

/// The pages of a file. Absent ones are zeros.
pub(super) struct FilePages {
    shared: Arc<Shared>,
    state: Mutex<FileState>,
    /// Held by writes at the end.
    appending: Mutex<()>,
    /// The processes that map the file, or did.
    mappers: Mutex<Vec<Weak<dyn Mapper>>>,
}

/// Pages that a file has lost, and that processes may have mapped.
pub(super) struct LostPages {
    first: u64,
    count: u64,
    /// Whether private copies of the pages stay.
    keeps_copies: bool,
}

#[derive(Default)]
struct FileState {
    len: u64,
    pages: BTreeMap<u64, Frame>,
}

/// Returns the number of bytes from `offset` on that are in its page, at most `len`.
fn in_page(offset: u64, len: u64) -> usize {
    (PAGE - offset % PAGE).min(len) as usize
}

impl FilePages {
    pub fn new(shared: Arc<Shared>) -> Self {
        Self { shared, state: Mutex::default(), appending: Mutex::new(()), mappers: Mutex::default() }
    }

    pub fn len_and_pages(&self) -> (u64, u64) {
        let state = self.state.lock();
        (state.len, state.pages.len() as u64)
    }

    pub fn read(&self, offset: u64, buffer: &mut UserBuffer) -> usize {
        let mut count = 0;
        while !buffer.is_empty() {
            let at = offset.saturating_add(count as u64);
            let (len, frame) = {
                let state = self.state.lock();
                let left = state.len.saturating_sub(at);
                if left == 0 {
                    break;
                }
                (in_page(at, left), state.pages.get(&(at / PAGE)).cloned())
            };
            let now = len.min(buffer.len());
            match frame {
                None => {
                    buffer.clear(now);
                }
                Some(frame) => {
                    let mut from = (at % PAGE) as usize;
                    buffer.advance(now, |part| {
                        part.frame.copy_from(part.offset, &frame, from, part.len);
                        from += part.len;
                    });
                }
            }
            count += now;
        }
        count
    }

    pub fn write(&self, position: WritePosition, buffer: &mut UserBuffer) -> Result<(usize, u64), Errno> {
        match position {
            WritePosition::At(offset) => self.write_from(offset, buffer),
            WritePosition::End => {
                let _appending = self.appending.lock();
                let len = self.state.lock().len;
                self.write_from(len, buffer)
            }
        }
    }

    fn write_from(&self, offset: u64, buffer: &mut UserBuffer) -> Result<(usize, u64), Errno> {
        let mut at = offset;
        let failed = loop {
            if buffer.is_empty() {
                break None;
            }
            let now = in_page(at, MOST_OFFSET.saturating_sub(at)).min(buffer.len());
            if now == 0 {
                break Some(Errno::EFBIG);
            }
            let frame = match self.page_to_write(at / PAGE) {
                Ok(frame) => frame,
                Err(error) => break Some(error),
            };
            let mut to = (at % PAGE) as usize;
            buffer.advance(now, |part| {
                frame.copy_from(to, &part.frame, part.offset, part.len);
                to += part.len;
            });
            at += now as u64;
            let mut state = self.state.lock();
            state.len = state.len.max(at);
        };
        match failed {
            Some(error) if at == offset => Err(error),
            _ => Ok(((at - offset) as usize, at)),
        }
    }

    /// Returns a page, which is created if it does not exist.
    fn page_to_write(&self, index: u64) -> Result<Frame, Errno> {
        if let Some(frame) = self.state.lock().pages.get(&index) {
            return Ok(frame.clone());
        }
        self.shared.take_page()?;
        let new = Frame::zeroed();
        let mut state = self.state.lock();
        let is_new = !state.pages.contains_key(&index);
        let frame = state.pages.entry(index).or_insert(new).clone();
        drop(state);
        if !is_new {
            // Another thread was faster.
            self.shared.free_pages(1);
        }
        Ok(frame)
    }

    pub fn truncate(&self, len: u64) -> Option<LostPages> {
        let mut state = self.state.lock();
        let is_shorter = len < state.len;
        state.len = len;
        if !is_shorter {
            return None;
        }
        let removed = state.pages.split_off(&len.div_ceil(PAGE));
        let last = state.pages.get(&(len / PAGE)).cloned();
        drop(state);
        if let Some(last) = last {
            let rest = (len % PAGE) as usize;
            last.clear(rest, FRAME_SIZE - rest);
        }
        self.shared.free_pages(removed.len() as u64);
        Some(LostPages { first: len.div_ceil(PAGE), count: u64::MAX, keeps_copies: false })
    }

    pub fn allocate(
        &self,
        allocation: Allocation,
        offset: u64,
        len: u64,
    ) -> Result<Option<LostPages>, Errno> {
        let end = offset + len;
        let mut lost = None;
        if matches!(allocation, Allocation::PunchHole | Allocation::Zero | Allocation::ZeroKeepLen) {
            self.clear(offset, end);
            let first = offset.div_ceil(PAGE);
            lost = Some(LostPages { first, count: (end / PAGE).saturating_sub(first), keeps_copies: true });
        }
        if allocation != Allocation::PunchHole {
            for index in offset / PAGE..end.div_ceil(PAGE) {
                self.page_to_write(index)?;
            }
        }
        if matches!(allocation, Allocation::Reserve | Allocation::Zero) {
            let mut state = self.state.lock();
            state.len = state.len.max(end);
        }
        Ok(lost)
    }

    /// Frees the pages of a region, and clears the parts at its borders.
    fn clear(&self, offset: u64, end: u64) {
        let (first, behind) = (offset.div_ceil(PAGE), end / PAGE);
        let mut state = self.state.lock();
        let removed: Vec<_> = match first < behind {
            true => state.pages.extract_if(first..behind, |_, _| true).collect(),
            false => Vec::new(),
        };
        let clear = |from: u64, to: u64| {
            if from < to
                && let Some(frame) = state.pages.get(&(from / PAGE))
            {
                frame.clear((from % PAGE) as usize, (to - from) as usize);
            }
        };
        if first > behind {
            // Within one page.
            clear(offset, end);
        } else {
            clear(offset, first * PAGE);
            clear(behind * PAGE, end);
        }
        drop(state);
        self.shared.free_pages(removed.len() as u64);
    }

    pub fn seek(&self, target: SeekTarget, offset: u64) -> Result<u64, Errno> {
        let state = self.state.lock();
        if offset >= state.len {
            return Err(Errno::ENXIO);
        }
        let mut index = offset / PAGE;
        match target {
            SeekTarget::Data => {
                let (first, _) = state.pages.range(index..).next().ok_or(Errno::ENXIO)?;
                let found = offset.max(first * PAGE);
                if found < state.len { Ok(found) } else { Err(Errno::ENXIO) }
            }
            SeekTarget::Hole => {
                for (page, _) in state.pages.range(index..) {
                    if *page != index {
                        break;
                    }
                    index += 1;
                }
                Ok(offset.max(index * PAGE).min(state.len))
            }
        }
    }
}

impl Drop for FilePages {
    fn drop(&mut self) {
        self.shared.free_pages(self.state.get_mut().pages.len() as u64);
    }
}

impl TmpInode {
    fn file(&self) -> &FilePages {
        match &self.content {
            Content::File(pages) => pages,
            _ => unreachable!("only files have pages"),
        }
    }

    /// Unmaps pages that the file has lost from all processes.
    pub(super) fn forget(&self, lost: Option<LostPages>) -> Outcome<'_, ()> {
        let Some(LostPages { first, count, keeps_copies }) = lost else { return Outcome::ok(()) };
        let mappers: Vec<_> = self.file().mappers.lock().iter().filter_map(Weak::upgrade).collect();
        if mappers.is_empty() || count == 0 {
            return Outcome::ok(());
        }
        Outcome::of(async move {
            for mapper in mappers {
                mapper.forget_pages(self.identity(), first, count, keeps_copies).await;
            }
            Ok(())
        })
    }
}

impl PageSource for TmpInode {
    fn frame(&self, index: u64) -> Option<Frame> {
        self.file().state.lock().pages.get(&index).cloned()
    }

    fn fetch(&self, index: u64) -> BoxFuture<'_, Result<Frame, Errno>> {
        let pages = self.file();
        let is_within = index < pages.state.lock().len.div_ceil(PAGE);
        let frame = if is_within { pages.page_to_write(index) } else { Err(Errno::EFAULT) };
        // A program without space for its page gets SIGBUS.
        Box::pin(core::future::ready(frame.map_err(|_| Errno::EFAULT)))
    }

    fn mark_dirty(&self, _index: u64) {
        self.modified_now();
    }

    fn sync(&self, _first: u64, _count: u64) -> BoxFuture<'_, Result<(), Errno>> {
        Box::pin(core::future::ready(Ok(())))
    }

    fn path(&self) -> Vec<u8> {
        alloc::format!("/#{}", self.number).into_bytes()
    }

    fn identity(&self) -> (u64, u64) {
        (self.shared.device.encoded(), self.number)
    }

    fn attach(&self, mapper: Weak<dyn Mapper>) {
        let mut mappers = self.file().mappers.lock();
        mappers.retain(|other| other.strong_count() > 0 && !other.ptr_eq(&mapper));
        mappers.push(mapper);
    }
}
