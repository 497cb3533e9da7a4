//! The names of services: a directory for each cell of the machine.

use super::{CellChannels, ListeningSocket, OpeningSocket};
use crate::Errno;
use alloc::collections::BTreeMap;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;
use isola_abi::links::service_name;
use isola_abi::management::MAX_NAME_LEN;
use isola_linux_files::{
    AttributeChange, CallerIds, DeviceNumber, DirectoryEntry, FileSystem, FileSystemStatistics, Inode,
    InodeKind, LinkTarget, Metadata, NewContent, NewInode, Outcome, Ownership, Timestamp,
    new_anonymous_inode, new_device,
};
use isola_linux_memory::BoxFuture;
use spin::Mutex;

/// The number in `statfs`: `isol`.
const MAGIC: u64 = 0x6973_6f6c;

/// The link to the directory of the own cell.
const SELF: &[u8] = b"self";

/// The permissions of the directory of the own cell: all users may listen for services, and remove their own names.
const OWN_PERMISSIONS: u32 = 0o1777;

/// The file system of the machine's services: `CELL/SERVICE`.
///
/// The supervisor does not list cells and their services to a cell. So each name that a cell can have is a directory, and
/// each name of a service in it a socket: `connect` shows whether it exists. The directory of the own cell, which the
/// link `self` leads to, has the sockets that programs have bound there.
pub struct ServicesFs {
    root: Arc<Root>,
}

/// The state of all inodes.
struct Shared {
    channels: Arc<dyn CellChannels>,
    cell: String,
    device: DeviceNumber,
    created: Timestamp,
}

struct Root {
    shared: Arc<Shared>,
    own: Arc<OwnDirectory>,
    link: Arc<OwnLink>,
}

/// The link to the directory of the own cell.
struct OwnLink {
    shared: Arc<Shared>,
}

/// The directory of the own cell.
struct OwnDirectory {
    shared: Arc<Shared>,
    sockets: Mutex<BTreeMap<Vec<u8>, Arc<OwnService>>>,
}

/// The directory of another cell.
struct CellDirectory {
    shared: Arc<Shared>,
    cell: String,
}

/// A service of the own cell: the name of a socket.
pub(in super::super) struct OwnService {
    shared: Arc<Shared>,
    name: String,
    number: u64,
    ownership: Mutex<Ownership>,
}

/// A service of another cell.
pub(in super::super) struct RemoteService {
    shared: Arc<Shared>,
    cell: String,
    name: String,
}

impl ServicesFs {
    /// Creates the file system of the cell with this name.
    pub fn new(cell: &str, channels: Arc<dyn CellChannels>) -> Arc<Self> {
        let (device, created) = (new_device(), Timestamp::now());
        let shared = Arc::new(Shared { channels, cell: cell.to_string(), device, created });
        let own = Arc::new(OwnDirectory { shared: shared.clone(), sockets: Mutex::default() });
        let link = Arc::new(OwnLink { shared: shared.clone() });
        Arc::new(Self { root: Arc::new(Root { shared, own, link }) })
    }
}

impl Shared {
    fn metadata(&self, kind: InodeKind, number: u64, ownership: Ownership) -> Metadata {
        Metadata {
            device: self.device,
            user: ownership.user,
            group: ownership.group,
            links: if kind == InodeKind::Directory { 2 } else { 1 },
            accessed: self.created,
            modified: self.created,
            changed: self.created,
            created: self.created,
            ..Metadata::anonymous(kind, number, ownership.permissions)
        }
    }

    fn directory(&self, number: u64, permissions: u32) -> Metadata {
        self.metadata(InodeKind::Directory, number, of_root(permissions))
    }
}

fn of_root(permissions: u32) -> Ownership {
    Ownership { user: 0, group: 0, permissions }
}

/// Returns the number of an inode without a place in memory: always the same for its name.
fn number_of(cell: &str, service: &str) -> u64 {
    // FNV-1a, without the numbers of the fixed inodes.
    let bytes = cell.bytes().chain([b'/']).chain(service.bytes());
    let hash = bytes
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    hash >> 1 | 1 << 62
}

