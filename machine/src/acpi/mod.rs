//! ACPI's static tables, as far as Isola reads them (ACPI specification 6.5, chapter 5.2).
//!
//! A table from firmware with a wrong length or checksum is ignored, and no access goes beyond a table's end. In the
//! bytecode that describes devices (DSDT), only the package `_S5_` is read.

mod soft_off;
mod tables;
#[cfg(test)]
mod tests;

pub use soft_off::SoftOff;

use crate::memory::physical::Physical;
use alloc::vec::Vec;
use isola_abi::id::{ApicId, PhysAddr, PhysRange};

/// The contents of the tables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Acpi {
    /// The usable processors, in the order of the table.
    pub processors: Vec<ApicId>,
    /// The I/O APICs.
    pub io_apics: Vec<IoApicEntry>,
    /// The proximity domains of processors.
    pub processor_domains: Vec<(ApicId, u32)>,
    /// The proximity domains of memory.
    pub memory_domains: Vec<(PhysRange, u32)>,
    /// The memory-mapped PCI configuration spaces.
    pub pci_segments: Vec<PciSegment>,
    /// I/O port of the power management timer.
    pub timer_port: Option<u16>,
    /// Whether the machine lacks the fixed hardware of PCs, as small virtual machines do.
    pub hardware_reduced: bool,
    /// The write that switches the machine off.
    pub soft_off: Option<SoftOff>,
}

/// An I/O APIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IoApicEntry {
    /// The address of its registers.
    pub address: PhysAddr,
    /// The global number of its first line.
    pub first_line: u32,
}

/// A range of buses whose configuration space is in memory: 4 KiB a function (PCI Express 7.2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PciSegment {
    /// The address of bus 0's configuration space, even if bus 0 is not in the range.
    pub base: PhysAddr,
    /// First bus.
    pub first_bus: u8,
    /// Last bus.
    pub last_bus: u8,
}

impl Acpi {
    /// Reads the tables of the root pointer at `rsdp`; `None` if there is no root pointer.
    pub fn read(memory: &impl Physical, rsdp: PhysAddr) -> Option<Self> {
        let mut acpi = Self::default();
        for table in tables::all(memory, rsdp)? {
            match &table.signature() {
                b"APIC" => acpi.read_madt(&table),
                b"SRAT" => acpi.read_srat(&table),
                b"MCFG" => acpi.read_mcfg(&table),
                b"FACP" => acpi.read_fadt(memory, &table),
                _ => {}
            }
        }
        Some(acpi)
    }

    /// Reads the MADT (5.2.12). A processor that is off but can be enabled does not count as usable.
    fn read_madt(&mut self, table: &tables::Table) {
        const ENABLED: u32 = 1;
        for entry in table.entries(44) {
            match entry.kind() {
                0 if entry.u32(4).is_some_and(|flags| flags & ENABLED != 0) => {
                    self.processors.extend(entry.u8(3).map(|id| ApicId(id.into())));
                }
                9 if entry.u32(8).is_some_and(|flags| flags & ENABLED != 0) => {
                    self.processors.extend(entry.u32(4).map(ApicId));
                }
                1 => {
                    if let (Some(address), Some(first_line)) = (entry.u32(4), entry.u32(8)) {
                        self.io_apics.push(IoApicEntry { address: PhysAddr(address.into()), first_line });
                    }
                }
                _ => {}
            }
        }
    }

    /// Reads the SRAT (5.2.16).
    fn read_srat(&mut self, table: &tables::Table) {
        const ENABLED: u32 = 1;
        for entry in table.entries(48) {
            let enabled = |offset| entry.u32(offset).is_some_and(|flags| flags & ENABLED != 0);
            match entry.kind() {
                0 if enabled(4) => {
                    let high = [9, 10, 11].map(|offset| entry.u8(offset).unwrap_or(0));
                    if let (Some(low), Some(id)) = (entry.u8(2), entry.u8(3)) {
                        let domain = u32::from_le_bytes([low, high[0], high[1], high[2]]);
                        self.processor_domains.push((ApicId(id.into()), domain));
                    }
                }
                1 if enabled(28) => {
                    if let (Some(domain), Some(start), Some(len_bytes)) =
                        (entry.u32(2), entry.u64(8), entry.u64(16))
                    {
                        self.memory_domains.push((PhysRange::new(PhysAddr(start), len_bytes), domain));
                    }
                }
                2 if enabled(12) => {
                    if let (Some(domain), Some(id)) = (entry.u32(4), entry.u32(8)) {
                        self.processor_domains.push((ApicId(id), domain));
                    }
                }
                _ => {}
            }
        }
    }

    /// Reads the MCFG (PCI Firmware specification 3.3, 4.1.2). Isola uses only the first segment group.
    fn read_mcfg(&mut self, table: &tables::Table) {
        for offset in (44..).step_by(16) {
            let (Some(base), Some(group)) = (table.u64(offset), table.u16(offset + 8)) else { break };
            let (Some(first_bus), Some(last_bus)) = (table.u8(offset + 10), table.u8(offset + 11)) else {
                break;
            };
            if group == 0 && first_bus <= last_bus {
                self.pci_segments.push(PciSegment { base: PhysAddr(base), first_bus, last_bus });
            }
        }
    }

    /// Reads the FADT (5.2.9).
    fn read_fadt(&mut self, memory: &impl Physical, table: &tables::Table) {
        const HARDWARE_REDUCED: u32 = 1 << 20;
        let port = table.u32(76).filter(|port| *port != 0).and_then(|port| u16::try_from(port).ok());
        self.hardware_reduced = table.u32(112).is_some_and(|flags| flags & HARDWARE_REDUCED != 0);
        if !self.hardware_reduced {
            self.timer_port = port;
        }
        self.soft_off = SoftOff::read(memory, table, self.hardware_reduced);
    }
}
