//! What an asynchronous operation does.

use super::ring::Ring;
use crate::Errno;
use crate::process::Process;
use crate::system::System;
use crate::thread::Thread;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use isola_linux_abi::numbers::{POSIX_FADV_NOREUSE, RLIMIT_NOFILE};
use isola_linux_files::splice::{self as transfers, PipeWait, TransferEnd};
use isola_linux_files::{self as files, Caller, CallerIds, DescriptorTable, Events, OnExec, OpenFile, View};
use isola_linux_memory::{ProcessMemory, UserBuffer};

/// The thread that submitted an operation, as it was then.
pub struct Submitter {
    /// The processes of the cell.
    pub system: Arc<System>,
    process: Arc<Process>,
    memory: Arc<ProcessMemory>,
    files: Weak<DescriptorTable>,
    view: Arc<View>,
    credentials: files::Credentials,
    ids: CallerIds,
}

impl Submitter {
    /// Returns the submitter of a thread's operations.
    pub fn of(thread: &Thread) -> Arc<Self> {
        Arc::new(Self {
            system: thread.system.clone(),
            process: thread.process.clone(),
            memory: thread.memory.clone(),
            files: Arc::downgrade(&thread.files),
            view: thread.view.clone(),
            credentials: thread.file_credentials.clone(),
            ids: thread.caller().ids,
        })
    }

    fn files(&self) -> Result<Arc<DescriptorTable>, Errno> {
        self.files.upgrade().ok_or(Errno::EBADF)
    }

    fn caller<'a>(&'a self, descriptors: &'a DescriptorTable) -> Caller<'a> {
        Caller { view: &self.view, credentials: &self.credentials, descriptors, ids: self.ids }
    }

    fn install(&self, file: Arc<OpenFile>, flags: u32) -> Result<u64, Errno> {
        let limit = self.process.limits.lock().soft(RLIMIT_NOFILE);
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        Ok(self.files()?.install(file, OnExec::of_flags(flags), limit)? as u64)
    }
}

/// The file of an operation.
#[derive(Clone)]
pub enum FileChoice {
    /// An open file.
    Open(Arc<OpenFile>),
    /// A descriptor, which is looked up when the operation begins.
    Descriptor(i32),
    /// A registered file of the ring.
    Registered(u32),
}

impl FileChoice {
    /// Finds the file, and keeps it for later attempts.
    ///
    /// # Errors
    /// [`Errno::EBADF`].
    pub fn find(&mut self, submitter: &Submitter, ring: Option<&Ring>) -> Result<Arc<OpenFile>, Errno> {
        let file = match self {
            Self::Open(file) => return Ok(file.clone()),
            Self::Descriptor(descriptor) => submitter.files()?.get(*descriptor)?,
            Self::Registered(index) => ring.ok_or(Errno::EBADF)?.registered.file(*index)?,
        };
        *self = Self::Open(file.clone());
        Ok(file)
    }
}

/// Bytes to read or write.
pub struct Bytes {
    buffer: UserBuffer,
    len: usize,
}

impl Bytes {
    /// Creates the bytes of a buffer.
    pub fn new(buffer: UserBuffer) -> Self {
        let len = buffer.len();
        Self { buffer, len }
    }

    fn moved(&self) -> usize {
        self.len - self.buffer.len()
    }
}

