//! The interface of pagers.

use super::address_window::{Contents, FillError, FillOutcome, FrameChoice, window};
use super::region_record::RegionRecord;
use core::cell::Cell;
use isola_abi::layout::PageSize;

/// Fills a region.
///
/// An application may have a pager of its own:
///
/// ```
/// use isola_memory::regions::{Contents, FillError, Filler, FrameChoice, PageSize, Pager};
///
/// /// Writes each page's number to the page.
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
    /// Returns the smallest page size that the pager fills. The region's length is a multiple of it.
    fn smallest_page(&self) -> PageSize {
        PageSize::FourKib
    }

    /// Returns whether the region's 4 KiB pages may migrate to other memory when the cell must return theirs; their
    /// bytes stay the same. False if the choice of memory matters, or if a fault cannot be handled.
    fn can_move(&self) -> bool {
        true
    }

    /// Prepares a new region. Called once, before the region is returned to its creator.
    ///
    /// # Errors
    /// A [`FillError`]: then the region is not created.
    fn prepare(&self, filler: &Filler<'_>) -> Result<(), FillError> {
        let _ = filler;
        Ok(())
    }

    /// Fills the page at `offset`, and others at its choice. Called on the faulting core and stack when the page was
    /// accessed and not present. Several cores may call it at once, also for the same page.
    ///
    /// It must not access a region, take a lock that the faulting code may hold, or switch to another event.
    ///
    /// # Errors
    /// A [`FillError`]: then the cell ends, as the faulting code cannot continue.
    fn fault(&self, offset: usize, filler: &Filler<'_>) -> Result<(), FillError>;
}

/// A pager's access to its region.
pub struct Filler<'a> {
    record: &'a RegionRecord,
    /// The faulting offset; `None` in [`Pager::prepare`].
    wanted: Option<usize>,
    satisfied: Cell<bool>,
}

impl<'a> Filler<'a> {
    pub(super) fn new(record: &'a RegionRecord, wanted: Option<usize>) -> Self {
        Self { record, wanted, satisfied: Cell::new(false) }
    }

    /// Returns whether the faulting page was filled.
    pub(super) fn is_satisfied(&self) -> bool {
        self.satisfied.get()
    }

    /// Returns the length of the region, in bytes.
    pub fn len_bytes(&self) -> usize {
        self.record.len
    }

    /// Returns the size of the page at `offset`, if there is one.
    pub fn page_at(&self, offset: usize) -> Option<PageSize> {
        if offset >= self.record.len { None } else { window()?.page_at(self.record.start() + offset) }
    }

    /// Fills the page of this size at `offset`, a multiple of `size`.
    ///
    /// # Errors
    /// A [`FillError`]. A page of this size that is already present is no error.
    #[inline]
    pub fn fill(
        &self,
        offset: usize,
        size: PageSize,
        frame: FrameChoice,
        contents: Contents<'_>,
    ) -> Result<FillOutcome, FillError> {
        let bytes = size.bytes();
        let end = offset.checked_add(bytes).ok_or(FillError::NoPage(offset))?;
        if size < self.record.page || end > self.record.span_bytes() || !offset.is_multiple_of(bytes) {
            return Err(FillError::NoPage(offset));
        }
        let window = window().ok_or(FillError::NoPage(offset))?;
        // SAFETY: the page is within the region, and only the region's pager has this `Filler`.
        let filled = unsafe { window.fill(self.record.start() + offset, size, frame, contents) }?;
        if filled == FillOutcome::Filled {
            self.record.count_filled(bytes, window);
        }
        if self.wanted.is_some_and(|wanted| (offset..end).contains(&wanted)) {
            self.satisfied.set(true);
        }
        Ok(filled)
    }
}
