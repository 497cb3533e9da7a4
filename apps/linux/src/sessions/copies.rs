//! Copies of files between the host and the cell.

use super::messages::{Incoming, Outgoing};
use isola::prelude::*;
use isola_abi::session::{CellMessage, CopiedEntry, CopiedKind, HostMessage, MAX_PIECE};
use isola_linux_files::{
    AT_FDCWD, Caller, CallerIds, Credentials, DescriptorTable, Errno, InodeKind, LastLink, View,
};
use isola_linux_memory::UserBuffer;
use isola_linux_processes::System;

extern crate alloc;

use alloc::sync::Arc;

/// Flags of `open`.
const O_RDONLY: u32 = 0;
const O_WRONLY: u32 = 1;
const O_CREAT: u32 = 0o100;
const O_TRUNC: u32 = 0o1000;
const O_NONBLOCK: u32 = 0o4000;
const O_NOFOLLOW: u32 = 0o400_000;

/// The most bytes of a text of `/proc` or `/sys` that are copied.
const MOST_TEXT: usize = 1 << 20;

/// The outcome of a copy.
pub struct CopyOutcome(Result<(), String>);

impl CopyOutcome {
    /// Returns the last message of the session.
    pub fn into_message(self) -> CellMessage {
        match self.0 {
            Ok(()) => CellMessage::Ended(0),
            Err(text) => CellMessage::Failed(text, 1),
        }
    }
}

/// The files as the superuser sees them.
struct Files {
    view: View,
    credentials: Credentials,
    descriptors: DescriptorTable,
}

impl Files {
    fn new(system: &System) -> Self {
        let view = View::new(system.namespace.clone());
        view.set_umask(0);
        Self { view, credentials: Credentials::root(), descriptors: DescriptorTable::new() }
    }

    fn caller(&self) -> Caller<'_> {
        Caller {
            view: &self.view,
            credentials: &self.credentials,
            descriptors: &self.descriptors,
            ids: CallerIds { process: 1, thread: 1 },
        }
    }
}

fn below(base: &str, path: &str) -> String {
    if path.is_empty() { base.into() } else { format!("{}/{path}", base.trim_end_matches('/')) }
}

fn failed(path: &str, error: Errno) -> String {
    let text = match error {
        Errno::ENOENT => "there is no such file or folder",
        Errno::ENOTDIR => "a part of the path is no folder",
        Errno::EISDIR => "it is a folder",
        Errno::ENOSPC => "there is no space left",
        Errno::EROFS => "the file system cannot be written",
        Errno::EPERM | Errno::EACCES => "the file system does not permit it",
        Errno::ELOOP => "it is a link, or one of too many links",
        // Of a device, a pipe or a socket.
        Errno::EOPNOTSUPP => "it is neither a file nor a folder",
        _ => return format!("{path}: {error}"),
    };
    format!("{path}: {text} ({error})")
}

/// Sends a file or folder. Returns nothing if the connection was lost.
pub async fn fetch(system: &Arc<System>, path: &str, outgoing: &mut Outgoing<'_>) -> Option<CopyOutcome> {
    let files = Files::new(system);
    let mut left = alloc::vec![String::new()];
    while let Some(name) = left.pop() {
        let path = below(path, &name);
        match send_entry(&files, &path, &name, outgoing).await? {
            Ok(children) => left.extend(children),
            Err(error) => return Some(CopyOutcome(Err(failed(&path, error)))),
        }
    }
    Some(CopyOutcome(Ok(())))
}

