//! Directories of an overlay.

use super::inode::OverlayInode;
use crate::Errno;
use crate::inode::{CallerIds, Inode, NewContent, NewInode, RenameMode};
use crate::metadata::{DirectoryEntry, InodeKind};
use crate::outcome::Outcome;
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use spin::{Mutex, MutexGuard};

/// The names of a directory.
pub(super) struct Directory {
    lower: Option<Arc<dyn Inode>>,
    /// Names that are in use, and (`None`) those that were removed from the lower directory.
    names: BTreeMap<Box<[u8]>, Option<Arc<OverlayInode>>>,
    /// No names can be created.
    is_removed: bool,
}

impl Directory {
    /// Creates the table above a lower directory.
    pub fn above(lower: Option<Arc<dyn Inode>>) -> Self {
        Self { lower, names: BTreeMap::new(), is_removed: false }
    }

    fn enter(&mut self, name: &[u8], inode: Arc<OverlayInode>) -> Result<(), Errno> {
        if self.is_removed {
            return Err(Errno::ENOENT);
        }
        if let Some(Some(_)) = self.names.get(name) {
            return Err(Errno::EEXIST);
        }
        self.names.insert(Box::from(name), Some(inode));
        Ok(())
    }

    fn remove(&mut self, name: &[u8]) -> Option<Arc<OverlayInode>> {
        match self.lower {
            Some(_) => self.names.insert(Box::from(name), None).flatten(),
            None => self.names.remove(name).flatten(),
        }
    }

    /// Returns whether it is empty, if the lower directory has these names.
    fn is_empty_above(&self, lower: &[DirectoryEntry]) -> bool {
        let is_removed = |entry: &DirectoryEntry| matches!(self.names.get(&*entry.name), Some(None));
        self.names.values().all(Option::is_none) && lower.iter().all(is_removed)
    }
}

