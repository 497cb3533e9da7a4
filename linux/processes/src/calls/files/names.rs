//! Calls with paths: opening, names, attributes.

use super::descriptors::install;
use crate::Errno;
use crate::calls::CallResult;
use crate::thread::Thread;
use alloc::vec::Vec;
use isola_linux_abi::numbers::{
    AT_EACCESS, AT_EMPTY_PATH, AT_FDCWD, AT_REMOVEDIR, AT_SYMLINK_NOFOLLOW, O_CREAT, O_TRUNC, O_WRONLY,
    XATTR_SIZE_MAX,
};
use isola_linux_files::{self as files, Caller, DeviceNumber, OwnerChange, TimeChange};
use isola_linux_memory::UserBuffer;
use isola_user_mode::Access;

/// No flags.
const NONE: u32 = 0;

pub async fn openat(thread: &mut Thread, directory: i32, path: u64, flags: u32, mode: u32) -> CallResult {
    let path = thread.memory.path(path).await?;
    let file = thread.interruptible(thread.caller().open_at(directory, &path, flags, mode)).await??;
    install(thread, file, flags)
}

pub async fn openat2(thread: &mut Thread, directory: i32, path: u64, how: u64, len: u64) -> CallResult {
    /// The size of `struct open_how`: flags, mode, resolve.
    const SIZE: u64 = 24;
    if len < SIZE {
        return Err(Errno::EINVAL);
    }
    if len > crate::calls::PAGE {
        return Err(Errno::E2BIG);
    }
    let mut bytes = alloc::vec![0; len as usize];
    thread.memory.read_to(how, &mut bytes).await?;
    if bytes[SIZE as usize..].iter().any(|byte| *byte != 0) {
        return Err(Errno::E2BIG);
    }
    let word = |index: usize| {
        let word = u64::from_le_bytes(core::array::from_fn(|at| bytes[8 * index + at]));
        u32::try_from(word).map_err(|_| Errno::EINVAL)
    };
    let (flags, mode, resolve) = (word(0)?, word(1)?, word(2)?);
    let path = thread.memory.path(path).await?;
    let caller = thread.caller();
    let file = thread.interruptible(caller.open_restricted(directory, &path, flags, mode, resolve)).await??;
    install(thread, file, flags)
}

pub async fn open(thread: &mut Thread, path: u64, flags: u32, mode: u32) -> CallResult {
    openat(thread, AT_FDCWD, path, flags, mode).await
}

pub async fn creat(thread: &mut Thread, path: u64, mode: u32) -> CallResult {
    openat(thread, AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode).await
}

async fn stat_to(thread: &Thread, directory: i32, path: &[u8], buffer: u64, flags: u32) -> CallResult {
    let metadata = thread.caller().stat_at(directory, path, flags).await?;
    thread.memory.write_bytes(buffer, &metadata.stat_bytes()).await?;
    Ok(0)
}

pub async fn newfstatat(
    thread: &mut Thread,
    directory: i32,
    path: u64,
    buffer: u64,
    flags: u32,
) -> CallResult {
    let path = thread.memory.path(path).await?;
    stat_to(thread, directory, &path, buffer, flags).await
}

pub async fn stat(thread: &mut Thread, path: u64, buffer: u64) -> CallResult {
    newfstatat(thread, AT_FDCWD, path, buffer, NONE).await
}

pub async fn lstat(thread: &mut Thread, path: u64, buffer: u64) -> CallResult {
    newfstatat(thread, AT_FDCWD, path, buffer, AT_SYMLINK_NOFOLLOW).await
}

pub async fn fstat(thread: &mut Thread, descriptor: i32, buffer: u64) -> CallResult {
    stat_to(thread, descriptor, b"", buffer, AT_EMPTY_PATH).await
}

pub async fn statx(
    thread: &mut Thread,
    directory: i32,
    path: u64,
    flags: u32,
    mask: u32,
    buffer: u64,
) -> CallResult {
    /// A bit that is reserved.
    const STATX_RESERVED: u32 = 1 << 31;
    if mask & STATX_RESERVED != 0 {
        return Err(Errno::EINVAL);
    }
    let path = thread.memory.path(path).await?;
    let (metadata, mount) = thread.caller().stat_with_mount_at(directory, &path, flags).await?;
    thread.memory.write_bytes(buffer, &metadata.statx_bytes(mount)).await?;
    Ok(0)
}

