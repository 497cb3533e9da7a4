//! A stack with a guard page.

use super::pager::{Filler, Pager};
use super::region::{Region, RegionError};
use super::window::{Contents, FillError, FrameChoice};
use core::ptr::NonNull;
use isola_abi::layout::PageSize;

/// Memory for a stack: all of it there, and nothing below it. Who runs over its end faults, which ends the cell; the
/// report says that a guard page was hit.
#[derive(Debug)]
pub struct Stack {
    region: Region,
}

impl Stack {
    /// A stack of `len` bytes, rounded up to whole pages.
    ///
    /// # Errors
    /// A [`RegionError`].
    pub fn new(name: &'static str, len: usize) -> Result<Self, RegionError> {
        let guarded = len.checked_add(GUARD).filter(|_| len > 0).ok_or(RegionError::Length(len))?;
        Ok(Self { region: Region::new(name, guarded, Guarded)? })
    }

    /// The end of the stack, where it begins: a multiple of the page size.
    pub fn top(&self) -> NonNull<u8> {
        NonNull::from(&*self.region).cast::<u8>().map_addr(|start| start.saturating_add(self.region.len()))
    }

    /// The lowest byte of the stack. Below it is the guard.
    pub fn bottom(&self) -> NonNull<u8> {
        NonNull::from(&*self.region).cast::<u8>().map_addr(|start| start.saturating_add(GUARD))
    }

    /// Length of the stack, in bytes.
    pub fn len_bytes(&self) -> usize {
        self.region.len() - GUARD
    }
}

/// Length of the guard, in bytes.
const GUARD: usize = PageSize::FourKib.bytes();

/// Everything but the first page.
struct Guarded;

impl Pager for Guarded {
    /// A fault is handled on the stack of whoever has touched the page.
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
