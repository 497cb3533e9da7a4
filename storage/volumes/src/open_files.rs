//! A mounted file system with the files that are open.

use crate::direct::{KnownFile, OpenFileState};
use crate::file_system::{FileError, FileId, FileKind, FileSystem, Metadata};
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::rc::Rc;
use core::cell::Cell;

/// A mounted file system, on its fiber.
pub(crate) struct Mounted {
    /// `None` after unmounting.
    file_system: Option<Box<dyn FileSystem>>,
    open: BTreeMap<FileId, OpenFile>,
    /// The number of changes of names.
    pub names_version: Rc<Cell<u64>>,
}

struct OpenFile {
    handles: usize,
    state: Rc<OpenFileState>,
    /// Whether its last name was removed: its storage is freed when it is closed.
    is_unnamed: bool,
}

/// Returns the parts of a path. Empty parts and `.` mean nothing.
fn parts(path: &[u8]) -> Result<impl DoubleEndedIterator<Item = &[u8]>, FileError> {
    let parts = path.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".");
    if parts.clone().any(|part| part == b"..") { Err(FileError::InvalidName) } else { Ok(parts) }
}

impl Mounted {
    pub fn new(file_system: Box<dyn FileSystem>, names_version: Rc<Cell<u64>>) -> Self {
        Self { file_system: Some(file_system), open: BTreeMap::new(), names_version }
    }

    /// Counts a change of names, which may have succeeded in part.
    fn names_changed(&self) {
        self.names_version.set(self.names_version.get() + 1);
    }

    /// Changes the contents of an open file. Direct reads that are under way begin again.
    pub fn change<T>(
        &mut self,
        file: FileId,
        change: impl FnOnce(&mut dyn FileSystem) -> Result<T, FileError>,
    ) -> Result<T, FileError> {
        let state = self.open.get(&file).map(|open| open.state.clone()).unwrap_or_default();
        state.begin_change();
        let outcome = self.file_system().and_then(change);
        state.end_change();
        outcome
    }

    /// Reads the map of an open file from a position on. Returns whether the file can be read directly.
    pub fn learn_extents(&mut self, file: FileId, offset: u64) -> Result<bool, FileError> {
        let file_system = self.file_system()?;
        let metadata = file_system.metadata(file)?;
        let Some(map) = file_system.extents(file, offset)? else { return Ok(false) };
        if let Some(open) = self.open.get(&file) {
            open.state.know(KnownFile::new(&metadata, map));
        }
        Ok(true)
    }

    pub fn make_directory(&mut self, path: &[u8]) -> Result<(), FileError> {
        let (directory, name) = self.parent(path)?;
        let made = self.file_system()?.make_directory(directory, name).map(drop);
        self.names_changed();
        made
    }

    pub fn sync(&mut self) -> Result<(), FileError> {
        self.file_system()?.sync()?;
        self.open.values().for_each(|open| open.state.synced());
        Ok(())
    }

    pub fn file_system(&mut self) -> Result<&mut dyn FileSystem, FileError> {
        match &mut self.file_system {
            Some(file_system) => Ok(file_system.as_mut()),
            None => Err(FileError::Unmounted),
        }
    }

    /// Finds the file of a path. Symbolic links are not followed.
    pub fn find(&mut self, path: &[u8]) -> Result<Metadata, FileError> {
        let file_system = self.file_system()?;
        let mut found = file_system.metadata(file_system.root())?;
        for part in parts(path)? {
            found = file_system.lookup(found.id, part)?;
        }
        Ok(found)
    }

    /// Finds the directory that contains the last part of a path, and returns that part with it.
    pub fn parent<'a>(&mut self, path: &'a [u8]) -> Result<(FileId, &'a [u8]), FileError> {
        let file_system = self.file_system()?;
        let mut all = parts(path)?;
        let name = all.next_back().ok_or(FileError::InvalidName)?;
        let mut directory = file_system.root();
        for part in all {
            directory = file_system.lookup(directory, part)?.id;
        }
        Ok((directory, name))
    }

    pub fn open(&mut self, path: &[u8]) -> Result<(Metadata, Rc<OpenFileState>), FileError> {
        let metadata = self.find(path)?;
        match metadata.kind {
            FileKind::File => {}
            FileKind::Directory => return Err(FileError::IsADirectory),
            FileKind::Other => return Err(FileError::Unsupported),
        }
        Ok((metadata, self.hold(metadata.id)))
    }

    pub fn create(&mut self, path: &[u8]) -> Result<(Metadata, Rc<OpenFileState>), FileError> {
        let (directory, name) = self.parent(path)?;
        let created = self.file_system()?.create(directory, name);
        self.names_changed();
        let metadata = created?;
        Ok((metadata, self.hold(metadata.id)))
    }

    /// Counts a handle of a file.
    pub fn hold(&mut self, file: FileId) -> Rc<OpenFileState> {
        let new = || OpenFile { handles: 0, state: Rc::default(), is_unnamed: false };
        let open = self.open.entry(file).or_insert_with(new);
        open.handles += 1;
        open.state.clone()
    }

    pub fn close(&mut self, file: FileId) -> Result<(), FileError> {
        let Some(open) = self.open.get_mut(&file) else { return Ok(()) };
        open.handles -= 1;
        if open.handles > 0 {
            return Ok(());
        }
        let is_unnamed = open.is_unnamed;
        self.open.remove(&file);
        if is_unnamed { self.file_system()?.release(file) } else { Ok(()) }
    }

    pub fn remove(&mut self, path: &[u8]) -> Result<(), FileError> {
        let (directory, name) = self.parent(path)?;
        let unnamed = self.file_system()?.remove(directory, name);
        self.names_changed();
        self.release(unnamed?)
    }

    pub fn rename(&mut self, from: &[u8], to: &[u8]) -> Result<(), FileError> {
        let (from, to) = (self.parent(from)?, self.parent(to)?);
        let unnamed = self.file_system()?.rename(from, to);
        self.names_changed();
        self.release(unnamed?)
    }

    /// Frees the storage of a file without a name, or notes that it is freed when it is closed.
    fn release(&mut self, unnamed: Option<FileId>) -> Result<(), FileError> {
        let Some(file) = unnamed else { return Ok(()) };
        match self.open.get_mut(&file) {
            Some(open) => open.is_unnamed = true,
            None => self.file_system()?.release(file)?,
        }
        Ok(())
    }

    pub fn unmount(&mut self) -> Result<(), FileError> {
        if !self.open.is_empty() {
            return Err(FileError::InUse);
        }
        let mut file_system = self.file_system.take().ok_or(FileError::Unmounted)?;
        file_system.unmount()
    }

    /// Unmounts if that was not done.
    pub fn end(&mut self) {
        for (file, open) in core::mem::take(&mut self.open) {
            if open.is_unnamed
                && let Ok(file_system) = self.file_system()
            {
                // The next mount frees it otherwise.
                let _ = file_system.release(file);
            }
        }
        // No caller is left for an error; the next mount recovers the file system.
        let _ = self.unmount();
    }
}
