//! Reads of physical memory that firmware and loader filled: tables with untrusted addresses and lengths.

use isola_abi::id::PhysAddr;

/// Access to memory by physical address.
pub trait Physical {
    /// Fills `into` with the bytes from `address` on; `None` if not all of them can be read.
    fn read(&self, address: PhysAddr, into: &mut [u8]) -> Option<()>;

    /// Reads the byte at `address`.
    fn read_u8(&self, address: PhysAddr) -> Option<u8> {
        let mut bytes = [0; 1];
        self.read(address, &mut bytes)?;
        Some(bytes[0])
    }

    /// Reads the little-endian number at `address`.
    fn read_u16(&self, address: PhysAddr) -> Option<u16> {
        let mut bytes = [0; 2];
        self.read(address, &mut bytes)?;
        Some(u16::from_le_bytes(bytes))
    }

    /// Reads the little-endian number at `address`.
    fn read_u32(&self, address: PhysAddr) -> Option<u32> {
        let mut bytes = [0; 4];
        self.read(address, &mut bytes)?;
        Some(u32::from_le_bytes(bytes))
    }

    /// Reads the little-endian number at `address`.
    fn read_u64(&self, address: PhysAddr) -> Option<u64> {
        let mut bytes = [0; 8];
        self.read(address, &mut bytes)?;
        Some(u64::from_le_bytes(bytes))
    }
}

/// The machine's memory below 4 GiB, in the direct map of the early tables.
#[derive(Debug)]
pub struct LowMemory(());

impl LowMemory {
    /// The end of the mapped memory.
    const END: u64 = 1 << 32;

    /// Creates the access.
    ///
    /// # Safety
    /// The early tables, or others that map the same at `DIRECT_MAP`, must be in use.
    pub(crate) const unsafe fn new() -> Self {
        Self(())
    }
}

impl Physical for LowMemory {
    fn read(&self, address: PhysAddr, into: &mut [u8]) -> Option<()> {
        if address.0.checked_add(into.len() as u64)? > Self::END {
            return None;
        }
        for (offset, byte) in into.iter_mut().enumerate() {
            let place = (isola_abi::layout::DIRECT_MAP + address.0 + offset as u64) as *const u8;
            // SAFETY: the address is mapped, as the caller of `new` guarantees; any byte is a valid value.
            *byte = unsafe { place.read_volatile() };
        }
        Some(())
    }
}

#[cfg(test)]
pub(crate) mod fake {
    use super::*;
    use alloc::vec::Vec;

    /// Zeroed memory of a test.
    pub(crate) struct FakeMemory {
        start: u64,
        bytes: Vec<u8>,
    }

    impl FakeMemory {
        pub(crate) fn new(start: u64, len: usize) -> Self {
            Self { start, bytes: alloc::vec![0; len] }
        }

        pub(crate) fn put(&mut self, address: u64, bytes: &[u8]) {
            let offset = (address - self.start) as usize;
            self.bytes[offset..offset + bytes.len()].copy_from_slice(bytes);
        }
    }

    impl Physical for FakeMemory {
        fn read(&self, address: PhysAddr, into: &mut [u8]) -> Option<()> {
            let offset = usize::try_from(address.0.checked_sub(self.start)?).ok()?;
            into.copy_from_slice(self.bytes.get(offset..offset.checked_add(into.len())?)?);
            Some(())
        }
    }
}
