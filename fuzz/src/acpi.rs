//! The firmware's ACPI tables.

use isola_abi::id::PhysAddr;
use isola_machine::acpi::Acpi;
use isola_machine::memory::physical::Physical;

/// The address of the memory that contains the input.
const BASE: u64 = 0xe_0000;

/// Memory with the tables at `BASE`; all other addresses are unreadable.
struct Memory(Vec<u8>);

impl Physical for Memory {
    fn read(&self, address: PhysAddr, into: &mut [u8]) -> Option<()> {
        let begin = usize::try_from(address.0.checked_sub(BASE)?).ok()?;
        into.copy_from_slice(self.0.get(begin..begin.checked_add(into.len())?)?);
        Some(())
    }
}

/// Sets the byte at `at` so that the bytes from `begin` to `end` sum to zero.
fn seal(bytes: &mut [u8], begin: usize, end: usize, at: usize) {
    let Some(range) = bytes.get_mut(begin..end).filter(|_| (begin..end).contains(&at)) else { return };
    range[at - begin] = 0;
    let sum = range.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte));
    range[at - begin] = sum.wrapping_neg();
}

/// Reads a root pointer, a root table and up to four tables, whose bodies are the input. The first byte can make a
/// checksum wrong; all lengths and other checksums are valid. The number of entries found must be within that of the
/// input.
pub fn tables(data: &[u8]) {
    let Some((&shape, mut body)) = data.split_first() else { return };
    let mut memory = vec![0; 36 + 36 + 4 * 8];
    memory[..8].copy_from_slice(b"RSD PTR ");
    memory[15] = 2;
    memory[20] = 36;
    memory[24..32].copy_from_slice(&(BASE + 36).to_le_bytes());
    memory[36..40].copy_from_slice(b"XSDT");
    memory[40] = 36 + 4 * 8;
    for (index, signature) in [b"APIC", b"SRAT", b"MCFG", b"FACP"].into_iter().enumerate() {
        let Some((&len, rest)) = body.split_first() else { break };
        let (content, rest) = rest.split_at(rest.len().min(len.into()));
        body = rest;
        let begin = memory.len();
        memory[72 + 8 * index..80 + 8 * index].copy_from_slice(&(BASE + begin as u64).to_le_bytes());
        memory.extend_from_slice(signature);
        memory.extend_from_slice(&(36 + content.len() as u32).to_le_bytes());
        memory.extend_from_slice(&[0; 28]);
        memory.extend_from_slice(content);
        let end = memory.len() - usize::from(shape >> 4 == 1);
        seal(&mut memory, begin, end, begin + 9);
    }
    seal(&mut memory, 36, 36 + 36 + 32, 36 + 9);
    seal(&mut memory, 0, 20, 8);
    seal(&mut memory, 0, 36 - usize::from(shape & 15 == 1), 32);
    let Some(acpi) = Acpi::read(&Memory(memory), PhysAddr(BASE)) else {
        assert!(shape & 15 == 1, "the root pointer is good");
        return;
    };
    let found = acpi.processors.len()
        + acpi.io_apics.len()
        + acpi.processor_domains.len()
        + acpi.memory_domains.len()
        + acpi.pci_segments.len();
    assert!(2 * found <= data.len(), "an entry has two bytes at least");
}
