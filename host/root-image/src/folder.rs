//! Folders of the host.
//!
//! A folder is recognised by the attributes of its files: a change of a file changes its `ctime`. Contents are read only
//! to make an image.

use crate::BuildError;
use crate::ext4::{ImageWriter, is_storable};
use crate::tree::{Attributes, DeviceKind, ExtendedAttributes, Node, NodeKind, Timestamp, Tree, Whiteouts};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File, Metadata, OpenOptions};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, SystemTime};

/// The time in which two changes of a file may have the same `ctime`.
const SAME_TIME: Duration = Duration::from_millis(20);

/// The files of a folder.
#[derive(Debug)]
pub struct Folder {
    root: PathBuf,
    /// The files with their paths within the folder, directories before their entries.
    files: Vec<(PathBuf, Metadata)>,
}

impl Folder {
    /// Lists the files of a folder. Sockets are left out.
    ///
    /// # Errors
    /// [`BuildError::Unusable`], [`BuildError::TooMany`].
    pub fn read(root: &Path) -> Result<Self, BuildError> {
        let metadata = fs::metadata(root).map_err(BuildError::of_file(root))?;
        let mut files = vec![(PathBuf::new(), metadata)];
        let mut next = 0;
        while let Some((path, metadata)) = files.get(next) {
            next += 1;
            if !metadata.is_dir() {
                continue;
            }
            let directory = path.clone();
            let full = root.join(&directory);
            let entries = fs::read_dir(&full).and_then(Iterator::collect::<Result<Vec<_>, _>>);
            let mut entries = entries.map_err(BuildError::of_file(&full))?;
            entries.sort_by_key(fs::DirEntry::file_name);
            for entry in entries {
                let path = entry.path();
                let metadata = fs::symlink_metadata(&path).map_err(BuildError::of_file(&path))?;
                if !metadata.file_type().is_socket() {
                    files.push((directory.join(entry.file_name()), metadata));
                }
            }
            if files.len() > crate::MOST_FILES {
                return Err(BuildError::TooMany);
            }
        }
        let folder = Self { root: root.to_owned(), files };
        folder.wait_for_clock();
        Ok(folder)
    }

    /// Waits until a further change of a file would have another `ctime`.
    fn wait_for_clock(&self) {
        let newest = self.files.iter().map(|(_, file)| (file.ctime(), file.ctime_nsec())).max();
        let Some((seconds, nanoseconds)) = newest else { return };
        let newest = Duration::new(seconds.max(0) as u64, nanoseconds.max(0) as u32);
        let Ok(now) = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH) else { return };
        if let Some(age) = now.checked_sub(newest)
            && age < SAME_TIME
        {
            sleep(SAME_TIME - age);
        }
    }

    /// Returns a digest of the attributes of all files.
    pub fn digest(&self) -> [u8; 32] {
        let mut digest = Sha256::new();
        digest.update(b"folder 1\0");
        digest.update(own_user().to_le_bytes());
        for (path, file) in &self.files {
            let bytes = path.as_os_str().as_bytes();
            digest.update((bytes.len() as u64).to_le_bytes());
            digest.update(bytes);
            for number in [
                file.dev(),
                file.ino(),
                file.nlink(),
                file.len(),
                file.rdev(),
                u64::from(file.mode()),
                u64::from(file.uid()),
                u64::from(file.gid()),
                file.mtime() as u64,
                file.mtime_nsec() as u64,
                file.ctime() as u64,
                file.ctime_nsec() as u64,
            ] {
                digest.update(number.to_le_bytes());
            }
        }
        digest.finalize().into()
    }

    /// Adds all files to a tree, and their contents to the image.
    ///
    /// # Errors
    /// [`BuildError`].
    pub fn add_to(&self, tree: &mut Tree, writer: &mut ImageWriter) -> Result<(), BuildError> {
        let mut names = BTreeMap::new();
        for (path, file) in &self.files {
            let bytes = path.as_os_str().as_bytes();
            if !file.is_dir() && file.nlink() > 1 {
                let first: &mut PathBuf =
                    names.entry((file.dev(), file.ino())).or_insert_with(|| path.clone());
                if first != path {
                    tree.link(bytes, first.as_os_str().as_bytes(), Whiteouts::None)?;
                    continue;
                }
            }
            let full = self.root.join(path);
            let kind = kind_of(&full, file, writer)?;
            let extended = extended_attributes(&full);
            tree.insert(bytes, Node { attributes: attributes(file), extended, kind }, Whiteouts::None)?;
        }
        // The changes that reading a file cannot notice.
        if Self::read(&self.root)?.digest() != self.digest() {
            return Err(BuildError::Changed(self.root.clone()));
        }
        Ok(())
    }
}

fn kind_of(path: &Path, file: &Metadata, writer: &mut ImageWriter) -> Result<NodeKind, BuildError> {
    let file_type = file.file_type();
    Ok(if file_type.is_dir() {
        NodeKind::Directory(BTreeMap::new())
    } else if file_type.is_symlink() {
        let target = fs::read_link(path).map_err(BuildError::of_file(path))?;
        NodeKind::Symlink(target.into_os_string().into_vec())
    } else if file_type.is_char_device() || file_type.is_block_device() {
        let kind = if file_type.is_char_device() { DeviceKind::Character } else { DeviceKind::Block };
        NodeKind::Device(kind, rustix::fs::major(file.rdev()), rustix::fs::minor(file.rdev()))
    } else if file_type.is_fifo() {
        NodeKind::Fifo
    } else {
        let mut open: File = OpenOptions::new()
            .read(true)
            .custom_flags(rustix::fs::OFlags::NOFOLLOW.bits() as i32)
            .open(path)
            .map_err(BuildError::of_file(path))?;
        NodeKind::File(writer.write_content(&mut open, file.len())?)
    })
}

/// Returns the id of the calling user.
fn own_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Returns the attributes of a file. If the calling user is not root, its files are root's in the image, as in
/// a user namespace whose root it is.
fn attributes(file: &Metadata) -> Attributes {
    let own = own_user();
    let (user, group) = if file.uid() == own && own != 0 { (0, 0) } else { (file.uid(), file.gid()) };
    let modified = Timestamp { seconds: file.mtime(), nanoseconds: file.mtime_nsec() as u32 };
    Attributes { permissions: file.mode() & 0o7777, user, group, modified }
}

/// Returns the extended attributes that this user can read.
fn extended_attributes(path: &Path) -> ExtendedAttributes {
    let mut names = vec![0; 65536];
    let Ok(len) = rustix::fs::llistxattr(path, names.as_mut_slice()) else {
        return ExtendedAttributes::new();
    };
    let names = names[..len].split(|byte| *byte == 0).filter(|name| is_storable(name));
    let read = |name: &[u8]| {
        let mut value = vec![0; 65536];
        let len = rustix::fs::lgetxattr(path, OsStr::from_bytes(name), value.as_mut_slice()).ok()?;
        value.truncate(len);
        Some((name.to_vec(), value))
    };
    // Labels of the host's security policy mean nothing in a cell.
    names.filter(|name| *name != b"security.selinux").filter_map(read).collect()
}
