//! A small system with sockets, and a caller.
#![allow(dead_code, reason = "each test file uses a part")]

use isola_linux_abi::net::{AF_NETLINK, AF_UNIX};
use isola_linux_files::{
    Caller, CallerIds, Credentials, DescriptorTable, MountFlags, MountedFileSystem, Namespace, OpenFile,
    TmpFs, TmpFsOptions, View,
};
use isola_linux_memory::{BoxFuture, UserBuffer};
use isola_linux_sockets::{
    Errno, Families, MessageFlags, NetlinkFamily, PeerCredentials, ReceivedMessage, SentMessage, Socket,
    SocketAddress, SocketCaller, SocketClock, SocketFile, SocketKind, UnixAddress, UnixFamily, Waiting,
};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

/// A clock that a test advances.
#[derive(Clone, Default)]
pub struct TestClock(pub Arc<AtomicU64>);

impl SocketClock for TestClock {
    fn now_ns(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn sleep_until(&self, monotonic_ns: u64) -> BoxFuture<'static, ()> {
        let clock = self.clone();
        Box::pin(poll_fn(
            move |_| if clock.now_ns() >= monotonic_ns { Poll::Ready(()) } else { Poll::Pending },
        ))
    }
}

/// Polls a future once.
pub fn poll<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    std::pin::Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

/// Runs a future that does not wait.
pub fn now<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("the operation waits"),
    }
}

pub struct System {
    pub view: View,
    pub credentials: Credentials,
    pub descriptors: DescriptorTable,
    pub families: Arc<Families>,
    pub unix: Arc<UnixFamily>,
    pub clock: Arc<TestClock>,
}

impl System {
    pub fn new() -> Self {
        let root = MountedFileSystem::new(TmpFs::new(TmpFsOptions::of_len(16 << 20)));
        let clock = Arc::new(TestClock::default());
        let families = Families::new(clock.clone());
        let unix = UnixFamily::new();
        families.register(AF_UNIX, unix.clone());
        families.register(AF_NETLINK, NetlinkFamily::new(&families));
        Self {
            view: View::new(Namespace::new(root, b"root", MountFlags::default())),
            credentials: Credentials::root(),
            descriptors: DescriptorTable::new(),
            families,
            unix,
            clock,
        }
    }

    /// Calls with the thread of a process.
    pub fn with<T>(&self, call: impl FnOnce(&SocketCaller<'_>) -> T) -> T {
        self.with_credentials(&self.credentials, call)
    }

    pub fn with_credentials<T>(
        &self,
        credentials: &Credentials,
        call: impl FnOnce(&SocketCaller<'_>) -> T,
    ) -> T {
        let files = Caller {
            view: &self.view,
            credentials,
            descriptors: &self.descriptors,
            ids: CallerIds { process: 7, thread: 8 },
        };
        let peer = PeerCredentials { process: 7, user: credentials.user, group: credentials.group };
        call(&SocketCaller { files: &files, credentials: peer })
    }

    pub fn socket(&self, kind: SocketKind) -> Arc<OpenFile> {
        let family = self.families.family(AF_UNIX).unwrap();
        let socket = self.with(|caller| family.create(kind, 0, caller)).unwrap();
        self.families.open(socket, 0)
    }

    pub fn pair(&self, kind: SocketKind) -> [Arc<OpenFile>; 2] {
        let family = self.families.family(AF_UNIX).unwrap();
        let (one, other) = self.with(|caller| family.create_pair(kind, 0, caller)).unwrap();
        [self.families.open(one, 0), self.families.open(other, 0)]
    }

    pub fn bind(&self, file: &OpenFile, address: &SocketAddress) -> Result<(), Errno> {
        self.with(|caller| now(of(file).bind(address, caller)))
    }

    pub fn listen(&self, file: &OpenFile, backlog: usize) -> Result<(), Errno> {
        self.with(|caller| now(of(file).listen(backlog, caller)))
    }

    pub fn connect(&self, file: &OpenFile, address: &SocketAddress) -> Result<(), Errno> {
        self.with(|caller| now(socket_file(file).connect(address, Waiting::Refused, caller)))
    }

    pub fn send_to(&self, file: &OpenFile, bytes: &[u8], address: SocketAddress) -> Result<usize, Errno> {
        let destination = self.with(|caller| now(of(file).destination(&address, caller)))?;
        let message = SentMessage { address: Some(address), destination, ..SentMessage::default() };
        send_message(file, bytes, message)
    }
}

pub fn socket_file(file: &OpenFile) -> &SocketFile {
    file.object_as().expect("a socket")
}

pub fn of(file: &OpenFile) -> &Arc<dyn Socket> {
    socket_file(file).socket()
}

pub fn named(name: &str) -> SocketAddress {
    SocketAddress::Unix(UnixAddress::Abstract(name.as_bytes().into()))
}

pub fn at(path: &str) -> SocketAddress {
    SocketAddress::Unix(UnixAddress::Path(path.as_bytes().into()))
}

pub fn accept(file: &OpenFile) -> Result<Arc<OpenFile>, Errno> {
    now(socket_file(file).accept(Waiting::Refused, 0))
}

pub fn send(file: &OpenFile, bytes: &[u8]) -> Result<usize, Errno> {
    send_message(file, bytes, SentMessage::default())
}

pub fn send_message(file: &OpenFile, bytes: &[u8], mut message: SentMessage) -> Result<usize, Errno> {
    let mut buffer = UserBuffer::of_bytes(bytes);
    now(socket_file(file).send(&mut buffer, &mut message, Waiting::Refused))
}

pub fn send_files(file: &OpenFile, bytes: &[u8], files: &[&Arc<OpenFile>]) -> Result<usize, Errno> {
    let mut message = SentMessage::default();
    message.ancillary.rights = files.iter().map(|file| (*file).clone()).collect();
    send_message(file, bytes, message)
}

pub fn receive(file: &OpenFile, len: usize) -> Result<Vec<u8>, Errno> {
    receive_message(file, len, MessageFlags::NONE).map(|(bytes, _)| bytes)
}

pub fn receive_message(
    file: &OpenFile,
    len: usize,
    flags: MessageFlags,
) -> Result<(Vec<u8>, ReceivedMessage), Errno> {
    let mut buffer = UserBuffer::of_bytes(&vec![0; len]);
    let mut contents = buffer.clone();
    let mut message = ReceivedMessage::default();
    let count = now(socket_file(file).receive(&mut buffer, flags, &mut message, Waiting::Refused))?;
    let mut bytes = vec![0; count];
    contents.read(&mut bytes);
    Ok((bytes, message))
}
