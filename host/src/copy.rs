//! Copies of files to and from a cell: the host's side.
//!
//! A cell's messages are hostile: a copy creates files below its target only, follows no symbolic link there, and gives no
//! file a set-user-id bit.

use isola_abi::session::{CopiedEntry, CopiedKind, HostMessage, MAX_PIECE};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use thiserror::Error;

/// The reasons why a copy failed.
#[derive(Debug, Error)]
pub enum CopyError {
    /// A file cannot be used.
    #[error("{}: {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The host's error.
        error: io::Error,
    },
    /// The cell's messages are no copy.
    #[error("the cell sends no valid copy: {0:?}")]
    Invalid(String),
    /// The connection failed.
    #[error("the connection was lost: {0}")]
    Connection(io::Error),
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> CopyError {
    let path = path.to_owned();
    move |error| CopyError::File { path, error }
}

/// Sends a file, or a folder with all that is in it.
///
/// # Errors
/// [`CopyError`].
pub fn send_files(from: &Path, send: &mut dyn FnMut(HostMessage) -> io::Result<()>) -> Result<(), CopyError> {
    let mut left = vec![String::new()];
    while let Some(name) = left.pop() {
        let path = if name.is_empty() { from.to_owned() } else { from.join(&name) };
        // The path that the user names is followed if it is a link.
        let metadata = if name.is_empty() { fs::metadata(&path) } else { fs::symlink_metadata(&path) };
        let metadata = metadata.map_err(at(&path))?;
        let permissions = metadata.permissions().mode() & 0o7777;
        let mut entry = |kind| {
            send(HostMessage::Entry(CopiedEntry { path: name.clone(), permissions, kind }))
                .map_err(CopyError::Connection)
        };
        if metadata.is_dir() {
            entry(CopiedKind::Folder)?;
            for child in fs::read_dir(&path).map_err(at(&path))? {
                let child = child.map_err(at(&path))?.file_name();
                let child = child.to_str().ok_or_else(|| {
                    at(&path.join(&child))(io::Error::new(io::ErrorKind::InvalidInput, "its name is no text"))
                })?;
                left.push(if name.is_empty() { child.to_owned() } else { format!("{name}/{child}") });
            }
        } else if metadata.is_symlink() {
            let target = fs::read_link(&path).map_err(at(&path))?;
            entry(CopiedKind::Link(target.to_string_lossy().into_owned()))?;
        } else if metadata.is_file() {
            let len = metadata.len();
            let mut file = File::open(&path).map_err(at(&path))?.take(len);
            entry(CopiedKind::File { len })?;
            let mut sent = 0;
            while sent < len {
                let mut bytes = vec![0; (len - sent).min(MAX_PIECE as u64) as usize];
                // The rest of a file that became shorter meanwhile is zeros.
                file.read(&mut bytes).map_err(at(&path)).and_then(|count| {
                    let end = if count == 0 { bytes.len() } else { count };
                    bytes.truncate(end);
                    sent += end as u64;
                    send(HostMessage::Contents(bytes)).map_err(CopyError::Connection)
                })?;
            }
        }
    }
    send(HostMessage::CopyEnd).map_err(CopyError::Connection)
}

/// The files that a copy from a cell creates.
#[derive(Debug)]
pub struct Destination {
    base: PathBuf,
    /// The folders of this copy: other entries are in one of them.
    folders: BTreeSet<String>,
    /// Their permissions, which they get at the end.
    permissions: BTreeMap<String, u32>,
    /// The file that is being written, and the bytes that it lacks.
    file: Option<(File, PathBuf, u64)>,
    is_begun: bool,
}

impl Destination {
    /// Prepares a copy to a path; under `name` in it, if it is a folder.
    pub fn new(to: &Path, name: &str) -> Self {
        let base = if to.is_dir() && !name.is_empty() { to.join(name) } else { to.to_owned() };
        Self { base, folders: BTreeSet::new(), permissions: BTreeMap::new(), file: None, is_begun: false }
    }

