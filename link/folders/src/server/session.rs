//! The requests of one client of a folder.
//!
//! A client names files by *nodes*, which it gets by looking up names, as in FUSE. A node is an open file of the volume, so
//! that a file without a name can be used until the client forgets it, and a client reaches nothing above its folder. The
//! number of a node is that of the file in its file system; [`ROOT`] is the folder.

use crate::wire::{
    ANSWER_HEADER_LEN, EEXIST, EINVAL, ENFILE, ENODATA, ENOENT, ENOSYS, EPROTO, EROFS, ESTALE,
    FALLOCATE_KEEP_SIZE, FALLOCATE_PUNCH_HOLE, MOST_ENTRY_LEN, RENAME_EXCHANGE, RENAME_NOREPLACE, ROOT,
    TYPE_BLOCK_DEVICE, TYPE_CHARACTER_DEVICE, TYPE_FIFO, TYPE_FILE, TYPE_MASK, TYPE_SOCKET, XATTR_CREATE,
    XATTR_REPLACE, answer, decode_device, decode_message, encode_attributes, errno, is_name, kind_of,
    put_entry, take, take_name, time,
};
use crate::{MOST_DATA, MOST_MESSAGE};
use alloc::collections::{BTreeMap, VecDeque};
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::time::Duration;
use fuse_abi::linux::{
    FATTR_ATIME, FATTR_ATIME_NOW, FATTR_GID, FATTR_MODE, FATTR_MTIME, FATTR_MTIME_NOW, FATTR_SIZE, FATTR_UID,
    FUSE_INIT_EXT, FUSE_KERNEL_MINOR_VERSION, FUSE_KERNEL_VERSION, FUSE_MAX_PAGES, FUSE_NO_OPEN_SUPPORT,
    FUSE_NO_OPENDIR_SUPPORT, FUSE_SETXATTR_EXT, fuse_attr_out, fuse_batch_forget_in, fuse_entry_out,
    fuse_fallocate_in, fuse_forget_in, fuse_forget_one, fuse_getxattr_in, fuse_getxattr_out, fuse_in_header,
    fuse_init_in, fuse_init_out, fuse_kstatfs, fuse_link_in, fuse_mkdir_in, fuse_mknod_in, fuse_opcode,
    fuse_read_in, fuse_rename2_in, fuse_setattr_in, fuse_setxattr_in, fuse_statfs_out, fuse_write_in,
    fuse_write_out,
};
use isola_abi::volume::VolumeAccess;
use isola_ebbs::platform;
use isola_events::now;
use isola_iobuf::IoBuf;
use isola_volumes::{
    AttributeUpdate, Attributes, ExtendedAttributeMode, File, FileError, FileId, FileKind, FileSystem,
    ListPosition, NAME_LEN, NewFile, NewFileKind, RangeChange, RemovedKind, RenameKind, Volume,
};

/// The most nodes of a client: an open file of the volume has at most 12 KiB.
pub const MOST_NODES: usize = 2048;

/// The positions in directories at which a client's listings can continue without a search.
const MOST_POSITIONS: usize = 16;

/// The entries that a search for a position reads at once.
const SEARCHED: usize = 256;

/// The most bytes of an extended attribute, and of the list of their names.
const MOST_ATTRIBUTE: usize = 64 << 10;

/// The largest end of a file that Linux can express.
const MOST_END: u64 = i64::MAX as u64;

/// The bytes of a request, or the number of an error.
type Outcome = Result<Vec<u8>, i32>;

/// A folder of a volume.
#[derive(Clone)]
pub struct Folder {
    volume: Volume,
    directory: Rc<File>,
}

impl Folder {
    /// Returns the folder with this name in the root directory of a volume.
    ///
    /// # Errors
    /// [`FileError::NotFound`], [`FileError::NotADirectory`], and the errors of the disk.
    pub async fn open(volume: &Volume, name: &str) -> Result<Self, FileError> {
        let root = volume.root_attributes().await?.id;
        let (attributes, file) = volume.open_in(root, name).await?.ok_or(FileError::NotFound)?;
        match kind_of(attributes.mode) {
            FileKind::Directory => Ok(Self { volume: volume.clone(), directory: Rc::new(file) }),
            _ => Err(FileError::NotADirectory),
        }
    }
}

