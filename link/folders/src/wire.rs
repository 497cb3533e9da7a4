//! Messages of FUSE 7.40, by the structures of Linux (`fuse-abi`): encoding, decoding, and errors.
//!
//! Numbers are little-endian, as both cells are on one machine.

use alloc::vec::Vec;
use core::time::Duration;
use fuse_abi::linux::{FUSE_ROOT_ID, fuse_attr, fuse_in_header, fuse_opcode, fuse_out_header};
use isola_block::BlockError;
use isola_volumes::{Attributes, Entry, FileError, FileId, FileKind};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// The length of the header of an answer.
pub const ANSWER_HEADER_LEN: usize = size_of::<fuse_out_header>();

/// The length of an entry of a directory without its name.
const ENTRY_HEADER_LEN: usize = 24;

/// The most bytes of an entry of a directory.
pub const MOST_ENTRY_LEN: usize = ENTRY_HEADER_LEN + 256;

/// The root directory of a served folder.
pub const ROOT: FileId = FileId(FUSE_ROOT_ID);

/// Types of files in `st_mode`.
pub const TYPE_MASK: u32 = 0o170_000;
pub const TYPE_FIFO: u32 = 0o010_000;
pub const TYPE_CHARACTER_DEVICE: u32 = 0o020_000;
pub const TYPE_DIRECTORY: u32 = 0o040_000;
pub const TYPE_BLOCK_DEVICE: u32 = 0o060_000;
pub const TYPE_FILE: u32 = 0o100_000;
pub const TYPE_SYMLINK: u32 = 0o120_000;
pub const TYPE_SOCKET: u32 = 0o140_000;

/// Flags of `RENAME2`.
pub const RENAME_NOREPLACE: u32 = 1;
pub const RENAME_EXCHANGE: u32 = 2;

/// Flags of `FALLOCATE`.
pub const FALLOCATE_KEEP_SIZE: u32 = 1;
pub const FALLOCATE_PUNCH_HOLE: u32 = 2;

/// Flags of `SETXATTR`.
pub const XATTR_CREATE: u32 = 1;
pub const XATTR_REPLACE: u32 = 2;

/// Errors, as Linux numbers them.
pub const ENOENT: i32 = 2;
pub const EIO: i32 = 5;
pub const EEXIST: i32 = 17;
pub const EINVAL: i32 = 22;
pub const ENFILE: i32 = 23;
pub const EROFS: i32 = 30;
pub const ENOSYS: i32 = 38;
pub const ENODATA: i32 = 61;
pub const EPROTO: i32 = 71;
pub const ESTALE: i32 = 116;

/// The largest number of an error.
const MOST_ERROR: i32 = 4095;

/// Both sides of [`errno`] and [`file_error`].
const ERRORS: [(FileError, i32); 19] = [
    (FileError::NotFound, ENOENT),
    (FileError::Disk(BlockError::Io), EIO),
    (FileError::Busy, 11),
    (FileError::NoMemory, 12),
    (FileError::InUse, 16),
    (FileError::AlreadyExists, EEXIST),
    (FileError::Unmounted, 19),
    (FileError::NotADirectory, 20),
    (FileError::IsADirectory, 21),
    (FileError::Invalid, EINVAL),
    (FileError::TooLarge, 27),
    (FileError::NoSpace, 28),
    (FileError::ReadOnly, EROFS),
    (FileError::InvalidName, 36),
    (FileError::NotEmpty, 39),
    (FileError::Fragmented, 54),
    (FileError::Unsupported, 95),
    (FileError::Aborted, 108),
    (FileError::Damaged, 117),
];

/// Returns the number of an error.
pub fn errno(error: FileError) -> i32 {
    ERRORS.iter().find(|(known, _)| *known == error).map_or(EIO, |(_, number)| *number)
}

/// Returns the error with a number.
pub fn file_error(number: i32) -> FileError {
    match number {
        // A node of which the service does not know: its file has no name any more.
        ESTALE | ENODATA => FileError::NotFound,
        // The service knows as many files of this client as it permits.
        ENFILE => FileError::NoMemory,
        ENOSYS => FileError::Unsupported,
        _ => {
            let known = ERRORS.iter().find(|(_, known)| *known == number);
            known.map_or(FileError::Disk(BlockError::Io), |(error, _)| *error)
        }
    }
}

/// Appends a structure.
pub fn put<T: IntoBytes + Immutable>(bytes: &mut Vec<u8>, value: &T) {
    bytes.extend_from_slice(value.as_bytes());
}

/// Appends a name with its NUL.
pub fn put_name(bytes: &mut Vec<u8>, name: &[u8]) {
    bytes.extend_from_slice(name);
    bytes.push(0);
}

/// Removes a structure from the front; `None` if there are too few bytes.
pub fn take<T: FromBytes>(bytes: &mut &[u8]) -> Option<T> {
    let (value, rest) = T::read_from_prefix(bytes).ok()?;
    *bytes = rest;
    Some(value)
}