    /// Creates a file, folder or link.
    ///
    /// # Errors
    /// [`CopyError`].
    pub fn create(&mut self, entry: &CopiedEntry) -> Result<(), CopyError> {
        let invalid = || CopyError::Invalid(entry.path.clone());
        self.check_complete()?;
        let names = entry.names().ok_or_else(invalid)?;
        match entry.path.rsplit_once('/') {
            None if names.is_empty() => {
                if std::mem::replace(&mut self.is_begun, true) {
                    return Err(invalid());
                }
            }
            None if self.folders.contains("") => {}
            Some((folder, _)) if self.folders.contains(folder) => {}
            _ => return Err(invalid()),
        }
        let path = names.iter().fold(self.base.clone(), |path, name| path.join(name));
        match &entry.kind {
            CopiedKind::Folder => {
                match fs::create_dir(&path) {
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                        let is_folder = fs::symlink_metadata(&path).is_ok_and(|metadata| metadata.is_dir());
                        if !is_folder {
                            return Err(at(&path)(error));
                        }
                    }
                    result => result.map_err(at(&path))?,
                }
                self.folders.insert(entry.path.clone());
                self.permissions.insert(entry.path.clone(), entry.permissions & 0o777);
            }
            CopiedKind::Link(target) => {
                self.make_room(&path)?;
                symlink(target, &path).map_err(at(&path))?;
            }
            CopiedKind::File { len } => {
                self.make_room(&path)?;
                let mut options = OpenOptions::new();
                let file = options.write(true).create_new(true).mode(0o600).open(&path).map_err(at(&path))?;
                let permissions = Permissions::from_mode(entry.permissions & 0o777);
                file.set_permissions(permissions).map_err(at(&path))?;
                self.file = (*len > 0).then_some((file, path, *len));
            }
        }
        Ok(())
    }

    /// Removes a file or link that has the path of a new one.
    fn make_room(&self, path: &Path) -> Result<(), CopyError> {
        match fs::symlink_metadata(path) {
            Ok(metadata) if !metadata.is_dir() => fs::remove_file(path).map_err(at(path)),
            _ => Ok(()),
        }
    }

    /// Writes contents of the file that was created last.
    ///
    /// # Errors
    /// [`CopyError`].
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), CopyError> {
        let Some((mut file, path, left)) = self.file.take() else {
            return Err(CopyError::Invalid("contents without a file".to_owned()));
        };
        let left = left
            .checked_sub(bytes.len() as u64)
            .ok_or_else(|| CopyError::Invalid("more contents than announced".to_owned()))?;
        file.write_all(bytes).map_err(at(&path))?;
        self.file = (left > 0).then_some((file, path, left));
        Ok(())
    }

    fn check_complete(&self) -> Result<(), CopyError> {
        match &self.file {
            Some((_, path, _)) => Err(CopyError::Invalid(format!("{} is not complete", path.display()))),
            None => Ok(()),
        }
    }

    /// Gives the folders their permissions.
    ///
    /// # Errors
    /// [`CopyError`], also if the copy is not complete.
    pub fn finish(self) -> Result<(), CopyError> {
        self.check_complete()?;
        // The deepest first: a folder without permissions hides what is in it.
        for (folder, permissions) in self.permissions.iter().rev() {
            let path = if folder.is_empty() { self.base.clone() } else { self.base.join(folder) };
            fs::set_permissions(&path, Permissions::from_mode(*permissions)).map_err(at(&path))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(path: &str, kind: CopiedKind) -> CopiedEntry {
        CopiedEntry { path: path.into(), permissions: 0o4755, kind }
    }

    #[test]
    fn a_hostile_cell_creates_files_below_the_target_only() {
        let folder = tempfile::tempdir().unwrap();
        let outside = folder.path().join("outside");
        fs::create_dir(&outside).unwrap();
        let mut copy = Destination::new(&folder.path().join("copy"), "copy");
        copy.create(&entry("", CopiedKind::Folder)).unwrap();
        copy.create(&entry("link", CopiedKind::Link("../outside".into()))).unwrap();
        // Neither through a link, nor over it, nor beside the folder.
        for path in ["link/file", "../file", "/file", "missing/file", ""] {
            assert!(copy.create(&entry(path, CopiedKind::File { len: 0 })).is_err(), "{path}");
        }
        assert!(copy.create(&entry("link", CopiedKind::Folder)).is_err());
        assert!(copy.write(b"x").is_err());
        // A file replaces the link, and does not write through it.
        symlink("../outside/file", folder.path().join("copy/file")).unwrap();
        copy.create(&entry("file", CopiedKind::File { len: 2 })).unwrap();
        assert!(copy.create(&entry("other", CopiedKind::Folder)).is_err(), "the file is not complete");
        copy.write(b"ab").unwrap();
        copy.finish().unwrap();
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
        let file = folder.path().join("copy/file");
        assert_eq!(fs::read(&file).unwrap(), b"ab");
        assert_eq!(fs::symlink_metadata(&file).unwrap().permissions().mode() & 0o7777, 0o755);
    }

    #[test]
    fn a_folder_arrives_as_it_was_sent() {
        let folder = tempfile::tempdir().unwrap();
        let from = folder.path().join("from");
        fs::create_dir_all(from.join("a/b")).unwrap();
        fs::write(from.join("a/file"), vec![7; 3 * MAX_PIECE + 5]).unwrap();
        fs::write(from.join("a/b/empty"), b"").unwrap();
        symlink("file", from.join("a/link")).unwrap();
        fs::set_permissions(from.join("a/b"), Permissions::from_mode(0o500)).unwrap();
        let to = folder.path().join("to");
        fs::create_dir(&to).unwrap();
        let mut copy = Destination::new(&to, "from");
        send_files(&from, &mut |message| {
            match message {
                HostMessage::Entry(entry) => copy.create(&entry).unwrap(),
                HostMessage::Contents(bytes) => copy.write(&bytes).unwrap(),
                message => assert_eq!(message, HostMessage::CopyEnd),
            }
            Ok(())
        })
        .unwrap();
        copy.finish().unwrap();
        let copied = to.join("from");
        assert_eq!(fs::read(copied.join("a/file")).unwrap(), vec![7; 3 * MAX_PIECE + 5]);
        assert_eq!(fs::read(copied.join("a/b/empty")).unwrap(), b"");
        assert_eq!(fs::read_link(copied.join("a/link")).unwrap(), Path::new("file"));
        assert_eq!(fs::metadata(copied.join("a/b")).unwrap().permissions().mode() & 0o777, 0o500);
    }
}
