//! A mounted file system with the files that are open.

use crate::direct::{KnownFile, OpenFileState};
use crate::file_system::{Attributes, FileError, FileId, FileKind, FileSystem, Metadata};
use crate::posix::{NewFile, RemovedKind, RenameKind};
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::rc::Rc;
use alloc::vec::Vec;
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
        if open.handles == 0
            && let Some(file_system) = &mut self.file_system
        {
            file_system.hold(file);
        }
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
        let file_system = self.file_system()?;
        file_system.unhold(file);
        if is_unnamed { file_system.release(file) } else { Ok(()) }
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

    /// Removes the name of a file of the given type. Returns the attributes of the directory, and of the file if it is open.
    pub fn remove_in(
        &mut self,
        directory: FileId,
        name: &[u8],
        kind: RemovedKind,
    ) -> Result<Vec<Attributes>, FileError> {
        let found = self.file_system()?.lookup(directory, name)?;
        match (kind, found.kind) {
            (RemovedKind::Directory, FileKind::Directory) => {}
            (RemovedKind::Directory, _) => return Err(FileError::NotADirectory),
            (RemovedKind::Other, FileKind::Directory) => return Err(FileError::IsADirectory),
            (RemovedKind::Other, _) => {}
        }
        let unnamed = self.file_system()?.remove(directory, name);
        self.names_changed();
        self.release(unnamed?)?;
        self.attributes_of(&[directory], &[found.id])
    }

    /// Renames between directories. Returns the attributes of both, and of the files that are open.
    pub fn rename_in(
        &mut self,
        from: (FileId, &[u8]),
        to: (FileId, &[u8]),
        kind: RenameKind,
    ) -> Result<Vec<Attributes>, FileError> {
        let file_system = self.file_system()?;
        let source = file_system.lookup(from.0, from.1)?;
        let target = match file_system.lookup(to.0, to.1) {
            Ok(target) => Some(target),
            Err(FileError::NotFound) => None,
            Err(error) => return Err(error),
        };
        match (kind, target) {
            (RenameKind::KeepTarget, Some(_)) => return Err(FileError::AlreadyExists),
            (RenameKind::Exchange, None) => return Err(FileError::NotFound),
            // Names of the same file: nothing changes.
            (_, Some(target)) if target.id == source.id => return Ok(Vec::new()),
            (RenameKind::Replace, Some(target)) => match (source.kind, target.kind) {
                (FileKind::Directory, FileKind::Directory) => {}
                (FileKind::Directory, _) => return Err(FileError::NotADirectory),
                (_, FileKind::Directory) => return Err(FileError::IsADirectory),
                _ => {}
            },
            _ => {}
        }
        let unnamed = self.file_system()?.rename_any(from, to, kind);
        self.names_changed();
        self.release(unnamed?)?;
        let files: Vec<FileId> = [source.id].into_iter().chain(target.map(|target| target.id)).collect();
        self.attributes_of(&[from.0, to.0], &files)
    }

    /// Creates a file of any type, with a handle.
    pub fn create_in(
        &mut self,
        directory: FileId,
        name: &[u8],
        new: &NewFile,
    ) -> Result<(FileId, Rc<OpenFileState>, Vec<Attributes>), FileError> {
        match self.file_system()?.lookup(directory, name) {
            Ok(_) => return Err(FileError::AlreadyExists),
            Err(FileError::NotFound) => {}
            Err(error) => return Err(error),
        }
        let created = self.file_system()?.create_any(directory, name, new);
        self.names_changed();
        let created = created?;
        let state = self.hold(created);
        Ok((created, state, self.attributes_of(&[created, directory], &[])?))
    }

    /// Gives a file another name. Returns the attributes of the file and the directory.
    pub fn link_in(
        &mut self,
        file: FileId,
        directory: FileId,
        name: &[u8],
    ) -> Result<Vec<Attributes>, FileError> {
        match self.file_system()?.lookup(directory, name) {
            Ok(_) => return Err(FileError::AlreadyExists),
            Err(FileError::NotFound) => {}
            Err(error) => return Err(error),
        }
        let linked = self.file_system()?.link(file, directory, name);
        self.names_changed();
        linked?;
        self.attributes_of(&[file, directory], &[])
    }

    /// Returns the attributes of files, and of those that are open.
    fn attributes_of(&mut self, files: &[FileId], if_open: &[FileId]) -> Result<Vec<Attributes>, FileError> {
        let open = if_open.iter().filter(|file| self.open.contains_key(file));
        let all: Vec<FileId> = files.iter().chain(open).copied().collect();
        let file_system = self.file_system()?;
        all.into_iter().map(|file| file_system.attributes(file)).collect()
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