/// A file of which a client knows.
struct Node {
    file: Rc<File>,
    kind: FileKind,
    /// How often the client has looked it up.
    lookups: u64,
}

/// A client of a folder.
pub struct Session {
    folder: Folder,
    access: VolumeAccess,
    nodes: BTreeMap<u64, Node>,
    /// Directory, number of the entries before the position, and the position; `None` at the end.
    positions: VecDeque<(u64, u64, Option<ListPosition>)>,
    has_started: bool,
}

/// A message that is no request: the client violates the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

fn failed(error: FileError) -> i32 {
    errno(error)
}

/// Converts the error of an extended attribute.
fn attribute_failed(error: FileError) -> i32 {
    if error == FileError::NotFound { ENODATA } else { errno(error) }
}

fn get<T: zerocopy::FromBytes>(arguments: &mut &[u8]) -> Result<T, i32> {
    take(arguments).ok_or(EINVAL)
}

fn name<'a>(arguments: &mut &'a [u8]) -> Result<&'a [u8], i32> {
    take_name(arguments).filter(|name| is_name(name)).ok_or(EINVAL)
}

fn bytes_of<T: zerocopy::IntoBytes + zerocopy::Immutable>(value: &T) -> Outcome {
    Ok(value.as_bytes().to_vec())
}

impl Session {
    /// Begins to serve a client.
    pub fn new(folder: Folder, access: VolumeAccess) -> Self {
        Self { folder, access, nodes: BTreeMap::new(), positions: VecDeque::new(), has_started: false }
    }

    /// Returns the number of files of which the client knows.
    pub fn node_count(&self) -> usize {
        self.nodes.len()
    }

    /// Executes a request, and returns its answer, of at most `room` bytes; `None` if the request has none.
    ///
    /// # Errors
    /// [`Malformed`].
    pub async fn execute(&mut self, message: &[u8], room: usize) -> Result<Option<Vec<u8>>, Malformed> {
        let (header, arguments) = decode_message(message).ok_or(Malformed)?;
        if header.opcode == fuse_opcode::FUSE_FORGET as u32 {
            self.forget(header.nodeid, take::<fuse_forget_in>(&mut &arguments[..]).ok_or(Malformed)?.nlookup);
            return Ok(None);
        }
        if header.opcode == fuse_opcode::FUSE_BATCH_FORGET as u32 {
            self.forget_all(arguments).ok_or(Malformed)?;
            return Ok(None);
        }
        let room =
            room.checked_sub(ANSWER_HEADER_LEN).ok_or(Malformed)?.min(MOST_MESSAGE - ANSWER_HEADER_LEN);
        let outcome = self.request(&header, arguments, room).await;
        // An answer without room is one that the client has not asked for.
        let outcome =
            outcome.and_then(|contents| if contents.len() > room { Err(EINVAL) } else { Ok(contents) });
        Ok(Some(answer(header.unique, outcome.as_deref().map_err(|error| *error))))
    }

