//! Newtypes for ids and addresses, so that the compiler distinguishes them.

use core::fmt;
use serde::{Deserialize, Serialize};

/// The maximum number of cores of a cell, so that a set of a cell's cores is one word.
pub const MAX_CORES: usize = 64;

/// The maximum number of cores of a machine.
pub const MAX_MACHINE_CORES: usize = 256;

/// A core of the machine, numbered densely from 0 in the order of the machine's processor table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct CoreId(pub u32);

/// The local APIC id of a core, the destination address of interrupts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ApicId(pub u32);

/// A NUMA node of the machine, numbered densely from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NodeId(pub u32);

/// A cell. The supervisor does not reuse ids while the machine runs, so a late message cannot reach a successor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct CellId(pub u32);

/// An activity of a cell. Ids below the number of the [ledger](crate::ledger)'s slots are slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ActivityId(pub u32);

impl ActivityId {
    /// Returns the id as an index.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// A physical address.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PhysAddr(pub u64);

/// A virtual address in the address space of a cell or of the supervisor.
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
    /// The first byte.
    pub start: PhysAddr,
    /// The length in bytes.
    pub len_bytes: u64,
}

impl PhysRange {
    /// Returns the range of `len_bytes` bytes from `start`.
    pub const fn new(start: PhysAddr, len_bytes: u64) -> Self {
        Self { start, len_bytes }
    }

    /// Returns the address after the last byte. Saturates at the end of the address space.
    pub const fn end(&self) -> PhysAddr {
        PhysAddr(self.start.0.saturating_add(self.len_bytes))
    }

    /// Returns whether `address` is within the range.
    pub const fn contains(&self, address: PhysAddr) -> bool {
        address.0 >= self.start.0 && address.0 < self.end().0
    }
}

/// The location of a device in the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum DeviceLocation {
    /// A PCI function.
    Pci {
        /// The bus number.
        bus: u8,
        /// The device number, a slot in QEMU's terms.
        device: u8,
        /// The function number.
        function: u8,
    },
    /// A virtio-mmio register block.
    Mmio {
        /// The physical address.
        address: u64,
    },
}

impl fmt::Display for DeviceLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pci { bus, device, function } => write!(f, "PCI {bus:02x}:{device:02x}.{function}"),
            Self::Mmio { address } => write!(f, "MMIO {address:#x}"),
        }
    }
}
