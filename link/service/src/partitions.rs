//! The partitions of a disk by its GUID partition table (UEFI 2.10, 5.3): one disk, many volumes.
//!
//! ```text
//!   sector 1     header: position and checksum of the entries, and its own
//!   sectors 2..  entries of 128 bytes: type, id, first and last sector, flags, name in UTF-16
//! ```

use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use core::fmt;
use isola_block::BlockDevice;
use isola_iobuf::IoBufMut;

const SECTOR_LEN: usize = 512;

const SIGNATURE: &[u8; 8] = b"EFI PART";

const HEADER_LEN: usize = 92;

/// The length of an entry; the format permits longer ones, which no tool makes.
const ENTRY_LEN: usize = 128;

/// The most entries that are read.
const MOST_ENTRIES: usize = 128;

/// A partition with a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    /// Its name: ASCII letters, digits, `-`, `_` and `.`.
    pub name: String,
    /// Its first sector.
    pub first: u64,
    /// Its number of sectors.
    pub sectors: u64,
}

/// The reason why a disk's partitions cannot be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartitionError {
    /// The disk cannot be read.
    Io,
    /// A checksum, a position or a length is wrong.
    Damaged,
    /// A partition is beyond the disk, or overlaps another or the table.
    Misplaced,
    /// A partition has no name that a service can have, or that of another.
    Name,
}

impl fmt::Display for PartitionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Io => "the disk cannot be read",
            Self::Damaged => "the partition table of the disk is damaged: repair it with `sgdisk --verify`",
            Self::Misplaced => {
                "partitions of the disk overlap each other or their table, or are beyond its end"
            }
            Self::Name => "a partition needs a name of its own, of 1 to 24 letters, digits, `-`, `_` and `.`",
        })
    }
}

impl core::error::Error for PartitionError {}

/// The position of the entries, by the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Header {
    entries_at: u64,
    count: usize,
    checksum: u32,
}

/// Reads the partitions of a disk; `None` if it has no partition table.
///
/// # Errors
/// A [`PartitionError`].
pub async fn read(device: &BlockDevice) -> Result<Option<Vec<Partition>>, PartitionError> {
    let sectors = device.capacity();
    // The tables of disks with longer blocks have other positions; such a disk is one volume.
    if device.limits().block_len as usize != SECTOR_LEN || sectors < 3 {
        return Ok(None);
    }
    let sector = read_sectors(device, 1, 1).await?;
    let Some(header) = header(&sector)? else { return Ok(None) };
    let len = (header.count * ENTRY_LEN).div_ceil(SECTOR_LEN);
    if header.entries_at < 2 || header.entries_at.saturating_add(len as u64) > sectors {
        return Err(PartitionError::Damaged);
    }
    let entries = read_sectors(device, header.entries_at, len).await?;
    partitions(header, &entries, sectors).map(Some)
}

async fn read_sectors(device: &BlockDevice, sector: u64, count: usize) -> Result<Vec<u8>, PartitionError> {
    let mut buffer = IoBufMut::with_room(0, count * SECTOR_LEN);
    buffer.extend();
    let buffers = device.read(sector, vec![buffer]).await.map_err(|_| PartitionError::Io)?;
    Ok(buffers.iter().flat_map(|buffer| buffer.iter().copied()).collect())
}

/// Parses the header; `None` if the sector has none.
fn header(sector: &[u8]) -> Result<Option<Header>, PartitionError> {
    if !sector.starts_with(SIGNATURE) {
        return Ok(None);
    }
    let word = |at| u32_at(sector, at).ok_or(PartitionError::Damaged);
    let mut own = sector.get(..HEADER_LEN).ok_or(PartitionError::Damaged)?.to_vec();
    own.iter_mut().skip(16).take(4).for_each(|byte| *byte = 0);
    let (count, entry_len) = (word(80)? as usize, word(84)? as usize);
    let is_good = word(12)? as usize == HEADER_LEN
        && word(16)? == crc32fast::hash(&own)
        && entry_len == ENTRY_LEN
        && (1..=MOST_ENTRIES).contains(&count);
    if !is_good {
        return Err(PartitionError::Damaged);
    }
    let entries_at = u64_at(sector, 72).ok_or(PartitionError::Damaged)?;
    Ok(Some(Header { entries_at, count, checksum: word(88)? }))
}

