//! Damaged file systems: a small ext4 file system with random changes is mounted, read and written.
//!
//! The file system has no checksums, so that changes reach the code behind them.

use crate::input::InputReader;
use isola_block::BlockError;
use isola_volumes::{Access, Disk, Ext4, FileError, FileId, FileKind, FileSystem, ListPosition, Services};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::OnceLock;
use std::time::Duration;

/// The length of the file system, in bytes.
const LEN: usize = 64 << 20;

/// The unit of changes, in bytes.
const UNIT: usize = 512;

/// The position of the superblock's field with the flag for checksums, and the flag (in the second byte).
const CHECKSUM_FLAG: (usize, u8) = (1024 + 0x65, 4);

pub(crate) const SERVICES: Services = Services { time: || Duration::from_secs(1_800_000_000), entropy: || 1 };

/// The undamaged file system.
pub(crate) struct Image {
    pub(crate) contents: Vec<u8>,
    /// The units that are not empty.
    used: Vec<usize>,
}

/// A disk in memory: an image, and the units that differ from it.
pub(crate) struct OverlayDisk {
    image: Vec<u8>,
    shared: &'static [u8],
    changes: RefCell<BTreeMap<usize, Vec<u8>>>,
}

impl OverlayDisk {
    pub(crate) fn new(image: Vec<u8>, shared: &'static [u8]) -> Rc<Self> {
        Rc::new(Self { image, shared, changes: RefCell::default() })
    }

    fn base(&self) -> &[u8] {
        if self.shared.is_empty() { &self.image } else { self.shared }
    }

    fn change(&self, unit: usize, change: impl FnOnce(&mut [u8])) {
        let mut changes = self.changes.borrow_mut();
        let copy = || self.base()[unit * UNIT..][..UNIT].to_vec();
        change(changes.entry(unit).or_insert_with(copy));
    }
}

impl Disk for OverlayDisk {
    fn len(&self) -> u64 {
        LEN as u64
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn read(&self, at: u64, into: &mut [u8]) -> Result<(), BlockError> {
        let changes = self.changes.borrow();
        let mut at = at as usize;
        let mut rest = into;
        while !rest.is_empty() {
            let (unit, offset) = (at / UNIT, at % UNIT);
            let (part, behind) = rest.split_at_mut((UNIT - offset).min(rest.len()));
            let source = changes.get(&unit).map_or(&self.base()[unit * UNIT..][..UNIT], Vec::as_slice);
            part.copy_from_slice(&source[offset..offset + part.len()]);
            at += part.len();
            rest = behind;
        }
        Ok(())
    }

    fn write(&self, at: u64, from: &[u8]) -> Result<(), BlockError> {
        let (mut at, mut rest) = (at as usize, from);
        while !rest.is_empty() {
            let (unit, offset) = (at / UNIT, at % UNIT);
            let (part, behind) = rest.split_at((UNIT - offset).min(rest.len()));
            self.change(unit, |bytes| bytes[offset..offset + part.len()].copy_from_slice(part));
            at += part.len();
            rest = behind;
        }
        Ok(())
    }

    fn flush(&self) -> Result<(), BlockError> {
        Ok(())
    }
}

/// Makes a file system with files, directories and a journal to replay.
fn make() -> Result<Image, FileError> {
    let disk = OverlayDisk::new(vec![0; LEN], &[]);
    Ext4::format(disk.clone(), SERVICES)?;
    let mut file_system = Ext4::mount(disk.clone(), Access::ReadWrite, SERVICES)?;
    let root = file_system.root();
    let directory = file_system.make_directory(root, b"directory")?.id;
    for number in 0..20_u8 {
        let file = file_system.create(directory, format!("a long name, number {number}").as_bytes())?.id;
        file_system.write(file, 0, &vec![number; usize::from(number) * 500])?;
    }
    let holes = file_system.create(root, b"holes")?.id;
    for block in 0..20 {
        file_system.write(holes, block * 8192, &[1; 4096])?;
    }
    file_system.sync()?;
    let mut contents = vec![0; LEN];
    disk.read(0, &mut contents)?;
    contents[CHECKSUM_FLAG.0] &= !CHECKSUM_FLAG.1;
    let is_used = |(_, unit): &(usize, &[u8])| unit.iter().any(|byte| *byte != 0);
    let used = contents.chunks(UNIT).enumerate().filter(is_used).map(|(number, _)| number).collect();
    Ok(Image { contents, used })
}

/// Returns the undamaged file system.
pub(crate) fn image() -> &'static Image {
    static IMAGE: OnceLock<Option<Image>> = OnceLock::new();
    let Some(image) = IMAGE.get_or_init(|| make().ok()) else { panic!("the file system cannot be made") };
    image
}