/// Files have no handles.
pub fn name_to_handle_at(
    _thread: &mut Thread,
    _directory: i32,
    _path: u64,
    _handle: u64,
    _mount: u64,
    _flags: u32,
) -> CallResult {
    Err(Errno::EOPNOTSUPP)
}

pub fn open_by_handle_at(_thread: &mut Thread, _mount: i32, _handle: u64, _flags: u32) -> CallResult {
    Err(Errno::EOPNOTSUPP)
}

pub async fn faccessat2(thread: &mut Thread, directory: i32, path: u64, mode: u32, flags: u32) -> CallResult {
    let path = thread.memory.path(path).await?;
    if flags & AT_EACCESS != 0 {
        thread.caller().access_at(directory, &path, mode, flags).await?;
        return Ok(0);
    }
    // The check is for the real user, who has the capabilities of root if it is root.
    let (user, group) = (thread.credentials.user.real, thread.credentials.group.real);
    let permitted = thread.credentials.capabilities.permitted;
    let capabilities = if user == 0 { permitted } else { 0 };
    let real = files::Credentials { user, group, capabilities, ..thread.file_credentials.clone() };
    Caller { credentials: &real, ..thread.caller() }.access_at(directory, &path, mode, flags).await?;
    Ok(0)
}

pub async fn faccessat(thread: &mut Thread, directory: i32, path: u64, mode: u32) -> CallResult {
    faccessat2(thread, directory, path, mode, NONE).await
}

pub async fn access(thread: &mut Thread, path: u64, mode: u32) -> CallResult {
    faccessat2(thread, AT_FDCWD, path, mode, NONE).await
}

pub async fn readlinkat(thread: &mut Thread, directory: i32, path: u64, buffer: u64, len: i64) -> CallResult {
    let len = usize::try_from(len).ok().filter(|len| *len > 0).ok_or(Errno::EINVAL)?;
    let path = thread.memory.path(path).await?;
    let target = thread.caller().read_link_at(directory, &path).await?;
    let target = &target[..target.len().min(len)];
    thread.memory.write_bytes(buffer, target).await?;
    Ok(target.len() as u64)
}

pub async fn readlink(thread: &mut Thread, path: u64, buffer: u64, len: i32) -> CallResult {
    readlinkat(thread, AT_FDCWD, path, buffer, len.into()).await
}

pub async fn getdents64(thread: &mut Thread, descriptor: i32, buffer: u64, len: u32) -> CallResult {
    let file = thread.files.get(descriptor)?;
    let mut buffer: UserBuffer = thread.memory.buffer(buffer, len.into(), Access::Write).await?;
    let ids = thread.caller().ids;
    Ok(file.read_entries(&mut buffer, ids).await? as u64)
}

pub async fn getcwd(thread: &mut Thread, buffer: u64, len: u64) -> CallResult {
    let mut path: Vec<u8> = thread.caller().working_directory_path()?;
    path.push(0);
    if path.len() as u64 > len {
        return Err(Errno::ERANGE);
    }
    thread.memory.write_bytes(buffer, &path).await?;
    Ok(path.len() as u64)
}

pub async fn chdir(thread: &mut Thread, path: u64) -> CallResult {
    let path = thread.memory.path(path).await?;
    thread.caller().change_directory(&path).await?;
    Ok(0)
}

pub async fn fchdir(thread: &mut Thread, descriptor: i32) -> CallResult {
    thread.caller().change_directory_to(descriptor).await?;
    Ok(0)
}

pub async fn chroot(thread: &mut Thread, path: u64) -> CallResult {
    let path = thread.memory.path(path).await?;
    thread.caller().change_root(&path).await?;
    Ok(0)
}

pub fn umask(thread: &mut Thread, mask: u32) -> CallResult {
    Ok(thread.view.set_umask(mask).into())
}

pub async fn mkdirat(thread: &mut Thread, directory: i32, path: u64, mode: u32) -> CallResult {
    let path = thread.memory.path(path).await?;
    thread.caller().make_directory_at(directory, &path, mode).await?;
    Ok(0)
}

