//! The descriptor: read-only pages in which the supervisor describes a cell's resources to the cell (RainForest 4.2,
//! 5.3).
//!
//! The descriptor has the facts that a kernel would otherwise probe; a cell probes nothing. The area begins with the
//! [`LiveWords`], which the supervisor changes while the cell runs. At [`BODY_OFFSET`] follow the length of the encoded
//! [`Descriptor`] (`u32`, little-endian) and the encoding itself, and at [`LINKS_OFFSET`] the cell's links, which the
//! supervisor changes as well.

use crate::core_slots::CoreSlots;
use crate::grid::GridSetup;
use crate::growth::PluggedMemory;
use crate::id::{ApicId, CellId, NodeId, PhysRange};
use crate::layout::{DESCRIPTOR_SIZE, PAGE_SIZE};
use crate::links::{LEAST_LINKS, Link, LinkTable, table_bytes};
use crate::network_service::NetworkService;
use crate::query::Queries;
use crate::unplug::UnplugRequest;
use crate::volume::VolumeMount;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::net::Ipv4Addr;
use core::sync::atomic::AtomicU32;
use serde::{Deserialize, Serialize};

use crate::service::ServedVolume;
pub use crate::topology::Core;

/// The offset of the encoded descriptor in the descriptor area, in bytes.
pub const BODY_OFFSET: usize = 4096;

/// The offset of the [`LinkTable`] in the descriptor area, in bytes.
pub const LINKS_OFFSET: usize = 5 * PAGE_SIZE as usize;

/// The maximum length of an encoded descriptor, in bytes.
pub const MAX_BODY: usize = LINKS_OFFSET - BODY_OFFSET - 4;

const _: () = assert!(LINKS_OFFSET + size_of::<LinkTable<[Link; LEAST_LINKS]>>() <= DESCRIPTOR_SIZE as usize);

/// Returns the size of the descriptor area of a cell with `link_slots` slots for links, in bytes.
pub const fn area_bytes(link_slots: usize) -> u64 {
    LINKS_OFFSET as u64 + table_bytes(link_slots)
}

/// The vector of the interrupt by which the supervisor makes a cell read its [`LiveWords`].
pub const REQUEST_VECTOR: u8 = 0xf0;

/// The first interrupt vector that a cell may allocate; those below are the processor's own.
pub const FIRST_FREE_VECTOR: u8 = 0x20;

/// The words that the supervisor changes while the cell runs, at the start of the descriptor area.
#[repr(C)]
#[derive(Debug, Default)]
pub struct LiveWords {
    /// The supervisor's request to the cell: a [`Request`].
    pub request: AtomicU32,
    /// If not 0, the core at the core slot with this number, minus 1, stops the cell at its next NMI and records the
    /// interrupted instruction.
    pub stop_at_nmi: AtomicU32,
    /// The memory plugged into the cell since its creation.
    pub plugged_memory: PluggedMemory,
    /// The host tool's queries to the cell.
    pub queries: Queries,
    /// The cell's core slots.
    pub core_slots: CoreSlots,
    /// The supervisor's reclaim request for memory.
    pub unplug_request: UnplugRequest,
    /// The number of core slots of the cell, written once before the first core enters.
    pub core_slot_count: AtomicU32,
    /// The number of activity slots of the cell's [ledger](crate::ledger), written once before the first core enters.
    pub activity_slots: AtomicU32,
    /// The number of slots in the cell's [table of links](crate::links), written once before the first core enters.
    pub link_slots: AtomicU32,
    /// The number of samples that the supervisor has requested of the cell's cores, modulo 2^32. At the next NMI after a
    /// change, each core that has a sample buffer stores its call stack.
    pub samples: AtomicU32,
}

const _: () = assert!(size_of::<LiveWords>() <= BODY_OFFSET);

/// The supervisor's request to a running cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Request {
    /// No request.
    None = 0,
    /// The cell finishes its work and exits.
    Stop = 1,
}

impl Request {
    /// Decodes a request. Unknown numbers, which only a newer supervisor can write, are no request.
    pub const fn from_u32(value: u32) -> Self {
        match value {
            1 => Self::Stop,
            _ => Self::None,
        }
    }
}

