//! The descriptor: the read-only pages in which the supervisor tells a cell what it owns (RainForest 4.2, 5.3).
//!
//! Everything that a kernel would otherwise probe is here: the cell starts with knowledge, not with discovery.
//! The area begins with a [`LiveWords`], which the supervisor changes while the cell runs, followed at
//! [`BODY_OFFSET`] by the length of the encoded [`Descriptor`] (`u32`, little-endian) and the encoding itself.

use crate::growth::Grown;
use crate::id::{ApicId, CellId, CoreId, NodeId, PhysRange};
use crate::layout::DESCRIPTOR_SIZE;
use crate::places::Places;
use crate::query::Questions;
use crate::topology::CoreSite;
use crate::unplug::UnplugRequest;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::net::Ipv4Addr;
use core::sync::atomic::AtomicU32;
use serde::{Deserialize, Serialize};

/// Where in the descriptor area the encoded descriptor begins.
pub const BODY_OFFSET: usize = 4096;

/// Most bytes of an encoded descriptor.
pub const MAX_BODY: usize = DESCRIPTOR_SIZE as usize - BODY_OFFSET - 4;

/// The interrupt by which the supervisor makes a cell look at its [`LiveWords`].
pub const REQUEST_VECTOR: u8 = 0xf0;

/// The first interrupt vector that a cell may use as it likes; those below are the processor's own.
pub const FIRST_FREE_VECTOR: u8 = 0x20;

/// What the supervisor changes while the cell runs. The first bytes of the descriptor area.
#[repr(C)]
#[derive(Debug, Default)]
pub struct LiveWords {
    /// What the supervisor asks of the cell: a value of [`Request`].
    pub request: AtomicU32,
    /// Not 0: the cell is to stop at the next non-maskable interrupt, and to say where it stood.
    pub examined: AtomicU32,
    /// What the cell has got since it was built.
    pub grown: Grown,
    /// What the host tool asks of the cell.
    pub questions: Questions,
    /// The cores that the cell has now.
    pub places: Places,
    /// What the cell is to give back.
    pub unplug_request: UnplugRequest,
    /// How many places the cell has for cores: written once, before it is entered.
    pub core_places: AtomicU32,
}

const _: () = assert!(size_of::<LiveWords>() <= BODY_OFFSET);

/// What the supervisor asks of a running cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Request {
    /// Nothing.
    None = 0,
    /// To finish what it does and exit.
    Stop = 1,
}

impl Request {
    /// The request of that number; unknown ones, which only a newer supervisor could make, are none.
    pub const fn from_u32(value: u32) -> Self {
        match value {
            1 => Self::Stop,
            _ => Self::None,
        }
    }
}

/// What a cell owns and has to know.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Descriptor {
    /// [`crate::VERSION`] of who wrote it.
    pub version: u32,
    /// The cell's id; 0 where the image boots alone.
    pub cell: CellId,
    /// The cell's name.
    pub name: String,
    /// Arguments for the application, the first after its name first.
    pub arguments: Vec<String>,
    /// The cores that it begins with, in the order of core indices. The first is the one that starts the cell.
    pub cores: Vec<Core>,
    /// How many places for cores it has, see [`crate::places`]: at least as many as it begins with.
    pub core_places: u32,
    /// A core whose events wait for longer than this, in ns, requests for another one: see
    /// [`crate::report::Report::core_requests`]. 0: the cell never does.
    pub core_request_ns: u64,
    /// Memory that the cell may use as it likes: whole pages, zeroed, in the direct map.
    pub pool: Vec<PoolRange>,
    /// All memory that the cell was given, image and stacks included, in bytes.
    pub memory_bytes: u64,
    /// The most that it may have, in bytes: what it has not got yet it may ask for, see [`crate::growth`].
    pub memory_max_bytes: u64,
    /// The page tables of [`crate::layout::REGIONS`], the topmost first; zeroed, and mapped at
    /// [`crate::layout::REGION_TABLES`]. Empty where the cell maps nothing itself.
    pub region_tables: PhysRange,
    /// Where the image's pages are, by segment: for the device addresses of constants.
    pub image: Vec<ImageSegment>,
    /// The devices, initialised by nobody.
    pub devices: Vec<Device>,
    /// The clocks.
    pub clock: Clock,
    /// How the cell appears in the network; `None` where it has no network device or shall ask by DHCP.
    pub address: Option<NetworkAddress>,
    /// The supervisor's core, which a doorbell wakes; `None` where the image boots alone.
    pub supervisor: Option<Doorbell>,
    /// How interrupts are sent.
    pub interrupt_mode: InterruptMode,
    /// How cores halt.
    pub halt_mode: HaltMode,
}

/// A core of the cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Core {
    /// The machine's number for it.
    pub id: CoreId,
    /// What interrupts to it are addressed with.
    pub apic: ApicId,
    /// The NUMA node it belongs to.
    pub node: NodeId,
    /// Where it stands: which others are its siblings, or share a cache with it.
    pub site: CoreSite,
}

