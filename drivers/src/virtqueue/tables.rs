//! Tables of descriptors for long chains (`VIRTIO_F_INDIRECT_DESC`; virtio 1.2, 2.7.5.3).
//!
//! A chain in a table takes one descriptor of the ring, at any length, but costs the device an additional memory
//! access. So short chains are in the ring, and long ones in a table. There are fewer tables than descriptors; a chain
//! without a free table is in the ring if it fits.

use super::chain::{ChainWriter, DESCRIPTOR_LEN, Descriptors, Limits, MAX_CHAIN, WrittenChain};
use super::fault::Refusal;
use alloc::vec::Vec;
use isola_machine::dma::DmaRegion;
use isola_machine::dma_ring::RingMemory;

/// The longest chain that is always in the ring if there are tables: a header and two segments.
pub(super) const DIRECT_MAX: u16 = 3;

/// There is one table for this number of descriptors.
const DESCRIPTORS_A_TABLE: u16 = 8;

/// A table has room for the longest chain.
const LIMITS: Limits = Limits { now: MAX_CHAIN, ever: MAX_CHAIN };

/// Length of a table, in bytes.
const TABLE_LEN: usize = MAX_CHAIN as usize * DESCRIPTOR_LEN;

/// In a table each descriptor links to the next.
static CONSECUTIVE: [u16; MAX_CHAIN as usize] = {
    let mut links = [0; MAX_CHAIN as usize];
    let mut index = 0;
    while index < links.len() {
        links[index] = index as u16 + 1;
        index += 1;
    }
    links
};

/// A chain in a table.
#[derive(Clone, Copy, Debug)]
pub(super) struct InTable {
    /// The chain.
    pub chain: WrittenChain,
    /// The table's device address.
    pub address: u64,
    /// The table's length, in bytes.
    pub len: u32,
}

/// The tables of a queue.
#[derive(Debug)]
pub(super) struct Tables {
    memory: Option<(RingMemory, Descriptors)>,
    count: u16,
    free: Vec<u16>,
}

impl Tables {
    /// Returns no tables.
    pub(super) fn none() -> Self {
        Self { memory: None, count: 0, free: Vec::new() }
    }

    /// Creates tables for a queue of `size` descriptors.
    pub(super) fn new(size: u16, memory: &mut dyn FnMut(usize) -> DmaRegion) -> Self {
        let count = (size / DESCRIPTORS_A_TABLE).max(1);
        let mut memory = RingMemory::new(memory(usize::from(count) * TABLE_LEN));
        let descriptors = memory.ring(0, usize::from(count) * usize::from(MAX_CHAIN));
        Self { memory: Some((memory, descriptors)), count, free: (0..count).collect() }
    }

    /// Returns whether the queue uses no tables.
    pub(super) fn is_empty(&self) -> bool {
        self.memory.is_none()
    }

    /// Returns the table for the next chain.
    #[inline]
    pub(super) fn first(&self) -> Option<u16> {
        self.free.last().copied()
    }

    /// Writes a chain into the table returned by [`Self::first`].
    pub(super) fn write(
        &mut self,
        table: u16,
        visit: impl FnOnce(&mut ChainWriter<'_>),
    ) -> Result<InTable, Refusal> {
        let (memory, descriptors) = self.memory.as_mut().ok_or(Refusal::Full)?;
        let base = usize::from(table) * usize::from(MAX_CHAIN);
        let mut writer = ChainWriter::new((descriptors, base), 0, &CONSECUTIVE, LIMITS);
        visit(&mut writer);
        let chain = writer.finish()?;
        let len = u32::from(chain.count) * DESCRIPTOR_LEN as u32;
        Ok(InTable { chain, address: memory.device_address(usize::from(table) * TABLE_LEN), len })
    }

    /// Removes the table returned by [`Self::first`] from the free ones.
    pub(super) fn take(&mut self) {
        self.free.pop();
    }

    /// Returns a table to the free ones.
    pub(super) fn give_back(&mut self, table: u16) {
        self.free.push(table);
    }

    /// Returns all tables to the free ones.
    pub(super) fn give_all_back(&mut self) {
        self.free = (0..self.count).collect();
    }

    /// Leaks the tables' memory.
    pub(super) fn leak(&self) {
        self.memory.iter().for_each(|(memory, _)| memory.leak());
    }
}