/// Parses the entries.
fn partitions(header: Header, entries: &[u8], sectors: u64) -> Result<Vec<Partition>, PartitionError> {
    let entries = entries.get(..header.count * ENTRY_LEN).ok_or(PartitionError::Damaged)?;
    if crc32fast::hash(entries) != header.checksum {
        return Err(PartitionError::Damaged);
    }
    // A client could change a table in its partition.
    let table_end = header.entries_at.saturating_add(entries.len().div_ceil(SECTOR_LEN) as u64);
    let mut found: Vec<Partition> = Vec::new();
    for entry in entries.as_chunks::<ENTRY_LEN>().0 {
        if entry.iter().take(16).all(|byte| *byte == 0) {
            continue;
        }
        let place = u64_at(entry, 32).zip(u64_at(entry, 40));
        let (first, last) = place.ok_or(PartitionError::Damaged)?;
        let behind = last.checked_add(1).filter(|behind| first >= 2 && first < *behind && *behind <= sectors);
        let behind = behind.filter(|behind| *behind <= header.entries_at || table_end <= first);
        let len = behind.ok_or(PartitionError::Misplaced)? - first;
        let name = name(entry.get(56..).unwrap_or_default()).ok_or(PartitionError::Name)?;
        let meets = |other: &Partition| first < other.first + other.sectors && other.first <= last;
        if found.iter().any(meets) {
            return Err(PartitionError::Misplaced);
        }
        if found.iter().any(|other| other.name == name) {
            return Err(PartitionError::Name);
        }
        found.push(Partition { name, first, sectors: len });
    }
    Ok(found)
}

