//! A small system: a file system in memory as the root, and a caller.
#![allow(dead_code, reason = "each test file uses a part")]

use isola_linux_abi::numbers as linux;
use isola_linux_files::{
    Caller, CallerIds, Credentials, DescriptorTable, Errno, LastLink, Location, MountFlags,
    MountedFileSystem, Namespace, OnExec, OpenFile, TmpFs, TmpFsOptions, View,
};
use isola_linux_memory::UserBuffer;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

pub const CWD: i32 = linux::AT_FDCWD;

/// Counts wake-ups.
#[derive(Default)]
pub struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Wakes {
    pub fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

/// Polls a future once.
pub fn poll<F: Future + Unpin>(future: &mut F, wakes: &Arc<Wakes>) -> Poll<F::Output> {
    let waker = Waker::from(wakes.clone());
    std::pin::Pin::new(future).poll(&mut Context::from_waker(&waker))
}

thread_local! {
    /// Whether this thread runs tests in a fiber, where operations may wait for a device.
    pub static IN_FIBER: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Runs a future that does not wait, unless the test runs in a fiber.
pub fn now<F: Future>(future: F) -> F::Output {
    if IN_FIBER.get() {
        return isola_fibers::block_on(future);
    }
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("the operation waits"),
    }
}

/// Runs a future that may wait.
pub fn run<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return output;
        }
        std::thread::yield_now();
    }
}

pub struct System {
    pub view: View,
    pub credentials: Credentials,
    pub descriptors: DescriptorTable,
}

impl System {
    pub fn new() -> Self {
        Self::with(TmpFsOptions::of_len(64 << 20), MountFlags::default())
    }

    pub fn with(options: TmpFsOptions, flags: MountFlags) -> Self {
        let root = MountedFileSystem::new(TmpFs::new(options));
        Self::of(Namespace::new(root, b"root", flags))
    }

    pub fn of(namespace: Arc<Namespace>) -> Self {
        Self {
            view: View::new(namespace),
            credentials: Credentials::root(),
            descriptors: DescriptorTable::new(),
        }
    }

    /// Sets the user, without capabilities.
    pub fn as_user(&self, user: u32) -> Self {
        let credentials = Credentials { user, group: user, groups: Arc::from([]), capabilities: 0 };
        Self { view: self.view.fork(), credentials, descriptors: self.descriptors.fork() }
    }

    pub fn caller(&self) -> Caller<'_> {
        Caller {
            view: &self.view,
            credentials: &self.credentials,
            descriptors: &self.descriptors,
            ids: CallerIds { process: 7, thread: 8 },
        }
    }

    pub fn open(&self, path: &str, flags: u32) -> Result<Arc<OpenFile>, Errno> {
        now(self.caller().open_at(CWD, path.as_bytes(), flags, 0o666))
    }

    pub fn descriptor(&self, path: &str, flags: u32) -> Result<i32, Errno> {
        let file = self.open(path, flags)?;
        self.descriptors.install(file, OnExec::of_flags(flags), 1024)
    }

    pub fn locate(&self, path: &str) -> Result<Location, Errno> {
        now(self.caller().locate(CWD, path.as_bytes(), LastLink::Follow))
    }

    pub fn write_file(&self, path: &str, contents: &[u8]) -> Result<(), Errno> {
        let file = self.open(path, linux::O_WRONLY | linux::O_CREAT | linux::O_TRUNC)?;
        write(&file, contents).map(|count| assert_eq!(count, contents.len()))
    }

    pub fn read_file(&self, path: &str) -> Result<Vec<u8>, Errno> {
        let file = self.open(path, linux::O_RDONLY)?;
        let len = file.metadata().len as usize;
        now(file.read_bytes(0, len + 1))
    }

    pub fn mkdir(&self, path: &str) -> Result<(), Errno> {
        now(self.caller().make_directory_at(CWD, path.as_bytes(), 0o777))
    }

    pub fn symlink(&self, target: &str, path: &str) -> Result<(), Errno> {
        now(self.caller().make_symlink_at(target.as_bytes(), CWD, path.as_bytes()))
    }

    pub fn unlink(&self, path: &str) -> Result<(), Errno> {
        now(self.caller().unlink_at(CWD, path.as_bytes(), 0))
    }

    pub fn rmdir(&self, path: &str) -> Result<(), Errno> {
        now(self.caller().unlink_at(CWD, path.as_bytes(), linux::AT_REMOVEDIR))
    }

    pub fn rename(&self, from: &str, to: &str, flags: u32) -> Result<(), Errno> {
        now(self.caller().rename_at(CWD, from.as_bytes(), CWD, to.as_bytes(), flags))
    }

    pub fn link(&self, from: &str, to: &str) -> Result<(), Errno> {
        now(self.caller().link_at(CWD, from.as_bytes(), CWD, to.as_bytes(), 0))
    }

    pub fn stat(&self, path: &str) -> Result<isola_linux_files::Metadata, Errno> {
        now(self.caller().stat_at(CWD, path.as_bytes(), 0))
    }

    /// Returns the names of a directory, sorted, without `.` and `..`.
    pub fn names(&self, path: &str) -> Result<Vec<String>, Errno> {
        let file = self.open(path, linux::O_RDONLY | linux::O_DIRECTORY)?;
        let mut names = Vec::new();
        loop {
            let mut buffer = UserBuffer::of_bytes(&[0; 1000]);
            let mut bytes = buffer.clone();
            let len = now(file.read_entries(&mut buffer, CallerIds::default()))?;
            if len == 0 {
                break;
            }
            let bytes = &bytes.read_all()[..len];
            let mut at = 0;
            while at < bytes.len() {
                let entry_len = usize::from(u16::from_le_bytes([bytes[at + 16], bytes[at + 17]]));
                let name = &bytes[at + 19..at + entry_len];
                let end = name.iter().position(|byte| *byte == 0).expect("a name ends with NUL");
                names.push(String::from_utf8(name[..end].to_vec()).expect("a name of this test"));
                at += entry_len;
            }
        }
        names.sort();
        assert_eq!(&names[..2], [".", ".."]);
        Ok(names.split_off(2))
    }
}

pub fn write(file: &OpenFile, bytes: &[u8]) -> Result<usize, Errno> {
    now(file.write(&mut UserBuffer::of_bytes(bytes)))
}

pub fn read(file: &OpenFile, len: usize) -> Result<Vec<u8>, Errno> {
    let mut buffer = UserBuffer::of_bytes(&vec![0; len]);
    let mut bytes = buffer.clone();
    let count = now(file.read(&mut buffer))?;
    let mut bytes = bytes.read_all();
    bytes.truncate(count);
    Ok(bytes)
}
