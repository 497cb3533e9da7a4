//! A mapping of a process.

use crate::{PageSource, Protection};
use alloc::borrow::Cow;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use isola_user_mode::PAGE_SIZE;

/// Addresses of a process with the same attributes (Linux's VMA).
#[derive(Clone)]
pub struct Mapping {
    /// The first address.
    pub start: u64,
    /// The address behind the last.
    pub end: u64,
    /// The permitted accesses.
    pub protection: Protection,
    /// Whether writes were permitted at any time: else the process has no copies of pages here.
    pub was_writable: bool,
    /// The accesses that `mprotect` may permit: those of the file's descriptor, if it is shared.
    pub maximum: Protection,
    /// Whether writes change the object. Otherwise they change a copy of the process.
    pub is_shared: bool,
    /// The object, and the index of the page at [`Self::start`]. Memory of zeros without one.
    pub object: Option<MappingObject>,
    /// The other attributes.
    pub attributes: Attributes,
    /// The name in `/proc/PID/maps` of a mapping without an object.
    pub name: Cow<'static, str>,
}

/// The object of a mapping.
#[derive(Clone)]
pub struct MappingObject {
    /// The contents.
    pub source: Arc<dyn PageSource>,
    /// The index of the first page.
    pub first: u64,
    /// The name of the file when it was mapped.
    pub path: Option<Arc<[u8]>>,
}

impl MappingObject {
    /// Returns the name of the object, as it was when it was mapped.
    pub fn path(&self) -> Vec<u8> {
        self.path.as_ref().map_or_else(|| self.source.path(), |path| path.to_vec())
    }
}

/// The attributes of a mapping that `mmap` and `madvise` set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// A stack: it grows downwards on a page fault below it.
    pub grows_down: bool,
    /// `MAP_NORESERVE`. Memory is never reserved in advance; recorded for `/proc/PID/smaps`.
    pub no_reserve: bool,
    /// `mlock`. Pages are never moved to disk; recorded for the limit, and against `MADV_DONTNEED`.
    pub locked: bool,
    /// `MADV_DONTFORK`: a child does not get the mapping.
    pub dont_fork: bool,
    /// `MADV_WIPEONFORK`: a child gets zeros.
    pub wipe_on_fork: bool,
    /// `MADV_DONTDUMP`: a core file has no contents of the mapping.
    pub dont_dump: bool,
    /// `MADV_HUGEPAGE` (true) or `MADV_NOHUGEPAGE` (false). Recorded.
    pub huge_pages: Option<bool>,
    /// `MADV_SEQUENTIAL` (true) or `MADV_RANDOM` (false). After `MADV_RANDOM`, a page fault maps one page of a file.
    pub sequential: Option<bool>,
}

/// The kind of the pages of a mapping that are not the process's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PageKind {
    Anonymous,
    File,
    SharedMemory,
}

impl Mapping {
    /// Returns the number of pages.
    pub fn pages(&self) -> u64 {
        (self.end - self.start) / PAGE_SIZE
    }

    /// Returns the index in the object of the page at `address`.
    pub(crate) fn index_of(&self, address: u64) -> Option<u64> {
        self.object.as_ref().map(|object| object.first + (address - self.start) / PAGE_SIZE)
    }

    pub(crate) fn kind(&self) -> PageKind {
        match &self.object {
            None => PageKind::Anonymous,
            Some(object) if object.source.is_memory() => PageKind::SharedMemory,
            Some(_) => PageKind::File,
        }
    }

    /// Returns whether `RLIMIT_DATA` counts the mapping.
    pub(crate) fn is_data(&self) -> bool {
        !self.is_shared && self.protection.writable && !self.attributes.grows_down
    }

    /// Splits the mapping at an address within it. Returns the upper part.
    pub(crate) fn split_off(&mut self, address: u64) -> Self {
        debug_assert!(self.start < address && address < self.end);
        let mut upper = self.clone();
        upper.start = address;
        if let (Some(object), Some(index)) = (&mut upper.object, self.index_of(address)) {
            object.first = index;
        }
        self.end = address;
        upper
    }

    /// Returns whether the mapping and `next`, which begins at its end, can be one.
    pub(crate) fn continues_with(&self, next: &Self) -> bool {
        let same_object = match (&self.object, &next.object) {
            (None, None) => true,
            (Some(object), Some(other)) => {
                Arc::ptr_eq(&object.source, &other.source) && object.first + self.pages() == other.first
            }
            _ => false,
        };
        same_object
            && self.end == next.start
            && self.protection == next.protection
            && self.maximum == next.maximum
            && self.is_shared == next.is_shared
            && self.attributes == next.attributes
            && self.name == next.name
    }
}

impl fmt::Debug for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letter = |set, letter| if set { letter } else { '-' };
        write!(
            f,
            "{:x}-{:x} {}{}{}{}",
            self.start,
            self.end,
            letter(self.protection.readable, 'r'),
            letter(self.protection.writable, 'w'),
            letter(self.protection.executable, 'x'),
            if self.is_shared { 's' } else { 'p' }
        )
    }
}
