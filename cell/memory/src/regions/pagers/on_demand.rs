//! Pages come when they are touched.

use crate::regions::{Contents, FillError, Filler, FrameChoice, PageSize, Pager};

/// Fills the page that is touched, and the others of its group.
#[derive(Clone, Copy, Debug)]
pub struct OnDemand {
    page: PageSize,
    /// Length of a group, in bytes; a multiple of the page size.
    around: usize,
}

impl OnDemand {
    /// One page at a time.
    pub const fn new(page: PageSize) -> Self {
        Self { page, around: page.bytes() }
    }

    /// So many pages at a time, those that stand between two multiples of that many: fewer faults where what is
    /// touched stands together.
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
            // The others are a guess: where they cannot be had, they are done without.
            if filler.fill(page, self.page, FrameChoice::Any, Contents::Zero).is_err() {
                break;
            }
        }
        Ok(())
    }
}
