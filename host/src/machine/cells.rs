//! The host's records of cells, beside the supervisor's: their images, their volumes, and the ports published
//! for them.

use super::disks::DiskSlot;
use super::record::write_whole;
use super::state::{MachineDir, StateError};
use crate::publish::{Publication, PublishSpec};
use isola_abi::id::CellId;
use isola_abi::volume::VolumeAccess;
use serde::{Deserialize, Serialize};
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// The record of a cell.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CellRecord {
    /// The cell's id. A cell of the same name with another id is another cell.
    pub id: CellId,
    /// Whether the cell is removed after its end.
    #[serde(rename = "afterwards")]
    pub cleanup: CleanupPolicy,
    /// The ports to publish at each start.
    pub publish: Vec<PublishSpec>,
    /// The ports that are published now.
    pub published: Vec<Publication>,
    /// The volumes.
    #[serde(default)]
    pub volumes: Vec<RecordedVolume>,
}

/// A volume of a cell.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedVolume {
    /// The block device.
    pub slot: DiskSlot,
    /// The volume's file.
    pub file: PathBuf,
    /// What the cell may do with it.
    pub access: VolumeAccess,
    /// Whether the file may be in the device now.
    pub is_inserted: bool,
}

/// The treatment of a cell after its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CleanupPolicy {
    /// The cell remains, for inspection and restarts.
    Keep,
    /// The first command that finds the cell ended removes it.
    Remove,
}

/// The records of a machine's cells.
#[derive(Debug)]
pub struct CellStore {
    path: PathBuf,
}

impl CellStore {
    /// Returns the records of the cells of the machine `dir`.
    pub fn of(dir: &MachineDir) -> Self {
        Self { path: dir.cells() }
    }

    /// Returns the record of a cell, if there is one.
    pub fn load(&self, name: &str, id: CellId) -> Option<CellRecord> {
        self.read(name).filter(|record| record.id == id)
    }

    /// Returns the names of all cells that have a record.
    pub fn names(&self) -> Vec<String> {
        let Ok(entries) = fs::read_dir(&self.path) else { return Vec::new() };
        let mut names: Vec<String> =
            entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        names
    }

    /// Returns all publications, each with the name of its cell.
    pub fn published(&self) -> Vec<(String, Publication)> {
        let of = |name: String| {
            let published = self.read(&name).map(|record| record.published).unwrap_or_default();
            published.into_iter().map(move |publication| (name.clone(), publication))
        };
        self.names().into_iter().flat_map(of).collect()
    }

    /// Returns the volumes of all cells, each with the name of its cell.
    pub fn volumes(&self) -> impl Iterator<Item = (String, RecordedVolume)> {
        self.names().into_iter().flat_map(|name| {
            let volumes = self.read(&name).map(|record| record.volumes).unwrap_or_default();
            volumes.into_iter().map(move |volume| (name.clone(), volume))
        })
    }

    /// Returns the path of the saved copy of the cell's image; the file may not exist.
    pub fn image(&self, name: &str) -> PathBuf {
        self.path.join(name).join("image.elf")
    }

    /// Saves a copy of the cell's image.
    ///
    /// # Errors
    /// [`StateError::Unusable`].
    pub fn keep_image(&self, name: &str, image: &Path) -> Result<(), StateError> {
        self.make(name)
            .and_then(|()| fs::copy(image, self.image(name)).map(drop))
            .map_err(self.unusable(name))
    }

    /// Writes a record.
    ///
    /// # Errors
    /// [`StateError::Unusable`].
    pub fn save(&self, name: &str, record: &CellRecord) -> Result<(), StateError> {
        let bytes = serde_json::to_vec_pretty(record).unwrap_or_default();
        self.make(name).and_then(|()| write_whole(&self.file(name), &bytes)).map_err(self.unusable(name))
    }

    /// Removes all records of a cell.
    pub fn remove(&self, name: &str) {
        // After a failure the remains belong to an id that is never reused.
        let _ = fs::remove_dir_all(self.path.join(name));
    }

    fn read(&self, name: &str) -> Option<CellRecord> {
        serde_json::from_slice(&fs::read(self.file(name)).ok()?).ok()
    }

    fn file(&self, name: &str) -> PathBuf {
        self.path.join(name).join("cell.json")
    }

    fn make(&self, name: &str) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(self.path.join(name))
    }

    fn unusable(&self, name: &str) -> impl FnOnce(io::Error) -> StateError {
        let path = self.path.join(name);
        move |error| StateError::Unusable { path, error }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::state::StateRoot;

    #[test]
    fn a_record_belongs_to_one_cell_id() {
        let temporary = tempfile::tempdir().unwrap();
        let dir = StateRoot::at(temporary.path()).unwrap().machine(&"m".parse().unwrap());
        let store = CellStore::of(&dir);
        let record = CellRecord {
            id: CellId(3),
            cleanup: CleanupPolicy::Keep,
            publish: vec!["80".parse().unwrap()],
            published: vec![],
            volumes: vec![],
        };
        assert!(store.names().is_empty());
        store.save("a.b", &record).unwrap();
        assert_eq!(store.load("a.b", CellId(3)), Some(record));
        assert_eq!(store.load("a.b", CellId(4)), None);
        assert_eq!(store.names(), ["a.b"]);
        store.remove("a.b");
        assert!(store.names().is_empty());
    }
}
