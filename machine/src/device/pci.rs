//! PCI functions with memory-mapped configuration space (PCI Express base specification 5.0, 7.5; PCI local bus
//! specification 3.0, 6.2.5).
//!
//! Functions are enumerated and their memory BARs measured once, at boot; BARs are not moved. A cell that has a
//! function's configuration space mapped can write to all of it; [`PciFunction::reset`] restores the values of the
//! boot.

use super::{DeviceRegisters, DeviceResetError, virtio_kind, wait_for_zero};
use crate::registers::Registers;
use crate::restart::KnownFunction;
use alloc::vec::Vec;
use core::fmt;
use isola_abi::descriptor::DeviceKind;
use isola_abi::id::{PhysAddr, PhysRange};

/// Bytes of the configuration space of a function, and of a bus.
pub const CONFIG_LEN: u64 = 0x1000;
const BUS_LEN: u64 = 0x10_0000;

const VENDOR: usize = 0x00;
const DEVICE: usize = 0x02;
const COMMAND: usize = 0x04;
const HEADER: usize = 0x0e;
const FIRST_BAR: usize = 0x10;
const SECONDARY_BUS: usize = 0x19;
const CAPABILITIES: usize = 0x34;

const MEMORY_SPACE: u16 = 1 << 1;
const BUS_MASTER: u16 = 1 << 2;
const NO_LINE_INTERRUPT: u16 = 1 << 10;

const VENDOR_SPECIFIC: u8 = 0x09;
const MSI_X: u8 = 0x11;

const VIRTIO_VENDOR: u16 = 0x1af4;
/// The device number of a modern virtio device is this plus the number of its kind (Virtio 1.2, 4.1.2.1).
const VIRTIO_DEVICE: u16 = 0x1040;
/// The kind of the capability that locates the common registers (4.1.4), and the offset of the status among them.
const COMMON_REGISTERS: u8 = 1;
/// The same for the registers of the device's kind.
const DEVICE_REGISTERS: u8 = 4;
const DEVICE_STATUS: usize = 20;

/// A function.
#[derive(Debug)]
pub struct PciFunction {
    address: PciAddress,
    vendor: u16,
    device: u16,
    command: u16,
    config: Registers,
    config_address: PhysAddr,
    bars: Vec<BarLocation>,
    /// The BARs' registers, as they were at boot.
    bar_values: [u32; 6],
    windows: Vec<(u8, Registers)>,
}

/// The address of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PciAddress {
    /// Its bus.
    pub bus: u8,
    /// Its device on the bus.
    pub device: u8,
    /// Its number in the device.
    pub function: u8,
}

/// A memory BAR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BarLocation {
    /// Its index, below 6.
    pub index: u8,
    /// Its address range.
    pub memory: PhysRange,
}

/// Enumerates the functions of a segment from its first bus on. `space` is its configuration space, which begins at
/// physical address `base`.
pub(crate) fn enumerate(space: &Registers, base: PhysAddr, first_bus: u8) -> Vec<PciFunction> {
    let mut found = Vec::new();
    let mut seen = [false; 256];
    let mut buses = alloc::vec![first_bus];
    while let Some(bus) = buses.pop() {
        if core::mem::replace(&mut seen[usize::from(bus)], true) {
            continue;
        }
        for device in 0..32 {
            for function in 0..8 {
                let address = PciAddress { bus, device, function };
                let offset = u64::from(bus - first_bus) * BUS_LEN
                    + (u64::from(device) * 8 + u64::from(function)) * CONFIG_LEN;
                let Some(config) = space.window(offset as usize, CONFIG_LEN as usize) else { break };
                if config.read_u16(VENDOR) == u16::MAX {
                    if function == 0 {
                        break;
                    }
                    continue;
                }
                let header = config.read_u8(HEADER);
                match header & 0x7f {
                    0 => found.push(PciFunction::read(address, config, PhysAddr(base.0 + offset))),
                    1 => {
                        let below = config.read_u8(SECONDARY_BUS);
                        buses.extend((below > first_bus).then_some(below));
                    }
                    _ => {}
                }
                if function == 0 && header & 0x80 == 0 {
                    break;
                }
            }
        }
    }
    found
}

impl PciFunction {
    fn read(address: PciAddress, config: Registers, config_address: PhysAddr) -> Self {
        let command = config.read_u16(COMMAND);
        let bar_values = core::array::from_fn(|index| config.read_u32(FIRST_BAR + 4 * index));
        let mut function = Self {
            address,
            vendor: config.read_u16(VENDOR),
            device: config.read_u16(DEVICE),
            command: (command | MEMORY_SPACE | NO_LINE_INTERRUPT) & !BUS_MASTER,
            config,
            config_address,
            bars: Vec::new(),
            bar_values,
            windows: Vec::new(),
        };
        function.config.write_u16(COMMAND, command & !(MEMORY_SPACE | BUS_MASTER));
        function.bars = measure(&function.config, &bar_values);
        function.config.write_u16(COMMAND, function.command);
        function
    }

