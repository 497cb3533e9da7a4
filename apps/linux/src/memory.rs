//! The cell's memory by use, and the pages of files that it gives back when memory is short.

use alloc::sync::Arc;
use isola::events::activity::APPLICATION;
use isola::memory::{HolderRegistration, MemoryHolder, ReclaimCause, VacatedMemory, register_memory_holder};
use isola::prelude::*;
use isola::sync::Once;
use isola::{MemoryPart, serve_memory_parts};
use isola_abi::id::ActivityId;
use isola_linux_files::{VolumeFs, pages_in_memory};
use isola_linux_memory::FrameBudget;

/// The memory of a page of a program or a file: the page, and the count of its references.
const PAGE_MEMORY: u64 = 4096 + 32;

/// What the account counts.
struct Counted {
    budget: Arc<FrameBudget>,
    volumes: Vec<Arc<VolumeFs>>,
}

static COUNTED: Once<Counted> = Once::new();

/// Accounts for the pages of programs and files from now on.
pub fn account_for(budget: &Arc<FrameBudget>, volumes: &[Arc<VolumeFs>]) {
    COUNTED.call_once(|| Counted { budget: budget.clone(), volumes: volumes.to_vec() });
    serve_memory_parts(parts);
}

/// Returns the bytes of the pages of volumes' files that the volumes have as well, and of those that they do not have yet.
fn pages_of_volumes() -> (u64, u64) {
    let counts =
        COUNTED.get().into_iter().flat_map(|counted| &counted.volumes).map(|files| files.page_counts());
    counts.fold((0, 0), |sum, (clean, dirty)| (sum.0 + clean * PAGE_MEMORY, sum.1 + dirty * PAGE_MEMORY))
}

/// Returns the bytes of the pages of files that the cell could read again.
pub fn clean_bytes() -> u64 {
    pages_of_volumes().0
}

/// Frees the memory that only the start of the first program has needed: pages of files that no program maps, as its own
/// copies have replaced them or it has read past them, and unused parts of the heap.
pub fn release_after_start() {
    for files in COUNTED.get().into_iter().flat_map(|counted| &counted.volumes) {
        files.drop_unused(u64::MAX);
    }
    isola::release_unused_memory();
}

fn parts() -> Vec<MemoryPart> {
    let (clean, dirty) = pages_of_volumes();
    let of_programs = COUNTED.get().map_or(0, |counted| counted.budget.taken()) * PAGE_MEMORY;
    Vec::from([
        MemoryPart::used("pages of programs", of_programs as usize),
        MemoryPart::used("files in memory", (pages_in_memory() * PAGE_MEMORY) as usize),
        MemoryPart::used("pages of files, not written yet", dirty as usize),
        MemoryPart::cached("pages of files", clean as usize),
    ])
}

/// The pages of a volume's files as memory that the cell could do without.
struct UnusedPages(Arc<VolumeFs>);

/// Makes the cell give back pages of these volumes' files when memory is short, until the result is dropped.
pub fn give_back(volumes: &[Arc<VolumeFs>]) -> Vec<HolderRegistration> {
    volumes.iter().map(|files| register_memory_holder(UnusedPages(files.clone()))).collect()
}

impl MemoryHolder for UnusedPages {
    fn held(&self, _: ReclaimCause) -> Vec<(ActivityId, usize)> {
        Vec::from([(APPLICATION, (self.0.unused_pages() * PAGE_MEMORY) as usize)])
    }

    fn free(&self, _: ReclaimCause, _: ActivityId, len_bytes: usize) -> usize {
        (self.0.drop_unused((len_bytes as u64).div_ceil(PAGE_MEMORY)) * PAGE_MEMORY) as usize
    }

    fn vacate(&self, memory: &VacatedMemory, _: u64) -> Option<u64> {
        self.0.drop_unused_at(memory.addresses());
        None
    }
}
