//! The folder of the volumes that have names: `$ISOLA_VOLUMES`, or `isola/volumes` in the user's data folder
//! (`$XDG_DATA_HOME`, or `~/.local/share`). A volume is one file in it, `NAME.img`, with an ext4 file system.
//!
//! It is not below `$ISOLA_STATE`, which most hosts empty when they boot.

use super::parts::{self, PartRange, PartSpec};
use super::{VolumeName, VolumeSource};
use isola_abi::size::ByteSize;
use std::env;
use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use thiserror::Error;

/// The ending of a volume's file.
const ENDING: &str = "img";

/// The unit of a volume's length, in bytes: a block of the file system.
const UNIT: u64 = 4096;

/// The least length of a volume: with less, `mke2fs` makes no journal.
pub const LEAST_SIZE: ByteSize = ByteSize(8 << 20);

/// The folder of volumes.
#[derive(Clone, Debug)]
pub struct VolumeStore {
    path: PathBuf,
}

/// A volume in the folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume {
    /// Its name.
    pub name: VolumeName,
    /// Its file.
    pub file: PathBuf,
    /// Its length in bytes.
    pub len_bytes: u64,
    /// The bytes that its file occupies on this host.
    pub used_bytes: u64,
}

/// The reasons why a volume cannot be used.
#[derive(Debug, Error)]
pub enum VolumeError {
    /// The environment names no folder.
    #[error("there is no folder for volumes: set ISOLA_VOLUMES or HOME")]
    NoFolder,
    /// A file cannot be used.
    #[error("cannot use {path}: {error}")]
    Unusable {
        /// The file.
        path: PathBuf,
        /// The cause.
        error: io::Error,
    },
    /// The name is taken.
    #[error("volume {0} exists already: choose another name, or remove it with `isola volume rm {0}`")]
    Exists(VolumeName),
    /// There is no volume with that name.
    #[error("there is no volume {name}{}: `isola volume ls` lists all", did_you_mean(.nearest))]
    Missing {
        /// The name.
        name: VolumeName,
        /// A volume with a similar name.
        nearest: Option<String>,
    },
    /// A cell should mount a volume that does not exist.
    #[error("there is no volume {name}{}: create it with `isola volume create {name} --size 1G`", did_you_mean(.nearest))]
    NotCreated {
        /// The name.
        name: VolumeName,
        /// A volume with a similar name.
        nearest: Option<String>,
    },
    /// A service cell serves the volume.
    #[error("{0} is a volume of a service cell: only a cell of a machine can mount it")]
    Served(String),
    /// The file of a volume does not exist.
    #[error("{0} does not exist, or is no file: a volume is a file with a file system")]
    NoFile(PathBuf),
    /// The file does not consist of whole sectors.
    #[error("{path} has {len_bytes} bytes, and a volume is a multiple of 512 bytes, and not empty")]
    Length {
        /// The file.
        path: PathBuf,
        /// Its length.
        len_bytes: u64,
    },
    /// The length asked for is too small.
    #[error("a volume has at least {LEAST_SIZE}, not {0}")]
    TooSmall(ByteSize),
    /// Two parts have the same name.
    #[error("two parts have the name {0}")]
    SamePart(VolumeName),
    /// There are too many parts.
    #[error("a volume has at most {} parts", parts::MOST_PARTS)]
    TooManyParts,
    /// The source of a volume's files is no folder.
    #[error("{0} is no folder: name the one whose files the volume gets")]
    NoSource(PathBuf),
    /// The program that makes file systems is missing.
    #[error(
        "mke2fs cannot be started ({0}): install e2fsprogs (Debian, Ubuntu: `apt-get install e2fsprogs`)"
    )]
    NoFormatter(io::Error),
    /// It failed.
    #[error("mke2fs failed: {0}{hint}", hint = if is_full(.0) { "; the volume is too short for these files" } else { "" })]
    Format(String),
}

/// Returns the error for a volume that a cell should mount.
fn to_be_created(error: VolumeError) -> VolumeError {
    match error {
        VolumeError::Missing { name, nearest } => VolumeError::NotCreated { name, nearest },
        other => other,
    }
}