/// An operation.
pub enum Operation {
    /// Nothing.
    Nothing,
    /// A read, at the position without an offset.
    #[expect(missing_docs, reason = "as the call")]
    Read { file: FileChoice, bytes: Bytes, offset: Option<u64>, nowait: bool },
    /// A write, at the position without an offset, or at the end.
    #[expect(missing_docs, reason = "as the call")]
    Write { file: FileChoice, bytes: Bytes, offset: Option<u64>, nowait: bool, appends: bool, syncs: bool },
    /// `fsync`.
    Sync(FileChoice),
    /// A wait for events of a file.
    Poll(FileChoice, Events),
    /// `openat`.
    #[expect(missing_docs, reason = "as the call")]
    Open { directory: i32, path: Vec<u8>, flags: u32, mode: u32 },
    /// `close`.
    Close(i32),
    /// `statx`, with the address of the result.
    #[expect(missing_docs, reason = "as the call")]
    Stat { directory: i32, path: Vec<u8>, flags: u32, buffer: u64 },
    /// `fallocate`.
    #[expect(missing_docs, reason = "as the call")]
    Allocate { file: FileChoice, mode: u32, offset: i64, len: i64 },
    /// `ftruncate`.
    Truncate(FileChoice, i64),
    /// `posix_fadvise`.
    Advise(FileChoice, u32),
    /// `madvise`: address, length, advice.
    AdviseMemory(u64, u64, u32),
    /// `splice`, or `tee` if the bytes stay in the pipe.
    #[expect(missing_docs, reason = "as the call")]
    Splice {
        from: FileChoice,
        from_offset: Option<u64>,
        to: FileChoice,
        to_offset: Option<u64>,
        len: usize,
        wait: PipeWait,
        keeps: bool,
    },
    /// `renameat2`.
    #[expect(missing_docs, reason = "as the call")]
    Rename { directory: i32, path: Vec<u8>, new_directory: i32, new_path: Vec<u8>, flags: u32 },
    /// `linkat`.
    #[expect(missing_docs, reason = "as the call")]
    Link { directory: i32, path: Vec<u8>, new_directory: i32, new_path: Vec<u8>, flags: u32 },
    /// `unlinkat`.
    #[expect(missing_docs, reason = "as the call")]
    Unlink { directory: i32, path: Vec<u8>, flags: u32 },
    /// `mkdirat`.
    #[expect(missing_docs, reason = "as the call")]
    MakeDirectory { directory: i32, path: Vec<u8>, mode: u32 },
    /// `symlinkat`.
    #[expect(missing_docs, reason = "as the call")]
    Symlink { target: Vec<u8>, directory: i32, path: Vec<u8> },
}

impl Operation {
    /// Returns the number of bytes that earlier attempts have moved.
    pub fn moved(&self) -> u64 {
        match self {
            Self::Read { bytes, .. } | Self::Write { bytes, .. } => bytes.moved() as u64,
            _ => 0,
        }
    }

    /// Returns whether fewer bytes than this are less than the operation was to move, which ends a chain.
    pub fn is_short(&self, moved: u64) -> bool {
        match self {
            Self::Read { bytes, .. } | Self::Write { bytes, .. } => moved < bytes.len as u64,
            _ => false,
        }
    }

    /// Returns whether the operation fails instead of waiting.
    pub fn is_nowait(&self) -> bool {
        matches!(self, Self::Read { nowait: true, .. } | Self::Write { nowait: true, .. })
    }