    async fn request(&mut self, header: &fuse_in_header, arguments: &[u8], room: usize) -> Outcome {
        let node = header.nodeid;
        let is = |opcode: fuse_opcode| header.opcode == opcode as u32;
        let mut arguments = arguments;
        if is(fuse_opcode::FUSE_INIT) {
            return self.start(get(&mut arguments)?);
        }
        if !self.has_started {
            return Err(EPROTO);
        }
        match () {
            () if is(fuse_opcode::FUSE_LOOKUP) => self.look_up(node, name(&mut arguments)?).await,
            () if is(fuse_opcode::FUSE_GETATTR) => self.attributes(node).await,
            () if is(fuse_opcode::FUSE_READLINK) => self.link_target(node).await,
            () if is(fuse_opcode::FUSE_READ) => self.read(node, get(&mut arguments)?, room).await,
            () if is(fuse_opcode::FUSE_READDIR) => self.list(node, get(&mut arguments)?, room).await,
            () if is(fuse_opcode::FUSE_STATFS) => self.space().await,
            () if is(fuse_opcode::FUSE_GETXATTR) => {
                let wanted: fuse_getxattr_in = get(&mut arguments)?;
                let value = self.attribute(node, name(&mut arguments)?).await?;
                sized(value, wanted.size)
            }
            () if is(fuse_opcode::FUSE_LISTXATTR) => {
                let wanted: fuse_getxattr_in = get(&mut arguments)?;
                sized(self.attribute_names(node).await?, wanted.size)
            }
            () if is(fuse_opcode::FUSE_SYNCFS)
                || is(fuse_opcode::FUSE_FSYNC)
                || is(fuse_opcode::FUSE_FSYNCDIR) =>
            {
                self.sync().await
            }
            () if is(fuse_opcode::FUSE_DESTROY) => {
                self.nodes.clear();
                Ok(Vec::new())
            }
            () => self.change(header, arguments).await,
        }
    }

    /// Executes a request that changes something.
    async fn change(&mut self, header: &fuse_in_header, arguments: &[u8]) -> Outcome {
        let node = header.nodeid;
        let is = |opcode: fuse_opcode| header.opcode == opcode as u32;
        let mut arguments = arguments;
        let changes = [
            fuse_opcode::FUSE_SETATTR,
            fuse_opcode::FUSE_SYMLINK,
            fuse_opcode::FUSE_MKNOD,
            fuse_opcode::FUSE_MKDIR,
            fuse_opcode::FUSE_UNLINK,
            fuse_opcode::FUSE_RMDIR,
            fuse_opcode::FUSE_RENAME2,
            fuse_opcode::FUSE_LINK,
            fuse_opcode::FUSE_WRITE,
            fuse_opcode::FUSE_SETXATTR,
            fuse_opcode::FUSE_REMOVEXATTR,
            fuse_opcode::FUSE_FALLOCATE,
        ];
        if !changes.into_iter().any(is) {
            // Files need not be opened, nor closed.
            return Err(ENOSYS);
        }
        if self.access == VolumeAccess::ReadOnly {
            return Err(EROFS);
        }
        // Changes of contents and attributes are permanent after the client's next sync.
        if is(fuse_opcode::FUSE_WRITE) {
            return self.write(node, get(&mut arguments)?, arguments).await;
        }
        if is(fuse_opcode::FUSE_SETATTR) {
            return self.set_attributes(node, &get(&mut arguments)?).await;
        }
        if is(fuse_opcode::FUSE_FALLOCATE) {
            return self.change_range(node, get(&mut arguments)?).await;
        }
        // Names and extended attributes are permanent before the answer, since a client cannot repeat their changes.
        let done = match () {
            () if is(fuse_opcode::FUSE_SYMLINK) => {
                let name = name(&mut arguments)?;
                let target = take_name(&mut arguments).filter(|target| !target.is_empty()).ok_or(EINVAL)?;
                self.create(header, name, NewFileKind::Symlink(target.to_vec()), 0o777).await
            }
            () if is(fuse_opcode::FUSE_MKNOD) => {
                let new: fuse_mknod_in = get(&mut arguments)?;
                let (major, minor) = decode_device(new.rdev);
                let kind = match new.mode & TYPE_MASK {
                    TYPE_FILE | 0 => NewFileKind::File,
                    TYPE_FIFO => NewFileKind::Fifo,
                    TYPE_SOCKET => NewFileKind::Socket,
                    TYPE_CHARACTER_DEVICE => NewFileKind::CharacterDevice(major, minor),
                    TYPE_BLOCK_DEVICE => NewFileKind::BlockDevice(major, minor),
                    _ => return Err(EINVAL),
                };
                self.create(header, name(&mut arguments)?, kind, new.mode).await
            }
            () if is(fuse_opcode::FUSE_MKDIR) => {
                let new: fuse_mkdir_in = get(&mut arguments)?;
                self.create(header, name(&mut arguments)?, NewFileKind::Directory, new.mode).await
            }
            () if is(fuse_opcode::FUSE_UNLINK) => {
                self.remove(node, name(&mut arguments)?, RemovedKind::Other).await
            }
            () if is(fuse_opcode::FUSE_RMDIR) => {
                self.remove(node, name(&mut arguments)?, RemovedKind::Directory).await
            }
            () if is(fuse_opcode::FUSE_RENAME2) => {
                let to: fuse_rename2_in = get(&mut arguments)?;
                let (from, target) = (name(&mut arguments)?, name(&mut arguments)?);
                self.rename((node, from), (to.newdir, target), to.flags).await
            }
            () if is(fuse_opcode::FUSE_LINK) => {
                let link: fuse_link_in = get(&mut arguments)?;
                self.link(link.oldnodeid, node, name(&mut arguments)?).await
            }
            () if is(fuse_opcode::FUSE_SETXATTR) => {
                let set: fuse_setxattr_in = get(&mut arguments)?;
                let name = name(&mut arguments)?;
                self.set_attribute(node, name, arguments, &set).await
            }
            () => self.remove_attribute(node, name(&mut arguments)?).await,
        }?;
        self.sync().await?;
        Ok(done)
    }