    /// Creates the function as it was at boot, from the survey; its configuration space is in `segment`, which begins
    /// at `base`.
    pub(crate) fn known(known: &KnownFunction, segment: &Registers, base: PhysAddr) -> Option<Self> {
        let offset = usize::try_from(known.config_address.0.checked_sub(base.0)?).ok()?;
        let (bus, device, function) = known.address;
        Some(Self {
            address: PciAddress { bus, device, function },
            vendor: known.vendor,
            device: known.device,
            command: known.command,
            config: segment.window(offset, CONFIG_LEN as usize)?,
            config_address: known.config_address,
            bars: known.bars.iter().map(|&(index, memory)| BarLocation { index, memory }).collect(),
            bar_values: known.bar_values,
            windows: Vec::new(),
        })
    }

    /// Returns the data of the function for the survey.
    pub(crate) fn survey(&self) -> KnownFunction {
        KnownFunction {
            address: (self.address.bus, self.address.device, self.address.function),
            config_address: self.config_address,
            vendor: self.vendor,
            device: self.device,
            command: self.command,
            bars: self.bars.iter().map(|bar| (bar.index, bar.memory)).collect(),
            bar_values: self.bar_values,
        }
    }

    /// Returns the status register of a virtio device, which stops it.
    pub(super) fn status_register(&self) -> Option<Registers> {
        self.virtio_registers(COMMON_REGISTERS, DEVICE_STATUS, 1)
    }

    /// Returns the first bytes of the registers of a virtio device's kind.
    pub(super) fn device_registers(&self, len: usize) -> Option<Registers> {
        self.virtio_registers(DEVICE_REGISTERS, 0, len)
    }

    /// Returns `len` bytes of virtio registers of that kind, from `start` on.
    fn virtio_registers(&self, kind: u8, start: usize, len: usize) -> Option<Registers> {
        let mut all = capabilities(&self.config).into_iter().filter(|(found, _)| *found == VENDOR_SPECIFIC);
        all.find_map(|(_, offset)| self.virtio_registers_at(offset, kind, start, len))
    }

    /// Returns the same, if the capability at `offset` locates them.
    fn virtio_registers_at(&self, offset: usize, kind: u8, start: usize, len: usize) -> Option<Registers> {
        if self.config.read_u8(offset + 3) != kind {
            return None;
        }
        let bar = self.config.read_u8(offset + 4);
        let place = self.config.read_u32(offset + 8) as usize;
        let (_, window) = self.windows.iter().find(|(index, _)| *index == bar)?;
        window.window(place.checked_add(start)?, len)
    }

    /// Returns the function's address.
    pub fn address(&self) -> PciAddress {
        self.address
    }

    /// Returns the vendor and device numbers.
    pub fn identity(&self) -> (u16, u16) {
        (self.vendor, self.device)
    }

    /// Returns the memory BARs.
    pub fn bars(&self) -> &[BarLocation] {
        &self.bars
    }

    /// Returns the function's kind; `None` if Isola has no driver for it.
    pub fn kind(&self) -> Option<DeviceKind> {
        let id = self.device.checked_sub(VIRTIO_DEVICE).filter(|_| self.vendor == VIRTIO_VENDOR)?;
        virtio_kind(id.into())
    }

    /// Returns the address range of its configuration space.
    pub(crate) fn config_address(&self) -> PhysRange {
        PhysRange::new(self.config_address, CONFIG_LEN)
    }

    /// Adds the mapped registers of a BAR.
    pub(crate) fn add_window(&mut self, index: u8, registers: Registers) {
        self.windows.push((index, registers));
    }

    /// Returns the registers.
    pub(super) fn registers(&self) -> DeviceRegisters {
        let bars = self.windows.iter().map(|(index, window)| (*index, window.duplicate())).collect();
        DeviceRegisters::Pci { config: self.config.duplicate(), bars }
    }

    /// Stops the function: no access to memory, no interrupts; BARs and command register as they were at boot.
    pub(super) fn reset(&mut self) -> Result<(), DeviceResetError> {
        self.config.write_u16(COMMAND, self.command & !MEMORY_SPACE);
        for (index, value) in self.bar_values.iter().enumerate() {
            self.config.write_u32(FIRST_BAR + 4 * index, *value);
        }
        self.config.write_u16(COMMAND, self.command);
        for (capability, offset) in capabilities(&self.config) {
            if capability == MSI_X {
                self.config.write_u16(offset + 2, 0);
            }
        }
        // Other functions have no driver, so none of their registers is mapped, and no cell has them.
        if self.kind().is_some() { self.reset_virtio() } else { Ok(()) }
    }