    /// Executes the operation. If the future is dropped, it can be executed again, and continues.
    ///
    /// # Errors
    /// Those of the call.
    pub async fn attempt(&mut self, submitter: &Submitter, ring: Option<&Ring>) -> Result<u64, Errno> {
        match self {
            Self::Nothing => Ok(0),
            Self::Read { file, bytes, offset, .. } => {
                let file = file.find(submitter, ring)?;
                let at = offset.map(|offset| offset.saturating_add(bytes.moved() as u64));
                let result = match at {
                    Some(at) if file.has_offsets() => file.read_at(at, &mut bytes.buffer).await,
                    _ => file.read(&mut bytes.buffer).await,
                };
                finish(bytes, result)
            }
            Self::Write { file, bytes, offset, appends, syncs, .. } => {
                let file = file.find(submitter, ring)?;
                let at = offset.map(|offset| offset.saturating_add(bytes.moved() as u64));
                let result = match at {
                    _ if *appends => file.write_at_end(at, &mut bytes.buffer).await,
                    Some(at) if file.has_offsets() => file.write_at(at, &mut bytes.buffer).await,
                    _ => file.write(&mut bytes.buffer).await,
                };
                let count = finish(bytes, result)?;
                if *syncs {
                    file.sync().await?;
                }
                Ok(count)
            }
            Self::Sync(file) => file.find(submitter, ring)?.sync().await.map(|()| 0),
            Self::Poll(file, events) => {
                let file = file.find(submitter, ring)?;
                let wanted = *events | Events::ALWAYS;
                file.wait(wanted).await;
                Ok((file.ready() & wanted).0.into())
            }
            Self::Close(descriptor) => {
                let files = submitter.files()?;
                if files.get_any(*descriptor)?.object_as::<super::ring::RingFile>().is_some() {
                    return Err(Errno::EBADF);
                }
                files.close(*descriptor).map(|()| 0)
            }
            Self::Allocate { file, mode, offset, len } => {
                file.find(submitter, ring)?.allocate(*mode, *offset, *len).await.map(|()| 0)
            }
            Self::Truncate(file, len) => file.find(submitter, ring)?.truncate(*len).await.map(|()| 0),
            Self::Advise(file, advice) => {
                file.find(submitter, ring)?;
                if *advice > POSIX_FADV_NOREUSE { Err(Errno::EINVAL) } else { Ok(0) }
            }
            Self::AdviseMemory(address, len, advice) => {
                submitter.memory.advise(*address, *len, *advice).await.map(|()| 0)
            }
            Self::Splice { from, from_offset, to, to_offset, len, wait, keeps } => {
                let (from, to) = (from.find(submitter, ring)?, to.find(submitter, ring)?);
                let mut done = 0;
                let result = if *keeps {
                    transfers::tee(&from, &to, *len, *wait, &mut done).await
                } else {
                    let mut source = TransferEnd { file: &from, offset: *from_offset };
                    let mut target = TransferEnd { file: &to, offset: *to_offset };
                    transfers::splice(&mut source, &mut target, *len, *wait, &mut done).await
                };
                match result {
                    Err(error) if done == 0 => Err(error),
                    _ => Ok(done as u64),
                }
            }
            _ => self.attempt_with_path(submitter).await,
        }
    }

    async fn attempt_with_path(&mut self, submitter: &Submitter) -> Result<u64, Errno> {
        let descriptors = submitter.files()?;
        let caller = submitter.caller(&descriptors);
        match self {
            Self::Open { directory, path, flags, mode } => {
                let file = caller.open_at(*directory, path, *flags, *mode).await?;
                return submitter.install(file, *flags);
            }
            Self::Stat { directory, path, flags, buffer } => {
                let (metadata, mount) = caller.stat_with_mount_at(*directory, path, *flags).await?;
                submitter.memory.write_bytes(*buffer, &metadata.statx_bytes(mount)).await?;
            }
            Self::Rename { directory, path, new_directory, new_path, flags } => {
                caller.rename_at(*directory, path, *new_directory, new_path, *flags).await?;
            }
            Self::Link { directory, path, new_directory, new_path, flags } => {
                caller.link_at(*directory, path, *new_directory, new_path, *flags).await?;
            }
            Self::Unlink { directory, path, flags } => caller.unlink_at(*directory, path, *flags).await?,
            Self::MakeDirectory { directory, path, mode } => {
                caller.make_directory_at(*directory, path, *mode).await?;
            }
            Self::Symlink { target, directory, path } => {
                caller.make_symlink_at(target, *directory, path).await?;
            }
            _ => return Err(Errno::EINVAL),
        }
        Ok(0)
    }
}

/// Returns the result of all attempts at a read or write.
fn finish(bytes: &Bytes, result: Result<usize, Errno>) -> Result<u64, Errno> {
    match result {
        Err(error) if bytes.moved() == 0 => Err(error),
        // Bytes that moved in an earlier attempt count, whatever comes then.
        _ => Ok(bytes.moved() as u64),
    }
}
