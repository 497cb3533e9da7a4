//! Devices in software, for the tests: registers ([`registers`]) over PCI ([`pci`]) or MMIO, and the device's side of
//! rings ([`ring`]).

pub mod pci;
pub mod registers;
pub mod ring;