/// Removes a name with its NUL from the front; `None` if there is no NUL.
pub fn take_name<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    let end = bytes.iter().position(|byte| *byte == 0)?;
    let (name, rest) = bytes.split_at(end);
    *bytes = rest.get(1..)?;
    Some(name)
}

/// Encodes a message: header and arguments.
pub fn message(opcode: fuse_opcode, unique: u64, node: u64, owner: (u32, u32), arguments: &[u8]) -> Vec<u8> {
    let len = size_of::<fuse_in_header>() + arguments.len();
    let header = fuse_in_header {
        len: u32::try_from(len).unwrap_or(u32::MAX),
        opcode: opcode as u32,
        unique,
        nodeid: node,
        uid: owner.0,
        gid: owner.1,
        ..Default::default()
    };
    let mut message = Vec::with_capacity(len);
    put(&mut message, &header);
    message.extend_from_slice(arguments);
    message
}

/// Decodes a message into its header and its arguments; `None` if it is none.
pub fn decode_message(mut bytes: &[u8]) -> Option<(fuse_in_header, &[u8])> {
    let len = bytes.len();
    let header: fuse_in_header = take(&mut bytes)?;
    (header.len as usize == len).then_some((header, bytes))
}

/// Encodes the answer to a message: its contents, or the number of an error.
pub fn answer(unique: u64, outcome: Result<&[u8], i32>) -> Vec<u8> {
    let contents = outcome.unwrap_or_default();
    let len = ANSWER_HEADER_LEN + contents.len();
    let error = outcome.err().map_or(0, |error| -error.clamp(1, MOST_ERROR));
    let mut answer = Vec::with_capacity(len);
    put(&mut answer, &fuse_out_header { len: u32::try_from(len).unwrap_or(u32::MAX), error, unique });
    answer.extend_from_slice(contents);
    answer
}

/// Decodes the answer to the message `unique` into its contents, or the number of an error; `None` if it is none.
pub fn decode_answer(unique: u64, mut bytes: &[u8]) -> Option<Result<&[u8], i32>> {
    let len = bytes.len();
    let header: fuse_out_header = take(&mut bytes)?;
    let is_right = header.len as usize == len && header.unique == unique;
    match header.error {
        0 if is_right => Some(Ok(bytes)),
        error if is_right && (-MOST_ERROR..0).contains(&error) => Some(Err(-error)),
        _ => None,
    }
}

fn split(time: Duration) -> (u64, u32) {
    (time.as_secs(), time.subsec_nanos())
}

/// Returns a time of two numbers, of which the nanoseconds may be too many.
pub fn time(seconds: u64, nanoseconds: u32) -> Duration {
    Duration::new(seconds, nanoseconds.min(999_999_999))
}

/// Returns major and minor number of a device in 32 bits, as Linux's `new_encode_dev`.
pub fn encode_device((major, minor): (u32, u32)) -> u32 {
    minor & 0xff | major << 8 | (minor & !0xff) << 12
}

/// Reverses [`encode_device`].
pub fn decode_device(device: u32) -> (u32, u32) {
    ((device & 0xf_ff00) >> 8, device & 0xff | device >> 12 & 0xf_ff00)
}

/// Encodes attributes of a file that the client knows by the number `node`.
pub fn encode_attributes(node: u64, attributes: &Attributes) -> fuse_attr {
    let (atime, atimensec) = split(attributes.accessed);
    let (mtime, mtimensec) = split(attributes.modified);
    let (ctime, ctimensec) = split(attributes.changed);
    fuse_attr {
        ino: node,
        size: attributes.len,
        blocks: attributes.blocks,
        atime,
        mtime,
        ctime,
        atimensec,
        mtimensec,
        ctimensec,
        mode: attributes.mode,
        nlink: attributes.links,
        uid: attributes.user,
        gid: attributes.group,
        rdev: attributes.device.map_or(0, encode_device),
        blksize: 4096,
        flags: 0,
    }
}

/// Decodes attributes, for a file with the number `id`. The time of its creation is not in them.
pub fn decode_attributes(id: FileId, attributes: &fuse_attr) -> Attributes {
    let is_device = matches!(attributes.mode & TYPE_MASK, TYPE_CHARACTER_DEVICE | TYPE_BLOCK_DEVICE);
    Attributes {
        id,
        mode: attributes.mode,
        user: attributes.uid,
        group: attributes.gid,
        links: attributes.nlink,
        len: attributes.size,
        blocks: attributes.blocks,
        accessed: time(attributes.atime, attributes.atimensec),
        modified: time(attributes.mtime, attributes.mtimensec),
        changed: time(attributes.ctime, attributes.ctimensec),
        created: Duration::ZERO,
        device: is_device.then(|| decode_device(attributes.rdev)),
    }
}

