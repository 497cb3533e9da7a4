//! Stacks with a guard page.

use super::address_window::{Contents, FillError, FrameChoice};
use super::pager::{Filler, Pager};
use super::region::Region;
use super::region_record::RegionError;
use core::ptr::NonNull;
use isola_abi::layout::PageSize;

/// The memory of a stack, always present, with a guard page below. A stack overflow faults and ends the cell; the
/// report names the guard page as the cause.
#[derive(Debug)]
pub struct Stack {
    region: Region,
}

impl Stack {
    /// Creates a stack of `len` bytes, rounded up to whole pages.
    ///
    /// # Errors
    /// A [`RegionError`].
    pub fn new(name: &'static str, len: usize) -> Result<Self, RegionError> {
        let guarded = len.checked_add(GUARD).filter(|_| len > 0).ok_or(RegionError::Length(len))?;
        Ok(Self { region: Region::new(name, guarded, Guarded)? })
    }

    /// Returns the end of the stack, at which it begins to grow: a multiple of the page size.
    pub fn top(&self) -> NonNull<u8> {
        NonNull::from(&*self.region).cast::<u8>().map_addr(|start| start.saturating_add(self.region.len()))
    }

    /// Returns the lowest byte of the stack. Below it is the guard page.
    pub fn bottom(&self) -> NonNull<u8> {
        NonNull::from(&*self.region).cast::<u8>().map_addr(|start| start.saturating_add(GUARD))
    }

    /// Returns the length of the stack, in bytes.
    pub fn len_bytes(&self) -> usize {
        self.region.len() - GUARD
    }
}

/// The length of the guard, in bytes.
const GUARD: usize = PageSize::FourKib.bytes();

/// A pager that fills all pages but the first.
struct Guarded;

impl Pager for Guarded {
    /// Returns false: the fault handler runs on the faulting stack, so a page of that stack must be present.
    fn can_move(&self) -> bool {
        false
    }

    fn prepare(&self, filler: &Filler<'_>) -> Result<(), FillError> {
        for offset in (GUARD..filler.len_bytes()).step_by(GUARD) {
            filler.fill(offset, PageSize::FourKib, FrameChoice::Any, Contents::Zero)?;
        }
        Ok(())
    }

    fn fault(&self, _: usize, _: &Filler<'_>) -> Result<(), FillError> {
        Err(FillError::Guard)
    }
}
