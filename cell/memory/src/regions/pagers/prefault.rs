//! Everything is there from the beginning.

use crate::regions::{Contents, FillError, Filler, FrameChoice, PageSize, Pager};

/// Fills the whole region when it is made, with pages of one size: no access ever faults.
#[derive(Clone, Copy, Debug)]
pub struct Prefault {
    /// The size of its pages.
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
        // Nothing is missing. Should another core have filled the page meanwhile, that is found here.
        let start = offset - offset % self.page.bytes();
        filler.fill(start, self.page, FrameChoice::Any, Contents::Zero).map(drop)
    }
}
