//! Power-off by software: state S5 (ACPI specification 6.5, chapters 4.8.3.2 and 7.4.2).

use super::tables::Table;
use crate::memory::physical::Physical;
use isola_abi::id::PhysAddr;

/// The write that switches the machine off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SoftOff {
    /// A write to the PM1a control register of PC chipsets.
    Port {
        /// Its port.
        port: u16,
        /// The value to write.
        value: u16,
    },
    /// A write to the sleep control register of a machine without the fixed hardware of PCs.
    Register {
        /// Its address.
        address: PhysAddr,
        /// The value to write.
        value: u8,
    },
}

impl SoftOff {
    /// Derives the write from the FADT and its DSDT; `None` if one of them lacks the information.
    pub(super) fn read(memory: &impl Physical, fadt: &Table, hardware_reduced: bool) -> Option<Self> {
        const SYSTEM_MEMORY: u8 = 0;
        let address = fadt.u64(140).filter(|address| *address != 0).or(fadt.u32(40).map(u64::from))?;
        let kind = sleep_type(Table::read(memory, PhysAddr(address))?.bytes())?;
        if hardware_reduced {
            let is_memory = fadt.u8(244)? == SYSTEM_MEMORY;
            let address = fadt.u64(248).filter(|address| is_memory && *address != 0)?;
            return Some(Self::Register { address: PhysAddr(address), value: 1 << 5 | kind << 2 });
        }
        let port = u16::try_from(fadt.u32(64)?).ok().filter(|port| *port != 0)?;
        Some(Self::Port { port, value: 1 << 13 | u16::from(kind) << 10 })
    }
}

/// Returns the type of state S5: the first number of the package `_S5_`, from 0 to 7. The package is found by its name;
/// the bytecode around it is not executed.
fn sleep_type(bytecode: &[u8]) -> Option<u8> {
    const PACKAGE: u8 = 0x12;
    const BYTE: u8 = 0x0a;
    bytecode.windows(5).enumerate().find_map(|(at, window)| {
        let rest = bytecode.get(at + 5..)?;
        let &length = rest.first().filter(|_| window == [b'_', b'S', b'5', b'_', PACKAGE])?;
        // The package length has up to three further bytes; the number of elements follows.
        let value = match rest.get(usize::from(length >> 6) + 2..)? {
            [BYTE, value, ..] | [value @ (0 | 1), ..] => *value,
            _ => return None,
        };
        (value < 8).then_some(value)
    })
}

#[cfg(test)]
mod tests {
    use super::sleep_type;

    #[test]
    fn the_type_is_the_first_number_of_the_package() {
        let named = |package: &[u8]| [b"\x10\x20\\_SB_\x08_S5_", package].concat();
        assert_eq!(sleep_type(&named(&[0x12, 6, 4, 0, 0, 0, 0])), Some(0), "q35 of QEMU");
        assert_eq!(sleep_type(&named(&[0x12, 8, 4, 0x0a, 5, 0, 0, 0])), Some(5), "microvm of QEMU");
        assert_eq!(sleep_type(&named(&[0x12, 0x48, 0, 4, 0x0a, 7, 0, 0])), Some(7), "a length of two bytes");
    }

    #[test]
    fn bytecode_without_the_package_has_no_type() {
        for bytecode in [
            &b""[..],
            b"_S5_",
            b"_S5_\x12",
            b"_S5_\x12\x06\x04",
            b"_S5_\x12\xc6\x04\x0a",
            b"_S4_\x12\x06\x04\x01",
        ] {
            assert_eq!(sleep_type(bytecode), None, "{bytecode:x?}");
        }
        assert_eq!(sleep_type(b"_S5_\x12\x06\x04\x0a\x08"), None, "there is no type 8");
    }
}
