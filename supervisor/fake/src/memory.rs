//! Memory of which only the beginning is backed by bytes.

use alloc::collections::BTreeSet;
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use isola_abi::id::{PhysAddr, PhysRange};
use isola_supervisor_core::hardware::{Pages, SharedPages};
use isola_supervisor_core::inventory::Chunk;

/// A mebibyte.
pub const MIB: u64 = 1 << 20;

/// The memory of the machine.
pub const MEMORY: PhysRange = PhysRange::new(PhysAddr(16 * MIB), 64 * MIB);

/// The contents of all memory, and the amount of scrubbing.
#[derive(Debug, Default)]
pub(crate) struct Content {
    /// The numbers of pages that are not zero.
    pub(crate) pages: RefCell<BTreeSet<u64>>,
    /// The bytes scrubbed so far.
    pub(crate) scrubbed: Cell<u64>,
}

pub(crate) type Soiled = Rc<Content>;

/// A piece of memory, of which only the beginning is backed by bytes.
#[derive(Debug)]
pub struct FakeMemory {
    pub(crate) range: PhysRange,
    pub(crate) front: Vec<u8>,
    pub(crate) soiled: Soiled,
}

impl Chunk for FakeMemory {
    fn range(&self) -> PhysRange {
        self.range
    }

    fn split(mut self, len_bytes: u64) -> (Self, Self) {
        let PhysRange { start, len_bytes: all } = self.range;
        assert!(len_bytes > 0 && len_bytes < all);
        let behind = self.front.split_off(self.front.len().min(len_bytes as usize));
        self.range.len_bytes = len_bytes;
        let rest = PhysRange::new(PhysAddr(start.0 + len_bytes), all - len_bytes);
        let soiled = self.soiled.clone();
        (self, Self { range: rest, front: behind, soiled })
    }

    fn join(mut self, next: Self) -> Self {
        assert_eq!(self.range.end(), next.range.start);
        if !next.front.is_empty() {
            self.front.resize(self.range.len_bytes as usize, 0);
            self.front.extend(next.front);
        }
        self.range.len_bytes += next.range.len_bytes;
        self
    }

    fn scrub(&mut self, offset: u64, len_bytes: u64) {
        if offset == 0 && len_bytes == self.range.len_bytes {
            self.front.clear();
        }
        let first = (self.range.start.0 + offset) / 4096;
        self.soiled.scrubbed.set(self.soiled.scrubbed.get() + len_bytes);
        let mut soiled = self.soiled.pages.borrow_mut();
        let pages: Vec<u64> = soiled.range(first..first + len_bytes / 4096).copied().collect();
        for page in pages {
            soiled.remove(&page);
        }
        let end = self.front.len().min((offset + len_bytes) as usize);
        if let Some(bytes) = self.front.get_mut(offset as usize..end) {
            bytes.fill(0);
        }
    }

    fn is_zero(&self) -> bool {
        false
    }

    fn declare_zero(&mut self) {
        assert!(self.holds_nothing());
    }
}

impl FakeMemory {
    fn pages(&self) -> core::ops::Range<u64> {
        self.range.start.0 / 4096..self.range.end().0 / 4096
    }

    pub(crate) fn holds_nothing(&self) -> bool {
        self.soiled.pages.borrow().range(self.pages()).next().is_none()
    }

    /// Writes to the first and to the last page.
    pub(crate) fn soil(&self) {
        self.soiled.pages.borrow_mut().extend([self.pages().start, self.pages().end - 1]);
    }
}

/// Shared, read-only fake memory.
#[derive(Clone, Debug)]
pub struct FakeShared(pub(crate) Rc<FakeMemory>);

impl SharedPages for FakeShared {
    type Memory = FakeMemory;

    fn range(&self) -> PhysRange {
        self.0.range
    }

    fn read(&self, len_bytes: usize) -> &[u8] {
        self.0.read(len_bytes)
    }

    fn is_shared(&self) -> bool {
        Rc::strong_count(&self.0) > 1
    }

    fn into_memory(self) -> Result<FakeMemory, Self> {
        Rc::try_unwrap(self.0).map_err(Self)
    }
}

impl Pages for FakeMemory {
    type Shared = FakeShared;

    fn share(self) -> FakeShared {
        FakeShared(Rc::new(self))
    }

    fn read(&self, len_bytes: usize) -> &[u8] {
        &self.front[..len_bytes]
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) {
        let end = offset as usize + bytes.len();
        assert!(end as u64 <= self.range.len_bytes);
        self.front.resize(self.front.len().max(end), 0);
        self.front[offset as usize..end].copy_from_slice(bytes);
    }
}

/// Returns memory that belongs to no machine.
pub fn memory(len_bytes: u64) -> FakeMemory {
    let range = PhysRange::new(PhysAddr(16 * MIB), len_bytes);
    FakeMemory { range, front: Vec::new(), soiled: Soiled::default() }
}
