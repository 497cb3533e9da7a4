//! The JSON form of a part of a cell's memory.

use isola_abi::query::{MemoryKind, MemoryPart};
use serde::Serialize;

/// A part of a cell's memory, as the cell reports it.
#[derive(Clone, Debug, Serialize)]
pub struct MemoryPartView {
    /// Its use.
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// `used`, `cached` (freed when memory is short) or `free`.
    pub kind: &'static str,
}

impl From<&MemoryPart> for MemoryPartView {
    fn from(part: &MemoryPart) -> Self {
        Self { name: part.name.clone(), bytes: part.bytes, kind: kind_name(part.kind) }
    }
}

/// Returns the name of a kind in the output.
pub fn kind_name(kind: MemoryKind) -> &'static str {
    match kind {
        MemoryKind::Used => "used",
        MemoryKind::Cached => "cached",
        MemoryKind::Free => "free",
    }
}
