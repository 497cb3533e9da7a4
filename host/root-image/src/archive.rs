//! Tar archives: v7, ustar, GNU and pax.
//!
//! The crate `tar` parses headers. Extended headers are parsed here, because an archive may claim any length for them, and
//! because the value of an attribute may contain the byte that ends it.

use crate::BuildError;
use crate::compression::decompress;
use crate::ext4::{ImageWriter, is_storable};
use crate::tree::{Attributes, DeviceKind, ExtendedAttributes, Node, NodeKind, Timestamp, Tree, Whiteouts};
use std::collections::BTreeMap;
use std::io::{self, BufRead, Read};
use tar::{Archive, Entry, EntryType, Header};

/// The most bytes of an extended header.
const MOST_EXTENSION: u64 = 1 << 20;
/// The prefix of the keys of extended attributes.
const ATTRIBUTE: &[u8] = b"SCHILY.xattr.";

/// Adds the files of an archive to a tree, and their contents to the image. Returns the number of entries. `name` is the
/// archive's, for errors.
///
/// # Errors
/// [`BuildError`].
pub fn read_archive(
    name: &str,
    source: impl BufRead,
    tree: &mut Tree,
    writer: &mut ImageWriter,
    whiteouts: Whiteouts,
) -> Result<u64, BuildError> {
    let mut stream = decompress(source).map_err(BuildError::Read)?;
    let count = read_entries(name, &mut stream, tree, writer, whiteouts)?;
    // Behind the end of the archive may be padding, which belongs to the digest of the stream.
    io::copy(&mut stream.take(crate::MOST_BYTES), &mut io::sink()).map_err(BuildError::Read)?;
    Ok(count)
}

fn read_entries(
    name: &str,
    stream: &mut dyn Read,
    tree: &mut Tree,
    writer: &mut ImageWriter,
    whiteouts: Whiteouts,
) -> Result<u64, BuildError> {
    let mut archive = Archive::new(stream);
    let (mut extension, mut count) = (Extension::default(), 0);
    for entry in archive.entries().map_err(BuildError::Read)?.raw(true) {
        let mut entry = entry.map_err(|error| match error.kind() {
            // The first block is no header.
            io::ErrorKind::Other if count == 0 => BuildError::NoArchive(name.to_owned()),
            _ => BuildError::Read(error),
        })?;
        count += 1;
        let entry_type = entry.header().entry_type();
        match entry_type {
            EntryType::GNULongName => extension.path = Some(name_in(&mut entry)?),
            EntryType::GNULongLink => extension.target = Some(name_in(&mut entry)?),
            EntryType::XHeader => extension.read_records(&bytes_of(&mut entry)?)?,
            EntryType::XGlobalHeader => drop(bytes_of(&mut entry)?),
            _ => add_entry(&mut entry, std::mem::take(&mut extension), tree, writer, whiteouts)?,
        }
    }
    Ok(count)
}

/// The facts that extended headers add to the next entry.
#[derive(Debug, Default)]
struct Extension {
    path: Option<Vec<u8>>,
    target: Option<Vec<u8>>,
    records: BTreeMap<Vec<u8>, Vec<u8>>,
    attributes: ExtendedAttributes,
}

impl Extension {
    /// Reads pax records: `LEN KEY=VALUE\n`, where LEN counts all bytes of the record.
    fn read_records(&mut self, mut bytes: &[u8]) -> Result<(), BuildError> {
        let bad = || BuildError::Read(io::Error::other("an extended header is damaged"));
        while !bytes.is_empty() {
            let space = bytes.iter().position(|byte| *byte == b' ').ok_or_else(bad)?;
            let len: usize =
                str::from_utf8(&bytes[..space]).ok().and_then(|text| text.parse().ok()).ok_or_else(bad)?;
            let record = bytes.get(space + 1..len).and_then(|record| record.strip_suffix(b"\n"));
            let record = record.ok_or_else(bad)?;
            let equals = record.iter().position(|byte| *byte == b'=').ok_or_else(bad)?;
            let (key, value) = (&record[..equals], record[equals + 1..].to_vec());
            match key.strip_prefix(ATTRIBUTE) {
                Some(name) if is_storable(name) => drop(self.attributes.insert(name.to_vec(), value)),
                Some(_) => {}
                None => match key {
                    b"path" => self.path = Some(value),
                    b"linkpath" => self.target = Some(value),
                    _ => drop(self.records.insert(key.to_vec(), value)),
                },
            }
            bytes = &bytes[len..];
        }
        Ok(())
    }

    fn number(&self, key: &str) -> Result<Option<u64>, BuildError> {
        let Some(value) = self.records.get(key.as_bytes()) else { return Ok(None) };
        let number = str::from_utf8(value).ok().and_then(|text| text.parse().ok());
        let bad = || BuildError::Read(io::Error::other(format!("the value of {key} is no number")));
        number.map(Some).ok_or_else(bad)
    }

