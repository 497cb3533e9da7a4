//! What decides how a region is filled.

use super::region::Inner;
use super::window::{Contents, FillError, Filled, FrameChoice, window};
use core::cell::Cell;
use isola_abi::layout::PageSize;

/// Fills a region.
///
/// An application's own pager is one more implementation:
///
/// ```
/// use isola_memory::regions::{Contents, FillError, Filler, FrameChoice, PageSize, Pager};
///
/// /// Every page says which one it is.
/// struct Numbered;
///
/// impl Pager for Numbered {
///     fn fault(&self, offset: usize, filler: &Filler<'_>) -> Result<(), FillError> {
///         let page = offset / PageSize::FourKib.bytes();
///         let mut write = |bytes: &mut [u8]| bytes[..8].copy_from_slice(&page.to_le_bytes());
///         filler.fill(offset, PageSize::FourKib, FrameChoice::Any, Contents::Written(&mut write))?;
///         Ok(())
///     }
/// }
/// ```
pub trait Pager: Send + Sync {
    /// The smallest pages that it fills its region with. The region's length is a multiple of it.
    fn smallest_page(&self) -> PageSize {
        PageSize::FourKib
    }

    /// Whether its pages of 4 KiB may come to be in other memory while they are there, where the memory in which they are
    /// is asked back: their bytes do not change by that. Not so where it matters which memory it is, or where a fault can
    /// not be handled.
    fn can_move(&self) -> bool {
        true
    }

    /// Called once, when the region has been made and before anybody has it.
    ///
    /// # Errors
    /// A [`FillError`]: then there is no region.
    fn prepare(&self, filler: &Filler<'_>) -> Result<(), FillError> {
        let _ = filler;
        Ok(())
    }

    /// Called when something at `offset` was touched where no page is, on the core and the stack that did so, in the
    /// middle of it. It fills that page, and others if it likes. Several cores may call it at once, also for the
    /// same page.
    ///
    /// It must not touch a region, take a lock that whoever touches the region may hold, or switch to another event.
    ///
    /// # Errors
    /// A [`FillError`]: then the cell ends, as who touched the page cannot go on.
    fn fault(&self, offset: usize, filler: &Filler<'_>) -> Result<(), FillError>;
}

/// A region as its pager sees it.
pub struct Filler<'a> {
    inner: &'a Inner,
    /// What was touched.
    wanted: Option<usize>,
    satisfied: Cell<bool>,
}

impl<'a> Filler<'a> {
    pub(super) fn new(inner: &'a Inner, wanted: Option<usize>) -> Self {
        Self { inner, wanted, satisfied: Cell::new(false) }
    }

    /// Whether the page that was touched was filled.
    pub(super) fn is_satisfied(&self) -> bool {
        self.satisfied.get()
    }

    /// Length of the region, in bytes.
    pub fn len_bytes(&self) -> usize {
        self.inner.len
    }

    /// The size of the page that is at `offset`.
    pub fn page_at(&self, offset: usize) -> Option<PageSize> {
        if offset >= self.inner.len { None } else { window()?.page_at(self.inner.start() + offset) }
    }

    /// Fills the page from `offset` on, a multiple of `size`.
    ///
    /// # Errors
    /// A [`FillError`]. That a page of this size is there already is none.
    #[inline]
    pub fn fill(
        &self,
        offset: usize,
        size: PageSize,
        frame: FrameChoice,
        contents: Contents<'_>,
    ) -> Result<Filled, FillError> {
        let bytes = size.bytes();
        let end = offset.checked_add(bytes).ok_or(FillError::NoPage(offset))?;
        if size < self.inner.page || end > self.inner.span_bytes() || !offset.is_multiple_of(bytes) {
            return Err(FillError::NoPage(offset));
        }
        let window = window().ok_or(FillError::NoPage(offset))?;
        // SAFETY: the page is within the region, whose pager this is passed to.
        let filled = unsafe { window.fill(self.inner.start() + offset, size, frame, contents) }?;
        if filled == Filled::Now {
            self.inner.count_filled(bytes);
        }
        if self.wanted.is_some_and(|wanted| (offset..end).contains(&wanted)) {
            self.satisfied.set(true);
        }
        Ok(filled)
    }
}