    /// Resets a virtio device. One without a mapped status register keeps its queues.
    fn reset_virtio(&self) -> Result<(), DeviceResetError> {
        let status = self.status_register().ok_or(DeviceResetError)?;
        status.write_u8(0, 0);
        wait_for_zero(|| status.read_u8(0).into())
    }
}

/// Measures the memory BARs: writes ones, and reads back the writable bits (6.2.5.1). The function must not decode
/// addresses.
fn measure(config: &Registers, values: &[u32; 6]) -> Vec<BarLocation> {
    let mut bars = Vec::new();
    let mut index = 0;
    while index < 6 {
        let value = values[index];
        let is_64_bit = value & 0b110 == 0b100;
        let next = index + if is_64_bit && value & 1 == 0 { 2 } else { 1 };
        if value & 1 == 0 && next <= 6 {
            let mask = |register: usize| {
                let offset = FIRST_BAR + 4 * register;
                config.write_u32(offset, u32::MAX);
                let mask = config.read_u32(offset);
                config.write_u32(offset, values[register]);
                u64::from(mask)
            };
            let low = mask(index) & !0xf;
            let (high, upper) = match is_64_bit {
                true => (mask(index + 1), u64::from(values[index + 1]) << 32),
                false if low == 0 => (0, 0),
                false => (u64::from(u32::MAX), 0),
            };
            let start = upper | u64::from(value & !0xf);
            let len_bytes = (high << 32 | low).wrapping_neg();
            if len_bytes != 0 && start != 0 {
                let memory = PhysRange::new(PhysAddr(start), len_bytes);
                bars.push(BarLocation { index: index as u8, memory });
            }
        }
        index = next;
    }
    bars
}

/// Returns the capabilities of a function: kind, and offset in configuration space. The length is bounded, as a list
/// may be cyclic.
fn capabilities(config: &Registers) -> Vec<(u8, usize)> {
    let mut found = Vec::new();
    let mut offset = usize::from(config.read_u8(CAPABILITIES) & !3);
    while (0x40..0xf8).contains(&offset) && found.len() < 48 {
        found.push((config.read_u8(offset), offset));
        offset = usize::from(config.read_u8(offset + 1) & !3);
    }
    found
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02x}:{:02x}.{}", self.bus, self.device, self.function)
    }
}

impl fmt::Display for PciFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pci {} {:04x}:{:04x}", self.address, self.vendor, self.device)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::ptr::NonNull;

    const NETWORK: u16 = VIRTIO_DEVICE + 1;
    const ENTROPY: u16 = VIRTIO_DEVICE + 4;

    fn registers<const WORDS: usize>(memory: &mut [u64; WORDS]) -> Registers {
        // SAFETY: the array outlives the range in each test, and is accessed only through it meanwhile.
        unsafe { Registers::new(NonNull::from(memory).cast(), 8 * WORDS) }
    }

    /// Returns a virtio function whose only capability locates the common registers at offset 0 of BAR 4.
    fn virtio(memory: &mut [u64; CONFIG_LEN as usize / 8], device: u16) -> PciFunction {
        let config = registers(memory);
        config.write_u16(VENDOR, VIRTIO_VENDOR);
        config.write_u16(DEVICE, device);
        config.write_u8(CAPABILITIES, 0x40);
        config.write_u32(0x40, u32::from(VENDOR_SPECIFIC) | u32::from(COMMON_REGISTERS) << 24);
        config.write_u8(0x44, 4);
        PciFunction::read(PciAddress { bus: 0, device: 3, function: 0 }, config, PhysAddr(0))
    }

    #[test]
    fn a_virtio_device_is_reset_by_its_status_register() {
        let (mut config, mut bar) = ([0; 512], [u64::MAX; 4]);
        let mut function = virtio(&mut config, NETWORK);
        function.add_window(4, registers(&mut bar));
        assert_eq!(function.reset(), Ok(()));
        assert_eq!(bar[2].to_le_bytes()[DEVICE_STATUS - 16], 0);
    }

    #[test]
    fn a_virtio_device_without_a_mapped_status_register_does_not_stop() {
        let (mut config, mut bar) = ([0; 512], [u64::MAX; 4]);
        assert_eq!(virtio(&mut config, NETWORK).reset(), Err(DeviceResetError));
        let mut function = virtio(&mut config, NETWORK);
        function.add_window(4, registers(&mut bar).window(0, DEVICE_STATUS).unwrap());
        assert_eq!(function.reset(), Err(DeviceResetError), "the register is behind the end of the BAR");
    }

    #[test]
    fn a_function_without_a_driver_needs_no_mapped_registers() {
        let mut config = [0; 512];
        assert_eq!(virtio(&mut config, ENTROPY).reset(), Ok(()));
    }
}