pub async fn mkdir(thread: &mut Thread, path: u64, mode: u32) -> CallResult {
    mkdirat(thread, AT_FDCWD, path, mode).await
}

pub async fn mknodat(thread: &mut Thread, directory: i32, path: u64, mode: u32, device: u64) -> CallResult {
    let path = thread.memory.path(path).await?;
    let device = DeviceNumber::of_encoded(device);
    thread.caller().make_node_at(directory, &path, mode, device).await?;
    Ok(0)
}

pub async fn mknod(thread: &mut Thread, path: u64, mode: u32, device: u64) -> CallResult {
    mknodat(thread, AT_FDCWD, path, mode, device).await
}

pub async fn unlinkat(thread: &mut Thread, directory: i32, path: u64, flags: u32) -> CallResult {
    let path = thread.memory.path(path).await?;
    thread.caller().unlink_at(directory, &path, flags).await?;
    Ok(0)
}

pub async fn unlink(thread: &mut Thread, path: u64) -> CallResult {
    unlinkat(thread, AT_FDCWD, path, NONE).await
}

pub async fn rmdir(thread: &mut Thread, path: u64) -> CallResult {
    unlinkat(thread, AT_FDCWD, path, AT_REMOVEDIR).await
}

pub async fn renameat2(
    thread: &mut Thread,
    directory: i32,
    path: u64,
    new_directory: i32,
    new_path: u64,
    flags: u32,
) -> CallResult {
    let (path, new_path) = (thread.memory.path(path).await?, thread.memory.path(new_path).await?);
    thread.caller().rename_at(directory, &path, new_directory, &new_path, flags).await?;
    Ok(0)
}

pub async fn renameat(
    thread: &mut Thread,
    directory: i32,
    path: u64,
    new_directory: i32,
    new_path: u64,
) -> CallResult {
    renameat2(thread, directory, path, new_directory, new_path, NONE).await
}

pub async fn rename(thread: &mut Thread, path: u64, new_path: u64) -> CallResult {
    renameat2(thread, AT_FDCWD, path, AT_FDCWD, new_path, NONE).await
}

pub async fn linkat(
    thread: &mut Thread,
    directory: i32,
    path: u64,
    new_directory: i32,
    new_path: u64,
    flags: u32,
) -> CallResult {
    let (path, new_path) = (thread.memory.path(path).await?, thread.memory.path(new_path).await?);
    thread.caller().link_at(directory, &path, new_directory, &new_path, flags).await?;
    Ok(0)
}

pub async fn link(thread: &mut Thread, path: u64, new_path: u64) -> CallResult {
    linkat(thread, AT_FDCWD, path, AT_FDCWD, new_path, NONE).await
}

pub async fn symlinkat(thread: &mut Thread, target: u64, directory: i32, path: u64) -> CallResult {
    let (target, path) = (thread.memory.path(target).await?, thread.memory.path(path).await?);
    thread.caller().make_symlink_at(&target, directory, &path).await?;
    Ok(0)
}

pub async fn symlink(thread: &mut Thread, target: u64, path: u64) -> CallResult {
    symlinkat(thread, target, AT_FDCWD, path).await
}

pub async fn fchmodat2(thread: &mut Thread, directory: i32, path: u64, mode: u32, flags: u32) -> CallResult {
    let path = thread.memory.path(path).await?;
    thread.caller().chmod_at(directory, &path, mode, flags).await?;
    Ok(0)
}

pub async fn fchmodat(thread: &mut Thread, directory: i32, path: u64, mode: u32) -> CallResult {
    fchmodat2(thread, directory, path, mode, NONE).await
}

pub async fn chmod(thread: &mut Thread, path: u64, mode: u32) -> CallResult {
    fchmodat2(thread, AT_FDCWD, path, mode, NONE).await
}

pub async fn fchmod(thread: &mut Thread, descriptor: i32, mode: u32) -> CallResult {
    thread.files.get(descriptor)?;
    thread.caller().chmod_at(descriptor, b"", mode, AT_EMPTY_PATH).await?;
    Ok(0)
}

/// Returns the change of an owner; -1 leaves an id as it is.
fn owner(user: u32, group: u32) -> OwnerChange {
    let id = |id: u32| (id != u32::MAX).then_some(id);
    OwnerChange { user: id(user), group: id(group) }
}

