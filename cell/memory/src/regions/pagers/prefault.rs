//! A pager that fills the whole region at its creation.

use crate::regions::{Contents, FillError, Filler, FrameChoice, PageSize, Pager};

/// Fills the whole region at its creation, with pages of one size: no access faults.
#[derive(Clone, Copy, Debug)]
pub struct Prefault {
    /// The page size.
    pub page: PageSize,
}

impl Pager for Prefault {
    fn smallest_page(&self) -> PageSize {
        self.page
    }

    fn prepare(&self, filler: &Filler<'_>) -> Result<(), FillError> {
        for offset in (0..filler.len_bytes()).step_by(self.page.bytes()) {
            filler.fill(offset, self.page, FrameChoice::Any, Contents::Zero)?;
        }
        Ok(())
    }

    fn fault(&self, offset: usize, filler: &Filler<'_>) -> Result<(), FillError> {
        // All pages were filled at creation; a fill of a present page succeeds.
        let start = offset - offset % self.page.bytes();
        filler.fill(start, self.page, FrameChoice::Any, Contents::Zero).map(drop)
    }
}