/// Returns the text of a name that a service can have.
fn service_text(name: &[u8]) -> Option<&str> {
    core::str::from_utf8(name).ok().filter(|name| !name.is_empty() && service_name(name).is_some())
}

impl FileSystem for ServicesFs {
    fn root(&self) -> Arc<dyn Inode> {
        self.root.clone()
    }

    fn name(&self) -> &'static str {
        "isola-services"
    }

    fn caches_names(&self) -> bool {
        false
    }

    fn statistics(&self) -> Outcome<'_, FileSystemStatistics> {
        Outcome::ok(FileSystemStatistics { kind: MAGIC, block_len: 4096, ..FileSystemStatistics::default() })
    }
}

impl Inode for Root {
    fn kind(&self) -> InodeKind {
        InodeKind::Directory
    }

    fn metadata(&self) -> Metadata {
        self.shared.directory(1, 0o555)
    }

    fn set_attributes(&self, _change: &AttributeChange) -> Outcome<'_, ()> {
        Outcome::error(Errno::EPERM)
    }

    fn lookup(&self, name: &[u8], _caller: CallerIds) -> Outcome<'_, Option<Arc<dyn Inode>>> {
        if name == SELF {
            return Outcome::ok(Some(self.link.clone()));
        }
        if name == self.shared.cell.as_bytes() {
            return Outcome::ok(Some(self.own.clone()));
        }
        let cell = core::str::from_utf8(name).ok().filter(|name| name.len() <= MAX_NAME_LEN);
        Outcome::ok(cell.map(|cell| {
            let inode: Arc<dyn Inode> =
                Arc::new(CellDirectory { shared: self.shared.clone(), cell: cell.to_string() });
            inode
        }))
    }

    fn list(&self, _caller: CallerIds) -> Outcome<'_, Vec<DirectoryEntry>> {
        let entry = |name: &[u8], inode: &dyn Inode| DirectoryEntry {
            inode: inode.metadata().inode,
            name: name.to_vec(),
            kind: inode.kind(),
        };
        Outcome::ok(alloc::vec![entry(self.shared.cell.as_bytes(), &*self.own), entry(SELF, &*self.link)])
    }
}

impl Inode for OwnLink {
    fn kind(&self) -> InodeKind {
        InodeKind::Symlink
    }

    fn metadata(&self) -> Metadata {
        self.shared.metadata(InodeKind::Symlink, 3, of_root(0o777))
    }

    fn set_attributes(&self, _change: &AttributeChange) -> Outcome<'_, ()> {
        Outcome::error(Errno::EPERM)
    }

    fn follow(&self, _caller: CallerIds) -> Outcome<'_, LinkTarget> {
        Outcome::ok(LinkTarget::Path(self.shared.cell.clone().into_bytes()))
    }
}

impl Inode for OwnDirectory {
    fn kind(&self) -> InodeKind {
        InodeKind::Directory
    }

    fn metadata(&self) -> Metadata {
        self.shared.directory(2, OWN_PERMISSIONS)
    }