/// Memory of the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolRange {
    /// Where it is.
    pub memory: PhysRange,
    /// The NUMA node that all of it belongs to.
    pub node: NodeId,
}

/// Pages of the image: `len_bytes` from virtual address `virt` on stand at `phys`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageSegment {
    /// Virtual address of the first byte.
    pub virt: u64,
    /// Where it is.
    pub memory: PhysRange,
}

/// A device function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// What it is for.
    pub kind: DeviceKind,
    /// How it is reached.
    pub transport: Transport,
}

/// What a device is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum DeviceKind {
    /// A virtio network device.
    Network,
    /// A virtio console (of the supervisor).
    Console,
}

/// How a device is reached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Transport {
    /// A PCI function with memory BARs and MSI-X.
    Pci {
        /// Virtual address of the function's 4 KiB of configuration space.
        config: u64,
        /// The memory BARs: index, where they are mapped, length in bytes.
        bars: Vec<Bar>,
    },
    /// A virtio-mmio register window.
    Mmio {
        /// Virtual address of the 512-byte window.
        registers: u64,
        /// The vector that the supervisor has its interrupt delivered as, to the cell's first core.
        vector: u8,
    },
}

/// A memory BAR of a PCI function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bar {
    /// Which of the six.
    pub index: u8,
    /// Virtual address of its first byte.
    pub virt: u64,
    /// Length in bytes.
    pub len_bytes: u64,
}

/// The clocks, calibrated once by whoever booted the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Clock {
    /// Rate of the time-stamp counter, the same on all cores.
    pub tsc_hz: u64,
    /// Rate of the local APIC's timer at divisor 1.
    pub apic_timer_hz: u64,
    /// A reading of the time-stamp counter...
    pub tsc_at_epoch: u64,
    /// ...and the time of day at that moment, in ns since 1970-01-01 UTC.
    pub unix_ns_at_epoch: u64,
}

/// How a cell appears in its network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkAddress {
    /// Its address.
    pub ip: Ipv4Addr,
    /// Length of the network's prefix, in bits.
    pub prefix_len: u8,
    /// The router, where there is one.
    pub gateway: Option<Ipv4Addr>,
}

/// How a cell rings the supervisor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Doorbell {
    /// The core to interrupt.
    pub apic: ApicId,
    /// With which vector.
    pub vector: u8,
}

/// How the machine's local APICs are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum InterruptMode {
    /// By registers in memory, mapped at [`crate::layout::LOCAL_APIC`].
    XApic,
    /// By model-specific registers.
    X2Apic,
}

/// How the machine's cores halt, and so how they are woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum HaltMode {
    /// Until an interrupt comes (HLT).
    Hlt,
    /// Until one comes, or a word in memory is written (MONITOR, MWAIT): whoever wakes a core writes it, and sends no
    /// interrupt.
    Mwait,
}

/// Why a descriptor area holds no descriptor, or a descriptor does not fit in one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DescriptorError {
    /// The encoding is longer than [`MAX_BODY`].
    TooLong,
    /// The bytes are no descriptor.
    Malformed,
    /// It is of another version.
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
    /// The bytes to place at [`BODY_OFFSET`]: the length and the encoding.
    ///
    /// # Errors
    /// [`DescriptorError::TooLong`] where they do not fit in the area.
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

    /// Reads a descriptor from the bytes from [`BODY_OFFSET`] on.
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
    use crate::id::PhysAddr;
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
            core_places: 4,
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
            clock: Clock {
                tsc_hz: 2_100_000_000,
                apic_timer_hz: 1_000_000_000,
                tsc_at_epoch: 5,
                unix_ns_at_epoch: 6,
            },
            address: None,
            supervisor: Some(Doorbell { apic: ApicId(0), vector: 0x40 }),
            interrupt_mode: InterruptMode::X2Apic,
            halt_mode: HaltMode::Hlt,
        }
    }

    #[test]
    fn a_descriptor_reads_back_as_written() {
        let mut area = descriptor().encode().unwrap();
        area.resize(MAX_BODY, 0);
        assert_eq!(Descriptor::decode(&area), Ok(descriptor()));
    }

    #[test]
    fn another_version_is_named() {
        let other = Descriptor { version: 99, ..descriptor() };
        assert_eq!(Descriptor::decode(&other.encode().unwrap()), Err(DescriptorError::Version(99)));
    }

    #[test]
    fn cut_and_overlong_descriptors_are_refused() {
        let bytes = descriptor().encode().unwrap();
        for len in 0..bytes.len() {
            assert!(Descriptor::decode(&bytes[..len]).is_err());
        }
        let endless = Descriptor { arguments: vec!["x".repeat(MAX_BODY)], ..descriptor() };
        assert_eq!(endless.encode(), Err(DescriptorError::TooLong));
    }
}
