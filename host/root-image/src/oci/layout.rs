//! The files of an image layout: in a folder, or in a tar archive.

use super::documents::Descriptor;
use super::text_of;
use crate::compression::{Format, decompress, format_of};
use crate::{BuildError, MOST_BYTES};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use tar::Archive;

/// The most files of an archive with a layout.
const MOST_FILES: usize = 100_000;

/// The files of a layout.
pub enum Layout {
    /// In a folder.
    Folder(PathBuf),
    /// In an archive, with their places in it.
    Archive(File, BTreeMap<String, (u64, u64)>),
}

impl Layout {
    /// Opens a layout. A compressed archive is decompressed into a file without a name in the folder `scratch`.
    pub fn open(path: &Path, scratch: &Path) -> Result<Self, BuildError> {
        if path.is_dir() {
            return Ok(Self::Folder(path.to_owned()));
        }
        let mut file = File::open(path).map_err(BuildError::of_file(path))?;
        let mut start = [0; 8];
        let count = file.read_at(&mut start, 0).map_err(BuildError::of_file(path))?;
        if format_of(&start[..count]) != Format::Plain {
            let mut unpacked = tempfile::tempfile_in(scratch).map_err(BuildError::of_file(scratch))?;
            let stream = decompress(BufReader::new(&file)).map_err(BuildError::Read)?;
            let len = io::copy(&mut stream.take(MOST_BYTES + 1), &mut unpacked).map_err(BuildError::Read)?;
            if len > MOST_BYTES {
                return Err(BuildError::TooLarge);
            }
            file = unpacked;
        }
        let places = places(&mut file);
        let places = places
            .map_err(|reason| BuildError::Oci { layout: path.to_owned(), reason: reason.to_string() })?;
        Ok(Self::Archive(file, places))
    }

    /// Opens a file of the layout. Returns its length with it.
    fn open_file(&self, name: &str) -> Result<(u64, Box<dyn Read>), String> {
        let missing = |error: &dyn std::fmt::Display| format!("{name} cannot be read: {error}");
        match self {
            Self::Folder(folder) => {
                let file = File::open(folder.join(name)).map_err(|error| missing(&error))?;
                let metadata = file.metadata().map_err(|error| missing(&error))?;
                if !metadata.is_file() {
                    return Err(missing(&"it is no file"));
                }
                Ok((metadata.len(), Box::new(file)))
            }
            Self::Archive(file, places) => {
                let (at, len) =
                    places.get(name).copied().ok_or_else(|| missing(&"the archive has no such file"))?;
                let part = ArchivePart {
                    file: file.try_clone().map_err(|error| missing(&error))?,
                    at,
                    end: at + len,
                };
                Ok((len, Box::new(part)))
            }
        }
    }

    /// Reads a file of the layout.
    pub fn read_file(&self, name: &str, most: u64) -> Result<Vec<u8>, String> {
        let (len, file) = self.open_file(name)?;
        if len > most {
            return Err(format!("{name} has {len} bytes, and at most {most} are possible"));
        }
        let mut bytes = Vec::new();
        file.take(most).read_to_end(&mut bytes).map_err(|error| format!("{name} cannot be read: {error}"))?;
        Ok(bytes)
    }

    /// Opens a blob, whose length is as its descriptor says. The caller checks the digest.
    pub fn open_blob(&self, descriptor: &Descriptor) -> Result<Box<dyn Read>, String> {
        let digest = &descriptor.digest;
        let digits = digest.strip_prefix("sha256:").ok_or_else(|| {
            format!("the digest {digest:?} is not one of SHA-256, the only kind that is supported")
        })?;
        // The digits become a part of a path.
        if digits.len() != 64 || !digits.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f')) {
            return Err(format!("the digest {digest:?} does not have 64 digits"));
        }
        let (len, blob) = self.open_file(&format!("blobs/sha256/{digits}"))?;
        if len != descriptor.size {
            return Err(format!(
                "{digest} has {len} bytes, and not {} as its descriptor says",
                descriptor.size
            ));
        }
        Ok(blob)
    }

    /// Reads a blob, and checks its digest.
    pub fn read_blob(&self, descriptor: &Descriptor, most: u64) -> Result<Vec<u8>, String> {
        let digest = &descriptor.digest;
        if descriptor.size > most {
            return Err(format!("{digest} has {} bytes, and at most {most} are possible", descriptor.size));
        }
        let mut bytes = Vec::new();
        let mut blob = self.open_blob(descriptor)?.take(most);
        blob.read_to_end(&mut bytes).map_err(|error| format!("{digest} cannot be read: {error}"))?;
        if text_of(&Sha256::digest(&bytes)) != *digest {
            return Err(format!("{digest} has other contents than its name says"));
        }
        Ok(bytes)
    }
}

/// Returns the places of an archive's regular files, by their names.
fn places(file: &mut File) -> io::Result<BTreeMap<String, (u64, u64)>> {
    file.seek(SeekFrom::Start(0))?;
    let total = file.metadata()?.len();
    let mut archive = Archive::new(&*file);
    let mut places = BTreeMap::new();
    // Names of a layout fit the header: no extended headers are needed.
    for entry in archive.entries_with_seek()?.raw(true) {
        let entry = entry?;
        if places.len() >= MOST_FILES {
            return Err(io::Error::other(format!("the archive has more than {MOST_FILES} files")));
        }
        if entry.header().entry_type().is_file() {
            let (at, len) = (entry.raw_file_position(), entry.size());
            if at.checked_add(len).is_none_or(|end| end > total) {
                return Err(io::Error::other("the archive ends in the middle of a file"));
            }
            let path = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
            places.insert(path.trim_start_matches("./").to_owned(), (at, len));
        }
    }
    Ok(places)
}

/// A file of an archive.
struct ArchivePart {
    file: File,
    at: u64,
    end: u64,
}

impl Read for ArchivePart {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.end - self.at).unwrap_or(usize::MAX).min(buffer.len());
        let count = self.file.read_at(&mut buffer[..most], self.at)?;
        self.at += count as u64;
        Ok(count)
    }
}
