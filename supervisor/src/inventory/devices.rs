//! Device functions that can be given to cells.

use alloc::vec::Vec;

/// The network devices of the machine. A device that could not be reset is not put back, and stays counted.
#[derive(Debug)]
pub struct Devices<D> {
    free: Vec<D>,
    total: usize,
}

impl<D> Default for Devices<D> {
    fn default() -> Self {
        Self { free: Vec::new(), total: 0 }
    }
}

impl<D> Devices<D> {
    /// No devices.
    pub fn new() -> Self {
        Self::default()
    }

    /// Enters a device.
    pub fn add(&mut self, device: D) {
        self.total += 1;
        self.free.push(device);
    }

    /// Enters a device that a cell has.
    pub fn add_owned(&mut self) {
        self.total += 1;
    }

    /// Gives a device away: the one that has been free the longest, so that late traffic for its former owner
    /// has the most time to die down.
    #[must_use]
    pub fn take(&mut self) -> Option<D> {
        (!self.free.is_empty()).then(|| self.free.remove(0))
    }

    /// Takes a device back.
    pub fn put(&mut self, device: D) {
        self.free.push(device);
    }

    /// Number of devices, free or not.
    pub fn total(&self) -> usize {
        self.total
    }

    /// Number of free devices.
    pub fn free(&self) -> usize {
        self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_device_that_rested_longest_is_given_first() {
        let mut devices = Devices::new();
        (0..3).for_each(|number| devices.add(number));
        let first = devices.take().unwrap();
        devices.put(first);
        let order: Vec<i32> = core::iter::from_fn(|| devices.take()).collect();
        assert_eq!(order, [1, 2, 0]);
        assert_eq!((devices.total(), devices.free()), (3, 0));
    }
}
