//! A pager that fills pages at their first access.

use crate::regions::{Contents, FillError, Filler, FrameChoice, PageSize, Pager};

/// Fills the accessed page and the others of its group.
#[derive(Clone, Copy, Debug)]
pub struct OnDemand {
    page: PageSize,
    /// The length of a group, in bytes; a multiple of the page size.
    around: usize,
}

impl OnDemand {
    /// Returns a pager with groups of one page.
    pub const fn new(page: PageSize) -> Self {
        Self { page, around: page.bytes() }
    }

    /// Fills groups of `pages` pages, aligned at their length: fewer faults if accesses are close together.
    pub const fn around(self, pages: usize) -> Self {
        Self { around: self.page.bytes().saturating_mul(if pages == 0 { 1 } else { pages }), ..self }
    }
}

impl Pager for OnDemand {
    fn smallest_page(&self) -> PageSize {
        self.page
    }

    #[inline]
    fn fault(&self, offset: usize, filler: &Filler<'_>) -> Result<(), FillError> {
        let touched = offset - offset % self.page.bytes();
        filler.fill(touched, self.page, FrameChoice::Any, Contents::Zero)?;
        let start = offset - offset % self.around;
        let end = (start + self.around).min(filler.len_bytes());
        for page in (start..end).step_by(self.page.bytes()).filter(|page| *page != touched) {
            // The other pages are optional: a failure to fill them is ignored.
            if filler.fill(page, self.page, FrameChoice::Any, Contents::Zero).is_err() {
                break;
            }
        }
        Ok(())
    }
}
