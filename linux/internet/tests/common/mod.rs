//! A program of a cell: its sockets, by the calls of `SocketFile`.
#![allow(dead_code, reason = "each test uses a part")]

use isola_events::{Instant, now, sleep_until};
use isola_linux_files::{
    Caller, CallerIds, Credentials, DescriptorTable, MountFlags, MountedFileSystem, Namespace, OpenFile,
    TmpFs, TmpFsOptions, View,
};
use isola_linux_internet::Internet;
use isola_linux_memory::{BoxFuture, UserBuffer};
use isola_linux_sockets::{
    Errno, Families, MessageFlags, PeerCredentials, ReceivedMessage, SentMessage, SocketAddress,
    SocketCaller, SocketClock, SocketFile, SocketKind, Waiting,
};
use std::net::SocketAddr;
use std::sync::Arc;

pub const STREAM: SocketKind = SocketKind::Stream;
pub const DATAGRAM: SocketKind = SocketKind::Datagram;

struct Clock;

impl SocketClock for Clock {
    fn now_ns(&self) -> u64 {
        now().as_ns()
    }

    fn sleep_until(&self, monotonic_ns: u64) -> BoxFuture<'static, ()> {
        Box::pin(sleep_until(Instant::from_ns(monotonic_ns)))
    }
}

/// The sockets of a cell.
#[derive(Clone)]
pub struct Program {
    families: Arc<Families>,
    view: Arc<View>,
    credentials: Arc<Credentials>,
}

/// An open socket.
#[derive(Clone)]
pub struct Open {
    program: Program,
    file: Arc<OpenFile>,
}

impl Program {
    pub fn new() -> Self {
        let families = Families::new(Arc::new(Clock));
        Internet::new(|| fastrand::u64(..)).register(&families);
        let files = MountedFileSystem::new(TmpFs::new(TmpFsOptions::of_len(1 << 20)));
        let view = Arc::new(View::new(Namespace::new(files, b"root", MountFlags::default())));
        Self { families, view, credentials: Arc::new(Credentials::root()) }
    }

    async fn call<R>(&self, work: impl AsyncFnOnce(&SocketCaller<'_>) -> R) -> R {
        let descriptors = DescriptorTable::new();
        let ids = CallerIds { process: 1, thread: 1 };
        let files =
            Caller { view: &self.view, credentials: &self.credentials, descriptors: &descriptors, ids };
        let credentials = PeerCredentials { process: 1, user: 0, group: 0 };
        work(&SocketCaller { files: &files, credentials }).await
    }

    pub async fn socket(&self, domain: u32, kind: SocketKind) -> Open {
        let family = self.families.family(domain).unwrap();
        let socket = self.call(async |caller| family.create(kind, 0, caller).unwrap()).await;
        Open { program: self.clone(), file: self.families.open(socket, 0) }
    }

    /// Returns a listening socket at an address.
    pub async fn listener(&self, address: &str, backlog: usize) -> Open {
        let listener = self.socket(domain(address), STREAM).await;
        listener.bind(address).await.unwrap();
        listener.listen(backlog).await.unwrap();
        listener
    }
}

fn domain(address: &str) -> u32 {
    if address.starts_with('[') { 10 } else { 2 }
}

pub fn address(text: &str) -> SocketAddress {
    match text.parse().unwrap() {
        SocketAddr::V4(address) => SocketAddress::Inet(address),
        SocketAddr::V6(address) => SocketAddress::Inet6(address),
    }
}

impl Open {
    pub fn file(&self) -> &SocketFile {
        self.file.object_as().unwrap()
    }

    pub async fn bind(&self, to: &str) -> Result<(), Errno> {
        let to = address(to);
        self.program.call(async |caller| self.file().socket().bind(&to, caller).await).await
    }

    pub async fn listen(&self, backlog: usize) -> Result<(), Errno> {
        self.program.call(async |caller| self.file().socket().listen(backlog, caller).await).await
    }

    pub async fn connect(&self, to: &str) -> Result<(), Errno> {
        self.connect_to(&address(to), Waiting::Permitted).await
    }

    pub async fn connect_to(&self, to: &SocketAddress, waiting: Waiting) -> Result<(), Errno> {
        self.program.call(async |caller| self.file().connect(to, waiting, caller).await).await
    }

    pub async fn accept(&self) -> Result<Self, Errno> {
        let file = self.file().accept(Waiting::Permitted, 0).await?;
        Ok(Self { program: self.program.clone(), file })
    }

    pub fn accept_now(&self) -> Result<Self, Errno> {
        let socket = self.file().socket().accept()?;
        Ok(Self { program: self.program.clone(), file: self.program.families.open(socket, 0) })
    }

    pub async fn send(&self, bytes: &[u8]) -> Result<usize, Errno> {
        self.send_with(bytes, MessageFlags::NONE, Waiting::Permitted).await
    }

    pub async fn send_with(
        &self,
        bytes: &[u8],
        flags: MessageFlags,
        waiting: Waiting,
    ) -> Result<usize, Errno> {
        let mut message = SentMessage { flags, ..SentMessage::default() };
        self.file().send(&mut UserBuffer::of_bytes(bytes), &mut message, waiting).await
    }

    pub async fn send_to(&self, bytes: &[u8], to: &str) -> Result<usize, Errno> {
        let mut message = SentMessage { address: Some(address(to)), ..SentMessage::default() };
        self.file().send(&mut UserBuffer::of_bytes(bytes), &mut message, Waiting::Permitted).await
    }

    pub async fn receive(&self, len: usize) -> Result<Vec<u8>, Errno> {
        self.receive_with(len, MessageFlags::NONE, Waiting::Permitted).await.map(|received| received.0)
    }

    pub async fn receive_now(&self, len: usize) -> Result<Vec<u8>, Errno> {
        self.receive_with(len, MessageFlags::NONE, Waiting::Refused).await.map(|received| received.0)
    }

    pub async fn receive_with(
        &self,
        len: usize,
        flags: MessageFlags,
        waiting: Waiting,
    ) -> Result<(Vec<u8>, ReceivedMessage), Errno> {
        let mut buffer = UserBuffer::of_bytes(&vec![0; len]);
        let mut contents = buffer.clone();
        let mut message = ReceivedMessage::default();
        let count = self.file().receive(&mut buffer, flags, &mut message, waiting).await?;
        let mut bytes = vec![0; count];
        contents.read(&mut bytes);
        Ok((bytes, message))
    }

    pub async fn receive_exactly(&self, len: usize) -> Vec<u8> {
        let (bytes, _) = self.receive_with(len, MessageFlags::WAITALL, Waiting::Permitted).await.unwrap();
        bytes
    }

    pub fn option(&self, level: u32, name: u32) -> Result<i32, Errno> {
        let value = self.file().option(level, name)?;
        Ok(i32::from_ne_bytes(*value.first_chunk().unwrap()))
    }

    pub async fn set(&self, level: u32, name: u32, value: &[u8]) -> Result<(), Errno> {
        self.program.call(async |caller| self.file().set_option(level, name, value, caller)).await
    }

    pub fn local(&self) -> SocketAddress {
        self.file().socket().local_address().unwrap()
    }
}