pub async fn fchownat(
    thread: &mut Thread,
    directory: i32,
    path: u64,
    user: u32,
    group: u32,
    flags: u32,
) -> CallResult {
    let path = thread.memory.path(path).await?;
    thread.caller().chown_at(directory, &path, owner(user, group), flags).await?;
    Ok(0)
}

pub async fn chown(thread: &mut Thread, path: u64, user: u32, group: u32) -> CallResult {
    fchownat(thread, AT_FDCWD, path, user, group, NONE).await
}

pub async fn lchown(thread: &mut Thread, path: u64, user: u32, group: u32) -> CallResult {
    fchownat(thread, AT_FDCWD, path, user, group, AT_SYMLINK_NOFOLLOW).await
}

pub async fn fchown(thread: &mut Thread, descriptor: i32, user: u32, group: u32) -> CallResult {
    thread.files.get(descriptor)?;
    thread.caller().chown_at(descriptor, b"", owner(user, group), AT_EMPTY_PATH).await?;
    Ok(0)
}

pub async fn utimensat(thread: &mut Thread, directory: i32, path: u64, times: u64, flags: u32) -> CallResult {
    let (accessed, modified) = match times {
        0 => (TimeChange::Now, TimeChange::Now),
        address => {
            let bytes = thread.memory.read_bytes::<32>(address).await?;
            let word = |at: usize| i64::from_le_bytes(core::array::from_fn(|index| bytes[at + index]));
            (TimeChange::of_timespec(word(0), word(8))?, TimeChange::of_timespec(word(16), word(24))?)
        }
    };
    // Without a path, the descriptor's own file: `futimens`.
    let (path, flags) = match path {
        0 if directory == AT_FDCWD => return Err(Errno::EFAULT),
        0 => (Vec::new(), flags | AT_EMPTY_PATH),
        path => (thread.memory.path(path).await?, flags),
    };
    thread.caller().set_times_at(directory, &path, accessed, modified, flags).await?;
    Ok(0)
}

pub async fn statfs(thread: &mut Thread, path: u64, buffer: u64) -> CallResult {
    let path = thread.memory.path(path).await?;
    let statistics = thread.caller().file_system_statistics(AT_FDCWD, &path, NONE).await?;
    thread.memory.write_bytes(buffer, &statistics.bytes()).await?;
    Ok(0)
}

pub async fn fstatfs(thread: &mut Thread, descriptor: i32, buffer: u64) -> CallResult {
    thread.files.get_any(descriptor)?;
    let statistics = thread.caller().file_system_statistics(descriptor, b"", AT_EMPTY_PATH).await?;
    thread.memory.write_bytes(buffer, &statistics.bytes()).await?;
    Ok(0)
}

/// The file of a call on extended attributes: a descriptor, path and flags.
type AttributeTarget = (i32, Vec<u8>, u32);

async fn by_path(thread: &Thread, path: u64, flags: u32) -> Result<AttributeTarget, Errno> {
    Ok((AT_FDCWD, thread.memory.path(path).await?, flags))
}

fn by_descriptor(thread: &Thread, descriptor: i32) -> Result<AttributeTarget, Errno> {
    thread.files.get(descriptor)?;
    Ok((descriptor, Vec::new(), AT_EMPTY_PATH))
}

/// Stores the bytes of an answer; with length 0 only their number is returned.
async fn answer(thread: &Thread, bytes: &[u8], buffer: u64, len: u64) -> CallResult {
    if len != 0 {
        if bytes.len() as u64 > len {
            return Err(Errno::ERANGE);
        }
        thread.memory.write_bytes(buffer, bytes).await?;
    }
    Ok(bytes.len() as u64)
}

async fn attribute_name(thread: &Thread, address: u64) -> Result<Vec<u8>, Errno> {
    /// The most bytes of a name, with its NUL.
    const LEN: usize = 256;
    let long = |error| if error == Errno::ENAMETOOLONG { Errno::ERANGE } else { error };
    thread.memory.string(address, LEN).await.map_err(long)
}