/// Returns the question for a name that resembles that of a volume.
fn did_you_mean(nearest: &Option<String>) -> String {
    nearest.as_ref().map(|other| format!(" (did you mean {other}?)")).unwrap_or_default()
}

/// Returns whether mke2fs failed with this message because the file system has no room for its files.
fn is_full(message: &str) -> bool {
    message.contains("Could not allocate")
}

impl VolumeStore {
    /// Returns the folder that the environment selects. It may not exist.
    ///
    /// # Errors
    /// [`VolumeError::NoFolder`].
    pub fn from_environment() -> Result<Self, VolumeError> {
        let path = folder(|name| env::var_os(name)).ok_or(VolumeError::NoFolder)?;
        Ok(Self { path })
    }

    /// Returns the folder at `path`.
    pub fn at(path: &Path) -> Self {
        Self { path: path.to_owned() }
    }

    /// Creates a volume with an ext4 file system, with the files of `from` if that is given.
    ///
    /// # Errors
    /// [`VolumeError`]; the volume does not exist then, or existed before.
    pub fn create(
        &self,
        name: &VolumeName,
        size: ByteSize,
        from: Option<&Path>,
    ) -> Result<Volume, VolumeError> {
        if let Some(folder) = from.filter(|folder| !folder.is_dir()) {
            return Err(VolumeError::NoSource(folder.to_owned()));
        }
        self.make(name, &[size], |made, file| fill(made, file, size, from))
    }

    /// Creates a volume for a service cell, with a partition and a file system for each of the volumes that it serves.
    ///
    /// # Errors
    /// [`VolumeError`], as for [`Self::create`].
    pub fn create_parts(&self, name: &VolumeName, parts: &[PartSpec]) -> Result<Volume, VolumeError> {
        for (index, part) in parts.iter().enumerate() {
            if parts[..index].iter().any(|other| other.name == part.name) {
                return Err(VolumeError::SamePart(part.name.clone()));
            }
        }
        if parts.len() > parts::MOST_PARTS {
            return Err(VolumeError::TooManyParts);
        }
        let sizes: Vec<ByteSize> = parts.iter().map(|part| part.size).collect();
        self.make(name, &sizes, |made, file| {
            let unusable = |error| VolumeError::Unusable { path: file.to_owned(), error };
            made.set_len(parts::disk_len(parts)).map_err(unusable)?;
            let places = parts::write(made, parts).map_err(unusable)?;
            places.into_iter().try_for_each(|place| format(file, None, Some(place)))
        })
    }

