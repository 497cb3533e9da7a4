//! Samples of the cores' call stacks, which the platform takes at moments that the supervisor chooses.

use crate::CoreIndex;
use alloc::vec::Vec;
use isola_abi::query::StackSample;

/// The memory for a core's samples is not available.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoSampleMemory;

/// The counters of a core slot, since the first start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SampleCounts {
    /// Samples of the idle core.
    pub idle: u64,
    /// Samples for which there was no room.
    pub lost: u64,
}

/// A sampler of call stacks. Cores are core slots here: a sample belongs to the slot of the core that executed the code,
/// whichever vcore it ran. The functions may be called on any core, those that read by one caller at a time.
pub trait Sampler: Sync {
    /// Begins to sample the core at a slot, without the samples so far.
    ///
    /// # Errors
    /// [`NoSampleMemory`].
    fn start(&self, core: CoreIndex) -> Result<(), NoSampleMemory>;

    /// Ends the sampling of all cores.
    fn stop(&self);

    /// Returns the first samples of a core slot, at most `max`, and a position for [`Self::release`].
    fn first(&self, core: CoreIndex, max: usize) -> (Vec<StackSample>, u64);

    /// Releases the samples of a core slot before a position.
    fn release(&self, core: CoreIndex, position: u64);

    /// Returns the counters of a core slot.
    fn counts(&self, core: CoreIndex) -> SampleCounts;
}
