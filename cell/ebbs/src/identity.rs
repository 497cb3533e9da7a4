//! The right to run a vcore.
//!
//! A vcore consists of per-core state: representatives, and all state that they own. Between two events another core
//! can take over a vcore. This is sound because each vcore has one [`VcoreIdentity`], which a core must hold to run the
//! vcore, and can pass on.

use crate::core_block::{CoreBlock, current};
use core::fmt;
use core::hint::black_box;
use isola_platform::CoreIndex;

/// The right to run a vcore of the cell. Each vcore has exactly one.
pub struct VcoreIdentity {
    block: &'static CoreBlock,
}

// SAFETY: the identity is the right to use the vcore's state, and exists once (`CoreBlock::take_identity`). A core that
// sends it to another core no longer uses the state, and sending a value orders the accesses of the former before those
// of the latter. One core at a time therefore uses the representatives, and none of them refers to the core that runs
// it.
unsafe impl Send for VcoreIdentity {}

impl VcoreIdentity {
    /// Returns the identity of the calling vcore at the first call; `None` later.
    pub fn take() -> Option<Self> {
        let block = current();
        block.take_identity().then_some(Self { block })
    }

    /// Returns the vcore's index.
    pub fn core(&self) -> CoreIndex {
        CoreIndex(self.block.index() as u32)
    }

    /// Calls `function(argument)` as this vcore, then returns to the caller's vcore. Argument and result are plain
    /// numbers, so that no reference to the vcore's state escapes.
    pub fn run(&mut self, function: fn(u64) -> u64, argument: u64) -> u64 {
        let caller = current();
        // Hidden from the compiler: it must not inline the function here, where the calling vcore's block was read
        // already.
        let function = black_box(function);
        if core::ptr::eq(caller, self.block) {
            return function(argument);
        }
        self.block.become_current();
        let result = function(argument);
        caller.become_current();
        result
    }
}

impl fmt::Debug for VcoreIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VcoreIdentity({})", self.core().0)
    }
}
