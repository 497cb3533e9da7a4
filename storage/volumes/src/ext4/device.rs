//! A disk as the block device of `rsext4`.
//!
//! `rsext4` does not flush between the replay of a journal and the update of the journal's superblock, which declares it
//! replayed. So a power failure could keep the update and lose replayed blocks. This device therefore flushes earlier
//! writes before it writes a journal's superblock.

use crate::disk::Disk;
use alloc::rc::Rc;
use core::cell::Cell;
use isola_block::BlockError;
use rsext4::{BlockIo, DeviceCapabilities, DeviceGeometry, Ext4Error, Ext4Result, SectorId};

/// The first bytes of a journal's superblock, of either version (JBD2).
const JOURNAL_SUPERBLOCKS: [[u8; 8]; 2] =
    [[0xc0, 0x3b, 0x39, 0x98, 0, 0, 0, 3], [0xc0, 0x3b, 0x39, 0x98, 0, 0, 0, 4]];

/// The unit of `rsext4`'s positions, in bytes.
const SECTOR_LEN: u32 = 512;

/// A disk, with the error of its latest failed operation, for which `rsext4`'s errors have no room.
#[derive(Clone)]
pub(super) struct Ext4Device {
    pub disk: Rc<dyn Disk>,
    pub error: Rc<Cell<Option<BlockError>>>,
    /// Whether there were writes since the latest flush.
    pub has_unflushed: Rc<Cell<bool>>,
    pub is_read_only: bool,
}

impl Ext4Device {
    pub fn new(disk: Rc<dyn Disk>, is_read_only: bool) -> Self {
        Self { disk, error: Rc::default(), has_unflushed: Rc::default(), is_read_only }
    }

    /// Checks a range and returns its position in bytes.
    fn position(&self, len: usize, sector: SectorId, count: u32) -> Ext4Result<u64> {
        let (sector_len, bytes) = (u64::from(SECTOR_LEN), len as u64);
        let at = sector.raw().checked_mul(sector_len).ok_or_else(Ext4Error::overflow)?;
        let end = at.checked_add(bytes).ok_or_else(Ext4Error::overflow)?;
        if bytes != u64::from(count) * sector_len {
            return Err(Ext4Error::invalid_input());
        }
        // A damaged file system refers to blocks beyond the disk.
        if end > self.disk.len() { Err(Ext4Error::corrupted()) } else { Ok(at) }
    }

    fn note(&self, error: BlockError) -> Ext4Error {
        self.error.set(Some(error));
        Ext4Error::io()
    }
}

impl BlockIo for Ext4Device {
    fn write(&mut self, buffer: &[u8], sector: SectorId, count: u32) -> Ext4Result<()> {
        if self.is_read_only {
            return Err(Ext4Error::read_only());
        }
        let at = self.position(buffer.len(), sector, count)?;
        if self.has_unflushed.get() && JOURNAL_SUPERBLOCKS.iter().any(|start| buffer.starts_with(start)) {
            self.flush()?;
        }
        self.has_unflushed.set(true);
        self.disk.write(at, buffer).map_err(|error| self.note(error))
    }

    fn read(&mut self, buffer: &mut [u8], sector: SectorId, count: u32) -> Ext4Result<()> {
        let at = self.position(buffer.len(), sector, count)?;
        self.disk.read(at, buffer).map_err(|error| self.note(error))
    }

    fn geometry(&self) -> DeviceGeometry {
        DeviceGeometry::new(SECTOR_LEN, self.disk.len() / u64::from(SECTOR_LEN))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        DeviceCapabilities { read_only: self.is_read_only, flush: true, ..DeviceCapabilities::default() }
    }

    fn flush(&mut self) -> Ext4Result<()> {
        self.disk.flush().map_err(|error| self.note(error))?;
        self.has_unflushed.set(false);
        Ok(())
    }
}
