//! The account of a cell's memory by use.

use alloc::string::String;
use serde::{Deserialize, Serialize};

/// A part of the memory that a cell manages. The parts of an answer have no page in common, and together are all of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryPart {
    /// The use of the part, in lower case.
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// Whether the memory is needed.
    pub kind: MemoryKind,
}

/// Whether memory is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum MemoryKind {
    /// It is in use.
    Used,
    /// It has copies of contents that a device has as well: the cell frees it when memory is short.
    Cached,
    /// It is free.
    Free,
}

impl MemoryPart {
    /// Returns a part that is in use.
    pub fn used(name: impl Into<String>, bytes: usize) -> Self {
        Self { name: name.into(), bytes: bytes as u64, kind: MemoryKind::Used }
    }

    /// Returns a part that the cell frees when memory is short.
    pub fn cached(name: impl Into<String>, bytes: usize) -> Self {
        Self { name: name.into(), bytes: bytes as u64, kind: MemoryKind::Cached }
    }

    /// Returns a free part.
    pub fn free(name: impl Into<String>, bytes: usize) -> Self {
        Self { name: name.into(), bytes: bytes as u64, kind: MemoryKind::Free }
    }
}
