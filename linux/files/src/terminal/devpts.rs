//! The file system of `/dev/pts`: a device for the slave of each terminal.

use super::{Terminal, Terminals};
use crate::Errno;
use crate::clock::Timestamp;
use crate::inode::{AttributeChange, CallerIds, FileSystem, Inode};
use crate::metadata::{DirectoryEntry, FileSystemStatistics, InodeKind, Metadata};
use crate::object::FileObject;
use crate::outcome::Outcome;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

/// The number of the first slave's inode, as in Linux.
pub(super) const FIRST_INODE: u64 = 3;
/// The number in `statfs` (`DEVPTS_SUPER_MAGIC`).
const MAGIC: u64 = 0x1cd1;

/// The file system.
pub struct DevPts {
    root: Arc<Root>,
}

struct Root {
    terminals: Arc<Terminals>,
    created: Timestamp,
}

struct Slave {
    terminal: Arc<Terminal>,
    terminals: Arc<Terminals>,
}

impl DevPts {
    /// Creates the file system of a cell's terminals.
    pub fn new(terminals: &Arc<Terminals>) -> Arc<Self> {
        let root = Root { terminals: terminals.clone(), created: Timestamp::now() };
        Arc::new(Self { root: Arc::new(root) })
    }
}

impl FileSystem for DevPts {
    fn root(&self) -> Arc<dyn Inode> {
        self.root.clone()
    }

    fn name(&self) -> &'static str {
        "devpts"
    }

    fn caches_names(&self) -> bool {
        false
    }

    fn statistics(&self) -> Outcome<'_, FileSystemStatistics> {
        Outcome::ok(FileSystemStatistics { kind: MAGIC, block_len: 4096, ..FileSystemStatistics::default() })
    }

    fn options(&self) -> String {
        "gid=0,mode=620,ptmxmode=000".into()
    }
}

impl Inode for Root {
    fn kind(&self) -> InodeKind {
        InodeKind::Directory
    }

    fn metadata(&self) -> Metadata {
        let created = self.created;
        Metadata {
            device: self.terminals.file_system,
            links: 2,
            accessed: created,
            modified: created,
            changed: created,
            created,
            ..Metadata::anonymous(InodeKind::Directory, 1, 0o755)
        }
    }

    fn set_attributes(&self, _change: &AttributeChange) -> Outcome<'_, ()> {
        Outcome::error(Errno::EPERM)
    }

    fn lookup(&self, name: &[u8], _caller: CallerIds) -> Outcome<'_, Option<Arc<dyn Inode>>> {
        let is_number = name.iter().all(u8::is_ascii_digit) && (name == b"0" || !name.starts_with(b"0"));
        let number = core::str::from_utf8(name).ok().filter(|_| is_number).and_then(|name| name.parse().ok());
        Outcome::ok(number.and_then(|number| self.terminals.get(number)).map(|terminal| {
            let inode: Arc<dyn Inode> = Arc::new(Slave { terminal, terminals: self.terminals.clone() });
            inode
        }))
    }

    fn list(&self, _caller: CallerIds) -> Outcome<'_, Vec<DirectoryEntry>> {
        let entry = |terminal: Arc<Terminal>| DirectoryEntry {
            inode: u64::from(terminal.number()) + FIRST_INODE,
            name: alloc::format!("{}", terminal.number()).into_bytes(),
            kind: InodeKind::CharacterDevice,
        };
        Outcome::ok(self.terminals.all().into_iter().map(entry).collect())
    }
}

impl Inode for Slave {
    fn kind(&self) -> InodeKind {
        InodeKind::CharacterDevice
    }

    fn metadata(&self) -> Metadata {
        self.terminal.metadata()
    }

    fn set_attributes(&self, change: &AttributeChange) -> Outcome<'_, ()> {
        let mut state = self.terminal.state.lock();
        let owner = &mut state.owner;
        owner.permissions = change.permissions.unwrap_or(owner.permissions);
        owner.user = change.user.unwrap_or(owner.user);
        owner.group = change.group.unwrap_or(owner.group);
        Outcome::ok(())
    }

    fn open(&self, flags: u32, caller: CallerIds) -> Outcome<'_, Option<Arc<dyn FileObject>>> {
        self.terminals
            .open(&self.terminal, flags, caller)
            .map(|file| {
                let object: Arc<dyn FileObject> = Arc::new(file);
                Some(object)
            })
            .into()
    }
}