async fn get_attribute(
    thread: &Thread,
    (directory, path, flags): AttributeTarget,
    name: u64,
    buffer: u64,
    len: u64,
) -> CallResult {
    let name = attribute_name(thread, name).await?;
    let value = thread.caller().attribute_at(directory, &path, &name, flags).await?;
    answer(thread, &value, buffer, len).await
}

pub async fn getxattr(thread: &mut Thread, path: u64, name: u64, buffer: u64, len: u64) -> CallResult {
    get_attribute(thread, by_path(thread, path, NONE).await?, name, buffer, len).await
}

pub async fn lgetxattr(thread: &mut Thread, path: u64, name: u64, buffer: u64, len: u64) -> CallResult {
    get_attribute(thread, by_path(thread, path, AT_SYMLINK_NOFOLLOW).await?, name, buffer, len).await
}

pub async fn fgetxattr(thread: &mut Thread, descriptor: i32, name: u64, buffer: u64, len: u64) -> CallResult {
    get_attribute(thread, by_descriptor(thread, descriptor)?, name, buffer, len).await
}

async fn set_attribute(
    thread: &Thread,
    (directory, path, at_flags): AttributeTarget,
    name: u64,
    value: u64,
    len: u64,
    flags: u32,
) -> CallResult {
    let name = attribute_name(thread, name).await?;
    if len > XATTR_SIZE_MAX.into() {
        return Err(Errno::E2BIG);
    }
    let mut bytes = alloc::vec![0; len as usize];
    thread.memory.read_to(value, &mut bytes).await?;
    thread.caller().set_attribute_at(directory, &path, &name, &bytes, flags, at_flags).await?;
    Ok(0)
}

pub async fn setxattr(
    thread: &mut Thread,
    path: u64,
    name: u64,
    value: u64,
    len: u64,
    flags: u32,
) -> CallResult {
    set_attribute(thread, by_path(thread, path, NONE).await?, name, value, len, flags).await
}

pub async fn lsetxattr(
    thread: &mut Thread,
    path: u64,
    name: u64,
    value: u64,
    len: u64,
    flags: u32,
) -> CallResult {
    set_attribute(thread, by_path(thread, path, AT_SYMLINK_NOFOLLOW).await?, name, value, len, flags).await
}

pub async fn fsetxattr(
    thread: &mut Thread,
    descriptor: i32,
    name: u64,
    value: u64,
    len: u64,
    flags: u32,
) -> CallResult {
    set_attribute(thread, by_descriptor(thread, descriptor)?, name, value, len, flags).await
}

async fn list_attributes(
    thread: &Thread,
    (directory, path, flags): AttributeTarget,
    buffer: u64,
    len: u64,
) -> CallResult {
    let names = thread.caller().attributes_at(directory, &path, flags).await?;
    answer(thread, &names, buffer, len).await
}

pub async fn listxattr(thread: &mut Thread, path: u64, buffer: u64, len: u64) -> CallResult {
    list_attributes(thread, by_path(thread, path, NONE).await?, buffer, len).await
}

pub async fn llistxattr(thread: &mut Thread, path: u64, buffer: u64, len: u64) -> CallResult {
    list_attributes(thread, by_path(thread, path, AT_SYMLINK_NOFOLLOW).await?, buffer, len).await
}

pub async fn flistxattr(thread: &mut Thread, descriptor: i32, buffer: u64, len: u64) -> CallResult {
    list_attributes(thread, by_descriptor(thread, descriptor)?, buffer, len).await
}

async fn remove_attribute(
    thread: &Thread,
    (directory, path, flags): AttributeTarget,
    name: u64,
) -> CallResult {
    let name = attribute_name(thread, name).await?;
    thread.caller().remove_attribute_at(directory, &path, &name, flags).await?;
    Ok(0)
}

pub async fn removexattr(thread: &mut Thread, path: u64, name: u64) -> CallResult {
    remove_attribute(thread, by_path(thread, path, NONE).await?, name).await
}

pub async fn lremovexattr(thread: &mut Thread, path: u64, name: u64) -> CallResult {
    remove_attribute(thread, by_path(thread, path, AT_SYMLINK_NOFOLLOW).await?, name).await
}

pub async fn fremovexattr(thread: &mut Thread, descriptor: i32, name: u64) -> CallResult {
    remove_attribute(thread, by_descriptor(thread, descriptor)?, name).await
}
