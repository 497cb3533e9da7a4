//! Newtypes for ids and addresses, so that one cannot be taken for another.

use core::fmt;
use serde::{Deserialize, Serialize};

/// Most cores of a machine that Isola divides.
pub const MAX_CORES: usize = 64;

/// A core of the machine, numbered densely from 0 in the order of the machine's processor table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct CoreId(pub u32);

/// The hardware's name for a core, which interrupts are addressed with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ApicId(pub u32);

/// A NUMA node of the machine, numbered densely from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NodeId(pub u32);

/// A cell. Ids are never used again while the machine runs, so that a late message cannot hit a successor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct CellId(pub u32);

/// Whom work is charged to within a cell: an index into the cell's ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ActivityId(pub u16);

/// A physical address.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PhysAddr(pub u64);

/// A virtual address of a cell's or the supervisor's address space.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct VirtAddr(pub u64);

impl fmt::Debug for PhysAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "p:{:#x}", self.0)
    }
}

impl fmt::Debug for VirtAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "v:{:#x}", self.0)
    }
}

impl fmt::Display for CoreId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for CellId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A range of physical memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PhysRange {
    /// First byte.
    pub start: PhysAddr,
    /// Length in bytes.
    pub len_bytes: u64,
}

impl PhysRange {
    /// The range of `len_bytes` bytes from `start` on.
    pub const fn new(start: PhysAddr, len_bytes: u64) -> Self {
        Self { start, len_bytes }
    }

    /// The first byte behind the range.
    ///
    /// Saturates, so that a range that would leave the address space ends at its end.
    pub const fn end(&self) -> PhysAddr {
        PhysAddr(self.start.0.saturating_add(self.len_bytes))
    }

    /// Whether `address` is within the range.
    pub const fn contains(&self, address: PhysAddr) -> bool {
        address.0 >= self.start.0 && address.0 < self.end().0
    }
}
