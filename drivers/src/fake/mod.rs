//! Devices in software, for the tests: registers ([`registers`]) that a driver finds over PCI ([`pci`]) or MMIO,
//! and rings seen from the device's side ([`ring`]).

pub mod pci;
pub mod registers;
pub mod ring;
