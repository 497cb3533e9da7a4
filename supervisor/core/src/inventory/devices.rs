//! The network devices that can be given to cells.

use alloc::vec::Vec;
use isola_abi::id::CellId;

/// The network devices of the machine. A device that could not be reset is not returned, and stays counted.
///
/// A restarted cell gets the device that it had, as the software switch identifies a cell by its device.
#[derive(Debug)]
pub struct Devices<D> {
    /// The free devices, each with the cell that had it last.
    free: Vec<(D, Option<CellId>)>,
    total: usize,
}

impl<D> Default for Devices<D> {
    fn default() -> Self {
        Self { free: Vec::new(), total: 0 }
    }
}

impl<D> Devices<D> {
    /// Returns no devices.
    pub fn new() -> Self {
        Self::default()
    }

    /// Enters a free device.
    pub fn add(&mut self, device: D) {
        self.total += 1;
        self.free.push((device, None));
    }

    /// Enters a cell's device.
    pub fn add_owned(&mut self) {
        self.total += 1;
    }

    /// Gives a device to `cell`: the one that it had last, otherwise the one that has been free the longest, so that
    /// late traffic for its former owner subsides first. The last devices of the cells in `waiting` are reserved for
    /// these cells.
    #[must_use]
    pub fn take(&mut self, cell: CellId, waiting: &[CellId]) -> Option<D> {
        self.choose(cell, waiting).map(|index| self.free.remove(index).0)
    }

    /// Returns whether [`Self::take`] has a device for `cell`.
    pub fn has_for(&self, cell: CellId, waiting: &[CellId]) -> bool {
        self.choose(cell, waiting).is_some()
    }

    fn choose(&self, cell: CellId, waiting: &[CellId]) -> Option<usize> {
        let own = self.free.iter().position(|(_, last)| *last == Some(cell));
        let is_kept = |last: &Option<CellId>| last.is_some_and(|last| waiting.contains(&last));
        own.or_else(|| self.free.iter().position(|(_, last)| !is_kept(last)))
    }

    /// Takes a device back from `cell`, if the cell is known.
    pub fn put(&mut self, device: D, cell: Option<CellId>) {
        self.free.push((device, cell));
    }

    /// Returns the number of devices, free or not.
    pub fn total(&self) -> usize {
        self.total
    }

    /// Returns the number of free devices.
    pub fn free(&self) -> usize {
        self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_device_that_was_free_longest_is_given_first() {
        let mut devices = Devices::new();
        (0..3).for_each(|number| devices.add(number));
        let first = devices.take(CellId(1), &[]).unwrap();
        devices.put(first, Some(CellId(1)));
        let order: Vec<i32> = core::iter::from_fn(|| devices.take(CellId(2), &[])).collect();
        assert_eq!(order, [1, 2, 0]);
        assert_eq!((devices.total(), devices.free()), (3, 0));
    }

    #[test]
    fn a_cell_that_awaits_a_restart_gets_its_device_back() {
        let (waits, other) = (CellId(1), CellId(2));
        let mut devices = Devices::new();
        (0..2).for_each(|number| devices.add(number));
        let had = devices.take(waits, &[]).unwrap();
        devices.put(had, Some(waits));
        assert_eq!(devices.take(other, &[waits]), Some(1));
        assert!(!devices.has_for(other, &[waits]) && devices.take(other, &[waits]).is_none());
        assert_eq!(devices.take(waits, &[waits]), Some(had));
        devices.put(had, Some(waits));
        assert_eq!(devices.take(other, &[]), Some(had), "the device is no longer reserved");
    }
}