/// The resources of a cell, and the facts that it needs about the machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Descriptor {
    /// The [`crate::VERSION`] of the writer.
    pub version: u32,
    /// The cell's id; 0 in a standalone image.
    pub cell: CellId,
    /// The cell's name.
    pub name: String,
    /// The application's arguments, without its name.
    pub arguments: Vec<String>,
    /// The cell's initial cores, in the order of core indices. The first one starts the application.
    pub cores: Vec<Core>,
    /// The number of core slots ([`crate::core_slots`]), at least the number of initial cores.
    pub core_slot_count: u32,
    /// The queueing delay of events above which a core requests another core, in ns (see
    /// [`crate::report::Report::core_requests`]). 0: the cell's cores make no such requests.
    pub core_request_ns: u64,
    /// The cell's pool: whole pages, zeroed, in the direct map.
    pub pool: Vec<PoolRange>,
    /// The memory allocated to the cell, image and stacks included, in bytes.
    pub memory_bytes: u64,
    /// The cell's memory limit, in bytes. The cell can request the memory that it lacks: see [`crate::growth`].
    pub memory_max_bytes: u64,
    /// The page tables of [`crate::layout::REGIONS`], the topmost first; zeroed, and mapped at
    /// [`crate::layout::REGION_TABLES`]. Empty if the cell has no region area.
    pub region_tables: PhysRange,
    /// The physical location of the image's pages, by segment, for the device addresses of the image's data.
    pub image: Vec<ImageSegment>,
    /// The devices. The supervisor does not initialise them.
    pub devices: Vec<Device>,
    /// The volumes of the block devices among [`Self::devices`], in their order.
    pub volumes: Vec<VolumeMount>,
    /// The volumes that service cells serve.
    pub served_volumes: Vec<ServedVolume>,
    /// The clock rates and a reference time.
    pub clock: Clock,
    /// The cell's network address; `None` if it has no network device or uses DHCP.
    pub address: Option<NetworkAddress>,
    /// The part in a network that a service cell serves.
    pub network_service: NetworkService,
    /// The destination of the cell's notifications; `None` in a standalone image.
    pub supervisor: Option<NotificationTarget>,
    /// The access mode of the local APICs.
    pub interrupt_mode: InterruptMode,
    /// The halt instruction of the cores.
    pub halt_mode: HaltMode,
    /// The settings of the resource grid with which the cell starts.
    pub grid: GridSetup,
}

/// A range of the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolRange {
    /// The physical memory.
    pub memory: PhysRange,
    /// The NUMA node of the whole range.
    pub node: NodeId,
}

/// A segment of the image: the pages at virtual address `virt` are in `memory`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageSegment {
    /// The virtual address of the first byte.
    pub virt: u64,
    /// The physical memory.
    pub memory: PhysRange,
}

/// A device function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// The kind of the device.
    pub kind: DeviceKind,
    /// The access path to the device.
    pub transport: Transport,
}

/// The kind of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum DeviceKind {
    /// A virtio network device.
    Network,
    /// A virtio block device.
    Block,
    /// A virtio console (only for the supervisor).
    Console,
}

/// The access path to a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Transport {
    /// A PCI function with memory BARs and MSI-X.
    Pci {
        /// The virtual address of the function's 4 KiB of configuration space.
        config: u64,
        /// The mapped memory BARs.
        bars: Vec<Bar>,
    },
    /// A virtio-mmio register block.
    Mmio {
        /// The virtual address of the 512-byte register block.
        registers: u64,
        /// The vector of the device's interrupt, which the supervisor routes to the cell's first core.
        vector: u8,
    },
}

/// A memory BAR of a PCI function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bar {
    /// The BAR's index, 0 to 5.
    pub index: u8,
    /// The virtual address of the first byte.
    pub virt: u64,
    /// The length in bytes.
    pub len_bytes: u64,
}

/// The clocks, calibrated once at the machine's boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Clock {
    /// The rate of the time-stamp counter, the same on all cores, in Hz.
    pub tsc_hz: u64,
    /// The rate of the local APIC timer at divisor 1, in Hz.
    pub apic_timer_hz: u64,
    /// The time-stamp counter at the reference time.
    pub tsc_at_epoch: u64,
    /// The reference time: time of day in ns since 1970-01-01 UTC.
    pub unix_ns_at_epoch: u64,
}

/// An IPv4 network configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkAddress {
    /// The cell's address.
    pub ip: Ipv4Addr,
    /// The length of the network's prefix, in bits.
    pub prefix_len: u8,
    /// The default router, if the network has one.
    pub gateway: Option<Ipv4Addr>,
}

/// The destination of a cell's notifications to the supervisor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotificationTarget {
    /// The local APIC id of the supervisor's core.
    pub apic: ApicId,
    /// The interrupt vector.
    pub vector: u8,
}

/// The access mode of the machine's local APICs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum InterruptMode {
    /// xAPIC: registers in memory, mapped at [`crate::layout::LOCAL_APIC`].
    XApic,
    /// x2APIC: model-specific registers.
    X2Apic,
}

/// The halt instruction of the machine's cores, and therefore the way to wake them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum HaltMode {
    /// HLT: an interrupt wakes the core.
    Hlt,
    /// MONITOR and MWAIT: an interrupt or a write to a word in memory wakes the core. Another core wakes it by the
    /// write, without an interrupt.
    Mwait,
}

/// The reason why a descriptor cannot be encoded or decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DescriptorError {
    /// The encoding is longer than [`MAX_BODY`].
    TooLong,
    /// The bytes are not a descriptor.
    Malformed,
    /// The descriptor has another version.
    Version(u32),
}