/// Mounts a file system with up to eight changed values, reads all of it and writes to it.
pub fn ext4(input: &[u8]) {
    let image = image();
    let mut input = InputReader::new(input);
    let disk = OverlayDisk::new(Vec::new(), &image.contents);
    for _ in 0..input.byte() % 8 + 1 {
        let unit = image.used[usize::from(input.word()) % image.used.len()];
        let offset = usize::from(input.word()) % (UNIT - 4);
        let len = usize::from(input.byte() % 4 + 1);
        let value = input.bytes(len);
        disk.change(unit, |bytes| bytes[offset..offset + value.len()].copy_from_slice(value));
    }
    let access = if input.byte().is_multiple_of(4) { Access::ReadOnly } else { Access::ReadWrite };
    let Ok(mut file_system) = Ext4::mount(disk, access, SERVICES) else { return };
    let root = file_system.root();
    // Errors are permitted, panics are not.
    let _ = use_directory(&mut file_system, root, 0);
    if let Ok(file) = file_system.create(root, b"new") {
        let _ = file_system.write(file.id, 4096, &[1; 9000]);
        let _ = file_system.truncate(file.id, 10);
    }
    let _ = file_system.rename((root, b"new"), (root, b"holes"));
    let _ = file_system.make_directory(root, b"new directory");
    let _ = file_system.unmount();
}

fn use_directory(file_system: &mut Ext4, directory: FileId, depth: usize) -> Result<(), FileError> {
    let (entries, _) = file_system.list(directory, ListPosition::default(), 30)?;
    for entry in entries {
        let Ok(metadata) = file_system.lookup(directory, &entry.name) else { continue };
        if metadata.kind == FileKind::Directory && depth < 2 {
            let _ = use_directory(file_system, metadata.id, depth + 1);
        }
        let mut bytes = [0; 5000];
        let _ = file_system.read(metadata.id, metadata.len / 2, &mut bytes);
        if let Ok(Some(map)) = file_system.extents(metadata.id, metadata.len / 2) {
            // Direct reads trust these pieces.
            for piece in map.pieces(metadata.len / 2..metadata.len).take(100) {
                let end = piece.at.map(|at| at.saturating_add(piece.len as u64));
                assert!(piece.len > 0 && end.is_none_or(|end| end <= LEN as u64), "{piece:?}");
            }
        }
        if entry.name.ends_with(b"3") {
            let _ = file_system
                .remove(directory, &entry.name)
                .map(|file| file.map(|file| file_system.release(file)));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_undamaged_file_system_can_be_used() {
        let image = make().unwrap();
        let disk = OverlayDisk::new(image.contents, &[]);
        let mut file_system = Ext4::mount(disk, Access::ReadWrite, SERVICES).unwrap();
        let root = file_system.root();
        let directory = file_system.lookup(root, b"directory").unwrap().id;
        assert_eq!(file_system.list(directory, ListPosition::default(), 100).unwrap().0.len(), 20);
        file_system.create(root, b"new").unwrap();
        file_system.unmount().unwrap();
    }
}
