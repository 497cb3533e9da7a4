//! The contents of files in memory.

use super::Shared;
use super::inode::{Content, TmpInode};
use super::original::{Copied, Original, Readable};
use crate::Errno;
use crate::inode::{Allocation, SeekTarget, WritePosition};
use crate::open_file::MOST_OFFSET;
use crate::outcome::Outcome;
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use isola_linux_abi::numbers as linux;
use isola_linux_memory::{BoxFuture, Mapper, Mappers, PageSource, UserBuffer};
use isola_memory::frame::{FRAME_SIZE, Frame};
use spin::Mutex;

pub(super) const PAGE: u64 = FRAME_SIZE as u64;

/// The pages of a file. Absent ones are zeros.
pub(super) struct FilePages {
    pub(super) shared: Arc<Shared>,
    pub(super) state: Mutex<FileState>,
    /// Held by writes at the end.
    appending: Mutex<()>,
    /// The processes that map it.
    mappers: Mappers,
}

#[derive(Default)]
pub(super) struct FileState {
    pub(super) len: u64,
    pub(super) pages: BTreeMap<u64, Frame>,
    /// Where the other pages are, if the file is a copy of another one.
    pub(super) original: Option<Original>,
    /// Changes that no call can make any more.
    seals: u32,
}

/// The seals against writes.
const WRITE_SEALS: u32 = linux::F_SEAL_WRITE | linux::F_SEAL_FUTURE_WRITE;
/// All seals.
const SEALS: u32 =
    WRITE_SEALS | linux::F_SEAL_SEAL | linux::F_SEAL_SHRINK | linux::F_SEAL_GROW | linux::F_SEAL_EXEC;

impl FileState {
    fn check_seal(&self, seal: u32) -> Result<(), Errno> {
        if self.seals & seal != 0 { Err(Errno::EPERM) } else { Ok(()) }
    }

    /// Checks that bytes up to `end` may be in the file.
    fn check_end(&self, end: u64) -> Result<(), Errno> {
        if end > self.len { self.check_seal(linux::F_SEAL_GROW) } else { Ok(()) }
    }
}

/// What a page has that does not exist yet.
#[derive(Clone, Copy, PartialEq, Eq)]
enum NewPage {
    Zeros,
    /// The caller writes all of it.
    Overwritten,
}

/// Whether private copies of removed pages stay mapped.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Copies {
    Keep,
    Drop,
}

/// Returns the number of bytes from `offset` on that are in its page, at most `len`.
fn in_page(offset: u64, len: u64) -> usize {
    (PAGE - offset % PAGE).min(len) as usize
}

impl FilePages {
    pub fn new(shared: Arc<Shared>) -> Self {
        // No seal can be added, unless the creator permits it.
        let state = FileState { seals: linux::F_SEAL_SEAL, ..FileState::default() };
        Self { shared, state: Mutex::new(state), appending: Mutex::new(()), mappers: Mappers::default() }
    }

    pub fn len_and_pages(&self) -> (u64, u64) {
        let state = self.state.lock();
        let own = state.pages.len() as u64;
        (state.len, state.original.as_ref().map_or(own, |original| own.max(original.page_count())))
    }