/// Returns the type of a file by its mode.
pub fn kind_of(mode: u32) -> FileKind {
    match mode & TYPE_MASK {
        TYPE_FILE => FileKind::File,
        TYPE_DIRECTORY => FileKind::Directory,
        _ => FileKind::Other,
    }
}

/// Appends an entry of a directory; `next` is the position after it.
pub fn put_entry(bytes: &mut Vec<u8>, entry: &Entry, next: u64) {
    let kind: u32 = match entry.kind {
        FileKind::File => TYPE_FILE >> 12,
        FileKind::Directory => TYPE_DIRECTORY >> 12,
        FileKind::Other => 0,
    };
    put(bytes, &entry.id.0);
    put(bytes, &next);
    put(bytes, &u32::try_from(entry.name.len()).unwrap_or_default());
    put(bytes, &kind);
    bytes.extend_from_slice(&entry.name);
    bytes.resize(bytes.len().next_multiple_of(8), 0);
}

/// Removes an entry of a directory from the front, with the position after it; `None` if it is none.
pub fn take_entry(bytes: &mut &[u8]) -> Option<(Entry, u64)> {
    let (id, next): (u64, u64) = (take(bytes)?, take(bytes)?);
    let (len, kind): (u32, u32) = (take(bytes)?, take(bytes)?);
    let len = len as usize;
    let name = bytes.get(..len).filter(|name| is_name(name))?.to_vec();
    let padded = (ENTRY_HEADER_LEN + len).next_multiple_of(8) - ENTRY_HEADER_LEN;
    *bytes = bytes.get(padded..)?;
    Some((Entry { name, id: FileId(id), kind: kind_of(kind << 12) }, next))
}

/// Returns whether a directory can have an entry with this name.
pub fn is_name(name: &[u8]) -> bool {
    (1..=255).contains(&name.len())
        && !name.contains(&b'/')
        && !name.contains(&0)
        && name != b"."
        && name != b".."
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use proptest::prelude::*;

    #[test]
    fn every_error_has_one_number_and_comes_back() {
        for (error, number) in ERRORS {
            assert_eq!((errno(error), file_error(number)), (number, error));
        }
        assert_eq!(errno(FileError::NoJournal), EIO);
        assert_eq!(file_error(9999), FileError::Disk(BlockError::Io));
    }

    #[test]
    fn devices_come_back() {
        for device in [(0, 0), (1, 3), (8, 255), (4095, 0xf_ffff), (259, 0x12345)] {
            assert_eq!(decode_device(encode_device(device)), device);
        }
    }

    #[test]
    fn entries_come_back_and_others_are_refused() {
        let mut bytes = Vec::new();
        let entries: Vec<Entry> = (1..=40)
            .map(|len| Entry { name: vec![b'n'; len], id: FileId(len as u64), kind: FileKind::File })
            .collect();
        entries.iter().zip(1..).for_each(|(entry, next)| put_entry(&mut bytes, entry, next));
        let mut rest = &bytes[..];
        for (entry, next) in entries.iter().zip(1..) {
            assert_eq!(take_entry(&mut rest), Some((entry.clone(), next)));
        }
        assert!(rest.is_empty());
        for name in [&b""[..], b".", b"..", b"a/b", b"a\0", &[b'x'; 256]] {
            let mut bytes = Vec::new();
            let entry = Entry { name: name.to_vec(), id: FileId(1), kind: FileKind::File };
            put_entry(&mut bytes, &entry, 1);
            assert_eq!(take_entry(&mut &bytes[..]), None, "{name:?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_decode_to_a_part_of_them_or_nothing(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            if let Some((header, arguments)) = decode_message(&bytes) {
                prop_assert_eq!(header.len as usize, bytes.len());
                prop_assert!(bytes.ends_with(arguments));
            }
            if let Some(Err(error)) = decode_answer(0, &bytes) {
                prop_assert!((1..=MOST_ERROR).contains(&error));
            }
            let mut rest = &bytes[..];
            while let Some((entry, _)) = take_entry(&mut rest) {
                prop_assert!(is_name(&entry.name));
            }
            let mut rest = &bytes[..];
            while let Some(name) = take_name(&mut rest) {
                prop_assert!(!name.contains(&0));
            }
        }

        #[test]
        fn answers_come_back(
            unique in any::<u64>(),
            contents in prop::collection::vec(any::<u8>(), 0..100),
            error in 1..5000_i32,
        ) {
            let bytes = answer(unique, Ok(&contents));
            prop_assert_eq!(decode_answer(unique, &bytes), Some(Ok(&contents[..])));
            prop_assert_eq!(decode_answer(unique ^ 1, &bytes), None);
            let bytes = answer(unique, Err(error));
            prop_assert_eq!(decode_answer(unique, &bytes), Some(Err(error.min(MOST_ERROR))));
        }
    }
}
