//! The disk below a file system, as blocking code sees it.

use isola_block::BlockError;

/// A disk with byte positions. A call returns when the disk has executed it; only a flush makes writes permanent.
pub trait Disk {
    /// Returns the length in bytes.
    fn len(&self) -> u64;

    /// Returns whether the length is 0.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns whether writes are rejected.
    fn is_read_only(&self) -> bool;

    /// Fills `into` with the bytes from position `at`.
    ///
    /// # Errors
    /// The error of the device.
    fn read(&self, at: u64, into: &mut [u8]) -> Result<(), BlockError>;

    /// Writes `from` at position `at`.
    ///
    /// # Errors
    /// The error of the device.
    fn write(&self, at: u64, from: &[u8]) -> Result<(), BlockError>;

    /// Makes all writes permanent.
    ///
    /// # Errors
    /// The error of the device. Writes that failed are repeated by the next flush.
    fn flush(&self) -> Result<(), BlockError>;
}
