//! Devices in software, for the tests: registers ([`registers`]) over PCI ([`pci`]) or MMIO, the device's side of rings
//! ([`ring`]), and a disk ([`disk`]).

pub mod disk;
pub mod pci;
pub mod registers;
pub mod ring;
