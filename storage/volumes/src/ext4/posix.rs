//! Files of all types, owners, links and extended attributes.

use super::Ext4;
use super::conversions::{id_of, inode_of, name_of, permissions};
use crate::file_system::{FileError, FileId};
use crate::posix::{AttributeUpdate, ExtendedAttributeMode, NewFile, NewFileKind, RangeChange, RenameKind};
use alloc::vec::Vec;
use core::time::Duration;
use rsext4::{
    DeviceNumber, Ext4Timestamp, InodeMetadataUpdate, MutationContext, PreallocationOptions, RangeOperation,
    RenameOptions, SpecialInodeKind, XattrNamespace, XattrSetMode,
};

/// The most bytes that one call reserves: `rsext4` writes the metadata of a call in one transaction.
const RESERVE_LEN: u64 = 8 << 20;

/// The prefixes of names of extended attributes.
const NAMESPACES: [(&[u8], XattrNamespace); 3] = [
    (b"user.", XattrNamespace::User),
    (b"trusted.", XattrNamespace::Trusted),
    (b"security.", XattrNamespace::Security),
];

fn namespace_of(name: &[u8]) -> Result<(XattrNamespace, &[u8]), FileError> {
    let find = |(prefix, namespace): (&[u8], XattrNamespace)| Some((namespace, name.strip_prefix(prefix)?));
    NAMESPACES.into_iter().find_map(find).filter(|(_, rest)| !rest.is_empty()).ok_or(FileError::Unsupported)
}

fn time(time: Duration) -> Ext4Timestamp {
    Ext4Timestamp::new(i64::try_from(time.as_secs()).unwrap_or(i64::MAX), time.subsec_nanos())
}

impl Ext4 {
    pub(super) fn create_any(
        &mut self,
        directory: FileId,
        name: &[u8],
        new: &NewFile,
    ) -> Result<FileId, FileError> {
        let (directory, name) = (inode_of(directory)?, name_of(name)?);
        let bits = permissions((new.permissions & 0o7777) as u16)?;
        let context = MutationContext::new(new.user, new.group, 0, 0);
        self.check_space_for_entry()?;
        let special = match &new.kind {
            NewFileKind::CharacterDevice(major, minor) => {
                Some(SpecialInodeKind::CharacterDevice(device(*major, *minor)?))
            }
            NewFileKind::BlockDevice(major, minor) => {
                Some(SpecialInodeKind::BlockDevice(device(*major, *minor)?))
            }
            NewFileKind::Fifo => Some(SpecialInodeKind::Fifo),
            NewFileKind::Socket => Some(SpecialInodeKind::Socket),
            NewFileKind::File | NewFileKind::Directory | NewFileKind::Symlink(_) => None,
        };
        let info = self.call(|mounted| match (&new.kind, special) {
            (_, Some(kind)) => mounted.create_special_inode(context, directory, name, bits, kind),
            (NewFileKind::Directory, None) => mounted.create_directory(context, directory, name, bits),
            (NewFileKind::Symlink(target), None) => mounted.create_symlink(context, directory, name, target),
            _ => mounted.create_regular_file(context, directory, name, bits),
        })?;
        Ok(id_of(info.number))
    }

    pub(super) fn link_any(&mut self, file: FileId, directory: FileId, name: &[u8]) -> Result<(), FileError> {
        let (file, directory, name) = (inode_of(file)?, inode_of(directory)?, name_of(name)?);
        self.check_space_for_entry()?;
        self.call(|mounted| mounted.hard_link(file, directory, name)).map(drop)
    }

    pub(super) fn update(&mut self, file: FileId, update: &AttributeUpdate) -> Result<(), FileError> {
        let inode = inode_of(file)?;
        let update = InodeMetadataUpdate {
            permissions: update.permissions.map(|bits| permissions((bits & 0o7777) as u16)).transpose()?,
            owner: update.owner,
            atime: update.accessed.map(time),
            mtime: update.modified.map(time),
            ..InodeMetadataUpdate::default()
        };
        self.call(|mounted| mounted.update_inode_metadata(inode, update)).map(drop)
    }

