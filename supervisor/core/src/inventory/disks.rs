//! The block devices that can be given to cells.
//!
//! Each contains particular data, so a cell gets the device that its specification names, never any other.

use alloc::vec::Vec;
use isola_abi::management::DeviceLocation;

/// The block devices of the machine. A device that could not be reset is not returned, and stays counted.
#[derive(Debug)]
pub struct Disks<D> {
    free: Vec<(DeviceLocation, D)>,
    total: usize,
}

impl<D> Default for Disks<D> {
    fn default() -> Self {
        Self::new()
    }
}

impl<D> Disks<D> {
    /// Returns no devices.
    pub const fn new() -> Self {
        Self { free: Vec::new(), total: 0 }
    }

    /// Enters a free device.
    pub fn add(&mut self, location: DeviceLocation, device: D) {
        self.total += 1;
        self.put(location, device);
    }

    /// Enters a cell's device.
    pub fn add_owned(&mut self) {
        self.total += 1;
    }

    /// Takes the device at `location`; `None` if it is not free or does not exist.
    pub fn take(&mut self, location: DeviceLocation) -> Option<D> {
        let index = self.free.iter().position(|(place, _)| *place == location)?;
        Some(self.free.swap_remove(index).1)
    }

    /// Returns whether the device at `location` is free.
    pub fn has(&self, location: DeviceLocation) -> bool {
        self.free.iter().any(|(place, _)| *place == location)
    }

    /// Takes a device back from a cell.
    pub fn put(&mut self, location: DeviceLocation, device: D) {
        self.free.push((location, device));
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
    fn a_device_is_given_by_its_location_and_once() {
        let at = |address| DeviceLocation::Mmio { address };
        let mut disks = Disks::new();
        disks.add(at(1), "one");
        disks.add(at(2), "two");
        assert_eq!((disks.take(at(3)), disks.has(at(2))), (None, true));
        assert_eq!((disks.take(at(2)), disks.take(at(2)), disks.has(at(2))), (Some("two"), None, false));
        assert_eq!((disks.total(), disks.free()), (2, 1));
        disks.put(at(2), "two");
        disks.add_owned();
        assert_eq!((disks.total(), disks.free(), disks.take(at(2))), (3, 2, Some("two")));
    }
}
