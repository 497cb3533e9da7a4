//! Samples of the cores' call stacks: the machine's, for the library OS.

use crate::page_tables::tables;
use alloc::vec::Vec;
use isola_abi::query::StackSample;
use isola_events::profile::interrupted_account;
use isola_machine::cell::samples::{self, SampleSource};
use isola_platform::{CoreIndex, NoSampleMemory, SampleCounts, Sampler};

/// The functions that a sample needs.
pub(crate) const SOURCE: SampleSource = SampleSource {
    account: interrupted_account,
    region_word: |address| tables().and_then(|area| area.word_at(address)),
};

/// The sampler of a cell.
#[derive(Debug)]
pub(crate) struct BareSampler;

impl Sampler for BareSampler {
    fn start(&self, core: CoreIndex) -> Result<(), NoSampleMemory> {
        samples::start(core.0 as usize).map_err(|_| NoSampleMemory)
    }

    fn stop(&self) {
        samples::stop();
    }

    fn first(&self, core: CoreIndex, max: usize) -> (Vec<StackSample>, u64) {
        samples::first(core.0 as usize, max)
    }

    fn release(&self, core: CoreIndex, position: u64) {
        samples::release(core.0 as usize, position);
    }

    fn counts(&self, core: CoreIndex) -> SampleCounts {
        let counts = samples::counts(core.0 as usize);
        SampleCounts { idle: counts.idle, lost: counts.lost }
    }
}
