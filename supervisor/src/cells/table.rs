//! The cells by id.

use super::cell::Cell;
use super::shorten;
use alloc::collections::BTreeMap;
use alloc::string::String;
use isola_abi::id::CellId;
use isola_abi::management::ManagementError;

/// All cells, also those that have ended, by age.
pub(super) struct CellTable {
    cells: BTreeMap<CellId, Cell>,
    /// The id of the next cell, which no cell had before.
    next_id: u32,
    /// The maximum number of cells.
    limit: usize,
}

impl CellTable {
    /// Returns no cells, of at most `limit`. The first one will have the id `next_id`.
    pub(super) const fn new(next_id: u32, limit: usize) -> Self {
        Self { cells: BTreeMap::new(), next_id, limit }
    }

    /// Returns the maximum number of cells.
    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    /// Returns the id of the next cell, which it has once it was inserted.
    pub(super) fn next_id(&self) -> CellId {
        CellId(self.next_id)
    }

    pub(super) fn len(&self) -> usize {
        self.cells.len()
    }

    pub(super) fn get(&self, id: CellId) -> Option<&Cell> {
        self.cells.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: CellId) -> Option<&mut Cell> {
        self.cells.get_mut(&id)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Cell> {
        self.cells.values()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Cell> {
        self.cells.values_mut()
    }

    /// Enters a cell. Its id is not given out again.
    pub(super) fn insert(&mut self, cell: Cell) {
        self.next_id = self.next_id.max(cell.id.0.saturating_add(1));
        self.cells.insert(cell.id, cell);
    }

    pub(super) fn remove(&mut self, id: CellId) -> Option<Cell> {
        self.cells.remove(&id)
    }

    /// Returns the id of the cell with that name.
    pub(super) fn find(&self, name: &str) -> Result<CellId, ManagementError> {
        let found = self.iter().find(|cell| cell.spec.name == name);
        found.map(|cell| cell.id).ok_or_else(|| ManagementError::NoSuchCell(shorten(name)))
    }

    /// Returns whether no cell has that id or name.
    pub(super) fn is_new(&self, id: CellId, name: &str) -> bool {
        !self.cells.contains_key(&id) && self.find(name).is_err()
    }

    pub(super) fn name_of(&self, id: CellId) -> Option<String> {
        self.get(id).map(|cell| cell.spec.name.clone())
    }
}
