//! The JSON form of what became of a cell that was resized.

use isola_abi::management::{CoresResized, MemoryResized, Mode};
use serde::Serialize;

/// What became of a cell that was resized: of `resize`.
#[derive(Clone, Debug, Serialize)]
pub struct ResizeView {
    /// The machine.
    pub machine: String,
    /// The cell.
    pub cell: String,
    /// Whether nothing was changed, and this is what would be.
    pub dry_run: bool,
    /// Its cores, where they were to be resized.
    pub cores: Option<CoresResizeView>,
    /// Its memory, where that was to be.
    pub memory: Option<MemoryResizeView>,
}

/// What became of a cell's cores.
#[derive(Clone, Debug, Serialize)]
pub struct CoresResizeView {
    /// How many it had.
    pub had: u32,
    /// How many it has.
    pub has: u32,
    /// The numbers of those that came, or left.
    pub cores: Vec<u32>,
    /// How long it took.
    pub took_ns: u64,
}

/// What became of a cell's memory.
#[derive(Clone, Debug, Serialize)]
pub struct MemoryResizeView {
    /// How much it had.
    pub had_bytes: u64,
    /// How much it was to have.
    pub wanted_bytes: u64,
    /// How much it has.
    pub has_bytes: u64,
    /// The most that it may have when it asks for more.
    pub limit_bytes: u64,
    /// How much the cell says that it has moved to other memory, so that what went was free.
    pub moved_bytes: u64,
    /// Why it has more than was wanted, where it does.
    pub kept: Option<String>,
    /// How long it took.
    pub took_ns: u64,
}

impl ResizeView {
    /// The JSON form of what was resized of a cell.
    pub fn new(
        machine: &str,
        cell: &str,
        mode: Mode,
        cores: Option<&CoresResized>,
        memory: Option<&MemoryResized>,
    ) -> Self {
        let cores = cores.map(|cores| CoresResizeView {
            had: cores.before,
            has: cores.after,
            cores: cores.cores.iter().map(|core| core.0).collect(),
            took_ns: cores.duration_ns,
        });
        let memory = memory.map(|memory| MemoryResizeView {
            had_bytes: memory.had.0,
            wanted_bytes: memory.wanted.0,
            has_bytes: memory.has.0,
            limit_bytes: memory.limit.0,
            moved_bytes: memory.moved.0,
            kept: memory.kept.map(|why| why.to_string()),
            took_ns: memory.took_ns,
        });
        Self {
            machine: machine.to_owned(),
            cell: cell.to_owned(),
            dry_run: mode == Mode::DryRun,
            cores,
            memory,
        }
    }
}
