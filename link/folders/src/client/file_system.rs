//! The requests of a client, as those of a file system. They block the fiber of the volume.

use super::connection::Request;
use super::nodes::{joined, number_of};
use super::{Client, Connect, Driver, PendingRename};
use crate::wire::{
    EEXIST, ENOENT, FALLOCATE_KEEP_SIZE, FALLOCATE_PUNCH_HOLE, MOST_ENTRY_LEN, RENAME_EXCHANGE,
    RENAME_NOREPLACE, ROOT, TYPE_BLOCK_DEVICE, TYPE_CHARACTER_DEVICE, TYPE_FIFO, TYPE_FILE, TYPE_SOCKET,
    XATTR_CREATE, XATTR_REPLACE, decode_attributes, encode_device, file_error, is_name, kind_of, put_name,
    take, take_entry, take_name,
};
use alloc::vec::Vec;
use core::cell::RefCell;
use core::time::Duration;
use fuse_abi::linux::{
    FATTR_ATIME, FATTR_GID, FATTR_MODE, FATTR_MTIME, FATTR_SIZE, FATTR_UID, fuse_attr_out, fuse_entry_out,
    fuse_fallocate_in, fuse_getattr_in, fuse_getxattr_in, fuse_link_in, fuse_mkdir_in, fuse_mknod_in,
    fuse_opcode, fuse_read_in, fuse_rename2_in, fuse_setattr_in, fuse_setxattr_in, fuse_statfs_out,
    fuse_write_in, fuse_write_out,
};
use isola_abi::volume::VolumeAccess;
use isola_events::now;
use isola_fibers::block_on;
use isola_volume_service::client::TIME_LIMIT;
use isola_volumes::{
    AttributeUpdate, Attributes, Entry, ExtendedAttributeMode, FileError, FileId, FileKind, FileSystem,
    ListPosition, Metadata, NewFile, NewFileKind, RangeChange, RenameKind, Space,
};

/// The most bytes of a symbolic link's target.
const MOST_TARGET: usize = 4096;

/// The most bytes of an extended attribute, and of the list of their names.
const MOST_ATTRIBUTE: u32 = 64 << 10;

/// A served folder as a file system. Its calls are for a fiber.
pub struct FolderFileSystem<C: Connect>(RefCell<Client<C>>);

fn metadata_of(attributes: &Attributes) -> Metadata {
    Metadata {
        id: attributes.id,
        kind: kind_of(attributes.mode),
        len: attributes.len,
        modified: attributes.modified,
        links: attributes.links,
    }
}

fn check_name(name: &[u8]) -> Result<(), FileError> {
    if is_name(name) { Ok(()) } else { Err(FileError::InvalidName) }
}

/// Returns the structure of an answer.
fn decoded<T: zerocopy::FromBytes>(answer: &[u8]) -> Result<T, FileError> {
    take(&mut &answer[..]).ok_or(FileError::Damaged)
}

fn encoded<T: zerocopy::IntoBytes + zerocopy::Immutable>(value: &T) -> Vec<u8> {
    value.as_bytes().to_vec()
}

fn with_name<T: zerocopy::IntoBytes + zerocopy::Immutable>(value: &T, name: &[u8]) -> Vec<u8> {
    let mut arguments = encoded(value);
    put_name(&mut arguments, name);
    arguments
}

impl<C: Connect> FolderFileSystem<C> {
    /// Mounts a folder over its first connection. Blocks the fiber.
    ///
    /// # Errors
    /// [`FileError::Disk`] if the service does not answer.
    pub fn start(
        connector: C,
        access: VolumeAccess,
        link: C::Link,
        driver: Driver,
    ) -> Result<Self, FileError> {
        let mut client = Client::new(connector, access);
        // The first request connects again, if the service has ended meanwhile.
        let _ = block_on(client.start(link, driver));
        block_on(client.attributes(ROOT))?;
        Ok(Self(RefCell::new(client)))
    }

    /// Runs a request, and then the messages without an answer that are due.
    fn run<T>(
        &self,
        request: impl AsyncFnOnce(&mut Client<C>) -> Result<T, FileError>,
    ) -> Result<T, FileError> {
        let mut client = self.0.borrow_mut();
        block_on(async {
            let outcome = request(&mut client).await;
            client.forget().await;
            outcome
        })
    }
}