    fn start(&mut self, client: fuse_init_in) -> Outcome {
        if client.major != FUSE_KERNEL_VERSION {
            return Err(EPROTO);
        }
        self.has_started = true;
        let offered = FUSE_MAX_PAGES
            | FUSE_NO_OPEN_SUPPORT
            | FUSE_NO_OPENDIR_SUPPORT
            | FUSE_SETXATTR_EXT
            | FUSE_INIT_EXT;
        bytes_of(&fuse_init_out {
            major: FUSE_KERNEL_VERSION,
            minor: FUSE_KERNEL_MINOR_VERSION,
            flags: client.flags & offered,
            max_background: 1,
            congestion_threshold: 1,
            max_write: MOST_DATA as u32,
            time_gran: 1,
            max_pages: (MOST_DATA / 4096) as u16,
            ..Default::default()
        })
    }

    /// Returns the file with a number of the client.
    fn node(&self, number: u64) -> Result<(Rc<File>, FileKind), i32> {
        if number == ROOT.0 {
            return Ok((self.folder.directory.clone(), FileKind::Directory));
        }
        self.nodes.get(&number).map(|node| (node.file.clone(), node.kind)).ok_or(ESTALE)
    }

    fn directory(&self, number: u64) -> Result<FileId, i32> {
        match self.node(number)? {
            (file, FileKind::Directory) => Ok(file.id()),
            _ => Err(failed(FileError::NotADirectory)),
        }
    }

    fn file(&self, number: u64) -> Result<Rc<File>, i32> {
        match self.node(number)? {
            (file, FileKind::File) => Ok(file),
            (_, FileKind::Directory) => Err(failed(FileError::IsADirectory)),
            _ => Err(EINVAL),
        }
    }

    /// Checks that the client may know of one more file.
    fn check_room(&self) -> Result<(), i32> {
        if self.nodes.len() < MOST_NODES { Ok(()) } else { Err(ENFILE) }
    }

    /// Notes that the client knows of a file now. Returns the answer.
    fn know(&mut self, attributes: &Attributes, file: File) -> Outcome {
        let number = attributes.id.0;
        let new = || Node { file: Rc::new(file), kind: kind_of(attributes.mode), lookups: 0 };
        let node = self.nodes.entry(number).or_insert_with(new);
        node.lookups = node.lookups.saturating_add(1);
        bytes_of(&fuse_entry_out {
            nodeid: number,
            attr: encode_attributes(number, attributes),
            ..Default::default()
        })
    }

    fn forget(&mut self, number: u64, lookups: u64) {
        let Some(node) = self.nodes.get_mut(&number) else { return };
        node.lookups = node.lookups.saturating_sub(lookups);
        if node.lookups == 0 {
            self.nodes.remove(&number);
        }
    }

    fn forget_all(&mut self, mut arguments: &[u8]) -> Option<()> {
        let count = take::<fuse_batch_forget_in>(&mut arguments)?.count;
        for _ in 0..count {
            let one: fuse_forget_one = take(&mut arguments)?;
            self.forget(one.nodeid, one.nlookup);
        }
        Some(())
    }