    /// Returns the time of the latest change, which may have a fraction.
    fn modified(&self) -> Option<Timestamp> {
        let text = str::from_utf8(self.records.get(b"mtime".as_slice())?).ok()?;
        let (seconds, fraction) = text.split_once('.').unwrap_or((text, ""));
        let digits: String = fraction.chars().chain("000000000".chars()).take(9).collect();
        let (whole, nanoseconds) = (seconds.parse::<i64>().ok()?, digits.parse::<u32>().ok()?);
        Some(if seconds.starts_with('-') && nanoseconds > 0 {
            Timestamp { seconds: whole - 1, nanoseconds: 1_000_000_000 - nanoseconds }
        } else {
            Timestamp { seconds: whole, nanoseconds }
        })
    }

    fn is_sparse(&self) -> bool {
        self.records.keys().any(|key| key.starts_with(b"GNU.sparse."))
    }
}

/// Adds an entry that is a file.
fn add_entry<R: Read>(
    entry: &mut Entry<'_, R>,
    mut extension: Extension,
    tree: &mut Tree,
    writer: &mut ImageWriter,
    whiteouts: Whiteouts,
) -> Result<(), BuildError> {
    let header = entry.header().clone();
    let path = extension.path.take().unwrap_or_else(|| header.path_bytes().into_owned());
    let target = extension.target.take();
    let target = target.or_else(|| header.link_name_bytes().map(|name| name.into_owned()));
    let refuse = |reason: &str| BuildError::path(&path, reason);
    let entry_type = header.entry_type();
    if entry_type == EntryType::GNUSparse || extension.is_sparse() {
        return Err(refuse("it is a sparse entry: make the archive without --sparse"));
    }
    let kind = match entry_type {
        // Old archives mark a directory by the slash at its end.
        EntryType::Regular if path.ends_with(b"/") => NodeKind::Directory(BTreeMap::new()),
        EntryType::Regular | EntryType::Continuous => {
            let len = header.entry_size().map_err(BuildError::Read)?;
            if extension.number("size")?.is_some_and(|size| size != len) {
                return Err(refuse("it has more than 8 GiB"));
            }
            NodeKind::File(writer.write_content(entry, len)?)
        }
        EntryType::Directory => NodeKind::Directory(BTreeMap::new()),
        EntryType::Symlink => NodeKind::Symlink(target.ok_or_else(|| refuse("its target is missing"))?),
        EntryType::Link => {
            let target = target.ok_or_else(|| refuse("its target is missing"))?;
            return tree.link(&path, &target, whiteouts);
        }
        EntryType::Char => device(&header, DeviceKind::Character)?,
        EntryType::Block => device(&header, DeviceKind::Block)?,
        EntryType::Fifo => NodeKind::Fifo,
        other => {
            return Err(refuse(&format!("its type {:?} is unknown", char::from(other.as_byte()))));
        }
    };
    let attributes = attributes(&header, &extension)?;
    tree.insert(&path, Node { attributes, extended: extension.attributes, kind }, whiteouts)
}

fn attributes(header: &Header, extension: &Extension) -> Result<Attributes, BuildError> {
    let id = |given: Option<u64>, id: io::Result<u64>| {
        let id = given.map_or(id, Ok).map_err(BuildError::Read)?;
        u32::try_from(id)
            .map_err(|_| BuildError::Read(io::Error::other("the number of an owner is too large")))
    };
    let seconds = || header.mtime().map_err(BuildError::Read);
    let modified = match extension.modified() {
        Some(modified) => modified,
        None => Timestamp { seconds: i64::try_from(seconds()?).unwrap_or_default(), nanoseconds: 0 },
    };
    Ok(Attributes {
        permissions: header.mode().map_err(BuildError::Read)? & 0o7777,
        user: id(extension.number("uid")?, header.uid())?,
        group: id(extension.number("gid")?, header.gid())?,
        modified,
    })
}

fn device(header: &Header, kind: DeviceKind) -> Result<NodeKind, BuildError> {
    let major = header.device_major().map_err(BuildError::Read)?.unwrap_or_default();
    let minor = header.device_minor().map_err(BuildError::Read)?.unwrap_or_default();
    Ok(NodeKind::Device(kind, major, minor))
}

/// Returns the contents of an extended header.
fn bytes_of<R: Read>(entry: &mut Entry<'_, R>) -> Result<Vec<u8>, BuildError> {
    let len = entry.size();
    if len > MOST_EXTENSION {
        return Err(BuildError::Read(io::Error::other(format!(
            "an extended header has {len} bytes, and at most {MOST_EXTENSION} are possible"
        ))));
    }
    let mut bytes = vec![0; len as usize];
    entry.read_exact(&mut bytes).map_err(BuildError::Read)?;
    Ok(bytes)
}

/// Returns the name in an extended header, without the NUL at its end.
fn name_in<R: Read>(entry: &mut Entry<'_, R>) -> Result<Vec<u8>, BuildError> {
    let mut bytes = bytes_of(entry)?;
    if bytes.last() == Some(&0) {
        bytes.pop();
    }
    Ok(bytes)
}