    pub(super) fn rename_any(
        &mut self,
        from: (FileId, &[u8]),
        to: (FileId, &[u8]),
        kind: RenameKind,
    ) -> Result<Option<FileId>, FileError> {
        let (from_directory, from_name) = (inode_of(from.0)?, name_of(from.1)?);
        let (to_directory, to_name) = (inode_of(to.0)?, name_of(to.1)?);
        self.check_space_for_entry()?;
        let options = match kind {
            RenameKind::Replace => RenameOptions::REPLACE,
            RenameKind::KeepTarget => RenameOptions::NO_REPLACE,
            RenameKind::Exchange => RenameOptions::EXCHANGE,
        };
        let outcome =
            self.call(|mounted| mounted.rename(from_directory, from_name, to_directory, to_name, options))?;
        let replaced = outcome.replaced.filter(|replaced| replaced.requires_reap());
        Ok(replaced.map(|replaced| id_of(replaced.inode)))
    }

    pub(super) fn change_range(
        &mut self,
        file: FileId,
        change: RangeChange,
        offset: u64,
        len: u64,
    ) -> Result<(), FileError> {
        let inode = inode_of(file)?;
        let end = offset.checked_add(len).filter(|end| self.most_len().is_ok_and(|most| *end <= most));
        let end = end.ok_or(FileError::TooLarge)?;
        self.unsynced.add(inode, self.in_blocks(offset, len));
        if change == RangeChange::PunchHole {
            self.has_first_block = None;
            return self
                .call(|mounted| mounted.operate_inode_range(inode, offset, len, RangeOperation::PunchHole));
        }
        self.allocate_first_block(inode)?;
        let options = match change {
            RangeChange::Reserve => PreallocationOptions::EXTEND_SIZE,
            _ => PreallocationOptions::KEEP_SIZE,
        };
        let mut at = offset;
        while at < end {
            let now = RESERVE_LEN.min(end - at);
            self.check_space(inode, at, now)?;
            self.call(|mounted| mounted.preallocate_inode(inode, at, now, options))?;
            at += now;
        }
        Ok(())
    }

    pub(super) fn attribute(&mut self, file: FileId, name: &[u8]) -> Result<Vec<u8>, FileError> {
        let (inode, (namespace, name)) = (inode_of(file)?, namespace_of(name)?);
        self.call(|mounted| mounted.get_xattr(inode, namespace, name))
    }

    pub(super) fn set_attribute(
        &mut self,
        file: FileId,
        name: &[u8],
        value: &[u8],
        mode: ExtendedAttributeMode,
    ) -> Result<(), FileError> {
        let (inode, (namespace, name)) = (inode_of(file)?, namespace_of(name)?);
        self.check_space_for_entry()?;
        let mode = match mode {
            ExtendedAttributeMode::Any => XattrSetMode::Upsert,
            ExtendedAttributeMode::Create => XattrSetMode::Create,
            ExtendedAttributeMode::Replace => XattrSetMode::Replace,
        };
        self.call(|mounted| mounted.set_xattr(inode, namespace, name, value, mode))
    }

    pub(super) fn attribute_names(&mut self, file: FileId) -> Result<Vec<Vec<u8>>, FileError> {
        let inode = inode_of(file)?;
        let names = self.call(|mounted| mounted.list_xattrs(inode))?;
        let full = |name: rsext4::XattrName| {
            let (prefix, _) = NAMESPACES.into_iter().find(|(_, namespace)| *namespace == name.namespace)?;
            Some([prefix, &name.name].concat())
        };
        Ok(names.into_iter().filter_map(full).collect())
    }

    pub(super) fn remove_attribute(&mut self, file: FileId, name: &[u8]) -> Result<(), FileError> {
        let (inode, (namespace, name)) = (inode_of(file)?, namespace_of(name)?);
        self.call(|mounted| mounted.remove_xattr(inode, namespace, name))
    }
}

fn device(major: u32, minor: u32) -> Result<DeviceNumber, FileError> {
    DeviceNumber::new(major, minor).map_err(|_| FileError::Invalid)
}