/// Returns the name in UTF-16; `None` if a service cannot have it.
fn name(units: &[u8]) -> Option<String> {
    let units = units.as_chunks::<2>().0.iter().map(|unit| u16::from_le_bytes(*unit));
    let is_good = |letter: &char| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_' | '.');
    let name: Option<String> =
        units.take_while(|unit| *unit != 0).map(|unit| char::from_u32(unit.into()).filter(is_good)).collect();
    name.filter(|name| (1..=isola_abi::links::MAX_SERVICE_LEN).contains(&name.len()))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use isola_block::BlockSettings;
    use isola_platform::block::BlockLimits;
    use isola_storage_sim::{SimDisk, limits};
    use isola_test_task::run_task;
    use proptest::prelude::*;
    use std::sync::Mutex;

    /// Returns header and entries of a table.
    fn table(partitions: &[(&str, u64, u64)]) -> (Vec<u8>, Vec<u8>) {
        let mut entries = vec![0; 4 * ENTRY_LEN];
        for ((name, first, last), entry) in partitions.iter().zip(entries.chunks_mut(ENTRY_LEN)) {
            entry[0] = 1;
            entry[32..40].copy_from_slice(&first.to_le_bytes());
            entry[40..48].copy_from_slice(&last.to_le_bytes());
            let units = name.encode_utf16().flat_map(u16::to_le_bytes);
            entry[56..].iter_mut().zip(units).for_each(|(byte, unit)| *byte = unit);
        }
        let mut header = vec![0; SECTOR_LEN];
        header[72] = 2;
        header[..8].copy_from_slice(SIGNATURE);
        for (at, word) in [(12, 92), (80, 4), (84, 128), (88, crc32fast::hash(&entries))] {
            header[at..at + 4].copy_from_slice(&u32::to_le_bytes(word));
        }
        seal(&mut header);
        (header, entries)
    }

    /// Writes the header's checksum.
    fn seal(header: &mut [u8]) {
        header[16..20].fill(0);
        let own = crc32fast::hash(&header[..HEADER_LEN]);
        header[16..20].copy_from_slice(&own.to_le_bytes());
    }

    /// Reads the partitions of a disk of `sectors` sectors, with a header and entries at sector 2.
    fn read_from(
        (header, entries): &(Vec<u8>, Vec<u8>),
        sectors: usize,
        block_len: u32,
    ) -> Result<Option<Vec<Partition>>, PartitionError> {
        let mut contents = [&[0; SECTOR_LEN], &header[..], &entries[..]].concat();
        contents.resize(sectors * SECTOR_LEN, 0);
        let disk = SimDisk::with_limits(contents, BlockLimits { block_len, ..limits() });
        let result = std::sync::Arc::new(Mutex::new(None));
        run_task(|| {
            let (disk, result) = (disk.clone(), result.clone());
            async move {
                let device = BlockDevice::start(disk.port(), BlockSettings::default()).unwrap();
                *result.lock().unwrap() = Some(read(&device).await);
            }
        });
        result.lock().unwrap().take().unwrap()
    }

    #[test]
    fn the_table_is_read_from_the_disk_and_must_be_within_it() {
        let good = table(&[("web", 8, 15)]);
        let web = Partition { name: "web".into(), first: 8, sectors: 8 };
        assert_eq!(read_from(&good, 16, 512), Ok(Some(vec![web])));
        assert_eq!(read_from(&good, 16, 4096), Ok(None), "longer blocks");
        assert_eq!(read_from(&(vec![], vec![]), 2, 512), Ok(None), "too short for a table");
        assert_eq!(read_from(&table(&[]), 3, 512), Ok(Some(vec![])), "the shortest");
        for at in [0, 1, 3, u64::MAX] {
            let (mut header, entries) = table(&[]);
            header[72..80].copy_from_slice(&at.to_le_bytes());
            seal(&mut header);
            assert_eq!(read_from(&(header, entries), 3, 512), Err(PartitionError::Damaged), "{at}");
        }
        for count in [0, MOST_ENTRIES as u32 + 1, u32::MAX] {
            let (mut header, entries) = table(&[]);
            header[80..84].copy_from_slice(&count.to_le_bytes());
            seal(&mut header);
            assert_eq!(read_from(&(header, entries), 64, 512), Err(PartitionError::Damaged), "{count}");
        }
        let entries = vec![0; MOST_ENTRIES * ENTRY_LEN];
        let (mut header, _) = table(&[]);
        header[80..84].copy_from_slice(&(MOST_ENTRIES as u32).to_le_bytes());
        header[88..92].copy_from_slice(&crc32fast::hash(&entries).to_le_bytes());
        seal(&mut header);
        assert_eq!(read_from(&(header, entries), 64, 512), Ok(Some(vec![])), "the most entries");
    }

    fn parse(sector: &[u8], entries: &[u8]) -> Result<Option<Vec<Partition>>, PartitionError> {
        header(sector)?.map(|header| partitions(header, entries, 1000)).transpose()
    }

    fn of(list: &[(&str, u64, u64)]) -> Result<Option<Vec<Partition>>, PartitionError> {
        let (header, entries) = table(list);
        parse(&header, &entries)
    }

    #[test]
    fn a_table_lists_partitions_by_name() {
        let web = Partition { name: "web".into(), first: 34, sectors: 100 };
        let kv = Partition { name: "kv-1.data_2".into(), first: 134, sectors: 866 };
        assert_eq!(of(&[("web", 34, 133), ("kv-1.data_2", 134, 999)]), Ok(Some(vec![web, kv])));
        assert!(of(&[("web", 3, 3)]).is_ok(), "right behind the table");
        assert_eq!(of(&[]), Ok(Some(vec![])));
        assert_eq!(parse(&[0; SECTOR_LEN], &[]), Ok(None), "a disk without a table");
    }

    #[test]
    fn bad_tables_are_refused() {
        let misplaced = Err(PartitionError::Misplaced);
        for (first, last) in [(900, 1000), (1, 1), (2, 2), (10, 9), (0, 0), (5, u64::MAX)] {
            assert_eq!(of(&[("web", first, last)]), misplaced, "{first} to {last}");
        }
        assert_eq!(of(&[("web", 34, 133), ("kv", 133, 200)]), misplaced);
        assert_eq!(of(&[("kv", 133, 200), ("web", 34, 133)]), misplaced);
        for name in ["", "a/b", "käse", "a b", "nnnnnnnnnnnnnnnnnnnnnnnnn"] {
            assert_eq!(of(&[(name, 34, 133)]), Err(PartitionError::Name), "{name:?}");
        }
        assert_eq!(of(&[("web", 34, 133), ("web", 134, 200)]), Err(PartitionError::Name));
        let (header, entries) = table(&[("web", 34, 133)]);
        for at in 8..HEADER_LEN {
            let mut damaged = header.clone();
            damaged[at] ^= 1;
            assert_eq!(parse(&damaged, &entries), Err(PartitionError::Damaged), "byte {at}");
        }
        let mut damaged = entries.clone();
        damaged[40] ^= 1;
        assert_eq!(parse(&header, &damaged), Err(PartitionError::Damaged));
        assert_eq!(parse(&header, &entries[..100]), Err(PartitionError::Damaged));
    }

    proptest! {
        #[test]
        fn partitions_are_within_the_disk_and_apart(
            list in prop::collection::vec((0..1100_u64, 0..1100_u64), 0..4)
        ) {
            let names = ["a", "b", "c", "d"];
            let list: Vec<_> =
                names.into_iter().zip(list).map(|(name, (first, last))| (name, first, last)).collect();
            if let Ok(Some(partitions)) = of(&list) {
                for (index, one) in partitions.iter().enumerate() {
                    prop_assert!(one.first >= 3 && one.sectors > 0 && one.first + one.sectors <= 1000);
                    for other in &partitions[..index] {
                        prop_assert!(one.first + one.sectors <= other.first || other.first + other.sectors <= one.first);
                    }
                }
            }
        }
    }
}