    async fn look_up(&mut self, directory: u64, name: &[u8]) -> Outcome {
        let directory = self.directory(directory)?;
        let found = self.folder.volume.open_in(directory, name).await.map_err(failed)?;
        let (attributes, file) = found.ok_or(ENOENT)?;
        if !self.nodes.contains_key(&attributes.id.0) {
            self.check_room()?;
        }
        self.know(&attributes, file)
    }

    async fn attributes(&self, node: u64) -> Outcome {
        let id = self.node(node)?.0.id();
        let get = move |file_system: &mut dyn FileSystem| file_system.attributes(id);
        let attributes = self.folder.volume.with_file_system(get).await.map_err(failed)?;
        attributes_answer(node, &attributes)
    }

    async fn link_target(&self, node: u64) -> Outcome {
        let id = self.node(node)?.0.id();
        self.folder.volume.link_target(id).await.map_err(failed)
    }

    async fn read(&self, node: u64, read: fuse_read_in, room: usize) -> Outcome {
        let file = self.file(node)?;
        let len = (read.size as usize).min(room).min(MOST_DATA);
        Ok(file.read_chain(read.offset, len).await.map_err(failed)?.to_vec())
    }

    async fn write(&self, node: u64, write: fuse_write_in, data: &[u8]) -> Outcome {
        let file = self.file(node)?;
        if data.len() != write.size as usize || data.len() > MOST_DATA {
            return Err(EINVAL);
        }
        let end = write.offset.checked_add(data.len() as u64);
        end.filter(|end| *end <= MOST_END).ok_or_else(|| failed(FileError::TooLarge))?;
        if !data.is_empty() {
            file.write(write.offset, IoBuf::from(data.to_vec())).await.map_err(failed)?;
        }
        bytes_of(&fuse_write_out { size: write.size, padding: 0 })
    }

    async fn set_attributes(&self, node: u64, set: &fuse_setattr_in) -> Outcome {
        let (file, kind) = self.node(node)?;
        let has = |bit: u32| set.valid & bit != 0;
        if has(FATTR_SIZE) {
            match kind {
                FileKind::File if set.size <= MOST_END => file.truncate(set.size).await.map_err(failed)?,
                FileKind::File => return Err(failed(FileError::TooLarge)),
                FileKind::Directory => return Err(failed(FileError::IsADirectory)),
                FileKind::Other => return Err(EINVAL),
            }
        }
        let id = file.id();
        let get = move |file_system: &mut dyn FileSystem| file_system.attributes(id);
        let before = self.folder.volume.with_file_system(get).await.map_err(failed)?;
        let present = || Duration::from_nanos(platform().clock().unix_ns(now()));
        let chosen = |given, at_present, (seconds, nanoseconds)| match () {
            () if has(at_present) => Some(present()),
            () if has(given) => Some(time(seconds, nanoseconds)),
            () => None,
        };
        let owner = has(FATTR_UID | FATTR_GID).then(|| {
            let user = if has(FATTR_UID) { set.uid } else { before.user };
            (user, if has(FATTR_GID) { set.gid } else { before.group })
        });
        let update = AttributeUpdate {
            permissions: has(FATTR_MODE).then_some(set.mode & 0o7777),
            owner,
            accessed: chosen(FATTR_ATIME, FATTR_ATIME_NOW, (set.atime, set.atimensec)),
            modified: chosen(FATTR_MTIME, FATTR_MTIME_NOW, (set.mtime, set.mtimensec)),
        };
        let after = match update == AttributeUpdate::default() {
            true => before,
            false => self.folder.volume.update(id, update).await.map_err(failed)?,
        };
        attributes_answer(node, &after)
    }

