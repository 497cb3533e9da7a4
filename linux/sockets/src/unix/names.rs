//! The names of unix sockets.

use super::socket::UnixSocket;
use crate::Errno;
use crate::socket::SocketKind;
use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering};
use isola_linux_files::{Inode, Location};
use spin::Mutex;

/// The number of names that the system chooses itself: five hexadecimal digits.
const CHOSEN_NAMES: u32 = 1 << 20;

/// Sockets by type and abstract name.
type AbstractNames = BTreeMap<(u32, Arc<[u8]>), Weak<UnixSocket>>;

/// The sockets with names, and all sockets.
#[derive(Default)]
pub(super) struct Names {
    /// As on Linux, sockets of different types can have the same abstract name.
    abstract_names: Mutex<AbstractNames>,
    /// By the identity of the inode, which the socket keeps.
    inodes: Mutex<BTreeMap<usize, Weak<UnixSocket>>>,
    all: Mutex<BTreeMap<u64, Weak<UnixSocket>>>,
    next_chosen: AtomicU32,
}

fn identity(inode: &Arc<dyn Inode>) -> usize {
    Arc::as_ptr(inode).cast::<()>() as usize
}

impl Names {
    pub fn add(&self, id: u64, socket: &Weak<UnixSocket>) {
        self.all.lock().insert(id, socket.clone());
    }

    pub fn remove(&self, id: u64) {
        self.all.lock().remove(&id);
    }

    /// Returns all sockets.
    pub fn sockets(&self) -> Vec<Arc<UnixSocket>> {
        self.all.lock().values().filter_map(Weak::upgrade).collect()
    }

    /// Gives a socket an abstract name.
    pub fn bind_abstract(
        &self,
        kind: SocketKind,
        name: &Arc<[u8]>,
        socket: &Weak<UnixSocket>,
    ) -> Result<(), Errno> {
        let key = (kind.number(), name.clone());
        let mut names = self.abstract_names.lock();
        if names.contains_key(&key) {
            return Err(Errno::EADDRINUSE);
        }
        names.insert(key, socket.clone());
        Ok(())
    }

    /// Gives a socket an abstract name that no other socket has.
    pub fn bind_chosen(&self, kind: SocketKind, socket: &Weak<UnixSocket>) -> Result<Arc<[u8]>, Errno> {
        for _ in 0..CHOSEN_NAMES {
            let number = self.next_chosen.fetch_add(1, Ordering::Relaxed) % CHOSEN_NAMES;
            let name: Arc<[u8]> = alloc::format!("{number:05x}").into_bytes().into();
            if self.bind_abstract(kind, &name, socket).is_ok() {
                return Ok(name);
            }
        }
        Err(Errno::ENOSPC)
    }

    /// Removes an abstract name if it is that of this socket: connections have the name of their listening socket.
    pub fn unbind_abstract(&self, kind: SocketKind, name: &Arc<[u8]>, socket: &Weak<UnixSocket>) {
        let key = (kind.number(), name.clone());
        let mut names = self.abstract_names.lock();
        if names.get(&key).is_some_and(|owner| owner.ptr_eq(socket)) {
            names.remove(&key);
        }
    }

    pub fn find_abstract(&self, kind: SocketKind, name: &Arc<[u8]>) -> Option<Arc<UnixSocket>> {
        self.abstract_names.lock().get(&(kind.number(), name.clone())).and_then(Weak::upgrade)
    }

    pub fn bind_inode(&self, location: &Location, socket: &Weak<UnixSocket>) {
        self.inodes.lock().insert(identity(location.inode()), socket.clone());
    }

    pub fn unbind_inode(&self, location: &Location) {
        self.inodes.lock().remove(&identity(location.inode()));
    }

    pub fn find_inode(&self, inode: &Arc<dyn Inode>) -> Option<Arc<UnixSocket>> {
        self.inodes.lock().get(&identity(inode)).and_then(Weak::upgrade)
    }
}
