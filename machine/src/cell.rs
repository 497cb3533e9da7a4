//! The running cell from its own side: descriptor, report, live words, pool, and device registers.
//!
//! All is the same whether a supervisor built the cell or the image booted [`standalone`](crate::standalone).
//! Elsewhere, as in a host program, these addresses are unmapped (they are in the kernel half of the address space), so
//! any access to the values returned here faults and ends the program.

pub mod links;
mod plugged_memory;
pub mod samples;
pub mod suspended;
mod unplug;

pub use plugged_memory::{answer_to, has_plugged_block, limit_bytes, request_memory, take_plugged_block};
pub use unplug::{acknowledge, enter_slot, offer, settlement, unplug_request};

use crate::apic::local;
use crate::authority::Authority;
use crate::cpu::Features;
use crate::device::DeviceRegisters;
use crate::dma;
use crate::image_bounds::ImageBounds;
use crate::region_area::{OwnMemory, RegionArea, Tables};
use crate::registers::Registers;
use alloc::vec::Vec;
use core::fmt;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, Ordering};
use isola_abi::core_slots::CoreSlots;
use isola_abi::descriptor::{
    BODY_OFFSET, Descriptor, DescriptorError, DeviceKind, LINKS_OFFSET, LiveWords, Request, Transport,
};
use isola_abi::id::NodeId;
use isola_abi::layout::{DESCRIPTOR, DIRECT_MAP, PageSize, REGION_TABLES, REPORT};
use isola_abi::ledger::Ledger;
use isola_abi::query::Queries;
use isola_abi::report::Report;

/// A cell.
#[derive(Debug)]
pub struct Cell {
    /// The descriptor.
    pub descriptor: Descriptor,
    /// The pool, in the direct map: zeroed whole pages. Each range has its NUMA node.
    pub pool: Vec<(NodeId, &'static mut [u8])>,
    /// The region area: the virtual memory that the cell maps itself.
    pub region_area: RegionArea,
    /// The registers of the cell's devices.
    pub devices: Vec<(DeviceKind, DeviceRegisters)>,
    /// The right to program the hardware of the cell's cores.
    pub authority: Authority,
}

/// A failure of [`Cell::open`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CellError {
    /// The descriptor is invalid.
    Descriptor(DescriptorError),
    /// The cell is open already.
    Opened,
}

impl fmt::Display for CellError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Descriptor(error) => error.fmt(f),
            Self::Opened => {
                f.write_str("the cell's memory and devices have been handed out: open a cell once")
            }
        }
    }
}

impl core::error::Error for CellError {}

impl Cell {
    /// Reads the descriptor, and configures this crate by it: the interrupt mode, and the image's segments for DMA. The
    /// first core of a cell calls this before any other function of this module.
    ///
    /// # Errors
    /// A [`CellError`]; at the second call, [`CellError::Opened`].
    pub fn open() -> Result<Self, CellError> {
        static OPENED: AtomicBool = AtomicBool::new(false);
        if OPENED.swap(true, Ordering::AcqRel) {
            return Err(CellError::Opened);
        }
        let len = LINKS_OFFSET - BODY_OFFSET;
        // SAFETY: in every cell the area is mapped there, read-only; elsewhere see the module documentation. Its
        // builder changes nothing in it after the cell's start but the live words, which precede the body.
        let body =
            unsafe { core::slice::from_raw_parts((DESCRIPTOR as usize + BODY_OFFSET) as *const u8, len) };
        let descriptor = Descriptor::decode(body).map_err(CellError::Descriptor)?;
        local::set_mode(descriptor.interrupt_mode);
        dma::set_image(descriptor.image.clone());
        let devices = descriptor
            .devices
            .iter()
            // SAFETY: the builder of the cell has mapped these registers for it, permanently, and `OPENED` ensures that
            // they are handed out once.
            .map(|device| (device.kind, unsafe { device_registers(&device.transport) }))
            .collect();
        let pool = descriptor
            .pool
            .iter()
            // SAFETY: the builder of the cell has mapped its pool there, permanently; `OPENED` ensures that the pool is
            // handed out once. Any byte is a valid value.
            .map(|range| unsafe {
                let start = (DIRECT_MAP + range.memory.start.0) as *mut u8;
                (range.node, core::slice::from_raw_parts_mut(start, range.memory.len_bytes as usize))
            })
            .collect();
        let region_area = region_area(&descriptor);
        Ok(Self { descriptor, pool, region_area, devices, authority: Authority::OWN })
    }
}