impl<C: Connect> Client<C> {
    async fn attributes(&mut self, file: FileId) -> Result<Attributes, FileError> {
        let arguments = encoded(&fuse_getattr_in::default());
        let answer = self.call(fuse_opcode::FUSE_GETATTR, file, arguments).await?;
        Ok(decode_attributes(file, &decoded::<fuse_attr_out>(&answer)?.attr))
    }

    async fn look_up(&mut self, directory: FileId, name: &[u8]) -> Result<Attributes, FileError> {
        check_name(name)?;
        let mut arguments = Vec::new();
        put_name(&mut arguments, name);
        let answer = self.call(fuse_opcode::FUSE_LOOKUP, directory, arguments).await?;
        self.entry(&answer, directory, name)
    }

    /// Notes the file of an answer with the name that it has.
    fn entry(&mut self, answer: &[u8], directory: FileId, name: &[u8]) -> Result<Attributes, FileError> {
        let entry: fuse_entry_out = decoded(answer)?;
        let path = self.nodes.path(directory).map(|directory| joined(&directory, name));
        let id = self.know(&entry, path)?;
        Ok(decode_attributes(id, &entry.attr))
    }

    async fn exists(&mut self, directory: FileId, name: &[u8]) -> Result<bool, FileError> {
        match self.look_up(directory, name).await {
            Ok(_) => Ok(true),
            Err(FileError::NotFound) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Sends a request that creates a name. The caller has found that it does not exist: if it does when the request is
    /// repeated, the first one was executed, since this client is the only one that writes.
    async fn create(&mut self, request: Request, name: &[u8]) -> Result<Attributes, FileError> {
        let directory = request.file;
        let (outcome, is_repeated) = self.outcome(&request).await?;
        let created = match outcome {
            Ok(contents) => self.entry(&contents, directory, name)?,
            Err(EEXIST) if is_repeated => self.look_up(directory, name).await?,
            Err(error) => return Err(file_error(error)),
        };
        self.unsynced.forget();
        Ok(created)
    }

    async fn create_file(
        &mut self,
        directory: FileId,
        name: &[u8],
        new: &NewFile,
    ) -> Result<Attributes, FileError> {
        check_name(name)?;
        if self.exists(directory, name).await? {
            return Err(FileError::AlreadyExists);
        }
        let owner = (new.user, new.group);
        let mknod = |kind, rdev| {
            let arguments = fuse_mknod_in { mode: kind | new.permissions, rdev, umask: 0, padding: 0 };
            (fuse_opcode::FUSE_MKNOD, with_name(&arguments, name))
        };
        let (opcode, arguments) = match &new.kind {
            NewFileKind::File => mknod(TYPE_FILE, 0),
            NewFileKind::Fifo => mknod(TYPE_FIFO, 0),
            NewFileKind::Socket => mknod(TYPE_SOCKET, 0),
            NewFileKind::CharacterDevice(major, minor) => {
                mknod(TYPE_CHARACTER_DEVICE, encode_device((*major, *minor)))
            }
            NewFileKind::BlockDevice(major, minor) => {
                mknod(TYPE_BLOCK_DEVICE, encode_device((*major, *minor)))
            }
            NewFileKind::Directory => {
                let arguments = fuse_mkdir_in { mode: new.permissions, umask: 0 };
                (fuse_opcode::FUSE_MKDIR, with_name(&arguments, name))
            }
            NewFileKind::Symlink(target) => {
                let mut arguments = Vec::new();
                put_name(&mut arguments, name);
                put_name(&mut arguments, target);
                (fuse_opcode::FUSE_SYMLINK, arguments)
            }
        };
        self.create(Request { opcode, file: directory, owner, arguments }, name).await
    }

    async fn link(&mut self, file: FileId, directory: FileId, name: &[u8]) -> Result<(), FileError> {
        check_name(name)?;
        if self.exists(directory, name).await? {
            return Err(FileError::AlreadyExists);
        }
        let arguments = with_name(&fuse_link_in { oldnodeid: number_of(file) }, name);
        let request = Request { opcode: fuse_opcode::FUSE_LINK, file: directory, owner: (0, 0), arguments };
        self.create(request, name).await.map(drop)
    }

    async fn remove(&mut self, directory: FileId, name: &[u8]) -> Result<(), FileError> {
        let found = self.look_up(directory, name).await?;
        let opcode = match kind_of(found.mode) {
            FileKind::Directory => fuse_opcode::FUSE_RMDIR,
            _ => fuse_opcode::FUSE_UNLINK,
        };
        let mut arguments = Vec::new();
        put_name(&mut arguments, name);
        let request = Request { opcode, file: directory, owner: (0, 0), arguments };
        match self.outcome(&request).await? {
            // It existed: the first request has removed it.
            (Ok(_), _) | (Err(ENOENT), true) => {}
            (Err(error), _) => return Err(file_error(error)),
        }
        self.unsynced.forget();
        if let Some(directory) = self.nodes.path(directory) {
            self.nodes.removed(&joined(&directory, name));
        }
        Ok(())
    }

    async fn rename(
        &mut self,
        from: (FileId, &[u8]),
        to: (FileId, &[u8]),
        kind: RenameKind,
    ) -> Result<(), FileError> {
        check_name(to.1)?;
        let source = self.look_up(from.0, from.1).await?.id;
        let target = match self.look_up(to.0, to.1).await {
            Ok(target) => Some(target.id),
            Err(FileError::NotFound) => None,
            Err(error) => return Err(error),
        };
        if target == Some(source) {
            // Names of the same file: nothing changes.
            return Ok(());
        }
        let flags = match kind {
            RenameKind::Replace => 0,
            RenameKind::KeepTarget => RENAME_NOREPLACE,
            RenameKind::Exchange => RENAME_EXCHANGE,
        };
        let mut arguments = encoded(&fuse_rename2_in { newdir: number_of(to.0), flags, padding: 0 });
        put_name(&mut arguments, from.1);
        put_name(&mut arguments, to.1);
        let request = Request { opcode: fuse_opcode::FUSE_RENAME2, file: from.0, owner: (0, 0), arguments };
        if let (Some(from_path), Some(to_path)) = (self.nodes.path(from.0), self.nodes.path(to.0)) {
            let (from, to) = (joined(&from_path, from.1), joined(&to_path, to.1));
            self.pending = Some(PendingRename { from, to, file: source, kind });
        }
        let outcome = self.rename_once(&request, source, to).await;
        let pending = self.pending.take();
        outcome?;
        self.unsynced.forget();
        if let Some(PendingRename { from, to, kind, .. }) = pending
            && self.nodes.path(source).as_ref() != Some(&to)
        {
            self.nodes.moved(&from, &to, kind);
        }
        Ok(())
    }

    /// Sends a request to rename. If a connection ends before the answer, the new name shows whether it was executed.
    async fn rename_once(
        &mut self,
        request: &Request,
        source: FileId,
        to: (FileId, &[u8]),
    ) -> Result<(), FileError> {
        let deadline = now() + TIME_LIMIT;
        loop {
            if let Some(outcome) = self.outcome_once(request, deadline).await? {
                return outcome.map(drop).map_err(file_error);
            }
            match self.look_up(to.0, to.1).await {
                Ok(found) if found.id == source => return Ok(()),
                Ok(_) | Err(FileError::NotFound) => {}
                Err(error) => return Err(error),
            }
        }
    }

    async fn read(&mut self, file: FileId, offset: u64, into: &mut [u8]) -> Result<usize, FileError> {
        if self.nodes.is_symlink(file) {
            let target = self.call(fuse_opcode::FUSE_READLINK, file, Vec::new()).await?;
            if target.len() > MOST_TARGET {
                return Err(FileError::Damaged);
            }
            let rest = target.get(usize::try_from(offset).unwrap_or(usize::MAX)..).unwrap_or_default();
            let count = rest.len().min(into.len());
            into.iter_mut().zip(rest).for_each(|(to, from)| *to = *from);
            return Ok(count);
        }
        let mut count = 0;
        while count < into.len() {
            let rest = into.get_mut(count..).unwrap_or_default();
            let size = rest.len().min(self.most_data);
            let read = fuse_read_in {
                offset: offset.saturating_add(count as u64),
                size: size as u32,
                ..Default::default()
            };
            let bytes = self.call(fuse_opcode::FUSE_READ, file, encoded(&read)).await?;
            if bytes.len() > size {
                return Err(FileError::Damaged);
            }
            rest.iter_mut().zip(&bytes).for_each(|(to, from)| *to = *from);
            count += bytes.len();
            if bytes.len() < size {
                break;
            }
        }
        Ok(count)
    }

    async fn write(&mut self, file: FileId, offset: u64, from: &[u8]) -> Result<(), FileError> {
        let mut offset = offset;
        for part in from.chunks(self.most_data) {
            let size = part.len() as u32;
            let mut arguments = encoded(&fuse_write_in { offset, size, ..Default::default() });
            arguments.extend_from_slice(part);
            let written: fuse_write_out = self.change(fuse_opcode::FUSE_WRITE, file, arguments).await?;
            if written.size != size {
                return Err(FileError::Damaged);
            }
            offset = offset.checked_add(part.len() as u64).ok_or(FileError::TooLarge)?;
        }
        Ok(())
    }

    /// Sends a change that can be repeated, and keeps it until it is permanent.
    async fn change<T: zerocopy::FromBytes>(
        &mut self,
        opcode: fuse_opcode,
        file: FileId,
        arguments: Vec<u8>,
    ) -> Result<T, FileError> {
        let request = Request { opcode, file, owner: (0, 0), arguments };
        let answer = self.call_for(request.clone()).await?;
        if self.unsynced.keep(request) {
            self.sync().await?;
        }
        decoded(&answer)
    }

    async fn set_attributes(&mut self, file: FileId, set: &fuse_setattr_in) -> Result<(), FileError> {
        self.change::<fuse_attr_out>(fuse_opcode::FUSE_SETATTR, file, encoded(set)).await.map(drop)
    }

    async fn list(
        &mut self,
        directory: FileId,
        from: u64,
        most: usize,
    ) -> Result<(Vec<Entry>, Option<u64>), FileError> {
        let most = most.clamp(1, self.most_data / MOST_ENTRY_LEN);
        let size = (most * MOST_ENTRY_LEN) as u32;
        let read = fuse_read_in { offset: from, size, ..Default::default() };
        let answer = self.call(fuse_opcode::FUSE_READDIR, directory, encoded(&read)).await?;
        let mut rest = &answer[..];
        let (mut entries, mut position) = (Vec::new(), from);
        while !rest.is_empty() {
            let (entry, next) = take_entry(&mut rest).ok_or(FileError::Damaged)?;
            if next <= position || entries.len() == most {
                // A list that does not advance has no end.
                return Err(FileError::Damaged);
            }
            position = next;
            entries.push(entry);
        }
        let next = (!entries.is_empty()).then_some(position);
        Ok((entries, next))
    }

    async fn space(&mut self) -> Result<Space, FileError> {
        let answer = self.call(fuse_opcode::FUSE_STATFS, ROOT, Vec::new()).await?;
        let space = decoded::<fuse_statfs_out>(&answer)?.st;
        let bytes = |blocks: u64| blocks.saturating_mul(space.frsize.into());
        Ok(Space {
            total_bytes: bytes(space.blocks),
            free_bytes: bytes(space.bfree),
            total_files: space.files,
            free_files: space.ffree,
        })
    }

    async fn set_attribute(
        &mut self,
        file: FileId,
        name: &[u8],
        value: &[u8],
        mode: ExtendedAttributeMode,
    ) -> Result<(), FileError> {
        let flags = match mode {
            ExtendedAttributeMode::Any => 0,
            ExtendedAttributeMode::Create => XATTR_CREATE,
            ExtendedAttributeMode::Replace => XATTR_REPLACE,
        };
        let size = u32::try_from(value.len()).map_err(|_| FileError::NoSpace)?;
        if size > MOST_ATTRIBUTE {
            return Err(FileError::NoSpace);
        }
        let set = fuse_setxattr_in { size, flags, setxattr_flags: 0, padding: 0 };
        let mut arguments = with_name(&set, name);
        arguments.extend_from_slice(value);
        let request = Request { opcode: fuse_opcode::FUSE_SETXATTR, file, owner: (0, 0), arguments };
        match self.outcome(&request).await? {
            // A request that was repeated has created it, unless the value is another one.
            (Err(EEXIST), true) if self.attribute(file, name).await? == value => {}
            (outcome, _) => outcome.map(drop).map_err(file_error)?,
        }
        self.unsynced.forget();
        Ok(())
    }

    async fn attribute(&mut self, file: FileId, name: &[u8]) -> Result<Vec<u8>, FileError> {
        let arguments = with_name(&fuse_getxattr_in { size: MOST_ATTRIBUTE, padding: 0 }, name);
        self.call(fuse_opcode::FUSE_GETXATTR, file, arguments).await
    }

    async fn attribute_names(&mut self, file: FileId) -> Result<Vec<Vec<u8>>, FileError> {
        let arguments = encoded(&fuse_getxattr_in { size: MOST_ATTRIBUTE, padding: 0 });
        let answer = self.call(fuse_opcode::FUSE_LISTXATTR, file, arguments).await?;
        let mut rest = &answer[..];
        let mut names = Vec::new();
        while !rest.is_empty() {
            names.push(take_name(&mut rest).ok_or(FileError::Damaged)?.to_vec());
        }
        Ok(names)
    }

    async fn remove_attribute(&mut self, file: FileId, name: &[u8]) -> Result<(), FileError> {
        // It must exist, so that a request that is repeated can find it removed.
        self.attribute(file, name).await?;
        let mut arguments = Vec::new();
        put_name(&mut arguments, name);
        let request = Request { opcode: fuse_opcode::FUSE_REMOVEXATTR, file, owner: (0, 0), arguments };
        match self.outcome(&request).await? {
            (Err(crate::wire::ENODATA), true) => {}
            (outcome, _) => outcome.map(drop).map_err(file_error)?,
        }
        self.unsynced.forget();
        Ok(())
    }
}

impl<C: Connect> FileSystem for FolderFileSystem<C> {
    fn root(&self) -> FileId {
        ROOT
    }

    fn lookup(&mut self, directory: FileId, name: &[u8]) -> Result<Metadata, FileError> {
        self.run(async |client| client.look_up(directory, name).await.map(|found| metadata_of(&found)))
    }

    fn metadata(&mut self, file: FileId) -> Result<Metadata, FileError> {
        self.attributes(file).map(|attributes| metadata_of(&attributes))
    }

    fn attributes(&mut self, file: FileId) -> Result<Attributes, FileError> {
        self.run(async |client| client.attributes(file).await)
    }

    fn list(
        &mut self,
        directory: FileId,
        from: ListPosition,
        most: usize,
    ) -> Result<(Vec<Entry>, Option<ListPosition>), FileError> {
        let [from, ..] = from.words();
        let (entries, next) = self.run(async |client| client.list(directory, from, most).await)?;
        Ok((entries, next.map(|next| ListPosition::of_words([next, 0, 0, 0]))))
    }

    fn read(&mut self, file: FileId, offset: u64, into: &mut [u8]) -> Result<usize, FileError> {
        self.run(async |client| client.read(file, offset, into).await)
    }

    fn write(&mut self, file: FileId, offset: u64, from: &[u8]) -> Result<(), FileError> {
        self.run(async |client| client.write(file, offset, from).await)
    }

    fn truncate(&mut self, file: FileId, len: u64) -> Result<(), FileError> {
        let set = fuse_setattr_in { valid: FATTR_SIZE, size: len, ..Default::default() };
        self.run(async |client| client.set_attributes(file, &set).await)
    }

    fn create(&mut self, directory: FileId, name: &[u8]) -> Result<Metadata, FileError> {
        let new = NewFile { kind: NewFileKind::File, permissions: 0o644, user: 0, group: 0 };
        self.run(async |client| {
            client.create_file(directory, name, &new).await.map(|created| metadata_of(&created))
        })
    }

    fn make_directory(&mut self, directory: FileId, name: &[u8]) -> Result<Metadata, FileError> {
        let new = NewFile { kind: NewFileKind::Directory, permissions: 0o755, user: 0, group: 0 };
        self.run(async |client| {
            client.create_file(directory, name, &new).await.map(|created| metadata_of(&created))
        })
    }

    /// The service frees the storage when no client knows of the file any more.
    fn remove(&mut self, directory: FileId, name: &[u8]) -> Result<Option<FileId>, FileError> {
        self.run(async |client| client.remove(directory, name).await.map(|()| None))
    }

    fn rename(&mut self, from: (FileId, &[u8]), to: (FileId, &[u8])) -> Result<Option<FileId>, FileError> {
        self.rename_any(from, to, RenameKind::Replace)
    }

    fn create_any(&mut self, directory: FileId, name: &[u8], new: &NewFile) -> Result<FileId, FileError> {
        self.run(async |client| client.create_file(directory, name, new).await.map(|created| created.id))
    }

    fn link(&mut self, file: FileId, directory: FileId, name: &[u8]) -> Result<(), FileError> {
        self.run(async |client| client.link(file, directory, name).await)
    }

    fn update(&mut self, file: FileId, update: &AttributeUpdate) -> Result<(), FileError> {
        let bit = |is_set, bit| if is_set { bit } else { 0 };
        let time = |time: Option<Duration>| time.map_or((0, 0), |time| (time.as_secs(), time.subsec_nanos()));
        let (atime, atimensec) = time(update.accessed);
        let (mtime, mtimensec) = time(update.modified);
        let (uid, gid) = update.owner.unwrap_or_default();
        let set = fuse_setattr_in {
            valid: bit(update.permissions.is_some(), FATTR_MODE)
                | bit(update.owner.is_some(), FATTR_UID | FATTR_GID)
                | bit(update.accessed.is_some(), FATTR_ATIME)
                | bit(update.modified.is_some(), FATTR_MTIME),
            mode: update.permissions.unwrap_or_default(),
            atime,
            atimensec,
            mtime,
            mtimensec,
            uid,
            gid,
            ..Default::default()
        };
        self.run(async |client| client.set_attributes(file, &set).await)
    }

    fn rename_any(
        &mut self,
        from: (FileId, &[u8]),
        to: (FileId, &[u8]),
        kind: RenameKind,
    ) -> Result<Option<FileId>, FileError> {
        self.run(async |client| client.rename(from, to, kind).await.map(|()| None))
    }

    fn change_range(
        &mut self,
        file: FileId,
        change: RangeChange,
        offset: u64,
        len: u64,
    ) -> Result<(), FileError> {
        let mode = match change {
            RangeChange::Reserve => 0,
            RangeChange::ReserveKeepLen => FALLOCATE_KEEP_SIZE,
            RangeChange::PunchHole => FALLOCATE_KEEP_SIZE | FALLOCATE_PUNCH_HOLE,
        };
        let arguments = encoded(&fuse_fallocate_in { offset, length: len, mode, ..Default::default() });
        self.run(async |client| client.change::<()>(fuse_opcode::FUSE_FALLOCATE, file, arguments).await)
    }

    fn extended_attribute(&mut self, file: FileId, name: &[u8]) -> Result<Vec<u8>, FileError> {
        self.run(async |client| client.attribute(file, name).await)
    }

    fn set_extended_attribute(
        &mut self,
        file: FileId,
        name: &[u8],
        value: &[u8],
        mode: ExtendedAttributeMode,
    ) -> Result<(), FileError> {
        self.run(async |client| client.set_attribute(file, name, value, mode).await)
    }

    fn extended_attributes(&mut self, file: FileId) -> Result<Vec<Vec<u8>>, FileError> {
        self.run(async |client| client.attribute_names(file).await)
    }

    fn remove_extended_attribute(&mut self, file: FileId, name: &[u8]) -> Result<(), FileError> {
        self.run(async |client| client.remove_attribute(file, name).await)
    }

    fn hold(&mut self, file: FileId) {
        self.0.get_mut().nodes.hold(file);
    }

    fn unhold(&mut self, file: FileId) {
        let client = self.0.get_mut();
        client.nodes.unhold(file, client.access == VolumeAccess::ReadOnly);
        // The service frees the storage of a file without a name when it is forgotten.
        let _ = self.run(async |_| Ok(()));
    }

    fn release(&mut self, _file: FileId) -> Result<(), FileError> {
        Ok(())
    }

    fn space(&self) -> Space {
        let none = Space { total_bytes: 0, free_bytes: 0, total_files: 0, free_files: 0 };
        self.run(async |client| client.space().await).unwrap_or(none)
    }

    fn sync(&mut self) -> Result<(), FileError> {
        self.run(async |client| client.sync().await)
    }

    fn unmount(&mut self) -> Result<(), FileError> {
        self.run(async |client| {
            client.sync().await?;
            client.end();
            Ok(())
        })
    }
}
