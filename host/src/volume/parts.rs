//! A disk for a service cell: a partition table, and a file system in each partition.

use super::VolumeName;
use gpt::GptConfig;
use gpt::disk::LogicalBlockSize;
use gpt::mbr::ProtectiveMBR;
use gpt::partition_types::LINUX_FS;
use isola_abi::links::MAX_SERVICE_LEN;
use isola_abi::size::ByteSize;
use std::fs::File;
use std::io;
use std::str::FromStr;
use thiserror::Error;

const SECTOR_LEN: u64 = 512;

/// The alignment of partitions, and the room for each of the two tables.
const ALIGNMENT: u64 = 1 << 20;

/// The most partitions of a disk.
pub const MOST_PARTS: usize = 128;

/// A volume of a service cell, on a disk with others: `NAME=SIZE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartSpec {
    /// Its name.
    pub name: VolumeName,
    /// Its length.
    pub size: ByteSize,
}

/// The error for a text that is no part of a disk.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error(
    "{0:?} is no part of a volume: write NAME=SIZE, as in web=64M, with a name of at most {MAX_SERVICE_LEN} bytes"
)]
pub struct PartSpecError(String);

impl FromStr for PartSpec {
    type Err = PartSpecError;

    fn from_str(text: &str) -> Result<Self, PartSpecError> {
        let parse = |text: &str| {
            let (name, size) = text.split_once('=')?;
            let name =
                name.parse::<VolumeName>().ok().filter(|name| name.as_str().len() <= MAX_SERVICE_LEN)?;
            Some(Self { name, size: size.parse().ok()? })
        };
        parse(text).ok_or_else(|| PartSpecError(text.to_owned()))
    }
}

/// The place of a part, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PartRange {
    pub offset: u64,
    pub len_bytes: u64,
}

/// Returns the length of a disk with these parts, in bytes.
pub(super) fn disk_len(parts: &[PartSpec]) -> u64 {
    let parts = parts.iter().map(|part| part.size.0.next_multiple_of(ALIGNMENT));
    parts.fold(2 * ALIGNMENT, u64::saturating_add)
}

/// Writes the partition tables of a disk. Returns the place of each part.
pub(super) fn write(file: &File, parts: &[PartSpec]) -> io::Result<Vec<PartRange>> {
    let other = |error: gpt::GptError| io::Error::other(error);
    let sectors = disk_len(parts) / SECTOR_LEN;
    let mut device = file.try_clone()?;
    let last = u32::try_from(sectors - 1).unwrap_or(u32::MAX);
    ProtectiveMBR::with_lb_size(last).overwrite_lba0(&mut device).map_err(io::Error::other)?;
    let config = GptConfig::new().writable(true).logical_block_size(LogicalBlockSize::Lb512);
    let mut disk = config.create_from_device(device, None).map_err(other)?;
    let mut places = Vec::with_capacity(parts.len());
    for part in parts {
        let len_bytes = part.size.0.next_multiple_of(ALIGNMENT);
        let id = disk
            .add_partition(part.name.as_str(), len_bytes, LINUX_FS, 0, Some(ALIGNMENT / SECTOR_LEN))
            .map_err(io::Error::other)?;
        let made = disk.partitions().get(&id).ok_or_else(|| io::Error::other("a partition is missing"))?;
        places.push(PartRange { offset: made.first_lba * SECTOR_LEN, len_bytes });
    }
    disk.write().map_err(other)?;
    Ok(places)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_has_a_name_and_a_size() {
        let part = PartSpec { name: "web".parse().unwrap(), size: ByteSize(64 << 20) };
        assert_eq!("web=64M".parse(), Ok(part));
        for bad in ["web", "=64M", "web=", "web=x", "a/b=64M", "nnnnnnnnnnnnnnnnnnnnnnnnn=64M"] {
            assert!(bad.parse::<PartSpec>().is_err(), "{bad}");
        }
    }

    #[test]
    fn parts_follow_each_other_with_tables_at_both_ends() {
        let parts: Vec<PartSpec> = ["web=8M", "kv=9000000"].map(|part| part.parse().unwrap()).into();
        let file = tempfile::tempfile().unwrap();
        let len = disk_len(&parts);
        assert_eq!(len, (2 + 8 + 9) << 20);
        file.set_len(len).unwrap();
        let places = write(&file, &parts).unwrap();
        let place = |offset: u64, mib: u64| PartRange { offset: offset << 20, len_bytes: mib << 20 };
        assert_eq!(places, [place(1, 8), place(9, 9)]);
        let disk = GptConfig::new().open_from_device(file).unwrap();
        let names: Vec<&str> = disk.partitions().values().map(|part| &part.name[..]).collect();
        assert_eq!(names, ["web", "kv"]);
    }
}
