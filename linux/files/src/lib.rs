//! The files of Linux processes: path look-up, file systems in memory, open files, descriptors, pipes, readiness.
//!
//! ```text
//!   DescriptorTable -> OpenFile -> Inode (of a FileSystem)          Caller: View + Credentials + DescriptorTable
//!                               -> FileObject (pipe, socket, ...)   Namespace: Mount -> Dentry -> Inode
//! ```
//!
//! **How a call is served.** A call of a thread makes a [`Caller`] of the process's [`View`], its [`Credentials`] and its
//! [`DescriptorTable`]:
//!
//! ```ignore
//! let caller = Caller { view: &view, credentials: &credentials, descriptors: &table, ids };
//! // openat
//! let file = caller.open_at(directory, &path, flags, mode).await?;
//! let descriptor = table.install(file, OnExec::of_flags(flags), limit)?;
//! // read, with the program's buffer resolved to frames
//! let count = table.get(descriptor)?.read(&mut buffer).await?;
//! // newfstatat
//! let bytes = caller.stat_at(directory, &path, at_flags).await?.stat_bytes();
//! // getdents64
//! let count = table.get(descriptor)?.read_entries(&mut buffer, ids).await?;
//! ```
//!
//! Calls on a descriptor alone (`fchmod`, `fstatfs`) are those on paths with an empty path and `AT_EMPTY_PATH`. An operation
//! that waits is interrupted when its future is dropped; bytes that were moved are those by which the buffer's position has
//! advanced.
//!
//! **Waiting.** [`FileObject`]s attempt and return [`Errno::EAGAIN`]; [`OpenFile`] waits for their [`Pollee`]. File systems
//! return an [`Outcome`], which is a future only if a device takes part. Spin locks are held for a few instructions, never
//! over an `await`, and values whose drop may do more are dropped without them.
//!
//! Not here: the memory of processes (`isola-linux-memory`), processes and signals, sockets.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod async_lock;
mod calls;
mod clock;
mod console;
mod control;
mod countdown;
mod credentials;
mod dentry;
mod descriptors;
mod devfs;
mod devices;
mod epoll;
mod eventfd;
mod events;
mod generated;
mod inode;
mod inotify;
pub mod locks;
mod memory_files;
mod metadata;
mod object;
mod open_file;
mod outcome;
mod overlay;
mod pipe;
mod poll;
mod procfs;
mod resolution;
pub mod splice;
mod terminal;
mod timerfd;
mod tmpfs;
mod volume;
mod walk;
mod watch;

pub use calls::{FILE_CAPABILITIES, OwnerChange, TimeChange};
pub use clock::{Timestamp, set_clock};
pub use console::{Console, ConsoleOutput};
pub use control::{ControlArgument, control_argument};
pub use countdown::{Countdown, TimerSetting, TimerStart};
pub use credentials::{Access, Credentials, Ownership};
pub use dentry::{
    Dentry, Detach, Location, MOST_CACHED_NAMES, Mount, MountFlags, MountedFileSystem, Namespace,
};
pub use descriptors::{DescriptorTable, MOST_DESCRIPTORS, OnExec};
pub use devfs::device_file_system;
pub use devices::{Device, DeviceTable};
pub use epoll::{Epoll, EpollEvent};
pub use eventfd::EventCounter;
pub use events::{Events, Observer, Pollee, Sharing, WaitForEvents, WaiterKey};
pub use generated::{
    FixedDirectory, GeneratedDirectory, GeneratedFs, GeneratedLink, GeneratedNode, GeneratedText,
};
pub use inode::{
    Allocation, AttributeChange, AttributeMode, CallerIds, FileSystem, Inode, LinkTarget, NewContent,
    NewInode, RenameMode, SeekTarget, WritePosition,
};
pub use inotify::{Inotify, MOST_EVENTS as MOST_INOTIFY_EVENTS};
pub use isola_linux_abi::Errno;
pub use isola_linux_abi::numbers::{AT_FDCWD, O_NONBLOCK};
pub use memory_files::MemoryFiles;
pub use metadata::{
    DeviceNumber, DirectoryEntry, FileSystemStatistics, InodeKind, Metadata, STAT_LEN, STATFS_LEN, STATX_LEN,
    new_anonymous_inode, new_device,
};
pub use object::FileObject;
pub use open_file::{MOST_OFFSET, OpenFile};
pub use outcome::Outcome;
pub use overlay::OverlayFs;
pub use pipe::{MOST_PIPE_CAPACITY, PIPE_BUF, PIPE_CAPACITY, Pipe, PipeEnd, pipe};
pub use poll::{PollEntry, PollFiles, poll_files, ready_files};
pub use procfs::{ProcessDirectories, number_of_name, proc_file_system, sys_file_system};
pub use terminal::{
    DevPts, LineDiscipline, MOST_INPUT, MOST_OUTPUT, MOST_TERMINALS, ReadPlan, TERMIOS_LEN, TERMIOS2_LEN,
    Terminal, TerminalAnswer, TerminalEnd, TerminalFile, TerminalProcesses, TerminalSettings, Terminals,
    changes_terminal,
};
pub use timerfd::{AlarmKey, AlarmService, Timer};
pub use tmpfs::{TmpFs, TmpFsOptions, pages_in_memory};
pub use volume::{VolumeChanges, VolumeFs};
pub use walk::{Caller, LastLink, View};
pub use watch::{MOST_INSTANCES as MOST_INOTIFY_INSTANCES, MOST_WATCHES as MOST_INOTIFY_WATCHES};

/// The most bytes of a name in a directory (`NAME_MAX`).
pub const NAME_LEN: usize = 255;
/// The most bytes of a path, with the NUL at its end (`PATH_MAX`).
pub const PATH_LEN: usize = 4096;
