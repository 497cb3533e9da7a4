//! Stacks of fibers.

use core::fmt;
use core::num::NonZeroUsize;
use corosensei::stack::{STACK_ALIGNMENT, Stack as FiberStack, StackPointer};
use isola_memory::regions::{RegionError, Stack};

/// The default length of a fiber's stack, in bytes.
pub const STACK_LEN: usize = 64 * 1024;

/// The length of the guard below a stack, in bytes.
const GUARD_LEN: usize = 4096;

/// The reason why a fiber cannot be spawned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FiberError {
    /// There is no memory for its stack.
    Stack(RegionError),
}

impl fmt::Display for FiberError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stack(error) => write!(f, "no stack for another fiber: {error}"),
        }
    }
}

impl core::error::Error for FiberError {}

/// A stack for one fiber at a time.
pub(crate) struct OwnedStack(Stack);

impl OwnedStack {
    pub fn new(len_bytes: usize) -> Result<Self, FiberError> {
        // corosensei requires at least a page.
        Stack::new("fiber", len_bytes.max(GUARD_LEN)).map(Self).map_err(FiberError::Stack)
    }

    pub fn len_bytes(&self) -> usize {
        self.0.len_bytes()
    }
}

// SAFETY: the region is readable and writable from bottom to top for as long as the stack lives, is at least a page
// long, begins and ends at page boundaries, and has a page below it that faults.
unsafe impl FiberStack for OwnedStack {
    fn base(&self) -> StackPointer {
        self.0.top().addr()
    }

    fn limit(&self) -> StackPointer {
        let guard = self.0.bottom().addr().get() - GUARD_LEN;
        NonZeroUsize::new(guard).unwrap_or(StackPointer::MIN)
    }
}

const _: () = assert!(GUARD_LEN.is_multiple_of(STACK_ALIGNMENT));
