//! A cell as its own code finds it: what it was told, what it tells, its devices' registers.
//!
//! The same whether a supervisor built the cell or the image booted [`alone`](crate::alone). Everywhere else,
//! nothing is at these addresses, which are in the half of the address space that programs don't have: using
//! what is returned here faults there, and ends the program.

mod grown;
pub mod suspended;
mod unplug;

pub use grown::{answer_to, has_grown, limit_bytes, request_memory, take_grown};
pub use unplug::{acknowledge, enter_place, offer, settlement, unplug_request};

use crate::apic::local;
use crate::authority::Authority;
use crate::cpu::Features;
use crate::device::Windows;
use crate::dma;
use crate::image::Bounds;
use crate::registers::Registers;
use crate::window::{OwnMemory, Tables, Window};
use alloc::vec::Vec;
use core::fmt;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, Ordering};
use isola_abi::descriptor::{
    BODY_OFFSET, Descriptor, DescriptorError, DeviceKind, LiveWords, Request, Transport,
};
use isola_abi::id::NodeId;
use isola_abi::layout::{DESCRIPTOR, DESCRIPTOR_SIZE, DIRECT_MAP, PageSize, REGION_TABLES, REPORT};
use isola_abi::ledger::Ledger;
use isola_abi::places::Places;
use isola_abi::query::Questions;
use isola_abi::report::Report;

/// A cell.
#[derive(Debug)]
pub struct Cell {
    /// What the cell was told.
    pub descriptor: Descriptor,
    /// Its pool, in the direct map: zeroed, and whole pages; each range with the node that it belongs to.
    pub pool: Vec<(NodeId, &'static mut [u8])>,
    /// The virtual memory that it maps itself.
    pub window: Window,
    /// Its devices.
    pub devices: Vec<(DeviceKind, Windows)>,
    /// The right to program the hardware of the cell's cores.
    pub authority: Authority,
}

/// Why there is no cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CellError {
    /// The descriptor cannot be read.
    Descriptor(DescriptorError),
    /// It was opened before.
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
    /// Reads the descriptor, and puts it to use for this crate: how interrupts are sent, where the image's
    /// constants are for devices. For the first core of a cell, before it does anything else here.
    ///
    /// # Errors
    /// A [`CellError`]; the second time, [`CellError::Opened`].
    pub fn open() -> Result<Self, CellError> {
        static OPENED: AtomicBool = AtomicBool::new(false);
        if OPENED.swap(true, Ordering::AcqRel) {
            return Err(CellError::Opened);
        }
        let len = DESCRIPTOR_SIZE as usize - BODY_OFFSET;
        // SAFETY: in every cell the area is mapped there, read-only; elsewhere see above. Its builder changes nothing in it any more
        // but the live words, in front of the body.
        let body =
            unsafe { core::slice::from_raw_parts((DESCRIPTOR as usize + BODY_OFFSET) as *const u8, len) };
        let descriptor = Descriptor::decode(body).map_err(CellError::Descriptor)?;
        local::set_mode(descriptor.interrupt_mode);
        dma::set_image(descriptor.image.clone());
        let devices = descriptor
            .devices
            .iter()
            // SAFETY: who built the cell has mapped these registers for it, for good, and they are handed out
            // this once.
            .map(|device| (device.kind, unsafe { windows(&device.transport) }))
            .collect();
        let pool = descriptor
            .pool
            .iter()
            // SAFETY: who built the cell has mapped its pool there, for good; the pool is handed out this
            // once. Any byte is a value.
            .map(|range| unsafe {
                let start = (DIRECT_MAP + range.memory.start.0) as *mut u8;
                (range.node, core::slice::from_raw_parts_mut(start, range.memory.len_bytes as usize))
            })
            .collect();
        let window = window(&descriptor);
        Ok(Self { descriptor, pool, window, devices, authority: Authority::OWN })
    }
}

/// The window of the cell.
fn window(descriptor: &Descriptor) -> Window {
    let base = NonNull::new(REGION_TABLES as *mut u8).unwrap_or(NonNull::dangling());
    // SAFETY: who built the cell has mapped zeroed tables there, as many as the descriptor says, for good; they are
    // handed out this once.
    let tables = unsafe { Tables::new(base, descriptor.region_tables) };
    let variables = Bounds::of_image().data_start;
    let data = descriptor.image.iter().find(|segment| segment.virt == variables).copied();
    let largest = if Features::read().gib_pages { PageSize::OneGib } else { PageSize::TwoMib };
    Window::new(
        tables,
        OwnMemory::new(descriptor.pool.iter().map(|range| range.memory).collect(), data, live()),
        largest,
    )
}

/// What the cell tells. Each field is written as `isola_abi::report` says.
pub fn report() -> &'static Report {
    let places = live().core_places.load(Ordering::Relaxed) as usize;
    // SAFETY: in every cell the report is mapped there, for good, with records for all its places, and consists of atomics;
    // elsewhere see above.
    unsafe { &*Report::at(REPORT as *const u8, places) }
}

/// The cell's ledger.
pub fn ledger() -> Ledger<'static> {
    let places = live().core_places.load(Ordering::Relaxed) as usize;
    let slots = live().activity_slots.load(Ordering::Relaxed) as usize;
    let (records, counters) = Ledger::parts(REPORT as *const u8, places, slots);
    // SAFETY: in every cell the ledger is mapped there, for good, behind the report, with so many slots, and consists of
    // atomics; elsewhere see above.
    unsafe { Ledger::new(&*records, &*counters) }
}

/// What the supervisor asks of the cell.
pub fn request() -> Request {
    Request::from_u32(live().request.load(Ordering::Acquire))
}

/// What the host tool asks of the cell.
pub fn questions() -> &'static Questions {
    &live().questions
}

/// The places that the cell has for cores.
pub fn places() -> &'static Places {
    &live().places
}

/// What the supervisor changes while the cell runs.
fn live() -> &'static LiveWords {
    // SAFETY: in every cell the words are mapped there, for good, and are atomics; elsewhere see above.
    unsafe { &*(DESCRIPTOR as *const LiveWords) }
}

/// # Safety
/// The registers must be mapped where `transport` says, for good.
unsafe fn windows(transport: &Transport) -> Windows {
    // SAFETY: the caller's.
    let at = |virt: u64, len: u64| unsafe {
        let base = NonNull::new(virt as *mut u8).unwrap_or(NonNull::dangling());
        Registers::new(base, if virt == 0 { 0 } else { len as usize })
    };
    match transport {
        Transport::Pci { config, bars } => Windows::Pci {
            config: at(*config, crate::device::pci::CONFIG_LEN),
            bars: bars.iter().map(|bar| (bar.index, at(bar.virt, bar.len_bytes))).collect(),
        },
        Transport::Mmio { registers, vector } => Windows::Mmio {
            registers: at(*registers, crate::device::virtio_mmio::WINDOW_LEN),
            vector: *vector,
        },
    }
}
