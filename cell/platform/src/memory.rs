//! Memory that the platform wants back from holders in the cell that could do without some.

use core::ops::Range;

/// The platform's demand.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum MemoryDemand {
    /// There is none.
    #[default]
    None,
    /// This many bytes are to be freed, whichever they are.
    Free(usize),
    /// No memory at these addresses is to be in use: their holders copy it to other memory, or free it.
    Vacate(Range<usize>),
}

/// The memory that the platform manages for the cell, in bytes. All but the named uses is objects of the heap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlatformMemory {
    /// All of it.
    pub total: usize,
    /// Free pages.
    pub free: usize,
    /// The page allocator's records of the pages.
    pub records: usize,
    /// Parts of the heap that no object uses: free objects in the caches of cores and in partly used pages.
    pub unused_objects: usize,
    /// Pages of regions, such as the stacks of fibers.
    pub regions: usize,
    /// Objects of the heap that network devices receive into.
    pub receive_buffers: usize,
    /// Objects of the heap that are page tables of programs.
    pub program_tables: usize,
}