    fn set_attributes(&self, _change: &AttributeChange) -> Outcome<'_, ()> {
        Outcome::error(Errno::EPERM)
    }

    fn lookup(&self, name: &[u8], _caller: CallerIds) -> Outcome<'_, Option<Arc<dyn Inode>>> {
        let socket = self.sockets.lock().get(name).cloned();
        Outcome::ok(socket.map(|socket| {
            let inode: Arc<dyn Inode> = socket;
            inode
        }))
    }

    /// Creates the name of a socket; [`Errno::ENAMETOOLONG`] if no service can have it.
    fn create<'a>(&'a self, name: &'a [u8], new: &'a NewInode<'a>) -> Outcome<'a, Arc<dyn Inode>> {
        if !matches!(new.content, NewContent::Socket) {
            return Outcome::error(Errno::EPERM);
        }
        let Some(text) = service_text(name) else { return Outcome::error(Errno::ENAMETOOLONG) };
        let mut sockets = self.sockets.lock();
        if sockets.contains_key(name) {
            return Outcome::error(Errno::EEXIST);
        }
        let NewInode { user, group, permissions, .. } = *new;
        let socket = Arc::new(OwnService {
            shared: self.shared.clone(),
            name: text.to_string(),
            number: new_anonymous_inode(),
            ownership: Mutex::new(Ownership { user, group, permissions }),
        });
        sockets.insert(name.to_vec(), socket.clone());
        let inode: Arc<dyn Inode> = socket;
        Outcome::ok(inode)
    }

    fn unlink<'a>(&'a self, name: &'a [u8]) -> Outcome<'a, ()> {
        let removed = self.sockets.lock().remove(name);
        removed.map(|_| ()).ok_or(Errno::ENOENT).into()
    }

    fn list(&self, _caller: CallerIds) -> Outcome<'_, Vec<DirectoryEntry>> {
        let entry = |(name, socket): (&Vec<u8>, &Arc<OwnService>)| DirectoryEntry {
            inode: socket.number,
            name: name.clone(),
            kind: InodeKind::Socket,
        };
        Outcome::ok(self.sockets.lock().iter().map(entry).collect())
    }
}

impl Inode for CellDirectory {
    fn kind(&self) -> InodeKind {
        InodeKind::Directory
    }

    fn metadata(&self) -> Metadata {
        self.shared.directory(number_of(&self.cell, ""), 0o555)
    }

    fn set_attributes(&self, _change: &AttributeChange) -> Outcome<'_, ()> {
        Outcome::error(Errno::EPERM)
    }

    fn lookup(&self, name: &[u8], _caller: CallerIds) -> Outcome<'_, Option<Arc<dyn Inode>>> {
        Outcome::ok(service_text(name).map(|name| {
            let (shared, cell, name) = (self.shared.clone(), self.cell.clone(), name.to_string());
            let inode: Arc<dyn Inode> = Arc::new(RemoteService { shared, cell, name });
            inode
        }))
    }

    fn list(&self, _caller: CallerIds) -> Outcome<'_, Vec<DirectoryEntry>> {
        Outcome::ok(Vec::new())
    }
}

impl Inode for OwnService {
    fn kind(&self) -> InodeKind {
        InodeKind::Socket
    }

    fn metadata(&self) -> Metadata {
        self.shared.metadata(InodeKind::Socket, self.number, *self.ownership.lock())
    }

    fn set_attributes(&self, change: &AttributeChange) -> Outcome<'_, ()> {
        let mut ownership = self.ownership.lock();
        ownership.permissions = change.permissions.unwrap_or(ownership.permissions);
        ownership.user = change.user.unwrap_or(ownership.user);
        ownership.group = change.group.unwrap_or(ownership.group);
        Outcome::ok(())
    }
}

impl OwnService {
    /// Passes channels of other cells to this service to a socket.
    pub fn listen(&self, socket: ListeningSocket) -> BoxFuture<'static, Result<(), Errno>> {
        self.shared.channels.listen(&self.name, socket)
    }
}

impl Inode for RemoteService {
    fn kind(&self) -> InodeKind {
        InodeKind::Socket
    }

    /// All users may connect: the other cell's manifest decides.
    fn metadata(&self) -> Metadata {
        self.shared.metadata(InodeKind::Socket, number_of(&self.cell, &self.name), of_root(0o666))
    }

    fn set_attributes(&self, _change: &AttributeChange) -> Outcome<'_, ()> {
        Outcome::error(Errno::EPERM)
    }
}

impl RemoteService {
    /// Opens a channel to this service for a socket.
    pub fn open(&self, socket: OpeningSocket) {
        self.shared.channels.open(&self.cell, &self.name, socket);
    }
}