    /// Creates the file of a volume, and fills it.
    fn make(
        &self,
        name: &VolumeName,
        sizes: &[ByteSize],
        fill: impl FnOnce(&File, &Path) -> Result<(), VolumeError>,
    ) -> Result<Volume, VolumeError> {
        if let Some(size) = sizes.iter().find(|size| **size < LEAST_SIZE) {
            return Err(VolumeError::TooSmall(*size));
        }
        let unusable = |path: &Path| {
            let path = path.to_owned();
            move |error| VolumeError::Unusable { path, error }
        };
        DirBuilder::new().recursive(true).mode(0o700).create(&self.path).map_err(unusable(&self.path))?;
        let file = self.file(name);
        // `create_new` claims the name; a volume that cannot be completed is removed again.
        let made = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&file);
        let made = made.map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => VolumeError::Exists(name.clone()),
            _ => unusable(&file)(error),
        })?;
        let filled = fill(&made, &file);
        if filled.is_err() {
            let _ = fs::remove_file(&file);
        }
        filled?;
        self.find(name)
    }

    /// Returns the volumes, sorted by name.
    pub fn list(&self) -> Vec<Volume> {
        let Ok(entries) = fs::read_dir(&self.path) else { return Vec::new() };
        let names = entries.flatten().filter_map(|entry| {
            let path = entry.path();
            let name = path.file_stem()?.to_str()?.parse().ok()?;
            (path.extension()? == ENDING).then_some(name)
        });
        let mut volumes: Vec<Volume> = names.filter_map(|name| self.find(&name).ok()).collect();
        volumes.sort_by(|one, other| one.name.cmp(&other.name));
        volumes
    }

    /// Returns the volume with that name.
    ///
    /// # Errors
    /// [`VolumeError::Missing`].
    pub fn find(&self, name: &VolumeName) -> Result<Volume, VolumeError> {
        use std::os::unix::fs::MetadataExt;
        let file = self.file(name);
        match fs::metadata(&file) {
            Ok(data) if data.is_file() => {
                let (len_bytes, used_bytes) = (data.len(), data.blocks() * 512);
                Ok(Volume { name: name.clone(), file, len_bytes, used_bytes })
            }
            _ => {
                let volumes = self.names();
                let nearest = crate::names::nearest(name.as_str(), volumes.iter().map(String::as_str));
                Err(VolumeError::Missing { name: name.clone(), nearest: nearest.map(str::to_owned) })
            }
        }
    }

    /// Removes a volume with its contents.
    ///
    /// # Errors
    /// [`VolumeError::Missing`] or [`VolumeError::Unusable`].
    pub fn remove(&self, name: &VolumeName) -> Result<(), VolumeError> {
        let file = self.find(name)?.file;
        fs::remove_file(&file).map_err(|error| VolumeError::Unusable { path: file, error })
    }

    /// Returns the absolute path of a volume's file, checked.
    ///
    /// # Errors
    /// [`VolumeError`].
    pub fn resolve(&self, source: &VolumeSource) -> Result<PathBuf, VolumeError> {
        let file = match source {
            VolumeSource::Named(name) => self.find(name).map_err(to_be_created)?.file,
            VolumeSource::File(path) => path.clone(),
            VolumeSource::Served { .. } => return Err(VolumeError::Served(source.to_string())),
        };
        let data = fs::metadata(&file).ok().filter(fs::Metadata::is_file);
        let len_bytes = data.ok_or_else(|| VolumeError::NoFile(file.clone()))?.len();
        if len_bytes == 0 || !len_bytes.is_multiple_of(512) {
            return Err(VolumeError::Length { path: file, len_bytes });
        }
        file.canonicalize().map_err(|error| VolumeError::Unusable { path: file, error })
    }

    fn file(&self, name: &VolumeName) -> PathBuf {
        self.path.join(format!("{name}.{ENDING}"))
    }

    fn names(&self) -> Vec<String> {
        let Ok(entries) = fs::read_dir(&self.path) else { return Vec::new() };
        let stem = |entry: fs::DirEntry| Some(entry.path().file_stem()?.to_str()?.to_owned());
        entries.flatten().filter_map(stem).collect()
    }
}

/// Returns the folder that these variables select.
fn folder(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let given = |name| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let data = || {
        let absolute = given("XDG_DATA_HOME").filter(|path| path.is_absolute());
        absolute.or_else(|| given("HOME").map(|home| home.join(".local/share")))
    };
    given("ISOLA_VOLUMES").or_else(|| data().map(|data| data.join("isola/volumes")))
}

/// Makes a file system in an empty file.
fn fill(made: &File, file: &Path, size: ByteSize, from: Option<&Path>) -> Result<(), VolumeError> {
    let len_bytes = size.0.next_multiple_of(UNIT);
    made.set_len(len_bytes).map_err(|error| VolumeError::Unusable { path: file.to_owned(), error })?;
    format(file, from, None)
}