impl fmt::Display for DescriptorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong => {
                write!(f, "the descriptor takes more than {MAX_BODY} bytes: pass fewer or shorter arguments")
            }
            Self::Malformed => f.write_str("the descriptor cannot be read"),
            Self::Version(version) => write!(
                f,
                "the descriptor has version {version}, this image was built for {}: build both from one tree",
                crate::VERSION
            ),
        }
    }
}

impl core::error::Error for DescriptorError {}

impl Descriptor {
    /// Returns the bytes for [`BODY_OFFSET`]: the length and the encoding.
    ///
    /// # Errors
    /// [`DescriptorError::TooLong`] if they do not fit in the area.
    pub fn encode(&self) -> Result<Vec<u8>, DescriptorError> {
        let body = postcard::to_allocvec(self).map_err(|_| DescriptorError::Malformed)?;
        let len = u32::try_from(body.len()).map_err(|_| DescriptorError::TooLong)?;
        if body.len() > MAX_BODY {
            return Err(DescriptorError::TooLong);
        }
        let mut bytes = Vec::with_capacity(body.len() + 4);
        bytes.extend_from_slice(&len.to_le_bytes());
        bytes.extend_from_slice(&body);
        Ok(bytes)
    }

    /// Decodes the descriptor from the bytes at [`BODY_OFFSET`].
    ///
    /// # Errors
    /// [`DescriptorError::Malformed`] or [`DescriptorError::Version`].
    pub fn decode(bytes: &[u8]) -> Result<Self, DescriptorError> {
        let (len, body) = bytes.split_first_chunk::<4>().ok_or(DescriptorError::Malformed)?;
        let body = body.get(..u32::from_le_bytes(*len) as usize).ok_or(DescriptorError::Malformed)?;
        let (version, _) = postcard::take_from_bytes::<u32>(body).map_err(|_| DescriptorError::Malformed)?;
        if version != crate::VERSION {
            return Err(DescriptorError::Version(version));
        }
        postcard::from_bytes(body).map_err(|_| DescriptorError::Malformed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::{CoreId, PhysAddr};
    use crate::topology::CoreSite;
    use alloc::vec;

    fn descriptor() -> Descriptor {
        Descriptor {
            version: crate::VERSION,
            cell: CellId(7),
            name: "kv".into(),
            arguments: vec!["--port".into(), "11211".into()],
            cores: vec![Core {
                id: CoreId(1),
                apic: ApicId(1),
                node: NodeId(0),
                site: CoreSite::alone(CoreId(1)),
            }],
            core_slot_count: 4,
            core_request_ns: 0,
            pool: vec![PoolRange { memory: PhysRange::new(PhysAddr(0x20_0000), 0x20_0000), node: NodeId(1) }],
            memory_bytes: 0x80_0000,
            memory_max_bytes: 0x100_0000,
            region_tables: PhysRange::new(PhysAddr(0x10_0000), 0x8000),
            image: vec![],
            devices: vec![Device {
                kind: DeviceKind::Network,
                transport: Transport::Mmio { registers: crate::layout::DEVICES + 0x1000, vector: 0x30 },
            }],
            volumes: vec![VolumeMount {
                device: crate::management::DeviceLocation::Mmio { address: 0xfeb0_0000 },
                name: "data".into(),
                path: "/data".into(),
                access: crate::volume::VolumeAccess::ReadOnly,
            }],
            served_volumes: vec![],
            clock: Clock {
                tsc_hz: 2_100_000_000,
                apic_timer_hz: 1_000_000_000,
                tsc_at_epoch: 5,
                unix_ns_at_epoch: 6,
            },
            address: None,
            network_service: NetworkService::None,
            supervisor: Some(NotificationTarget { apic: ApicId(0), vector: 0x40 }),
            interrupt_mode: InterruptMode::X2Apic,
            halt_mode: HaltMode::Hlt,
            grid: GridSetup::default(),
        }
    }

    #[test]
    fn a_descriptor_round_trips_through_its_encoding() {
        let mut area = descriptor().encode().unwrap();
        area.resize(MAX_BODY, 0);
        assert_eq!(Descriptor::decode(&area), Ok(descriptor()));
    }

    #[test]
    fn the_error_for_another_version_has_its_number() {
        let other = Descriptor { version: 99, ..descriptor() };
        assert_eq!(Descriptor::decode(&other.encode().unwrap()), Err(DescriptorError::Version(99)));
    }

    #[test]
    fn truncated_and_overlong_descriptors_are_refused() {
        let bytes = descriptor().encode().unwrap();
        for len in 0..bytes.len() {
            assert!(Descriptor::decode(&bytes[..len]).is_err());
        }
        let endless = Descriptor { arguments: vec!["x".repeat(MAX_BODY)], ..descriptor() };
        assert_eq!(endless.encode(), Err(DescriptorError::TooLong));
    }
}
