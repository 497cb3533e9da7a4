//! Valid and damaged tables.

use super::*;
use crate::memory::physical::fake::FakeMemory;
use proptest::prelude::*;

const BASE: u64 = 0x1000;
const RSDP: PhysAddr = PhysAddr(BASE);

/// Sets the byte at `place` so that `bytes` sum to zero.
fn seal(bytes: &mut [u8], place: usize) {
    bytes[place] = 0;
    bytes[place] = bytes.iter().fold(0u8, |sum, byte| sum.wrapping_sub(*byte));
}

/// Returns a table with a right length and checksum.
fn table(signature: &[u8; 4], body: &[u8]) -> Vec<u8> {
    let mut bytes = signature.to_vec();
    bytes.extend((36 + body.len() as u32).to_le_bytes());
    bytes.resize(36, 0);
    bytes.extend(body);
    seal(&mut bytes, 9);
    bytes
}

/// Returns memory with a root pointer, a root table of 8-byte entries, and tables.
fn memory(tables: &[Vec<u8>]) -> FakeMemory {
    let mut memory = FakeMemory::new(BASE, 0x4000);
    let mut end = BASE + 0x1000;
    let mut addresses = Vec::new();
    for table in tables {
        memory.put(end, table);
        addresses.extend(end.to_le_bytes());
        end += table.len().next_multiple_of(16) as u64;
    }
    memory.put(BASE + 0x100, &self::table(b"XSDT", &addresses));
    let mut pointer = *b"RSD PTR \0isola \x02\0\0\0\0";
    seal(&mut pointer, 8);
    memory.put(BASE, &pointer);
    memory.put(BASE + 24, &(BASE + 0x100).to_le_bytes());
    memory
}

fn madt() -> Vec<u8> {
    let mut body = alloc::vec![0; 8];
    body.extend([0, 8, 0, 0, 1, 0, 0, 0]); // processor, APIC 0
    body.extend([0, 8, 1, 4, 1, 0, 0, 0]); // processor, APIC 4
    body.extend([0, 8, 2, 5, 0, 0, 0, 0]); // a disabled one
    body.extend([0, 8, 2, 6, 2, 0, 0, 0]); // a disabled one that can be enabled
    body.extend([1, 12, 0, 0, 0, 0, 0xc0, 0xfe, 0, 0, 0, 0]);
    body.extend([1, 12, 1, 0, 0, 0x10, 0xc0, 0xfe, 24, 0, 0, 0]);
    body.extend([2, 10, 0, 0, 2, 0, 0, 0, 0, 0]); // an override, which Isola ignores
    body.extend([9, 16, 0, 0, 0x2c, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]); // processor, x2APIC 300
    table(b"APIC", &body)
}