impl OverlayInode {
    fn names(&self) -> Result<MutexGuard<'_, Directory>, Errno> {
        self.directory.as_ref().map(Mutex::lock).ok_or(Errno::ENOTDIR)
    }

    /// Finds a name; at once if the table has it or the lower file system has it in its cache.
    pub fn lookup_name(&self, name: &[u8], caller: CallerIds) -> Outcome<'_, Option<Arc<dyn Inode>>> {
        let lower = match self.names() {
            Err(error) => return Outcome::error(error),
            Ok(names) => match (names.names.get(name), &names.lower) {
                (Some(known), _) => return Outcome::ok(known.clone().map(|inode| inode as Arc<dyn Inode>)),
                (None, None) => return Outcome::ok(None),
                (None, Some(lower)) => lower.clone(),
            },
        };
        let name = name.to_vec();
        Outcome::of(async move {
            let found = lower.lookup(&name, caller).await?;
            Ok(self.learn(&name, found)?.map(|inode| inode as Arc<dyn Inode>))
        })
    }

    /// Enters a lower inode that a look-up has found, unless another call has changed the name.
    fn learn(&self, name: &[u8], found: Option<Arc<dyn Inode>>) -> Result<Option<Arc<Self>>, Errno> {
        let Some(found) = found else {
            return Ok(self.names()?.names.get(name).cloned().flatten());
        };
        let new = Self::of_lower(&self.shared, found);
        Ok(self.names()?.names.entry(Box::from(name)).or_insert(Some(new)).clone())
    }

    async fn find(&self, name: &[u8]) -> Result<Option<Arc<Self>>, Errno> {
        self.lookup_name(name, CallerIds::default()).await?;
        Ok(self.names()?.names.get(name).cloned().flatten())
    }

    async fn list_lower(&self, caller: CallerIds) -> Result<Vec<DirectoryEntry>, Errno> {
        let lower = self.names()?.lower.clone();
        match lower {
            Some(lower) => lower.list(caller).await,
            None => Ok(Vec::new()),
        }
    }

    pub async fn list_names(&self, caller: CallerIds) -> Result<Vec<DirectoryEntry>, Errno> {
        let mut entries = self.list_lower(caller).await?;
        let names = self.names()?;
        entries.retain(|entry| !names.names.contains_key(&*entry.name));
        let used = names.names.iter().filter_map(|(name, inode)| Some((name.to_vec(), inode.clone()?)));
        let used: Vec<_> = used.collect();
        drop(names);
        entries.extend(used.into_iter().map(|(name, inode)| {
            let metadata = inode.metadata();
            DirectoryEntry { name, inode: metadata.inode, kind: metadata.kind }
        }));
        Ok(entries)
    }

    pub async fn create_name(&self, name: &[u8], new: &NewInode<'_>) -> Result<Arc<Self>, Errno> {
        if self.find(name).await?.is_some() {
            return Err(Errno::EEXIST);
        }
        let inode = Self::create(&self.shared, new)?;
        let _tree = self.shared.tree.lock();
        self.names()?.enter(name, inode.clone())?;
        if matches!(new.content, NewContent::Directory) {
            self.add_links(1);
        }
        self.modified_now();
        Ok(inode)
    }

    fn own(&self, inode: &Arc<dyn Inode>) -> Result<Arc<Self>, Errno> {
        let any: Arc<dyn core::any::Any + Send + Sync> = inode.clone();
        let inode = any.downcast::<Self>().map_err(|_| Errno::EXDEV)?;
        if Arc::ptr_eq(&inode.shared, &self.shared) { Ok(inode) } else { Err(Errno::EXDEV) }
    }

    pub async fn link_name(&self, name: &[u8], inode: &Arc<dyn Inode>) -> Result<(), Errno> {
        let inode = self.own(inode)?;
        if inode.directory.is_some() {
            return Err(Errno::EPERM);
        }
        if self.find(name).await?.is_some() {
            return Err(Errno::EEXIST);
        }
        let _tree = self.shared.tree.lock();
        self.names()?.enter(name, inode.clone())?;
        inode.add_links(1);
        self.modified_now();
        Ok(())
    }

    /// Removes a name of a directory, which is empty, or of another inode.
    pub async fn remove_name(&self, name: &[u8], kind: InodeKind) -> Result<(), Errno> {
        let inode = self.find(name).await?.ok_or(Errno::ENOENT)?;
        let wants_directory = kind == InodeKind::Directory;
        match (wants_directory, inode.directory.is_some()) {
            (true, false) => return Err(Errno::ENOTDIR),
            (false, true) => return Err(Errno::EISDIR),
            _ => {}
        }
        let lower = if wants_directory { inode.list_lower(CallerIds::default()).await? } else { Vec::new() };
        let _tree = self.shared.tree.lock();
        self.check_still(name, &inode)?;
        if wants_directory {
            inode.end_directory(&lower)?;
            self.add_links(-1);
        } else {
            inode.add_links(-1);
        }
        let removed = self.names()?.remove(name);
        drop(removed);
        self.modified_now();
        Ok(())
    }

    /// Checks that a name has not changed since it was looked up.
    fn check_still(&self, name: &[u8], inode: &Arc<Self>) -> Result<(), Errno> {
        let names = self.names()?;
        let is_same = matches!(names.names.get(name), Some(Some(now)) if Arc::ptr_eq(now, inode));
        if is_same { Ok(()) } else { Err(Errno::ENOENT) }
    }

    /// Ends an empty directory.
    fn end_directory(&self, lower: &[DirectoryEntry]) -> Result<(), Errno> {
        let mut names = self.names()?;
        if !names.is_empty_above(lower) {
            return Err(Errno::ENOTEMPTY);
        }
        names.is_removed = true;
        drop(names);
        self.add_links(-2);
        Ok(())
    }

    pub async fn rename_name(
        &self,
        name: &[u8],
        to: &Arc<dyn Inode>,
        to_name: &[u8],
        mode: RenameMode,
    ) -> Result<(), Errno> {
        let to = self.own(to)?;
        let source = self.find(name).await?.ok_or(Errno::ENOENT)?;
        let target = to.find(to_name).await?;
        let lower = match &target {
            Some(target) if target.directory.is_some() => target.list_lower(CallerIds::default()).await?,
            _ => Vec::new(),
        };
        let _tree = self.shared.tree.lock();
        self.check_still(name, &source)?;
        match &target {
            Some(target) => to.check_still(to_name, target)?,
            None if matches!(to.names()?.names.get(to_name), Some(Some(_))) => return Err(Errno::EEXIST),
            None if to.names()?.is_removed => return Err(Errno::ENOENT),
            None => {}
        }
        let source_is_directory = source.directory.is_some();
        match (mode, &target) {
            (RenameMode::KeepTarget, Some(_)) => return Err(Errno::EEXIST),
            (RenameMode::Exchange, None) => return Err(Errno::ENOENT),
            (RenameMode::Replace, Some(target)) => {
                if Arc::ptr_eq(target, &source) {
                    return Ok(());
                }
                match (source_is_directory, target.directory.is_some()) {
                    (true, true) => target.end_directory(&lower)?,
                    (false, false) => target.add_links(-1),
                    (true, false) => return Err(Errno::ENOTDIR),
                    (false, true) => return Err(Errno::EISDIR),
                }
            }
            _ => {}
        }
        let removed = self.names()?.remove(name);
        drop(removed);
        let replaced = to.names()?.names.insert(Box::from(to_name), Some(source.clone()));
        drop(replaced);
        let mut moved = i32::from(source_is_directory);
        let mut left = -moved;
        if let Some(target) = &target {
            let target_is_directory = i32::from(target.directory.is_some());
            moved -= target_is_directory;
            if mode == RenameMode::Exchange {
                self.names()?.names.insert(Box::from(name), Some(target.clone()));
                left += target_is_directory;
                target.add_links(0);
            }
        }
        self.add_links(left);
        to.add_links(moved);
        source.add_links(0);
        self.modified_now();
        to.modified_now();
        Ok(())
    }
}