    async fn change_range(&self, node: u64, change: fuse_fallocate_in) -> Outcome {
        let file = self.file(node)?;
        let kind = match change.mode {
            0 => RangeChange::Reserve,
            FALLOCATE_KEEP_SIZE => RangeChange::ReserveKeepLen,
            mode if mode == FALLOCATE_KEEP_SIZE | FALLOCATE_PUNCH_HOLE => RangeChange::PunchHole,
            _ => return Err(failed(FileError::Unsupported)),
        };
        let end = change.offset.checked_add(change.length).filter(|end| *end <= MOST_END);
        end.filter(|_| change.length > 0).ok_or(EINVAL)?;
        let (_, changed) = file
            .change(move |file_system, id| file_system.change_range(id, kind, change.offset, change.length))
            .await
            .map_err(failed)?;
        changed.map(|()| Vec::new()).map_err(failed)
    }

    async fn create(
        &mut self,
        header: &fuse_in_header,
        name: &[u8],
        kind: NewFileKind,
        mode: u32,
    ) -> Outcome {
        self.check_room()?;
        let directory = self.directory(header.nodeid)?;
        let new = NewFile { kind, permissions: mode & 0o7777, user: header.uid, group: header.gid };
        let (file, attributes) = self.folder.volume.create_in(directory, name, new).await.map_err(failed)?;
        let own = attributes.first().copied().ok_or(EEXIST)?;
        self.know(&own, file)
    }

    async fn remove(&self, directory: u64, name: &[u8], kind: RemovedKind) -> Outcome {
        let directory = self.directory(directory)?;
        self.folder.volume.remove_in(directory, name, kind).await.map_err(failed)?;
        Ok(Vec::new())
    }

    async fn rename(&self, from: (u64, &[u8]), to: (u64, &[u8]), flags: u32) -> Outcome {
        let kind = match flags {
            0 => RenameKind::Replace,
            RENAME_NOREPLACE => RenameKind::KeepTarget,
            RENAME_EXCHANGE => RenameKind::Exchange,
            _ => return Err(EINVAL),
        };
        let from = (self.directory(from.0)?, from.1.to_vec());
        let to = (self.directory(to.0)?, to.1.to_vec());
        self.folder.volume.rename_in(from, to, kind).await.map_err(failed)?;
        Ok(Vec::new())
    }

    async fn link(&mut self, node: u64, directory: u64, name: &[u8]) -> Outcome {
        let (file, kind) = self.node(node)?;
        if kind == FileKind::Directory {
            return Err(failed(FileError::IsADirectory));
        }
        let directory = self.directory(directory)?;
        self.folder.volume.link_in(file.id(), directory, name).await.map_err(failed)?;
        // Under the new name, which is the file's.
        let found = self.folder.volume.open_in(directory, name).await.map_err(failed)?;
        let (attributes, file) = found.ok_or(ENOENT)?;
        self.know(&attributes, file)
    }

    async fn list(&mut self, node: u64, read: fuse_read_in, room: usize) -> Outcome {
        let directory = self.directory(node)?;
        let most = (read.size as usize).min(room).min(MOST_DATA) / MOST_ENTRY_LEN;
        if most == 0 {
            return Err(EINVAL);
        }
        let mut next = self.position(node, directory, read.offset).await?;
        let mut entries = Vec::new();
        // A list of `.` and `..` has no entries, and is not the end.
        while let Some(position) = next.filter(|_| entries.is_empty()) {
            (entries, next) = self.folder.volume.list_in(directory, position, most).await.map_err(failed)?;
        }
        let mut listed = Vec::new();
        let mut offset = read.offset;
        for entry in &entries {
            offset = offset.saturating_add(1);
            put_entry(&mut listed, entry, offset);
        }
        if self.positions.len() == MOST_POSITIONS {
            self.positions.pop_front();
        }
        self.positions.push_back((node, offset, next));
        Ok(listed)
    }

