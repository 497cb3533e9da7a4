//! The objects of one kind, by id and key.

use super::permissions::{IpcCaller, Permissions};
use crate::Errno;
use alloc::collections::BTreeMap;

/// The most objects of a kind, as in Linux (`SEMMNI`).
pub const MOST_SETS: usize = 32_000;

/// Flags and a key, from Linux's `linux/ipc.h`.
const IPC_CREAT: u32 = 0o1000;
const IPC_EXCL: u32 = 0o2000;
const IPC_PRIVATE: i32 = 0;

/// The arguments of `shmget`, `semget` and `msgget`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GetRequest {
    /// The key, or `IPC_PRIVATE`.
    pub key: i32,
    /// `IPC_CREAT`, `IPC_EXCL`, and the permissions.
    pub flags: u32,
}

/// The objects of one kind.
#[derive(Debug)]
pub struct Table<T> {
    objects: BTreeMap<i32, (Permissions, T)>,
    keys: BTreeMap<i32, i32>,
    next_id: i32,
    most: usize,
}

impl<T> Table<T> {
    /// Creates a table with room for this many objects.
    pub const fn new(most: usize) -> Self {
        Self { objects: BTreeMap::new(), keys: BTreeMap::new(), next_id: 0, most }
    }

    /// Returns the most objects.
    pub fn most(&self) -> usize {
        self.most
    }

    /// Returns the number of objects.
    pub fn count(&self) -> usize {
        self.objects.len()
    }

    /// Returns the id of the object of a key, which `check` may refuse, or of a new one from `make`.
    ///
    /// # Errors
    /// [`Errno::ENOENT`], [`Errno::EEXIST`], [`Errno::EACCES`], [`Errno::ENOSPC`]; those of `check` and `make`.
    pub fn get_or_create(
        &mut self,
        request: GetRequest,
        caller: &IpcCaller<'_>,
        check: impl FnOnce(&T) -> Result<(), Errno>,
        make: impl FnOnce() -> Result<T, Errno>,
    ) -> Result<i32, Errno> {
        let has = |flag: u32| request.flags & flag != 0;
        if request.key != IPC_PRIVATE {
            match self.keys.get(&request.key) {
                Some(_) if has(IPC_CREAT) && has(IPC_EXCL) => return Err(Errno::EEXIST),
                Some(id) => {
                    let (permissions, object) = self.objects.get(id).ok_or(Errno::ENOENT)?;
                    let wanted = request.flags >> 6 | request.flags >> 3 | request.flags;
                    permissions.check(caller, wanted & 6)?;
                    check(object)?;
                    return Ok(*id);
                }
                None if !has(IPC_CREAT) => return Err(Errno::ENOENT),
                None => {}
            }
        }
        let object = make()?;
        if self.objects.len() >= self.most {
            return Err(Errno::ENOSPC);
        }
        // An id is used again only after all others.
        while self.objects.contains_key(&self.next_id) {
            self.next_id = self.next_id.checked_add(1).unwrap_or(0);
        }
        let id = self.next_id;
        self.next_id = id.checked_add(1).unwrap_or(0);
        self.objects.insert(id, (Permissions::new(request.key, request.flags, caller), object));
        if request.key != IPC_PRIVATE {
            self.keys.insert(request.key, id);
        }
        Ok(id)
    }

    /// Returns an object.
    ///
    /// # Errors
    /// [`Errno::EINVAL`].
    pub fn get(&mut self, id: i32) -> Result<&mut (Permissions, T), Errno> {
        self.objects.get_mut(&id).ok_or(Errno::EINVAL)
    }

    /// Returns an object, if the caller may access it; `wanted` has the bits 4 to read and 2 to write.
    ///
    /// # Errors
    /// [`Errno::EINVAL`], [`Errno::EACCES`].
    pub fn access(
        &mut self,
        id: i32,
        caller: &IpcCaller<'_>,
        wanted: u32,
    ) -> Result<(&mut Permissions, &mut T), Errno> {
        let (permissions, object) = self.get(id)?;
        permissions.check(caller, wanted)?;
        Ok((permissions, object))
    }

    /// Returns the id of the object with this index, for lists of all objects.
    ///
    /// # Errors
    /// [`Errno::EINVAL`].
    pub fn id_of_index(&self, index: i32) -> Result<i32, Errno> {
        let index = usize::try_from(index).map_err(|_| Errno::EINVAL)?;
        self.objects.keys().nth(index).copied().ok_or(Errno::EINVAL)
    }

    /// Takes the key from an object that is to be removed later.
    pub fn remove_key(&mut self, id: i32) {
        if let Some((permissions, _)) = self.objects.get_mut(&id) {
            self.keys.remove(&core::mem::take(&mut permissions.key));
        }
    }

    /// Removes an object.
    pub fn remove(&mut self, id: i32) -> Option<T> {
        self.remove_key(id);
        self.objects.remove(&id).map(|(_, object)| object)
    }

    /// Returns all objects in ascending order of their ids.
    pub fn iter(&mut self) -> impl Iterator<Item = (i32, &Permissions, &mut T)> {
        self.objects.iter_mut().map(|(id, (permissions, object))| (*id, &*permissions, object))
    }

    /// Removes the objects that `is_gone` selects.
    pub fn remove_all(&mut self, is_gone: impl Fn(&T) -> bool) {
        self.objects.retain(|_, (_, object)| !is_gone(object));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::credentials::Credentials;
    use alloc::vec;

    const MISSING: Result<i32, Errno> = Err(Errno::ENOENT);

    #[test]
    fn keys_find_objects_until_they_are_removed() {
        let credentials = Credentials::of(5, 5, vec![]);
        let caller = IpcCaller { pid: 1, credentials: &credentials, now: 0 };
        let mut table = Table::new(3);
        let mut get = |key, flags: u32, caller: &IpcCaller<'_>| {
            table.get_or_create(GetRequest { key, flags }, caller, |_| Ok(()), || Ok(key))
        };
        assert_eq!(get(7, 0o600, &caller), MISSING);
        assert_eq!(get(7, IPC_CREAT | 0o600, &caller), Ok(0));
        assert_eq!(get(7, IPC_CREAT | IPC_EXCL, &caller), Err(Errno::EEXIST));
        assert_eq!((get(7, 0o600, &caller), get(7, IPC_CREAT, &caller)), (Ok(0), Ok(0)));
        let stranger = Credentials::of(6, 6, vec![]);
        let other = IpcCaller { pid: 1, credentials: &stranger, now: 0 };
        assert_eq!((get(7, 0o400, &other), get(7, 0, &other)), (Err(Errno::EACCES), Ok(0)));
        assert_eq!((get(0, 0o600, &caller), get(0, 0o600, &caller)), (Ok(1), Ok(2)));
        assert_eq!(get(0, 0o600, &caller), Err(Errno::ENOSPC));
        assert_eq!(table.remove(0), Some(7));
        let mut get =
            |key, flags: u32| table.get_or_create(GetRequest { key, flags }, &caller, |_| Ok(()), || Ok(key));
        assert_eq!((get(7, 0), get(7, IPC_CREAT)), (MISSING, Ok(3)));
        assert_eq!((table.id_of_index(2), table.id_of_index(3)), (Ok(3), Err(Errno::EINVAL)));
    }
}