/// Makes a file system in a file, or in a part of it.
fn format(file: &Path, from: Option<&Path>, place: Option<PartRange>) -> Result<(), VolumeError> {
    let mut command = Command::new("mke2fs");
    // In the folders of administration programs, which are not in the path of every user.
    let path = env::var_os("PATH").unwrap_or_default();
    let folders = env::split_paths(&path).chain(["/usr/sbin", "/sbin"].map(PathBuf::from));
    if let Ok(path) = env::join_paths(folders) {
        command.env("PATH", path);
    }
    let offset = place.map(|place| format!(",offset={}", place.offset)).unwrap_or_default();
    command.args(["-q", "-F", "-t", "ext4", "-b", "4096", "-m", "0", "-E"]);
    command.arg(format!("root_owner=0:0{offset}"));
    if let Some(folder) = from {
        command.arg("-d").arg(folder);
    }
    command.arg(file);
    if let Some(PartRange { len_bytes, .. }) = place {
        command.arg(format!("{}k", len_bytes / 1024));
    }
    let output = command.output().map_err(VolumeError::NoFormatter)?;
    if output.status.success() {
        return Ok(());
    }
    Err(VolumeError::Format(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_follows_from_the_environment() {
        let of = |variables: &[(&str, &str)]| {
            let find = |name: &str| variables.iter().find(|(known, _)| *known == name);
            folder(|name| find(name).map(|(_, value)| value.into()))
        };
        let expect = |path: &str| Some(PathBuf::from(path));
        assert_eq!(of(&[("ISOLA_VOLUMES", "v"), ("HOME", "/h")]), expect("v"));
        assert_eq!(of(&[("XDG_DATA_HOME", "/d"), ("HOME", "/h")]), expect("/d/isola/volumes"));
        assert_eq!(of(&[("XDG_DATA_HOME", "d"), ("HOME", "/h")]), expect("/h/.local/share/isola/volumes"));
        assert_eq!(of(&[("ISOLA_VOLUMES", "")]), None);
    }

    #[test]
    fn the_file_of_a_volume_is_checked() {
        let folder = tempfile::tempdir().unwrap();
        let store = VolumeStore::at(folder.path());
        let file = folder.path().join("disk");
        let source = VolumeSource::File(file.clone());
        assert!(matches!(store.resolve(&source), Err(VolumeError::NoFile(_))));
        for (len, is_good) in [(0, false), (100, false), (512, true), (513, false), (4096, true)] {
            fs::write(&file, vec![0; len]).unwrap();
            assert_eq!(store.resolve(&source).is_ok(), is_good, "{len}");
        }
        let folder_source = VolumeSource::File(folder.path().to_owned());
        assert!(matches!(store.resolve(&folder_source), Err(VolumeError::NoFile(_))));
    }

    #[test]
    fn volumes_are_created_once_listed_and_removed() {
        if !isola_need::need(isola_need::Need::E2fsprogs) {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let store = VolumeStore::at(&folder.path().join("volumes"));
        let name: VolumeName = "data".parse().unwrap();
        assert!(store.list().is_empty());
        assert!(matches!(store.create(&name, ByteSize(1 << 20), None), Err(VolumeError::TooSmall(_))));
        let content = folder.path().join("content");
        fs::create_dir(&content).unwrap();
        fs::write(content.join("hello"), "hello").unwrap();
        let missing = folder.path().join("missing");
        assert!(matches!(
            store.create(&name, ByteSize(16 << 20), Some(&missing)),
            Err(VolumeError::NoSource(_))
        ));
        fs::write(content.join("large"), vec![1; 9 << 20]).unwrap();
        let full = store.create(&name, ByteSize(8 << 20), Some(&content)).unwrap_err();
        assert!(full.to_string().ends_with("; the volume is too short for these files"), "{full}");
        assert!(store.list().is_empty(), "a volume that could not be filled remains");
        fs::remove_file(content.join("large")).unwrap();
        let volume = store.create(&name, ByteSize(16 << 20), Some(&content)).unwrap();
        assert_eq!(volume.len_bytes, 16 << 20);
        assert!(matches!(store.create(&name, ByteSize(16 << 20), None), Err(VolumeError::Exists(_))));
        assert_eq!(store.list(), [volume]);
        let missing = store.find(&"dta".parse().unwrap()).unwrap_err();
        assert!(missing.to_string().contains("did you mean data?"), "{missing}");
        store.remove(&name).unwrap();
        assert!(store.list().is_empty() && store.remove(&name).is_err());
    }
}