    /// Returns the position after that many entries of a directory; `None` at the end.
    async fn position(
        &mut self,
        node: u64,
        directory: FileId,
        offset: u64,
    ) -> Result<Option<ListPosition>, i32> {
        if offset == 0 {
            return Ok(Some(ListPosition::default()));
        }
        let is_it = |(of, at, _): &(u64, u64, Option<ListPosition>)| (*of, *at) == (node, offset);
        if let Some(known) = self.positions.iter().position(is_it) {
            return Ok(self.positions.remove(known).and_then(|(_, _, position)| position));
        }
        // The service was restarted since, or the client lists many directories.
        let (mut position, mut left) = (ListPosition::default(), offset);
        loop {
            let most = usize::try_from(left).unwrap_or(SEARCHED).min(SEARCHED);
            let listed = self.folder.volume.list_in(directory, position, most).await;
            let (entries, next) = listed.map_err(failed)?;
            left = left.saturating_sub(entries.len() as u64);
            match next {
                Some(next) if left > 0 => position = next,
                next => return Ok(next.filter(|_| left == 0)),
            }
        }
    }

    async fn space(&self) -> Outcome {
        const BLOCK: u64 = 4096;
        let space = self.folder.volume.space().await.map_err(failed)?;
        bytes_of(&fuse_statfs_out {
            st: fuse_kstatfs {
                blocks: space.total_bytes / BLOCK,
                bfree: space.free_bytes / BLOCK,
                bavail: space.free_bytes / BLOCK,
                files: space.total_files,
                ffree: space.free_files,
                bsize: BLOCK as u32,
                namelen: NAME_LEN as u32,
                frsize: BLOCK as u32,
                ..Default::default()
            },
        })
    }

    async fn attribute(&self, node: u64, name: &[u8]) -> Outcome {
        let (id, name) = (self.node(node)?.0.id(), name.to_vec());
        let get = move |file_system: &mut dyn FileSystem| file_system.extended_attribute(id, &name);
        self.folder.volume.with_file_system(get).await.map_err(attribute_failed)
    }

    async fn attribute_names(&self, node: u64) -> Outcome {
        let id = self.node(node)?.0.id();
        let get = move |file_system: &mut dyn FileSystem| file_system.extended_attributes(id);
        let names = self.folder.volume.with_file_system(get).await.map_err(failed)?;
        Ok(names.iter().flat_map(|name| name.iter().copied().chain([0])).collect())
    }

    async fn set_attribute(&self, node: u64, name: &[u8], value: &[u8], set: &fuse_setxattr_in) -> Outcome {
        if value.len() != set.size as usize || value.len() > MOST_ATTRIBUTE {
            return Err(EINVAL);
        }
        let mode = match set.flags {
            0 => ExtendedAttributeMode::Any,
            XATTR_CREATE => ExtendedAttributeMode::Create,
            XATTR_REPLACE => ExtendedAttributeMode::Replace,
            _ => return Err(EINVAL),
        };
        let (id, name, value) = (self.node(node)?.0.id(), name.to_vec(), value.to_vec());
        let set = move |file_system: &mut dyn FileSystem| {
            file_system.set_extended_attribute(id, &name, &value, mode)
        };
        self.folder.volume.with_file_system(set).await.map(|()| Vec::new()).map_err(attribute_failed)
    }

    async fn remove_attribute(&self, node: u64, name: &[u8]) -> Outcome {
        let (id, name) = (self.node(node)?.0.id(), name.to_vec());
        let remove = move |file_system: &mut dyn FileSystem| file_system.remove_extended_attribute(id, &name);
        self.folder.volume.with_file_system(remove).await.map(|()| Vec::new()).map_err(attribute_failed)
    }

    async fn sync(&self) -> Outcome {
        if self.access == VolumeAccess::ReadOnly {
            return Ok(Vec::new());
        }
        self.folder.volume.sync().await.map(|()| Vec::new()).map_err(failed)
    }
}

fn attributes_answer(node: u64, attributes: &Attributes) -> Outcome {
    bytes_of(&fuse_attr_out { attr: encode_attributes(node, attributes), ..Default::default() })
}

/// Returns a value of variable length, or its length if the client asks for that (with a size of 0).
fn sized(value: Vec<u8>, size: u32) -> Outcome {
    const ERANGE: i32 = 34;
    match size {
        0 => {
            bytes_of(&fuse_getxattr_out { size: u32::try_from(value.len()).unwrap_or(u32::MAX), padding: 0 })
        }
        size if value.len() > size as usize => Err(ERANGE),
        _ => Ok(value),
    }
}
