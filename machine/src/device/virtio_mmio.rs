//! Virtio devices with their registers in memory (Virtual I/O Device specification 1.2, 4.2), as small virtual
//! machines have them.
//!
//! They stand 512 bytes apart, eight to a page. So whoever has one mapped reaches its neighbours' registers
//! too: cells of such machines are kept from each other's devices by their drivers alone.

use super::{DoesNotStop, virtio_kind};
use crate::boot::command_line::MmioWindow;
use crate::registers::Registers;
use core::fmt;
use isola_abi::descriptor::DeviceKind;
use isola_abi::id::{PhysAddr, PhysRange};

const MAGIC: usize = 0x00;
const DEVICE_ID: usize = 0x08;
const STATUS: usize = 0x70;

/// "virt", little-endian.
const MAGIC_VALUE: u32 = 0x7472_6976;

/// Length of a device's registers.
pub const WINDOW_LEN: u64 = 0x200;

/// Where QEMU's machine type microvm has its devices, which nothing but bytecode says.
const MICROVM_BASE: u64 = 0xfeb0_0000;

/// A device.
#[derive(Debug)]
pub struct MmioDevice {
    place: MmioWindow,
    registers: Registers,
    id: u32,
}

/// The places where a machine of type microvm may have devices, given the first line of each I/O APIC: all of
/// the second one's lines, or eight of the first one's.
pub(crate) fn microvm_places(first_lines: &[u32]) -> impl Iterator<Item = MmioWindow> {
    let (first, count) = if first_lines.contains(&24) { (24, 24) } else { (16, 8) };
    (0..count).map(move |index| MmioWindow {
        registers: PhysRange::new(PhysAddr(MICROVM_BASE + u64::from(index) * WINDOW_LEN), WINDOW_LEN),
        interrupt: first + index,
    })
}

impl MmioDevice {
    /// The device behind `registers`; `None` where there is none.
    pub(crate) fn probe(place: MmioWindow, registers: Registers) -> Option<Self> {
        if registers.len() < WINDOW_LEN as usize || registers.read_u32(MAGIC) != MAGIC_VALUE {
            return None;
        }
        let id = registers.read_u32(DEVICE_ID);
        (id != 0).then_some(Self { place, registers, id })
    }

    /// What it is for.
    pub fn kind(&self) -> Option<DeviceKind> {
        virtio_kind(self.id)
    }

    /// The interrupt line by which it interrupts.
    pub fn interrupt_line(&self) -> u32 {
        self.place.interrupt
    }

    /// Where its registers are.
    pub(crate) fn place(&self) -> PhysRange {
        self.place.registers
    }

    /// Its registers.
    pub(super) fn registers(&self) -> Registers {
        self.registers.duplicate()
    }

    /// The register that stops it.
    pub(super) fn status_register(&self) -> Registers {
        self.registers.window(STATUS, 4).unwrap_or_else(|| self.registers.duplicate())
    }

    /// Stops it: a reset device uses no memory (4.2.2.1, 2.1.2).
    pub(super) fn reset(&mut self) -> Result<(), DoesNotStop> {
        self.registers.write_u32(STATUS, 0);
        super::wait_for_zero(|| self.registers.read_u32(STATUS))
    }
}

impl fmt::Display for MmioDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "virtio-mmio {:#x}, line {}", self.place.registers.start.0, self.place.interrupt)
    }
}
