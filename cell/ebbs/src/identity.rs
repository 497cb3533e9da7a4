//! Who may run as a core of the cell.
//!
//! A core of a cell is what is kept by core: representatives, and all that hangs on them. The processor core that runs
//! what belongs to it can change, between two events: what makes that sound is that there is one [`CoreIdentity`] of
//! each core, which whoever runs it has to hold, and can hand on.

use crate::core_block::{CoreBlock, current};
use core::fmt;
use core::hint::black_box;
use isola_platform::CoreIndex;

/// The right to run as a core of the cell. There is one of each core.
pub struct CoreIdentity {
    block: &'static CoreBlock,
}

// SAFETY: the identity is the right to use what belongs to the core, and there is one (`CoreBlock::hand_out`): who gives
// it to another processor core uses that no more, and whatever hands it over orders the one's accesses before the
// other's, as anything does that sends values. What is in the representatives is used by one processor core at a time
// then, whichever that is; none of it refers to the processor core itself.
unsafe impl Send for CoreIdentity {}

impl CoreIdentity {
    /// The calling core's, the first time that this is asked on it.
    pub fn take() -> Option<Self> {
        let block = current();
        block.hand_out().then_some(Self { block })
    }

    /// Which core it is.
    pub fn core(&self) -> CoreIndex {
        CoreIndex(self.block.index() as u32)
    }

    /// Calls `function(argument)` as this core, and returns to what the caller was. Plain numbers go in and come out, so
    /// that nothing of what belongs to the core gets out beside its identity.
    pub fn run(&mut self, function: fn(u64) -> u64, argument: u64) -> u64 {
        let caller = current();
        // Not known to the compiler, so that it is not inlined here, where the calling core's block was read already.
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

impl fmt::Debug for CoreIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CoreIdentity({})", self.core().0)
    }
}
