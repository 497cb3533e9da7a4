//! The size of the supervisor's heap: the most memory that its tables and responses need.
//!
//! | part | for |
//! |---|---|
//! | [`BASE`] | frames, a list under construction, the image, tables |
//! | [`PER_CELL`] | a cell: its log, specification, crash and activities |
//! | [`PER_CORE_OF_CELL`] | a core of a cell: its counters and histogram, also of an ended cell |
//! | [`PER_CORE_OF_ENTRY`] | a core that a journal entry names, with its cell's name |

use crate::journal;
use isola_abi::id::MAX_CORES;
use isola_abi::management::max_cells;

const BASE: u64 = 3 << 20;
const PER_CELL: u64 = 96 << 10;
pub(crate) const PER_CORE_OF_CELL: u64 = 2560;
const PER_CORE_OF_ENTRY: u64 = 128;

/// Returns the bytes of heap for a machine with `cores` cores.
pub const fn bytes(cores: usize) -> u64 {
    let of_cell = if cores < MAX_CORES { cores as u64 } else { MAX_CORES as u64 };
    let journal = journal::CAPACITY as u64 * of_cell * PER_CORE_OF_ENTRY;
    BASE + max_cells(cores) as u64 * (PER_CELL + of_cell * PER_CORE_OF_CELL) + journal
}

#[cfg(test)]
mod tests;
