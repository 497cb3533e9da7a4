//! The multiprocessor table of machines without ACPI (Intel MultiProcessor Specification 1.4, chapter 4), such
//! as QEMU's `microvm,acpi=off` and Firecracker's.

use crate::acpi::IoApicEntry;
use crate::memory::physical::Physical;
use isola_abi::id::{ApicId, PhysAddr};

/// Possible locations of the table's pointer: the last KiB of conventional memory, and the BIOS.
const PLACES: [(u64, u64); 2] = [(0x9_fc00, 0xa_0000), (0xf_0000, 0x10_0000)];

const HEADER_LEN: u64 = 44;

/// Processors and I/O APICs, in the order of the table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MpTable {
    /// The usable processors.
    pub processors: alloc::vec::Vec<ApicId>,
    /// The I/O APICs, each with the first line that follows from this order, at 24 lines each.
    pub io_apics: alloc::vec::Vec<IoApicEntry>,
}

impl MpTable {
    /// Finds and reads the table; `None` if there is none.
    ///
    /// The number of entries in the header is ignored, as some loaders leave it zero.
    pub fn read(memory: &impl Physical) -> Option<Self> {
        let header = PhysAddr(find(memory)?);
        if memory.read_u32(header)?.to_le_bytes() != *b"PCMP" {
            return None;
        }
        let end = header.0 + u64::from(memory.read_u16(PhysAddr(header.0 + 4))?);
        let mut table = Self::default();
        let mut entry = header.0 + HEADER_LEN;
        while entry < end {
            let at = |offset: u64| PhysAddr(entry + offset);
            let enabled = memory.read_u8(at(3))? & 1 != 0;
            match memory.read_u8(at(0))? {
                0 => {
                    if enabled {
                        table.processors.push(ApicId(memory.read_u8(at(1))?.into()));
                    }
                    entry += 20;
                    continue;
                }
                2 if enabled => {
                    let address = PhysAddr(memory.read_u32(at(4))?.into());
                    table
                        .io_apics
                        .push(IoApicEntry { address, first_line: 24 * table.io_apics.len() as u32 });
                }
                _ => {}
            }
            entry += 8;
        }
        Some(table)
    }
}

/// Returns the address of the table, from its floating pointer: 16 bytes that sum to zero.
fn find(memory: &impl Physical) -> Option<u64> {
    PLACES.into_iter().flat_map(|(start, end)| (start..end).step_by(16)).find_map(|address| {
        let mut pointer = [0u8; 16];
        memory.read(PhysAddr(address), &mut pointer)?;
        let sum = pointer.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte));
        let table = u32::from_le_bytes([pointer[4], pointer[5], pointer[6], pointer[7]]);
        (pointer.starts_with(b"_MP_") && sum == 0 && table != 0).then_some(table.into())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::physical::fake::FakeMemory;

    fn memory(entries: &[u8]) -> FakeMemory {
        let mut memory = FakeMemory::new(0x9_f000, 0x1000);
        let mut pointer = *b"_MP_\x40\xfc\x09\0\x01\x04\0\0\0\0\0\0";
        pointer[10] = 0u8.wrapping_sub(pointer.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte)));
        memory.put(0x9_fc10, &pointer);
        memory.put(0x9_fc40, b"PCMP");
        memory.put(0x9_fc44, &(HEADER_LEN as u16 + entries.len() as u16).to_le_bytes());
        memory.put(0x9_fc40 + HEADER_LEN, entries);
        memory
    }

    #[test]
    fn processors_and_controllers_are_found() {
        let mut entries = alloc::vec::Vec::new();
        for (id, flags) in [(0u8, 3u8), (1, 1), (2, 0), (5, 1)] {
            entries.extend([0, id, 20, flags]);
            entries.extend([0; 16]);
        }
        entries.extend([1, 0, b'I', b'S', b'A', 0, 0, 0]);
        entries.extend([2, 0, 0x11, 1, 0, 0, 0xc0, 0xfe]);
        let table = MpTable::read(&memory(&entries)).unwrap();
        assert_eq!(table.processors, [ApicId(0), ApicId(1), ApicId(5)]);
        let controller = IoApicEntry { address: PhysAddr(0xfec0_0000), first_line: 0 };
        assert_eq!(table.io_apics, [controller]);
    }

    #[test]
    fn a_missing_or_invalid_table_is_rejected() {
        assert_eq!(MpTable::read(&FakeMemory::new(0x9_f000, 0x1000)), None);
        let mut broken = memory(&[]);
        broken.put(0x9_fc1f, &[7]);
        assert_eq!(MpTable::read(&broken), None);
    }

    #[test]
    fn a_length_beyond_memory_is_rejected() {
        let mut broken = memory(&[]);
        broken.put(0x9_fc44, &u16::MAX.to_le_bytes());
        assert_eq!(MpTable::read(&broken), None);
    }
}
