//! What is written down of a cell beside what the supervisor knows: its image, and where its ports are published.

use super::record::write_whole;
use super::state::{MachineDir, StateError};
use crate::publish::{Publication, PublishSpec};
use isola_abi::id::CellId;
use serde::{Deserialize, Serialize};
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// What is written down of a cell.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CellRecord {
    /// The cell's id: a cell of the same name with another id is another cell.
    pub id: CellId,
    /// What becomes of the cell when it has ended.
    pub afterwards: Afterwards,
    /// Which ports shall be published whenever it runs.
    pub publish: Vec<PublishSpec>,
    /// Which are published.
    pub published: Vec<Publication>,
}

/// What becomes of a cell when it has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Afterwards {
    /// It stays, to be looked at and started again.
    Keep,
    /// It is removed by the first command that sees it.
    Remove,
}

/// The records of a machine's cells.
#[derive(Debug)]
pub struct CellStore {
    path: PathBuf,
}

impl CellStore {
    /// The records of the cells of the machine `dir`.
    pub fn of(dir: &MachineDir) -> Self {
        Self { path: dir.cells() }
    }

    /// The record of a cell, where there is one.
    pub fn load(&self, name: &str, id: CellId) -> Option<CellRecord> {
        self.read(name).filter(|record| record.id == id)
    }

    /// Names of all cells that have a record.
    pub fn names(&self) -> Vec<String> {
        let Ok(entries) = fs::read_dir(&self.path) else { return Vec::new() };
        let mut names: Vec<String> =
            entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        names
    }

    /// All that is published, with the cell that it is published for.
    pub fn published(&self) -> Vec<(String, Publication)> {
        let of = |name: String| {
            let published = self.read(&name).map(|record| record.published).unwrap_or_default();
            published.into_iter().map(move |publication| (name.clone(), publication))
        };
        self.names().into_iter().flat_map(of).collect()
    }

    /// The cell's image, as it was when the cell was made; the file may not exist.
    pub fn image(&self, name: &str) -> PathBuf {
        self.path.join(name).join("image.elf")
    }

    /// Keeps a copy of the cell's image.
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

    /// Forgets a cell.
    pub fn remove(&self, name: &str) {
        // What stays behind belongs to an id that is never used again.
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
    fn a_record_belongs_to_one_cell_and_not_to_its_namesake() {
        let temporary = tempfile::tempdir().unwrap();
        let dir = StateRoot::at(temporary.path()).unwrap().machine(&"m".parse().unwrap());
        let store = CellStore::of(&dir);
        let record = CellRecord {
            id: CellId(3),
            afterwards: Afterwards::Keep,
            publish: vec!["80".parse().unwrap()],
            published: vec![],
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
