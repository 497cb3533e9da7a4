//! How much memory the supervisor needs for its tables and answers at the most.
//!
//! | part | for |
//! |---|---|
//! | [`BASE`] | frames that come and go, a list in the making, the image, tables |
//! | [`PER_CELL`] | a cell: its log, specification, crash and activities |
//! | [`PER_CORE_OF_CELL`] | a core of such a cell: its counters and histogram, kept when the cell has ended |
//! | [`PER_CORE_OF_ENTRY`] | a core that an entry of the journal names, with its cell's name |

use crate::journal;
use isola_abi::management::MAX_CELLS;

const BASE: u64 = 3 << 20;
const PER_CELL: u64 = 96 << 10;
pub(crate) const PER_CORE_OF_CELL: u64 = 2560;
const PER_CORE_OF_ENTRY: u64 = 128;

/// Bytes for a machine of so many cores.
pub const fn bytes(cores: usize) -> u64 {
    let per_cell = PER_CELL + cores as u64 * PER_CORE_OF_CELL;
    let journal = journal::CAPACITY as u64 * cores as u64 * PER_CORE_OF_ENTRY;
    BASE + MAX_CELLS as u64 * per_cell + journal
}

#[cfg(test)]
mod tests;
