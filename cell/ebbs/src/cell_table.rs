//! The table of a cell: its representatives and factories.

use crate::factory::Factories;
use crate::table::Pointers;

/// The state that the cores of a cell share.
pub struct CellTable {
    /// The representatives of [`CellEbb`](crate::CellEbb)s.
    pub(crate) representatives: Pointers,
    pub(crate) factories: Factories,
}

impl CellTable {
    /// Returns the table of a cell in which no Ebb was used.
    pub const fn new() -> Self {
        Self { representatives: Pointers::null(), factories: Factories::new() }
    }
}

impl Default for CellTable {
    fn default() -> Self {
        Self::new()
    }
}
