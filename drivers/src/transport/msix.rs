//! Message interrupts of PCI functions: the MSI-X table (PCI Local Bus 3.0, 6.8.2).

use super::{MessageControl, RegisterWindow};
use isola_machine::apic::InterruptMessage;

/// Size of an entry of the table, in bytes.
pub(super) const ENTRY_LEN: usize = 16;

const ADDRESS: usize = 0;
const DATA: usize = 8;
const CONTROL: usize = 12;
const CONTROL_MASKED: u32 = 1;

/// An entry of a function's MSI-X table.
#[derive(Debug)]
pub struct MessageEntry<W> {
    /// The 16 bytes of the entry.
    entry: W,
}

impl<W: RegisterWindow> MessageEntry<W> {
    /// Returns the entry `index` of the table `table`, `None` if it is outside of it.
    pub(super) fn new(table: &W, index: u16) -> Option<Self> {
        Some(Self { entry: table.window(usize::from(index) * ENTRY_LEN, ENTRY_LEN)? })
    }
}

impl<W: RegisterWindow> MessageControl for MessageEntry<W> {
    fn mask(&mut self) {
        self.entry.write_u32(CONTROL, self.entry.read_u32(CONTROL) | CONTROL_MASKED);
    }

    fn unmask(&mut self) {
        self.entry.write_u32(CONTROL, self.entry.read_u32(CONTROL) & !CONTROL_MASKED);
    }

    fn redirect(&mut self, message: InterruptMessage) {
        // Masked during the change: an interrupt from a half-written entry would have a wrong destination.
        self.mask();
        self.entry.write_u32(ADDRESS, message.address as u32);
        self.entry.write_u32(ADDRESS + 4, (message.address >> 32) as u32);
        self.entry.write_u32(DATA, message.data);
        self.unmask();
    }
}
