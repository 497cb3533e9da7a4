//! Directories of a file system in memory.

use super::inode::{Content, TmpInode};
use crate::Errno;
use crate::inode::{Inode, NewInode, RenameMode};
use crate::metadata::DirectoryEntry;
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use spin::Mutex;

/// The most names of an inode, as on ext4.
const MOST_LINKS: u32 = 65_000;
/// The length that `stat` shows for each entry, as Linux does.
const ENTRY_LEN: u64 = 20;

/// The names of a directory.
#[derive(Default)]
pub(super) struct Directory {
    names: BTreeMap<Box<[u8]>, Arc<TmpInode>>,
    /// No names can be created.
    is_removed: bool,
}

impl Directory {
    /// Returns the length that `stat` shows.
    pub fn len(&self) -> u64 {
        (2 + self.names.len() as u64) * ENTRY_LEN
    }

    pub fn list(&self) -> Vec<DirectoryEntry> {
        let entry = |name: &[u8], inode: &TmpInode| DirectoryEntry {
            name: name.to_vec(),
            inode: inode.number,
            kind: inode.kind(),
        };
        self.names.iter().map(|(name, inode)| entry(name, inode)).collect()
    }
}

impl TmpInode {
    fn directory(&self) -> Result<&Mutex<Directory>, Errno> {
        match &self.content {
            Content::Directory(directory) => Ok(directory),
            _ => Err(Errno::ENOTDIR),
        }
    }

    pub fn lookup_now(&self, name: &[u8]) -> Result<Option<Arc<Self>>, Errno> {
        Ok(self.directory()?.lock().names.get(name).cloned())
    }

    fn entry(&self, name: &[u8]) -> Result<Arc<Self>, Errno> {
        self.lookup_now(name)?.ok_or(Errno::ENOENT)
    }

    /// Enters a new name.
    fn enter(
        &self,
        name: &[u8],
        make: impl FnOnce() -> Result<Arc<Self>, Errno>,
    ) -> Result<Arc<Self>, Errno> {
        let mut directory = self.directory()?.lock();
        if directory.is_removed {
            return Err(Errno::ENOENT);
        }
        if directory.names.contains_key(name) {
            return Err(Errno::EEXIST);
        }
        let inode = make()?;
        directory.names.insert(Box::from(name), inode.clone());
        drop(directory);
        self.modified_now();
        Ok(inode)
    }

    pub fn create_now(&self, name: &[u8], new: &NewInode<'_>) -> Result<Arc<Self>, Errno> {
        let _tree = self.shared.tree.lock();
        let links = if matches!(new.content, crate::inode::NewContent::Directory) { 2 } else { 1 };
        if links == 2 && self.links() >= MOST_LINKS {
            return Err(Errno::EMLINK);
        }
        let inode = self.enter(name, || Self::new(&self.shared, new, links))?;
        if links == 2 {
            self.add_links(1);
        }
        Ok(inode)
    }

    /// Returns an inode of the same file system.
    fn own<'a>(&self, inode: &'a Arc<dyn Inode>) -> Result<&'a Self, Errno> {
        let inode = inode.downcast::<Self>().ok_or(Errno::EXDEV)?;
        if Arc::ptr_eq(&inode.shared, &self.shared) { Ok(inode) } else { Err(Errno::EXDEV) }
    }

    pub fn link_now(&self, name: &[u8], inode: &Arc<dyn Inode>) -> Result<(), Errno> {
        self.own(inode)?;
        let any: Arc<dyn core::any::Any + Send + Sync> = inode.clone();
        let inode = any.downcast::<Self>().map_err(|_| Errno::EXDEV)?;
        let _tree = self.shared.tree.lock();
        if inode.is_directory_now() {
            return Err(Errno::EPERM);
        }
        if inode.links() >= MOST_LINKS {
            return Err(Errno::EMLINK);
        }
        self.enter(name, || Ok(inode))?.add_links(1);
        Ok(())
    }

    fn is_directory_now(&self) -> bool {
        matches!(self.content, Content::Directory(_))
    }

    pub fn unlink_now(&self, name: &[u8]) -> Result<(), Errno> {
        let tree = self.shared.tree.lock();
        let inode = self.entry(name)?;
        if inode.is_directory_now() {
            return Err(Errno::EISDIR);
        }
        let removed = self.directory()?.lock().names.remove(name);
        self.modified_now();
        inode.add_links(-1);
        // The end of a large file frees many pages.
        drop(tree);
        drop(removed);
        Ok(())
    }

    pub fn remove_directory_now(&self, name: &[u8]) -> Result<(), Errno> {
        let _tree = self.shared.tree.lock();
        let inode = self.entry(name)?;
        inode.end_directory()?;
        self.directory()?.lock().names.remove(name);
        self.modified_now();
        self.add_links(-1);
        Ok(())
    }

    /// Ends an empty directory.
    fn end_directory(&self) -> Result<(), Errno> {
        let mut directory = self.directory()?.lock();
        if !directory.names.is_empty() {
            return Err(Errno::ENOTEMPTY);
        }
        directory.is_removed = true;
        drop(directory);
        self.add_links(-2);
        Ok(())
    }

    pub fn rename_now(
        &self,
        name: &[u8],
        to: &Arc<dyn Inode>,
        to_name: &[u8],
        mode: RenameMode,
    ) -> Result<(), Errno> {
        let to = self.own(to)?;
        let tree = self.shared.tree.lock();
        let source = self.entry(name)?;
        let target = to.lookup_now(to_name)?;
        if to.directory()?.lock().is_removed {
            return Err(Errno::ENOENT);
        }
        let source_is_directory = source.is_directory_now();
        match (mode, &target) {
            (RenameMode::KeepTarget, Some(_)) => return Err(Errno::EEXIST),
            (RenameMode::Exchange, None) => return Err(Errno::ENOENT),
            (RenameMode::Replace, Some(target)) => {
                if Arc::ptr_eq(target, &source) {
                    return Ok(());
                }
                match (source_is_directory, target.is_directory_now()) {
                    (true, true) => target.end_directory()?,
                    (false, false) => target.add_links(-1),
                    (true, false) => return Err(Errno::ENOTDIR),
                    (false, true) => return Err(Errno::EISDIR),
                }
            }
            _ => {}
        }
        self.directory()?.lock().names.remove(name);
        let replaced = to.directory()?.lock().names.insert(Box::from(to_name), source.clone());
        // A directory counts for the one that it is in.
        let mut moved = i32::from(source_is_directory);
        let mut left = -moved;
        if let Some(target) = &target {
            let target_is_directory = i32::from(target.is_directory_now());
            moved -= target_is_directory;
            if mode == RenameMode::Exchange {
                self.directory()?.lock().names.insert(Box::from(name), target.clone());
                left += target_is_directory;
                target.add_links(0);
            }
        }
        self.add_links(left);
        to.add_links(moved);
        source.add_links(0);
        self.modified_now();
        to.modified_now();
        drop(tree);
        drop((replaced, target));
        Ok(())
    }
}