/// Returns the region area of the cell. To be called once.
fn region_area(descriptor: &Descriptor) -> RegionArea {
    let base = NonNull::new(REGION_TABLES as *mut u8).unwrap_or(NonNull::dangling());
    // SAFETY: the builder of the cell has mapped zeroed tables there, as many as the descriptor says, permanently;
    // `Cell::open` hands them out once.
    let tables = unsafe { Tables::new(base, descriptor.region_tables) };
    let variables = ImageBounds::of_image().data_start;
    let data = descriptor.image.iter().find(|segment| segment.virt == variables).copied();
    let largest = if Features::read().gib_pages { PageSize::OneGib } else { PageSize::TwoMib };
    RegionArea::new(
        tables,
        OwnMemory::new(descriptor.pool.iter().map(|range| range.memory).collect(), data, live()),
        largest,
    )
}

/// Returns the cell's report. `isola_abi::report` defines how each field is written.
pub fn report() -> &'static Report {
    let slot_count = live().core_slot_count.load(Ordering::Relaxed) as usize;
    // SAFETY: in every cell the report is mapped there, permanently, with a record for each of its core slots, and
    // consists of atomics; elsewhere see the module documentation.
    unsafe { &*Report::at(REPORT as *const u8, slot_count) }
}

/// Returns the cell's ledger.
pub fn ledger() -> Ledger<'static> {
    let slot_count = live().core_slot_count.load(Ordering::Relaxed) as usize;
    let slots = live().activity_slots.load(Ordering::Relaxed) as usize;
    let (records, counters) = Ledger::parts(REPORT as *const u8, slot_count, slots);
    // SAFETY: in every cell the ledger is mapped there, permanently, behind the report, with that many activity slots,
    // and consists of atomics; elsewhere see the module documentation.
    unsafe { Ledger::new(&*records, &*counters) }
}

/// Returns the supervisor's current request to the cell.
pub fn request() -> Request {
    Request::from_u32(live().request.load(Ordering::Acquire))
}

/// Returns the queries of the host tool.
pub fn queries() -> &'static Queries {
    &live().queries
}

/// Returns the core slots of the cell.
pub fn core_slots() -> &'static CoreSlots {
    &live().core_slots
}

/// Returns the live words: the part of the descriptor that the supervisor changes while the cell runs.
fn live() -> &'static LiveWords {
    // SAFETY: in every cell the words are mapped there, permanently, and are atomics; elsewhere see the module
    // documentation.
    unsafe { &*(DESCRIPTOR as *const LiveWords) }
}

/// # Safety
/// The registers must be mapped at the addresses in `transport`, permanently.
unsafe fn device_registers(transport: &Transport) -> DeviceRegisters {
    // SAFETY: the caller guarantees the mapping.
    let at = |virt: u64, len: u64| unsafe {
        let base = NonNull::new(virt as *mut u8).unwrap_or(NonNull::dangling());
        Registers::new(base, if virt == 0 { 0 } else { len as usize })
    };
    match transport {
        Transport::Pci { config, bars } => DeviceRegisters::Pci {
            config: at(*config, crate::device::pci::CONFIG_LEN),
            bars: bars.iter().map(|bar| (bar.index, at(bar.virt, bar.len_bytes))).collect(),
        },
        Transport::Mmio { registers, vector } => DeviceRegisters::Mmio {
            registers: at(*registers, crate::device::virtio_mmio::WINDOW_LEN),
            vector: *vector,
        },
    }
}
