//! The JSON form of a resize.

use isola_abi::management::{CoresResized, MemoryResized, Mode};
use serde::Serialize;

/// The result of a resize: output of `resize`.
#[derive(Clone, Debug, Serialize)]
pub struct ResizeView {
    /// The machine.
    pub machine: String,
    /// The cell.
    pub cell: String,
    /// Whether this is the result that a resize would have, and nothing was changed.
    pub dry_run: bool,
    /// The result for its cores, if the command resized them.
    pub cores: Option<CoresResizeView>,
    /// The result for its memory, if the command resized it.
    pub memory: Option<MemoryResizeView>,
}

/// The result for a cell's cores.
#[derive(Clone, Debug, Serialize)]
pub struct CoresResizeView {
    /// The number of cores before.
    pub had: u32,
    /// The number of cores after.
    pub has: u32,
    /// The numbers of the cores that were plugged or unplugged.
    pub cores: Vec<u32>,
    /// The duration.
    pub took_ns: u64,
}

/// The result for a cell's memory.
#[derive(Clone, Debug, Serialize)]
pub struct MemoryResizeView {
    /// The amount before.
    pub had_bytes: u64,
    /// The requested amount.
    pub wanted_bytes: u64,
    /// The amount after.
    pub has_bytes: u64,
    /// The most memory that the cell may have by memory requests.
    pub limit_bytes: u64,
    /// The amount of data that the cell reports to have migrated to free whole chunks.
    pub moved_bytes: u64,
    /// The reason why the cell has more than the requested amount, if it has.
    pub kept: Option<String>,
    /// The duration.
    pub took_ns: u64,
}

impl ResizeView {
    /// Creates the JSON form of a resize.
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