    /// Reads. Returns the number of bytes, and the page of the original that is missing for the rest.
    pub fn read(&self, offset: u64, buffer: &mut UserBuffer) -> (usize, Option<u64>) {
        let mut count = 0;
        while !buffer.is_empty() {
            let at = offset.saturating_add(count as u64);
            let (len, frame) = {
                let state = self.state.lock();
                let left = state.len.saturating_sub(at);
                if left == 0 {
                    break;
                }
                match state.readable(at) {
                    Readable::Page(frame) => (in_page(at, left), Some(frame)),
                    Readable::OriginalPage(frame, len) => (in_page(at, left.min(len)), Some(frame)),
                    Readable::Zeros => (in_page(at, left), None),
                    Readable::Missing => return (count, Some(at / PAGE)),
                }
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
        (count, None)
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
            let sealed = {
                let state = self.state.lock();
                state.check_seal(WRITE_SEALS).and_then(|()| state.check_end(at + now as u64))
            };
            let page = match now as u64 {
                PAGE => NewPage::Overwritten,
                _ => NewPage::Zeros,
            };
            let frame = match sealed.and_then(|()| self.page_to_write(at / PAGE, page)) {
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
    fn page_to_write(&self, index: u64, new: NewPage) -> Result<Frame, Errno> {
        {
            let state = self.state.lock();
            if let Some(frame) = state.pages.get(&index) {
                return Ok(frame.clone());
            }
            if new == NewPage::Zeros && state.is_borrowed(index) {
                // The caller copies such a page first.
                return Err(Errno::EIO);
            }
        }
        self.shared.take_page()?;
        let Some(new) = Frame::try_zeroed() else {
            self.shared.free_pages(1);
            return Err(Errno::ENOMEM);
        };
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

    /// Sets the length. Returns the first page that does not exist any more, if the file is shorter now.
    pub fn truncate(&self, len: u64) -> Result<Option<u64>, Errno> {
        let mut state = self.state.lock();
        let is_shorter = len < state.len;
        state.check_end(len)?;
        if is_shorter {
            state.check_seal(linux::F_SEAL_SHRINK)?;
        }
        state.len = len;
        if let Some(original) = &mut state.original {
            original.len = original.len.min(len);
        }
        if !is_shorter {
            return Ok(None);
        }
        let removed = state.pages.split_off(&len.div_ceil(PAGE));
        let last = state.pages.get(&(len / PAGE)).cloned();
        drop(state);
        if let Some(last) = last {
            let rest = (len % PAGE) as usize;
            last.clear(rest, FRAME_SIZE - rest);
        }
        self.shared.free_pages(removed.len() as u64);
        Ok(Some(len.div_ceil(PAGE)))
    }

    /// Returns the seals.
    pub fn seals(&self) -> u32 {
        self.state.lock().seals
    }

    /// Sets the seals of a new file.
    pub fn set_seals(&self, seals: u32) {
        self.state.lock().seals = seals;
    }

    /// Adds seals. `identity` is that of the file in mappings; `is_executable` says whether it has a permission to execute.
    pub fn add_seals(&self, new: u32, identity: (u64, u64), is_executable: bool) -> Result<(), Errno> {
        if new & !SEALS != 0 {
            return Err(Errno::EINVAL);
        }
        let new = match new & linux::F_SEAL_EXEC {
            0 => new,
            _ if !is_executable => new,
            _ => new | WRITE_SEALS | linux::F_SEAL_SHRINK | linux::F_SEAL_GROW,
        };
        let before = {
            let mut state = self.state.lock();
            state.check_seal(linux::F_SEAL_SEAL)?;
            let before = state.seals;
            // First, so that a mapping that is made meanwhile is either refused or found below.
            state.seals |= new;
            before
        };
        if new & !before & linux::F_SEAL_WRITE != 0 {
            let is_used = self.state.lock().pages.values().any(Frame::is_pinned);
            if is_used || self.mappers.may_write(identity) {
                self.state.lock().seals = before;
                return Err(Errno::EBUSY);
            }
        }
        Ok(())
    }

    pub fn allocate(&self, allocation: Allocation, offset: u64, len: u64) -> Result<(), Errno> {
        let end = offset + len;
        {
            let state = self.state.lock();
            match allocation {
                Allocation::PunchHole => state.check_seal(WRITE_SEALS)?,
                Allocation::Reserve | Allocation::ReserveKeepLen => state.check_end(end)?,
                Allocation::Zero | Allocation::ZeroKeepLen => {
                    state.check_seal(WRITE_SEALS)?;
                    state.check_end(end)?;
                }
            }
        }
        if matches!(allocation, Allocation::PunchHole | Allocation::Zero | Allocation::ZeroKeepLen) {
            self.clear(offset, end);
        }
        if allocation != Allocation::PunchHole {
            for index in offset / PAGE..end.div_ceil(PAGE) {
                self.page_to_write(index, NewPage::Zeros)?;
            }
        }
        if matches!(allocation, Allocation::Reserve | Allocation::Zero) {
            let mut state = self.state.lock();
            state.len = state.len.max(end);
        }
        Ok(())
    }

    /// Frees the pages of a region, and clears the parts at its borders.
    fn clear(&self, offset: u64, end: u64) {
        let (first, behind) = (offset.div_ceil(PAGE), end / PAGE);
        let mut state = self.state.lock();
        // Without its own page, the file would have that of the original.
        let kept = state.original.as_ref().map_or(0, Original::page_count);
        let removed: Vec<_> = match first < behind {
            true => state.pages.extract_if(first.max(kept).min(behind)..behind, |_, _| true).collect(),
            false => Vec::new(),
        };
        for (_, frame) in state.pages.range(first..behind.min(kept).max(first)) {
            frame.clear(0, FRAME_SIZE);
        }
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
            SeekTarget::Data if state.is_borrowed(index) => Ok(offset),
            SeekTarget::Data => {
                let (first, _) = state.pages.range(index..).next().ok_or(Errno::ENXIO)?;
                let found = offset.max(first * PAGE);
                if found < state.len { Ok(found) } else { Err(Errno::ENXIO) }
            }
            SeekTarget::Hole => {
                // The pages of the original are data.
                index = index.max(state.original.as_ref().map_or(0, Original::page_count));
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
    /// Sets the length, and unmaps the pages behind it.
    pub fn truncate_file(&self, len: u64) -> Outcome<'_, ()> {
        let pages = match self.pages() {
            Ok(pages) => pages,
            Err(error) => return Outcome::error(error),
        };
        match pages.truncate(len) {
            Err(error) => Outcome::error(error),
            Ok(removed) => {
                self.modified_now();
                match removed {
                    Some(first) => self.unmapped(first, u64::MAX, Copies::Drop),
                    None => Outcome::ok(()),
                }
            }
        }
    }

    /// Changes the storage of a region, and unmaps the pages that it frees.
    pub fn allocate_region(&self, allocation: Allocation, offset: u64, len: u64) -> Outcome<'_, ()> {
        let borrowed = self.pages().is_ok_and(|pages| pages.borrows_within(offset, offset + len));
        if !borrowed {
            return self.allocate_own(allocation, offset, len);
        }
        Outcome::of(async move {
            self.pages()?.copy_originals(offset..offset + len, Copied::All).await?;
            self.allocate_own(allocation, offset, len).await
        })
    }

    fn allocate_own(&self, allocation: Allocation, offset: u64, len: u64) -> Outcome<'_, ()> {
        let allocated = self.pages().and_then(|pages| pages.allocate(allocation, offset, len));
        if let Err(error) = allocated {
            return Outcome::error(error);
        }
        self.modified_now();
        let (first, behind) = (offset.div_ceil(PAGE), (offset + len) / PAGE);
        let frees = matches!(allocation, Allocation::PunchHole | Allocation::Zero | Allocation::ZeroKeepLen);
        if !frees || first >= behind {
            return Outcome::ok(());
        }
        self.unmapped(first, behind - first, Copies::Keep)
    }

    /// Unmaps pages that the file no longer has from all processes.
    fn unmapped(&self, first: u64, count: u64, copies: Copies) -> Outcome<'_, ()> {
        let pages = self.file();
        if pages.mappers.is_empty() {
            return Outcome::ok(());
        }
        Outcome::of(async move {
            pages.mappers.forget(self.identity(), first, count, copies == Copies::Keep).await;
            Ok(())
        })
    }

    pub(super) fn file(&self) -> &FilePages {
        match &self.content {
            Content::File(pages) => pages,
            _ => unreachable!("only files have pages"),
        }
    }
}

impl PageSource for TmpInode {
    fn frame(&self, index: u64) -> Option<Frame> {
        self.file().state.lock().pages.get(&index).cloned()
    }

    fn frames(&self, first: u64, end: u64, see: &mut dyn FnMut(u64, &Frame)) {
        self.file()
            .state
            .lock()
            .pages
            .range(first..end.max(first))
            .for_each(|(index, frame)| see(*index, frame));
    }

    fn fetch(&self, index: u64) -> BoxFuture<'_, Result<Frame, Errno>> {
        let pages = self.file();
        let (is_within, is_borrowed) = {
            let state = pages.state.lock();
            (index < state.len.div_ceil(PAGE), state.is_borrowed(index))
        };
        if is_borrowed {
            // A mapping may write to the page.
            return Box::pin(async move {
                pages.copy_original(index).await?;
                pages.page_to_write(index, NewPage::Zeros)
            });
        }
        let frame = if is_within { pages.page_to_write(index, NewPage::Zeros) } else { Err(Errno::EFAULT) };
        // A program without space for its page in the file system gets SIGBUS.
        let frame = frame.map_err(|error| if error == Errno::ENOMEM { error } else { Errno::EFAULT });
        Box::pin(core::future::ready(frame))
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

    fn is_memory(&self) -> bool {
        true
    }

    fn punch(&self, first: u64, count: u64) -> BoxFuture<'_, Result<(), Errno>> {
        let (offset, len) = (first.saturating_mul(PAGE), count.saturating_mul(PAGE));
        if offset.checked_add(len).is_none() {
            return Box::pin(core::future::ready(Err(Errno::EINVAL)));
        }
        Box::pin(self.allocate_region(Allocation::PunchHole, offset, len))
    }

    fn attach(&self, mapper: Weak<dyn Mapper>) {
        self.file().mappers.attach(mapper);
    }

    fn permits_shared_writes(&self) -> bool {
        self.file().seals() & WRITE_SEALS == 0
    }
}
