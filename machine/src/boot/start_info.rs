//! The start info of a PVH loader (Xen, `docs/misc/pvh.pandoc` and `public/arch-x86/hvm/start_info.h`, version 1).
//!
//! The loader is trusted as the machine's memory is, but all accesses that follow its data are bounds-checked.

use crate::memory::physical::Physical;
use alloc::string::String;
use alloc::vec::Vec;
use isola_abi::id::{PhysAddr, PhysRange};

const MAGIC: u32 = 0x336e_c578;
const LEN: u64 = 56;

/// Limit for the entries of the memory map and the module list; further entries are ignored.
const MAX_ENTRIES: u64 = 1024;
const MAX_COMMAND_LINE: u64 = 4096;

/// The type of a memory map entry for usable RAM.
const RAM: u32 = 1;

/// The contents of the start info.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StartInfo {
    /// The command line.
    pub command_line: String,
    /// Files that the loader placed beside the image: QEMU's `-initrd`.
    pub modules: Vec<PhysRange>,
    /// RAM, as the firmware reports it: unordered, unaligned, and including the image.
    pub ram: Vec<PhysRange>,
    /// The address of ACPI's root pointer, if the loader knows it.
    pub rsdp: Option<PhysAddr>,
    /// The memory of the start info structure.
    pub occupied: Vec<PhysRange>,
}

impl StartInfo {
    /// Reads the start info at `address`; `None` if there is none of version 1 or later.
    pub fn read(memory: &impl Physical, address: PhysAddr) -> Option<Self> {
        let at = |offset: u64| PhysAddr(address.0 + offset);
        if memory.read_u32(at(0))? != MAGIC || memory.read_u32(at(4))? < 1 {
            return None;
        }
        let mut info = Self { occupied: alloc::vec![PhysRange::new(address, LEN)], ..Self::default() };

        let modules = memory.read_u64(at(16))?;
        for index in 0..u64::from(memory.read_u32(at(12))?).min(MAX_ENTRIES) {
            let entry = PhysAddr(modules + index * 32);
            let start = PhysAddr(memory.read_u64(entry)?);
            info.modules.push(PhysRange::new(start, memory.read_u64(PhysAddr(entry.0 + 8))?));
        }

        let command_line = memory.read_u64(at(24))?;
        if command_line != 0 {
            info.command_line = read_text(memory, command_line);
        }
        info.rsdp = Some(PhysAddr(memory.read_u64(at(32))?)).filter(|rsdp| rsdp.0 != 0);

        let map = memory.read_u64(at(40))?;
        for index in 0..u64::from(memory.read_u32(at(48))?).min(MAX_ENTRIES) {
            let entry = PhysAddr(map + index * 24);
            let start = PhysAddr(memory.read_u64(entry)?);
            let len_bytes = memory.read_u64(PhysAddr(entry.0 + 8))?;
            if memory.read_u32(PhysAddr(entry.0 + 16))? == RAM {
                info.ram.push(PhysRange::new(start, len_bytes));
            }
        }
        Some(info)
    }
}

/// Returns the zero-terminated text at `address`, as far as it is within memory and bounds.
fn read_text(memory: &impl Physical, address: u64) -> String {
    let bytes: Vec<u8> = (0..MAX_COMMAND_LINE)
        .map_while(|offset| memory.read_u8(PhysAddr(address + offset)))
        .take_while(|byte| *byte != 0)
        .collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::physical::fake::FakeMemory;

    fn memory() -> FakeMemory {
        let mut memory = FakeMemory::new(0x1000, 0x1000);
        memory.put(0x1000, &MAGIC.to_le_bytes());
        memory.put(0x1004, &1u32.to_le_bytes());
        memory.put(0x100c, &1u32.to_le_bytes());
        for (field, target) in [(0x1010, 0x1100u64), (0x1018, 0x1200), (0x1020, 0xf_0000), (0x1028, 0x1300)] {
            memory.put(field, &target.to_le_bytes());
        }
        memory.put(0x1030, &2u32.to_le_bytes());
        memory.put(0x1100, &0x8000_0000u64.to_le_bytes());
        memory.put(0x1108, &0x1234u64.to_le_bytes());
        memory.put(0x1200, b"ip=10.0.2.15/24 -- 11211\0");
        for (index, (start, len, kind)) in
            [(0u64, 0x9_fc00u64, 1u32), (0xf_0000, 0x1_0000, 2)].into_iter().enumerate()
        {
            let entry = 0x1300 + 24 * index as u64;
            memory.put(entry, &start.to_le_bytes());
            memory.put(entry + 8, &len.to_le_bytes());
            memory.put(entry + 16, &kind.to_le_bytes());
        }
        memory
    }

    #[test]
    fn all_parts_are_read() {
        let info = StartInfo::read(&memory(), PhysAddr(0x1000)).unwrap();
        assert_eq!(info.command_line, "ip=10.0.2.15/24 -- 11211");
        assert_eq!(info.modules, [PhysRange::new(PhysAddr(0x8000_0000), 0x1234)]);
        assert_eq!(info.ram, [PhysRange::new(PhysAddr(0), 0x9_fc00)]);
        assert_eq!(info.rsdp, Some(PhysAddr(0xf_0000)));
    }

    #[test]
    fn an_invalid_start_info_is_rejected() {
        assert_eq!(StartInfo::read(&memory(), PhysAddr(0x1008)), None);
        assert_eq!(StartInfo::read(&memory(), PhysAddr(0x9000)), None);
    }

    #[test]
    fn tables_beyond_memory_are_rejected() {
        let mut memory = memory();
        memory.put(0x1030, &u32::MAX.to_le_bytes());
        assert_eq!(StartInfo::read(&memory, PhysAddr(0x1000)), None);
    }
}
