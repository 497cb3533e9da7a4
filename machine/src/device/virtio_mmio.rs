//! Virtio devices with memory-mapped registers (Virtual I/O Device specification 1.2, 4.2), as small virtual machines
//! have them.
//!
//! They are 512 bytes apart, eight per page. So a cell that has one mapped can access the registers of its neighbours
//! too: on such machines only the drivers keep cells from each other's devices.

use super::{DeviceResetError, virtio_kind};
use crate::boot::command_line::MmioWindow;
use crate::registers::Registers;
use core::fmt;
use isola_abi::descriptor::DeviceKind;
use isola_abi::id::{PhysAddr, PhysRange};

const MAGIC: usize = 0x00;
const DEVICE_ID: usize = 0x08;
const STATUS: usize = 0x70;
const DEVICE_REGISTERS: usize = 0x100;

/// "virt", little-endian.
const MAGIC_VALUE: u32 = 0x7472_6976;

/// Length of a device's registers.
pub const WINDOW_LEN: u64 = 0x200;

/// The address of the devices of QEMU's machine type microvm, which only ACPI bytecode names.
const MICROVM_BASE: u64 = 0xfeb0_0000;

/// A device.
#[derive(Debug)]
pub struct MmioDevice {
    window: MmioWindow,
    registers: Registers,
    id: u32,
}

/// Returns the possible locations of devices on a machine of type microvm, given the first line of each I/O APIC: one
/// for each line of the second I/O APIC, or for eight lines of the first.
pub(crate) fn microvm_windows(first_lines: &[u32]) -> impl Iterator<Item = MmioWindow> {
    let (first, count) = if first_lines.contains(&24) { (24, 24) } else { (16, 8) };
    (0..count).map(move |index| MmioWindow {
        registers: PhysRange::new(PhysAddr(MICROVM_BASE + u64::from(index) * WINDOW_LEN), WINDOW_LEN),
        interrupt: first + index,
    })
}

impl MmioDevice {
    /// Returns the device behind `registers`; `None` if there is none.
    pub(crate) fn probe(window: MmioWindow, registers: Registers) -> Option<Self> {
        if registers.len() < WINDOW_LEN as usize || registers.read_u32(MAGIC) != MAGIC_VALUE {
            return None;
        }
        let id = registers.read_u32(DEVICE_ID);
        (id != 0).then_some(Self { window, registers, id })
    }

    /// Returns the device's kind; `None` if Isola has no driver for it.
    pub fn kind(&self) -> Option<DeviceKind> {
        virtio_kind(self.id)
    }

    /// Returns the device's interrupt line.
    pub fn interrupt_line(&self) -> u32 {
        self.window.interrupt
    }

    /// Returns the address range of the registers.
    pub(crate) fn register_range(&self) -> PhysRange {
        self.window.registers
    }

    /// Returns the registers.
    pub(super) fn registers(&self) -> Registers {
        self.registers.duplicate()
    }

    /// Returns the status register, which stops the device.
    pub(super) fn status_register(&self) -> Registers {
        self.registers.window(STATUS, 4).unwrap_or_else(|| self.registers.duplicate())
    }

    /// Returns the first bytes of the registers of the device's kind (4.2.2).
    pub(super) fn device_registers(&self, len: usize) -> Option<Registers> {
        self.registers.window(DEVICE_REGISTERS, len)
    }

    /// Stops the device: a reset device accesses no memory (4.2.2.1, 2.1.2).
    pub(super) fn reset(&mut self) -> Result<(), DeviceResetError> {
        self.registers.write_u32(STATUS, 0);
        super::wait_for_zero(|| self.registers.read_u32(STATUS))
    }
}

impl fmt::Display for MmioDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "virtio-mmio {:#x}, line {}", self.window.registers.start.0, self.window.interrupt)
    }
}