/// Sends a file, and returns the paths of a folder's entries. Devices, pipes and sockets are left out.
async fn send_entry(
    files: &Files,
    path: &str,
    name: &str,
    outgoing: &mut Outgoing<'_>,
) -> Option<Result<Vec<String>, Errno>> {
    let caller = files.caller();
    // The path that the user names is followed if it is a link.
    let last = if name.is_empty() { LastLink::Follow } else { LastLink::Keep };
    let location = match caller.locate(AT_FDCWD, path.as_bytes(), last).await {
        Ok(location) => location,
        Err(error) => return Some(Err(error)),
    };
    let inode = location.inode().clone();
    let metadata = inode.metadata();
    let entry =
        |kind| CellMessage::Entry(CopiedEntry { path: name.into(), permissions: metadata.permissions, kind });
    match inode.kind() {
        InodeKind::Directory => {
            let entries = match inode.list(caller.ids).await {
                Ok(entries) => entries,
                Err(error) => return Some(Err(error)),
            };
            outgoing.send(&entry(CopiedKind::Folder)).await?;
            // A name that is no text cannot be named in a message.
            let names = entries.into_iter().filter_map(|entry| String::from_utf8(entry.name).ok());
            Some(Ok(names
                .map(|child| if name.is_empty() { child } else { format!("{name}/{child}") })
                .collect()))
        }
        InodeKind::Symlink => {
            let target = match inode.read_link(caller.ids).await {
                Ok(target) => String::from_utf8_lossy(&target).into_owned(),
                Err(error) => return Some(Err(error)),
            };
            outgoing.send(&entry(CopiedKind::Link(target))).await?;
            Some(Ok(Vec::new()))
        }
        InodeKind::File => {
            let flags = O_RDONLY | O_NONBLOCK | if name.is_empty() { 0 } else { O_NOFOLLOW };
            let file = match caller.open_at(AT_FDCWD, path.as_bytes(), flags, 0).await {
                Ok(file) => file,
                Err(error) => return Some(Err(error)),
            };
            let mut len = metadata.len;
            let mut sent = 0;
            // Texts of `/proc` and `/sys` have no length before they are read.
            if len == 0 {
                let text = match file.read_bytes(0, MOST_TEXT).await {
                    Ok(text) => text,
                    Err(error) => return Some(Err(error)),
                };
                len = text.len() as u64;
                outgoing.send(&entry(CopiedKind::File { len })).await?;
                for piece in text.chunks(MAX_PIECE) {
                    outgoing.send(&CellMessage::Contents(piece.to_vec())).await?;
                }
                sent = len;
            } else {
                outgoing.send(&entry(CopiedKind::File { len })).await?;
            }
            while sent < len {
                let now = (len - sent).min(MAX_PIECE as u64) as usize;
                let mut bytes = match file.read_bytes(sent, now).await {
                    Ok(bytes) => bytes,
                    Err(error) => return Some(Err(error)),
                };
                // A file that became shorter meanwhile.
                bytes.resize(now, 0);
                sent += now as u64;
                outgoing.send(&CellMessage::Contents(bytes)).await?;
            }
            Some(Ok(Vec::new()))
        }
        _ if name.is_empty() => Some(Err(Errno::EOPNOTSUPP)),
        _ => Some(Ok(Vec::new())),
    }
}

/// Receives a file or folder. Returns nothing if the connection was lost.
pub async fn store(
    system: &Arc<System>,
    path: &str,
    name: &str,
    incoming: &mut Incoming<'_>,
) -> Option<CopyOutcome> {
    let files = Files::new(system);
    let caller = files.caller();
    let found = caller.locate(AT_FDCWD, path.as_bytes(), LastLink::Follow).await;
    let is_folder = found.is_ok_and(|location| location.dentry().kind() == InodeKind::Directory);
    let base = if is_folder { below(path, name) } else { path.into() };
    loop {
        let entry = match incoming.next().await? {
            HostMessage::Entry(entry) => entry,
            HostMessage::CopyEnd => return Some(CopyOutcome(Ok(()))),
            _ => return None,
        };
        entry.names()?;
        let path = below(&base, &entry.path);
        if let Err(error) = receive_entry(&caller, &path, &entry, incoming).await? {
            return Some(CopyOutcome(Err(failed(&path, error))));
        }
    }
}

async fn receive_entry(
    caller: &Caller<'_>,
    path: &str,
    entry: &CopiedEntry,
    incoming: &mut Incoming<'_>,
) -> Option<Result<(), Errno>> {
    let bytes = path.as_bytes();
    let permissions = entry.permissions & 0o7777;
    let result = match &entry.kind {
        CopiedKind::Folder => match caller.make_directory_at(AT_FDCWD, bytes, permissions).await {
            Err(Errno::EEXIST) => Ok(()),
            result => result,
        },
        CopiedKind::Link(target) => {
            let _ = caller.unlink_at(AT_FDCWD, bytes, 0).await;
            caller.make_symlink_at(target.as_bytes(), AT_FDCWD, bytes).await
        }
        CopiedKind::File { len } => {
            let flags = O_WRONLY | O_CREAT | O_TRUNC | if entry.path.is_empty() { 0 } else { O_NOFOLLOW };
            let file = match caller.open_at(AT_FDCWD, bytes, flags, permissions).await {
                Ok(file) => file,
                Err(error) => return Some(Err(error)),
            };
            let mut left = *len;
            while left > 0 {
                let HostMessage::Contents(contents) = incoming.next().await? else { return None };
                left = left.checked_sub(contents.len() as u64)?;
                let mut buffer = UserBuffer::of_bytes(&contents);
                while !buffer.is_empty() {
                    match file.write(&mut buffer).await {
                        Ok(0) => return Some(Err(Errno::ENOSPC)),
                        Ok(_) => {}
                        Err(error) => return Some(Err(error)),
                    }
                }
            }
            caller.chmod_at(AT_FDCWD, bytes, permissions, 0).await
        }
    };
    Some(result)
}
