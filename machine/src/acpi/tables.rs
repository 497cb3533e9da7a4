//! Enumeration of ACPI's tables, and reads within a table.

use crate::memory::physical::Physical;
use alloc::vec::Vec;
use isola_abi::id::PhysAddr;

/// Limits for the length of a table, in bytes, and for the number of tables.
const MAX_LEN: u32 = 1 << 20;
const MAX_TABLES: usize = 256;

const HEADER_LEN: usize = 36;

/// A complete table whose checksum is right.
pub(super) struct Table {
    bytes: Vec<u8>,
}

/// An entry of a table, which begins with its type and its length.
pub(super) struct Entry<'a> {
    bytes: &'a [u8],
}

macro_rules! readers {
    ($($name:ident $type:ty),*) => {$(
        pub(super) fn $name(&self, offset: usize) -> Option<$type> {
            let bytes = self.bytes.get(offset..offset.checked_add(size_of::<$type>())?)?;
            Some(<$type>::from_le_bytes(bytes.try_into().ok()?))
        }
    )*};
}

impl Table {
    readers!(u8 u8, u16 u16, u32 u32, u64 u64);

    pub(super) fn read(memory: &impl Physical, address: PhysAddr) -> Option<Self> {
        let len = memory.read_u32(PhysAddr(address.0.checked_add(4)?))?;
        if len > MAX_LEN || (len as usize) < HEADER_LEN {
            return None;
        }
        let mut bytes = alloc::vec![0; len as usize];
        memory.read(address, &mut bytes)?;
        sums_to_zero(&bytes).then_some(Self { bytes })
    }

    /// Returns all bytes of the table.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(super) fn signature(&self) -> [u8; 4] {
        [0, 1, 2, 3].map(|index| self.bytes[index])
    }

    /// Returns the entries from `offset` on, as far as they are within the table.
    pub(super) fn entries(&self, offset: usize) -> impl Iterator<Item = Entry<'_>> {
        let mut rest = self.bytes.get(offset..).unwrap_or(&[]);
        core::iter::from_fn(move || {
            let len = usize::from(*rest.get(1)?);
            let (bytes, after) = rest.split_at_checked(len).filter(|_| len >= 2)?;
            rest = after;
            Some(Entry { bytes })
        })
    }
}

impl Entry<'_> {
    readers!(u8 u8, u32 u32, u64 u64);

    pub(super) fn kind(&self) -> u8 {
        self.bytes[0]
    }
}

/// Returns all tables of the root pointer; `None` if there is none at `rsdp`.
pub(super) fn all(memory: &impl Physical, rsdp: PhysAddr) -> Option<Vec<Table>> {
    let mut pointer = [0; 20];
    memory.read(rsdp, &mut pointer)?;
    if &pointer[..8] != b"RSD PTR " || !sums_to_zero(&pointer) {
        return None;
    }
    let extended = match pointer[15] {
        0 | 1 => None,
        _ => memory.read_u64(PhysAddr(rsdp.0.checked_add(24)?)).filter(|address| *address != 0),
    };
    let list = match extended {
        Some(address) => Table::read(memory, PhysAddr(address)).map(|table| (table, 8)),
        None => {
            let address = u32::from_le_bytes([pointer[16], pointer[17], pointer[18], pointer[19]]);
            Table::read(memory, PhysAddr(address.into())).map(|table| (table, 4))
        }
    };
    let (list, width) = list?;
    let addresses = (HEADER_LEN..).step_by(width).map_while(|offset| match width {
        8 => list.u64(offset),
        _ => list.u32(offset).map(u64::from),
    });
    Some(addresses.take(MAX_TABLES).filter_map(|address| Table::read(memory, PhysAddr(address))).collect())
}

fn sums_to_zero(bytes: &[u8]) -> bool {
    bytes.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte)) == 0
}