fn srat() -> Vec<u8> {
    let mut body = alloc::vec![0; 12];
    body.extend([0, 16, 7, 4, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]); // APIC 4 in domain 7
    body.extend([2, 24, 0, 0, 9, 0, 0, 0, 0x2c, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    for (domain, start, len, enabled) in
        [(7u32, 0u64, 0x8000_0000u64, 1u32), (9, 1 << 32, 1 << 30, 1), (9, 0, 1, 0)]
    {
        body.extend([1, 40]);
        body.extend(domain.to_le_bytes());
        body.extend([0, 0]);
        body.extend(start.to_le_bytes());
        body.extend(len.to_le_bytes());
        body.extend([0; 4]);
        body.extend(enabled.to_le_bytes());
        body.extend([0; 8]);
    }
    table(b"SRAT", &body)
}

fn mcfg() -> Vec<u8> {
    let mut body = alloc::vec![0; 8];
    for (base, group, first, last) in [(0xb000_0000u64, 0u16, 0u8, 255u8), (1, 1, 0, 255), (2, 0, 3, 2)] {
        body.extend(base.to_le_bytes());
        body.extend(group.to_le_bytes());
        body.extend([first, last, 0, 0, 0, 0]);
    }
    table(b"MCFG", &body)
}

fn fadt(flags: u32) -> Vec<u8> {
    let mut body = alloc::vec![0; 240];
    body[76 - 36..80 - 36].copy_from_slice(&0x608u32.to_le_bytes());
    body[112 - 36..116 - 36].copy_from_slice(&flags.to_le_bytes());
    table(b"FACP", &body)
}

#[test]
fn all_supported_entries_are_read() {
    let acpi = Acpi::read(&memory(&[fadt(0), madt(), srat(), mcfg()]), RSDP).unwrap();
    assert_eq!(acpi.processors, [ApicId(0), ApicId(4), ApicId(300)]);
    let io_apic = |address, first_line| IoApicEntry { address: PhysAddr(address), first_line };
    assert_eq!(acpi.io_apics, [io_apic(0xfec0_0000, 0), io_apic(0xfec0_1000, 24)]);
    assert_eq!(acpi.processor_domains, [(ApicId(4), 7), (ApicId(300), 9)]);
    let low = PhysRange::new(PhysAddr(0), 0x8000_0000);
    let high = PhysRange::new(PhysAddr(1 << 32), 1 << 30);
    assert_eq!(acpi.memory_domains, [(low, 7), (high, 9)]);
    assert_eq!(acpi.pci_segments, [PciSegment { base: PhysAddr(0xb000_0000), first_bus: 0, last_bus: 255 }]);
    assert_eq!((acpi.timer_port, acpi.hardware_reduced), (Some(0x608), false));
}

#[test]
fn a_hardware_reduced_machine_has_no_timer() {
    let acpi = Acpi::read(&memory(&[fadt(1 << 20)]), RSDP).unwrap();
    assert_eq!((acpi.timer_port, acpi.hardware_reduced), (None, true));
}

#[test]
fn a_root_table_of_4_byte_entries_is_read() {
    let mut memory = memory(&[madt()]);
    let mut pointer = *b"RSD PTR \0isola \0\0\x12\0\0";
    seal(&mut pointer, 8);
    memory.put(BASE, &pointer);
    memory.put(BASE + 0x200, &table(b"RSDT", &(BASE as u32 + 0x1000).to_le_bytes()));
    assert_eq!(Acpi::read(&memory, RSDP).unwrap().processors.len(), 3);
}

#[test]
fn an_invalid_root_pointer_is_rejected() {
    let mut memory = memory(&[madt()]);
    assert_eq!(Acpi::read(&memory, PhysAddr(BASE + 16)), None);
    assert_eq!(Acpi::read(&memory, PhysAddr(u64::MAX)), None);
    memory.put(BASE + 8, &[0xee]);
    assert_eq!(Acpi::read(&memory, RSDP), None);
}

#[test]
fn a_table_with_a_wrong_checksum_is_ignored() {
    let mut broken = madt();
    broken[50] ^= 1;
    let acpi = Acpi::read(&memory(&[broken, mcfg()]), RSDP).unwrap();
    assert_eq!((acpi.processors.len(), acpi.pci_segments.len()), (0, 1));
}

#[test]
fn an_invalid_entry_length_ends_the_table() {
    for (kind, len) in [(0, 0), (0, 1), (0, 9), (1, 200)] {
        let mut body = alloc::vec![0; 8];
        body.extend([0, 8, 0, 3, 1, 0, 0, 0]);
        body.extend([kind, len, 0, 3, 1, 0, 0, 0]);
        let acpi = Acpi::read(&memory(&[table(b"APIC", &body)]), RSDP).unwrap();
        assert_eq!(acpi.processors, [ApicId(3)], "{kind} {len}");
    }
}

proptest! {
    /// Arbitrary changes, also with corrected checksums, cause no panic, and no more entries are found than the table's
    /// bytes can hold.
    #[test]
    fn damaged_tables_are_rejected_or_bounded(
        changes in prop::collection::vec((0..400usize, any::<u8>()), 1..8),
        which in 0..4usize,
        sealed in any::<bool>(),
    ) {
        let mut tables = [fadt(0), madt(), srat(), mcfg()];
        let changed = &mut tables[which];
        for (place, byte) in changes {
            let len = changed.len();
            changed[place % len] = byte;
        }
        if sealed {
            seal(changed, 9);
        }
        if let Some(acpi) = Acpi::read(&memory(&tables), RSDP) {
            prop_assert!(acpi.processors.len() + acpi.io_apics.len() < 64);
            prop_assert!(acpi.memory_domains.len() < 64);
        }
    }

    /// In a table with random bytes and a right checksum, earlier entries are found, and no more than its bytes can
    /// hold.
    #[test]
    fn random_bytes_make_no_more_entries_than_they_can_hold(
        noise in prop::collection::vec(prop_oneof![0..24u8, any::<u8>()], 0..512),
        signature in prop::sample::select(&[b"APIC", b"FACP", b"SRAT", b"MCFG"][..]),
    ) {
        let mut processor = alloc::vec![0; 8];
        processor.extend([0, 8, 0, 3, 1, 0, 0, 0]);
        let noisy = match signature {
            b"APIC" => table(b"APIC", &[&processor[..], &noise].concat()),
            _ => table(signature, &noise),
        };
        let mut tables = alloc::vec![noisy];
        if signature != b"APIC" {
            tables.push(table(b"APIC", &processor));
        }
        let acpi = Acpi::read(&memory(&tables), RSDP);
        prop_assert!(acpi.is_some(), "the other tables are read");
        let acpi = acpi.unwrap_or_default();
        prop_assert_eq!(acpi.processors.first(), Some(&ApicId(3)));
        prop_assert!(acpi.processors.len() <= 1 + noise.len() / 8);
        prop_assert!(acpi.io_apics.len() <= noise.len() / 12);
        prop_assert!(acpi.pci_segments.len() <= noise.len() / 16);
        prop_assert!(acpi.memory_domains.len() <= noise.len() / 40);
    }

    /// A root table with random addresses and a right checksum leads to no table.
    #[test]
    fn random_addresses_lead_to_no_table(
        noise in prop::collection::vec(0x0001_0000_0000_u64.., 0..60),
    ) {
        let mut memory = memory(&[madt()]);
        let addresses: Vec<u8> = noise.iter().flat_map(|address| address.to_le_bytes()).collect();
        memory.put(BASE + 0x100, &table(b"XSDT", &addresses));
        let acpi = Acpi::read(&memory, RSDP);
        prop_assert!(acpi.is_some_and(|acpi| acpi.processors.is_empty() && acpi.io_apics.is_empty()));
    }
}
