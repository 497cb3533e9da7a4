//! Files that begin as copies of others: their pages are those of the original until they change.
//!
//! The overlay copies a file of the layer below in this way. A page is copied when a part of it is written, or when a mapping
//! needs it; reads use the frames of the original. The original never changes.

use super::inode::TmpInode;
use super::pages::{FilePages, FileState, PAGE};
use crate::Errno;
use alloc::sync::Arc;
use core::ops::Range;
use isola_linux_memory::{PageSource, UserBuffer};
use isola_memory::frame::{FRAME_SIZE, Frame};

/// The original of a file.
pub(super) struct Original {
    pub source: Arc<dyn PageSource>,
    /// The bytes that the file still has of it.
    pub len: u64,
}

impl Original {
    pub fn page_count(&self) -> u64 {
        self.len.div_ceil(PAGE)
    }
}

/// What a read finds at a position.
pub(super) enum Readable {
    Page(Frame),
    /// A page of the original, and the bytes of it from the position on.
    OriginalPage(Frame, u64),
    Zeros,
    /// A page of the original that is not in memory.
    Missing,
}

/// Which pages of a region are copied.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Copied {
    All,
    /// Those at its borders of which the region has a part only.
    Borders,
}

impl FileState {
    /// Returns whether a page is one of the original.
    pub fn is_borrowed(&self, index: u64) -> bool {
        let is_within = self.original.as_ref().is_some_and(|original| index < original.page_count());
        is_within && !self.pages.contains_key(&index)
    }

    /// Returns what is at a position.
    pub fn readable(&self, at: u64) -> Readable {
        if let Some(frame) = self.pages.get(&(at / PAGE)) {
            return Readable::Page(frame.clone());
        }
        match &self.original {
            Some(original) if at < original.len => match original.source.frame(at / PAGE) {
                Some(frame) => Readable::OriginalPage(frame, original.len - at),
                None => Readable::Missing,
            },
            _ => Readable::Zeros,
        }
    }
}

impl FilePages {
    /// Makes an empty file a copy of the first `len` bytes of another one.
    pub fn begin_as(&self, source: Arc<dyn PageSource>, len: u64) {
        let mut state = self.state.lock();
        state.len = len;
        state.original = Some(Original { source, len });
    }

    /// Returns whether a region has pages of the original.
    pub fn borrows_within(&self, offset: u64, end: u64) -> bool {
        let state = self.state.lock();
        let pages = state.original.as_ref().map_or(0, Original::page_count);
        (offset / PAGE..end.div_ceil(PAGE).min(pages)).any(|index| state.is_borrowed(index))
    }

    /// Returns whether a write of a region needs a page of the original.
    pub fn needs_original(&self, region: &Range<u64>) -> bool {
        let state = self.state.lock();
        state.original.is_some() && borders(region).any(|index| state.is_borrowed(index))
    }

    /// Waits until a page of the original is in memory, where it stays while the result is in use.
    pub async fn original_page(&self, index: u64) -> Result<Option<Frame>, Errno> {
        let source = {
            let state = self.state.lock();
            if !state.is_borrowed(index) {
                return Ok(None);
            }
            state.original.as_ref().map(|original| original.source.clone())
        };
        let Some(source) = source else { return Ok(None) };
        if let Some(frame) = source.frame(index) {
            return Ok(Some(frame));
        }
        source.fetch(index).await.map(Some)
    }

    /// Copies a page of the original, if the file has not another one there.
    pub async fn copy_original(&self, index: u64) -> Result<(), Errno> {
        let Some(frame) = self.original_page(index).await? else { return Ok(()) };
        self.shared.take_page()?;
        let Some(copy) = frame.try_duplicate() else {
            self.shared.free_pages(1);
            return Err(Errno::ENOMEM);
        };
        let mut state = self.state.lock();
        // The file may have become shorter, or have the page meanwhile.
        if !state.is_borrowed(index) {
            drop(state);
            self.shared.free_pages(1);
            return Ok(());
        }
        let left = state.original.as_ref().map_or(0, |original| original.len - index * PAGE);
        if left < PAGE {
            copy.clear(left as usize, FRAME_SIZE - left as usize);
        }
        state.pages.insert(index, copy);
        Ok(())
    }

    /// Copies pages of the original that a region touches.
    pub async fn copy_originals(&self, region: Range<u64>, copied: Copied) -> Result<(), Errno> {
        if copied == Copied::Borders {
            for index in borders(&region) {
                self.copy_original(index).await?;
            }
            return Ok(());
        }
        let pages = self.state.lock().original.as_ref().map_or(0, Original::page_count);
        for index in region.start / PAGE..region.end.div_ceil(PAGE).min(pages) {
            self.copy_original(index).await?;
        }
        Ok(())
    }
}

/// Returns the pages of which a region has a part.
fn borders(region: &Range<u64>) -> impl Iterator<Item = u64> {
    let (start, end) = (region.start, region.end);
    let first = (start % PAGE != 0 || end < start.saturating_add(PAGE)).then_some(start / PAGE);
    let last = (end % PAGE != 0).then_some(end / PAGE);
    first.into_iter().chain(last).filter(move |_| start < end)
}

impl TmpInode {
    /// Reads, and waits for pages of the original.
    pub(super) async fn read_waiting(
        &self,
        offset: u64,
        buffer: &mut UserBuffer,
        (mut count, mut missing): (usize, Option<u64>),
    ) -> Result<usize, Errno> {
        let pages = self.file();
        while let Some(index) = missing {
            let page = match pages.original_page(index).await {
                Ok(page) => page,
                Err(_) if count > 0 => break,
                Err(error) => return Err(error),
            };
            let (more, next) = pages.read(offset + count as u64, buffer);
            // Until here, so that the page is not dropped.
            drop(page);
            count += more;
            missing = next;
        }
        Ok(count)
    }
}
