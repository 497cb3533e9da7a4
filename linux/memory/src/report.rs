//! The contents of files of `/proc/PID` about memory.

use crate::{Mapping, ProcessMemory};
use alloc::vec::Vec;

/// The sizes of a process, in pages: for `/proc/PID/statm`, `status` and `stat`, and `getrusage`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryUsage {
    /// All mappings (`VmSize`).
    pub mapped: u64,
    /// The most that were mapped at a time (`VmPeak`).
    pub peak_mapped: u64,
    /// The resident pages, by kind (`RssAnon`, `RssFile`, `RssShmem`).
    pub resident: crate::ResidentPages,
    /// The most that were resident at a time (`VmHWM`).
    pub peak_resident: u64,
    /// Private, writable mappings (`VmData`).
    pub data: u64,
    /// Stacks (`VmStk`).
    pub stack: u64,
    /// Executable mappings of objects (`VmExe` and `VmLib`).
    pub text: u64,
    /// Locked mappings (`VmLck`).
    pub locked: u64,
}

/// The sizes of the pages of one mapping, in pages: for `/proc/PID/smaps`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MappingUsage {
    /// The resident pages (`Rss`).
    pub resident: u64,
    /// The own pages that no other process shares (`Private_Dirty`).
    pub private: u64,
    /// The own pages that a relative shares until one of them writes (`Shared_Dirty`).
    pub shared: u64,
    /// The pages of the object (`Shared_Clean`, or `Shared_Dirty` of shared memory).
    pub object: u64,
}

impl ProcessMemory {
    /// Returns a copy of all mappings, in order.
    pub fn mappings(&self) -> Vec<Mapping> {
        self.state.lock().mappings.iter().cloned().collect()
    }

    /// Returns the number of mappings.
    pub fn mappings_count(&self) -> usize {
        self.state.lock().mappings.len()
    }

    /// Returns the mapping that contains `address`.
    pub fn mapping_at(&self, address: u64) -> Option<Mapping> {
        self.state.lock().mappings.find(address).cloned()
    }

    /// Returns the sizes of the process.
    pub fn usage(&self) -> MemoryUsage {
        let state = self.state.lock();
        let pages = |counted: fn(&Mapping) -> bool| {
            state.mappings.iter().filter(|mapping| counted(mapping)).map(Mapping::pages).sum()
        };
        let resident = state.pages.resident;
        MemoryUsage {
            mapped: state.mappings.pages(),
            peak_mapped: state.peak_pages,
            resident,
            peak_resident: state.peak_resident.max(resident.total()),
            data: state.mappings.data_pages(),
            stack: pages(|mapping| mapping.attributes.grows_down),
            text: pages(|mapping| mapping.protection.executable && mapping.object.is_some()),
            locked: state.mappings.locked_pages(),
        }
    }

    /// Returns the sizes of the pages of a mapping.
    pub fn mapping_usage(&self, mapping: &Mapping) -> MappingUsage {
        let state = self.state.lock();
        let mut usage = MappingUsage::default();
        let mut count = |frame: &isola_memory::frame::Frame| match frame.owners() {
            _ if frame.is(crate::pages::zeros()) => (),
            0 => usage.object += 1,
            1 => usage.private += 1,
            _ => usage.shared += 1,
        };
        state.pages.space.for_each(mapping.start, mapping.end, &mut |_, mapped| count(&mapped.frame));
        state.pages.hidden_in(mapping.start, mapping.end).for_each(|(_, frame)| count(frame));
        usage.resident = usage.private + usage.shared + usage.object;
        usage
    }
}
