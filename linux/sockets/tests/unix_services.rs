//! Unix sockets whose peer is in another cell, over channels of a test.

mod common;

use common::{System, accept, at, of, receive, receive_message, send, send_files, socket_file};
use isola_linux_abi::net::{SO_PEERCRED, SOL_SOCKET};
use isola_linux_files::{
    AT_FDCWD, AttributeChange, Credentials, Events, LastLink, MountFlags, MountedFileSystem, NewContent,
    OpenFile,
};
use isola_linux_memory::BoxFuture;
use isola_linux_sockets::{
    CellChannels, ChannelEnded, Errno, ListeningSocket, MessageFlags, OpeningSocket, PacketChannel,
    ServicesFs, Shutdown, SocketKind, Waiting,
};
use proptest::prelude::*;
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

/// The packets of a direction that a channel holds.
const CAPACITY: usize = 4;
/// The longest packet.
const MOST_BYTES: usize = 100;

#[derive(Default)]
struct Direction {
    packets: VecDeque<Vec<u8>>,
    is_closed: bool,
}

/// One end of a channel. Dropping it closes the channel, and discards the packets that were not read.
struct TestChannel {
    out: Arc<Mutex<Direction>>,
    back: Arc<Mutex<Direction>>,
    lingers: Arc<AtomicBool>,
}

impl TestChannel {
    fn pair() -> (Self, Self) {
        let (one, other) = (Arc::default(), Arc::default());
        let end = |out: &Arc<Mutex<Direction>>, back: &Arc<Mutex<Direction>>| Self {
            out: out.clone(),
            back: back.clone(),
            lingers: Arc::new(AtomicBool::new(true)),
        };
        (end(&one, &other), end(&other, &one))
    }

    /// Writes a packet. Returns whether there was room.
    fn put(&self, packet: &[u8]) -> bool {
        let mut out = self.out.lock().unwrap();
        let has_room = out.packets.len() < CAPACITY && !out.is_closed;
        if has_room {
            out.packets.push_back(packet.to_vec());
        }
        has_room
    }

    /// Takes the next packet.
    fn take(&self) -> Option<Vec<u8>> {
        self.back.lock().unwrap().packets.pop_front()
    }

    fn is_closed(&self) -> bool {
        self.out.lock().unwrap().is_closed
    }
}

impl Drop for TestChannel {
    fn drop(&mut self) {
        for direction in [&self.out, &self.back] {
            let mut direction = direction.lock().unwrap();
            direction.is_closed = true;
            direction.packets.clear();
        }
    }
}

impl PacketChannel for TestChannel {
    fn most_bytes(&self) -> usize {
        MOST_BYTES
    }

    async fn write(&self, packet: &[u8]) -> Result<(), ChannelEnded> {
        assert!(packet.len() <= MOST_BYTES);
        poll_fn(|_| {
            if self.is_closed() {
                return Poll::Ready(Err(ChannelEnded));
            }
            if self.put(packet) { Poll::Ready(Ok(())) } else { Poll::Pending }
        })
        .await
    }

    async fn read(&self, packet: &mut Vec<u8>) -> Result<(), ChannelEnded> {
        poll_fn(|_| match self.take() {
            Some(next) => {
                *packet = next;
                Poll::Ready(Ok(()))
            }
            None if self.is_closed() => Poll::Ready(Err(ChannelEnded)),
            None => Poll::Pending,
        })
        .await
    }

    async fn flush(&self) -> Result<(), ChannelEnded> {
        poll_fn(|_| {
            let out = self.out.lock().unwrap();
            if out.is_closed {
                return Poll::Ready(Err(ChannelEnded));
            }
            if out.packets.is_empty() { Poll::Ready(Ok(())) } else { Poll::Pending }
        })
        .await
    }

    async fn linger(&self) {
        poll_fn(|_| if self.lingers.load(Ordering::Relaxed) { Poll::Pending } else { Poll::Ready(()) }).await;
    }
}

/// The channels of a cell, which the test opens and accepts.
#[derive(Default)]
struct TestChannels {
    opening: Mutex<Vec<(String, OpeningSocket)>>,
    listening: Mutex<Vec<(String, ListeningSocket)>>,
}

impl CellChannels for TestChannels {
    fn open(&self, cell: &str, service: &str, socket: OpeningSocket) {
        self.opening.lock().unwrap().push((format!("{cell}/{service}"), socket));
    }

    fn listen(&self, service: &str, socket: ListeningSocket) -> BoxFuture<'static, Result<(), Errno>> {
        let mut listening = self.listening.lock().unwrap();
        let result = if listening.iter().any(|(name, _)| name == service) {
            Err(Errno::EADDRINUSE)
        } else {
            listening.push((service.to_owned(), socket));
            Ok(())
        };
        Box::pin(async move { result })
    }
}

/// A cell named `web`, and the tasks of its first core.
struct Cell {
    system: System,
    channels: Arc<TestChannels>,
    tasks: Vec<Pin<Box<dyn Future<Output = ()>>>>,
}

impl Cell {
    fn new() -> Self {
        let system = System::new();
        let channels = Arc::new(TestChannels::default());
        system.with(|caller| {
            for folder in [&b"/run"[..], b"/run/isola"] {
                common::now(caller.files.make_directory_at(AT_FDCWD, folder, 0o755)).unwrap();
            }
            let point = common::now(caller.files.locate(AT_FDCWD, b"/run/isola", LastLink::Follow)).unwrap();
            let files = MountedFileSystem::new(ServicesFs::new("web", channels.clone()));
            system.view.namespace().mount(&point, files, b"services", MountFlags::default()).unwrap();
        });
        Self { system, channels, tasks: Vec::new() }
    }

    /// Polls the tasks until they have done all they can.
    fn run(&mut self) {
        for _ in 0..20 {
            self.tasks
                .retain_mut(|task| task.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        }
    }

    fn add(&mut self, task: impl Future<Output = ()> + 'static) {
        self.tasks.push(Box::pin(task));
        self.run();
    }

    /// Begins to connect a socket.
    fn begin(&self, kind: SocketKind, path: &str) -> Arc<OpenFile> {
        let file = self.system.socket(kind);
        assert_eq!(self.system.connect(&file, &at(path)), Err(Errno::EINPROGRESS));
        file
    }

    /// Answers the oldest socket that waits for a channel. Returns the name of its service.
    fn answer(&mut self, answer: Result<TestChannel, Errno>) -> String {
        let (name, socket) = self.channels.opening.lock().unwrap().remove(0);
        self.add(socket.run(async move { answer }));
        name
    }

    /// Returns a connected socket, and the other end of its channel.
    fn connected(&mut self, kind: SocketKind) -> (Arc<OpenFile>, TestChannel) {
        let file = self.begin(kind, "/run/isola/kv/get");
        let (own, other) = TestChannel::pair();
        assert_eq!(self.answer(Ok(own)), "kv/get");
        (file, other)
    }

    /// Returns a socket that listens for a service of the cell.
    fn listener(&self, kind: SocketKind, path: &str) -> Result<Arc<OpenFile>, Errno> {
        let file = self.system.socket(kind);
        self.system.bind(&file, &at(path))?;
        self.system.listen(&file, 0)?;
        Ok(file)
    }

    /// Opens a channel to a service of the cell.
    fn open(&mut self, service: &str) -> TestChannel {
        let (own, other) = TestChannel::pair();
        let listening = self.channels.listening.lock().unwrap();
        let socket = listening.iter().find(|(name, _)| name == service).unwrap().1.clone();
        drop(listening);
        self.add(async move {
            if let Some(channel) = socket.next(async { own }).await
                && let Some(end) = socket.connect(MOST_BYTES).await
            {
                end.carry(channel).await;
            }
        });
        other
    }
}

fn events(file: &OpenFile) -> Events {
    of(file).ready()
}

fn shutdown(file: &OpenFile, receive: bool, send: bool) {
    of(file).shutdown(Shutdown { receive, send }).unwrap();
}

#[test]
fn a_program_connects_to_a_service_of_another_cell() {
    for kind in [SocketKind::Stream, SocketKind::SeqPacket] {
        let mut cell = Cell::new();
        let file = cell.begin(kind, "/run/isola/kv/get");
        assert_eq!(events(&file), Events::NONE, "it waits");
        assert_eq!(cell.system.connect(&file, &at("/run/isola/kv/get")), Err(Errno::EALREADY));
        assert!(send(&file, b"early").is_err());
        let (own, other) = TestChannel::pair();
        assert_eq!(cell.answer(Ok(own)), "kv/get");
        assert_eq!(events(&file), Events::OUT);
        assert_eq!(of(&file).take_error(), None);
        assert_eq!(cell.system.connect(&file, &at("/run/isola/kv/get")), Err(Errno::EISCONN));
        assert_eq!(of(&file).peer_address(), Ok(at("/run/isola/kv/get")));
        // No process, and the user that Linux shows for those it does not know.
        let credentials = socket_file(&file).option(SOL_SOCKET, SO_PEERCRED).unwrap();
        assert_eq!(credentials, [[0; 4], 65_534_u32.to_ne_bytes(), 65_534_u32.to_ne_bytes()].concat());

        assert_eq!(send(&file, b"one"), Ok(3));
        cell.run();
        assert_eq!(other.take().unwrap(), b"one");
        assert!(other.put(b"answer") && other.put(b"next"));
        cell.run();
        assert_eq!(events(&file), Events::IN | Events::OUT);
        let expected: &[u8] = if kind == SocketKind::Stream { b"answernext" } else { b"answer" };
        assert_eq!(receive(&file, 50).unwrap(), expected);
        // A program that wants less than a packet: the rest of a message is lost, that of a stream is not.
        assert!(other.put(b"12345"));
        cell.run();
        if kind == SocketKind::SeqPacket {
            assert_eq!(receive(&file, 50).unwrap(), b"next");
            let (bytes, message) = receive_message(&file, 2, MessageFlags::NONE).unwrap();
            assert_eq!((bytes, message.len, message.flags), (b"12".to_vec(), 5, MessageFlags::TRUNC));
        } else {
            assert_eq!(receive(&file, 2).unwrap(), b"12");
            assert_eq!(receive(&file, 9).unwrap(), b"345");
        }
        assert_eq!(receive(&file, 9), Err(Errno::EAGAIN));
    }
}

#[test]
fn long_messages_are_refused_and_long_streams_are_packets() {
    let mut cell = Cell::new();
    let (file, other) = cell.connected(SocketKind::SeqPacket);
    assert_eq!(send(&file, &[1; MOST_BYTES]), Ok(MOST_BYTES));
    assert_eq!(send(&file, &[1; MOST_BYTES + 1]), Err(Errno::EMSGSIZE));
    // Open files stay in the cell.
    let [passed, _] = cell.system.pair(SocketKind::Stream);
    assert_eq!(send_files(&file, b"x", &[&passed]), Err(Errno::EOPNOTSUPP));
    // An empty message would be the end.
    assert_eq!(send(&file, b""), Ok(0));
    cell.run();
    assert_eq!(other.take().unwrap(), [1; MOST_BYTES]);
    assert_eq!(other.take(), None);

    let (file, other) = cell.connected(SocketKind::Stream);
    let bytes: Vec<u8> = (0..250).collect();
    assert_eq!(send(&file, &bytes), Ok(250));
    cell.run();
    let packets: Vec<_> = std::iter::from_fn(|| other.take()).collect();
    assert_eq!(packets.iter().map(Vec::len).collect::<Vec<_>>(), [100, 100, 50]);
    assert_eq!(packets.concat(), bytes);
}

#[test]
fn errors_of_connect_are_those_of_the_channel() {
    let mut cell = Cell::new();
    for error in [Errno::ENOENT, Errno::EACCES, Errno::ECONNREFUSED, Errno::ENOBUFS] {
        let file = cell.begin(SocketKind::Stream, "/run/isola/kv/get");
        cell.answer(Err(error));
        assert!(events(&file).intersects(Events::ERR));
        assert_eq!(of(&file).take_error(), Some(error));
        // The program tries again.
        assert_eq!(cell.system.connect(&file, &at("/run/isola/kv/get")), Err(Errno::EINPROGRESS));
        let (own, _other) = TestChannel::pair();
        cell.answer(Ok(own));
        assert_eq!(send(&file, b"x"), Ok(1));
    }
    // A call that waits returns it.
    let file = cell.system.socket(SocketKind::Stream);
    let address = at("/run/isola/kv/get");
    cell.system.with(|caller| {
        let mut call = Box::pin(socket_file(&file).connect(&address, Waiting::Permitted, caller));
        assert_eq!(common::poll(&mut call), Poll::Pending);
        let (_, socket) = cell.channels.opening.lock().unwrap().remove(0);
        common::now(socket.run(async { Err::<TestChannel, _>(Errno::EACCES) }));
        assert_eq!(common::poll(&mut call), Poll::Ready(Err(Errno::EACCES)));
    });
    let datagrams = cell.system.socket(SocketKind::Datagram);
    assert_eq!(cell.system.connect(&datagrams, &address), Err(Errno::EPROTOTYPE));
    assert_eq!(cell.system.send_to(&datagrams, b"x", address), Err(Errno::EPROTOTYPE));
    // Names that no service can have.
    for path in ["/run/isola/kv/a-name-of-25-bytes-is-long", "/run/isola/kv", "/run/isola/kv/get/more"] {
        let file = cell.system.socket(SocketKind::Stream);
        let error = cell.system.connect(&file, &at(path)).unwrap_err();
        assert!(matches!(error, Errno::ENOENT | Errno::ECONNREFUSED | Errno::ENOTDIR), "{path}: {error}");
    }
    assert!(cell.channels.opening.lock().unwrap().is_empty());
}

#[test]
fn a_socket_that_is_closed_while_it_waits_leaves_no_channel() {
    let mut cell = Cell::new();
    let file = cell.begin(SocketKind::Stream, "/run/isola/kv/get");
    let (_, socket) = cell.channels.opening.lock().unwrap().remove(0);
    cell.add(socket.run(std::future::pending::<Result<TestChannel, Errno>>()));
    assert_eq!(cell.tasks.len(), 1);
    drop(file);
    cell.run();
    assert!(cell.tasks.is_empty(), "the task does not wait for the channel");
    // The channel opens after the close.
    let file = cell.begin(SocketKind::Stream, "/run/isola/kv/get");
    drop(file);
    let (own, other) = TestChannel::pair();
    cell.answer(Ok(own));
    assert!(other.is_closed());
    assert!(cell.tasks.is_empty());
    assert_eq!(cell.system.unix.socket_count(), 0);
}

#[test]
fn a_program_serves_other_cells_and_its_own() {
    for (kind, folder) in [(SocketKind::Stream, "self"), (SocketKind::SeqPacket, "web")] {
        let mut cell = Cell::new();
        let path = format!("/run/isola/{folder}/echo");
        let listener = cell.listener(kind, &path).unwrap();
        assert_eq!(accept(&listener).err(), Some(Errno::EAGAIN));
        let first = cell.open("echo");
        // The queue has one place: the second channel waits.
        let second = cell.open("echo");
        assert!(first.put(b"hello"));
        cell.run();
        assert_eq!(events(&listener), Events::IN);
        let file = accept(&listener).unwrap();
        let credentials = socket_file(&file).option(SOL_SOCKET, SO_PEERCRED).unwrap();
        assert_eq!(credentials[4..8], 65_534_u32.to_ne_bytes());
        cell.run();
        assert_eq!(receive(&file, 10).unwrap(), b"hello");
        assert_eq!(send(&file, b"echo"), Ok(4));
        let other = accept(&listener).unwrap();
        cell.run();
        assert_eq!(first.take().unwrap(), b"echo");
        assert!(second.put(b"again"));
        cell.run();
        assert_eq!(receive(&other, 10).unwrap(), b"again");
        // A process of the cell connects without a channel.
        let own = cell.system.socket(kind);
        cell.system.connect(&own, &at("/run/isola/web/echo")).unwrap();
        let served = accept(&listener).unwrap();
        send(&own, b"near").unwrap();
        assert_eq!(receive(&served, 10).unwrap(), b"near");
        // A closed listener refuses those that wait.
        let waits = cell.open("echo");
        let late = cell.open("echo");
        drop(listener);
        cell.run();
        assert!(waits.is_closed() && late.is_closed());
        assert!(!second.is_closed());
    }
}

#[test]
fn names_of_services_are_files_of_the_own_folder() {
    let cell = Cell::new();
    let path = "/run/isola/self/echo";
    let listener = cell.listener(SocketKind::Stream, path).unwrap();
    assert_eq!(cell.listener(SocketKind::Stream, path).err(), Some(Errno::EADDRINUSE));
    // A second socket of a name whose former owner listens on.
    cell.system.with(|caller| {
        let files = caller.files;
        let socket = common::now(files.locate(AT_FDCWD, path.as_bytes(), LastLink::Keep)).unwrap();
        let change = AttributeChange { permissions: Some(0o600), ..AttributeChange::default() };
        common::now(socket.inode().set_attributes(&change)).unwrap();
        assert_eq!(socket.inode().metadata().permissions, 0o600);
        for folder in ["self", "web"] {
            let folder = format!("/run/isola/{folder}/");
            let folder = common::now(files.locate(AT_FDCWD, folder.as_bytes(), LastLink::Follow)).unwrap();
            let names = common::now(folder.inode().list(files.ids)).unwrap();
            assert_eq!(names.iter().map(|entry| &entry.name[..]).collect::<Vec<_>>(), [b"echo"]);
        }
        let create = |path: &str, content| {
            common::now(files.create_at(AT_FDCWD, path.as_bytes(), content, 0o777)).err()
        };
        assert_eq!(create("/run/isola/self/file", NewContent::File), Some(Errno::EPERM));
        assert_eq!(
            create("/run/isola/self/a-name-of-25-bytes-is-long", NewContent::Socket),
            Some(Errno::ENAMETOOLONG)
        );
        assert_eq!(create("/run/isola/kv/get", NewContent::Socket), Some(Errno::EEXIST));
        assert_eq!(create("/run/isola/folder", NewContent::Directory), Some(Errno::EEXIST));
    });
    // Another user may not connect to a socket that is its owner's, and not remove its name.
    let user = Credentials { user: 1000, group: 1000, groups: Arc::from([]), capabilities: 0 };
    let file = cell.system.socket(SocketKind::Stream);
    cell.system.with_credentials(&user, |caller| {
        let connect = common::now(of(&file).connect(&at(path), Waiting::Refused, caller));
        assert_eq!(connect, Err(Errno::EACCES));
        assert_eq!(common::now(caller.files.unlink_at(AT_FDCWD, path.as_bytes(), 0)), Err(Errno::EPERM));
        let own = at("/run/isola/self/users");
        common::now(of(&file).bind(&own, caller)).unwrap();
    });
    cell.system.with(|caller| common::now(caller.files.unlink_at(AT_FDCWD, path.as_bytes(), 0)).unwrap());
    // The channels of the name are still those of the first socket.
    let second = cell.system.socket(SocketKind::Stream);
    cell.system.bind(&second, &at(path)).unwrap();
    assert_eq!(cell.system.listen(&second, 1), Err(Errno::EADDRINUSE));
    drop(listener);
}

#[test]
fn the_end_of_a_direction_is_an_empty_packet() {
    let mut cell = Cell::new();
    let (file, other) = cell.connected(SocketKind::Stream);
    send(&file, b"last").unwrap();
    shutdown(&file, false, true);
    cell.run();
    assert_eq!((other.take().unwrap(), other.take().unwrap()), (b"last".to_vec(), Vec::new()));
    assert_eq!(send(&file, b"more"), Err(Errno::EPIPE));
    // The other direction is open.
    assert!(other.put(b"answer"));
    cell.run();
    assert_eq!(receive(&file, 10).unwrap(), b"answer");
    assert!(!other.is_closed());
    assert!(other.put(b"") && other.put(b"behind the end"));
    cell.run();
    assert_eq!(receive(&file, 10), Ok(Vec::new()));
    assert!(events(&file).intersects(Events::HUP));
    assert!(other.is_closed(), "both directions have ended");
    assert!(cell.tasks.is_empty());

    // A direction that the program has ended before the channel was open.
    let file = cell.begin(SocketKind::Stream, "/run/isola/kv/get");
    shutdown(&file, false, true);
    let (own, other) = TestChannel::pair();
    cell.answer(Ok(own));
    assert_eq!(other.take(), Some(Vec::new()));
    drop(file);

    // The other cell ends its direction first, and closes the channel then.
    let (file, other) = cell.connected(SocketKind::Stream);
    assert!(other.put(b"all") && other.put(b""));
    cell.run();
    assert_eq!(send(&file, b"answer"), Ok(6));
    cell.run();
    assert_eq!(other.take().unwrap(), b"answer");
    drop(other);
    cell.run();
    assert_eq!(receive(&file, 10).unwrap(), b"all");
    assert_eq!(receive(&file, 10), Ok(Vec::new()));
    assert_eq!(send(&file, b"x"), Err(Errno::EPIPE));
}

#[test]
fn a_channel_that_is_cut_off_is_an_error_behind_its_bytes() {
    let mut cell = Cell::new();
    let (file, other) = cell.connected(SocketKind::Stream);
    assert!(other.put(b"some"));
    cell.run();
    drop(other);
    cell.run();
    assert!(events(&file).intersects(Events::HUP));
    assert_eq!(receive(&file, 10).unwrap(), b"some");
    assert_eq!(receive(&file, 10), Err(Errno::ECONNRESET));
    assert_eq!(receive(&file, 10), Ok(Vec::new()));
    assert_eq!(send(&file, b"x"), Err(Errno::EPIPE));
    assert!(cell.tasks.is_empty());
}

#[test]
fn a_closed_program_waits_until_its_messages_are_read() {
    let mut cell = Cell::new();
    let (file, other) = cell.connected(SocketKind::SeqPacket);
    for number in 0..10 {
        send(&file, &[number; 3]).unwrap();
    }
    drop(file);
    for number in 0..10 {
        cell.run();
        assert!(!other.is_closed());
        assert_eq!(other.take().unwrap(), [number; 3]);
    }
    cell.run();
    assert_eq!(other.take().unwrap(), b"");
    cell.run();
    assert!(other.is_closed());
    assert_eq!(cell.system.unix.socket_count(), 0);

    // Unread messages: the channel has no proper end, as a reset connection.
    let (file, other) = cell.connected(SocketKind::Stream);
    assert!(other.put(b"unread"));
    cell.run();
    send(&file, b"last").unwrap();
    drop(file);
    cell.run();
    assert_eq!((other.take().unwrap(), other.take()), (b"last".to_vec(), None));
    cell.run();
    assert!(other.is_closed());

    // A peer that does not read keeps it for a limited time only.
    let (file, other) = cell.connected(SocketKind::Stream);
    let lingers = Arc::new(AtomicBool::new(true));
    let (own, stuck) = TestChannel::pair();
    let own = TestChannel { lingers: lingers.clone(), out: own.out.clone(), back: own.back.clone() };
    drop((file, other));
    let file = cell.begin(SocketKind::Stream, "/run/isola/kv/get");
    cell.answer(Ok(own));
    send(&file, b"unread").unwrap();
    cell.run();
    drop(file);
    cell.run();
    assert_eq!(cell.system.unix.socket_count(), 1);
    lingers.store(false, Ordering::Relaxed);
    cell.run();
    assert!(stuck.take().is_none());
    assert_eq!(cell.system.unix.socket_count(), 0);
}

#[test]
fn a_flood_fills_the_buffer_of_its_socket_and_no_more() {
    let mut cell = Cell::new();
    let (file, other) = cell.connected(SocketKind::Stream);
    let mut sent = 0;
    while other.put(&[7; MOST_BYTES]) {
        sent += MOST_BYTES;
        cell.run();
        assert!(sent < 1 << 20, "the writer waits");
    }
    let buffer = of(&file).settings().send_buffer();
    let held = of(&file).readable_len().unwrap();
    assert!(held <= buffer && sent - held <= CAPACITY * MOST_BYTES + MOST_BYTES, "{held} of {sent}");
    // The program reads on, and all arrives.
    let mut received = 0;
    while received < sent {
        received += receive(&file, 4096).unwrap().len();
        cell.run();
    }
    assert_eq!(received, sent);
    // A program that receives no more: the packets are discarded, and the writer does not wait.
    shutdown(&file, true, false);
    for _ in 0..100 {
        assert!(other.put(b"nothing"));
        cell.run();
    }
    assert_eq!(receive(&file, 10), Ok(Vec::new()));
    // The other way: the send buffer fills.
    let mut accepted = 0;
    while send(&file, &[1; 1000]).is_ok() {
        accepted += 1000;
        cell.run();
    }
    assert!(accepted <= buffer + CAPACITY * MOST_BYTES + 1000 && !events(&file).intersects(Events::OUT));
}

proptest! {
    /// Bytes between two programs arrive in their order, whatever the sizes of the calls and the order of the tasks.
    #[test]
    fn streams_between_cells_keep_their_bytes(
        steps in proptest::collection::vec((0..6_u8, 1..400_usize), 1..80),
    ) {
        let (mut one, mut other) = (Cell::new(), Cell::new());
        let listener = other.listener(SocketKind::Stream, "/run/isola/self/sink").unwrap();
        let client = one.begin(SocketKind::Stream, "/run/isola/web2/sink");
        let (own, peer) = TestChannel::pair();
        one.answer(Ok(own));
        let socket = other.channels.listening.lock().unwrap()[0].1.clone();
        other.add(async move {
            if let Some(end) = socket.connect(MOST_BYTES).await {
                end.carry(peer).await;
            }
        });
        let server = accept(&listener).unwrap();
        let ends = [&client, &server];
        let mut sent = [Vec::new(), Vec::new()];
        let mut received = [Vec::new(), Vec::new()];
        let mut next = 0_u8;
        for (step, len) in steps {
            let side = usize::from(step % 2);
            match step / 2 {
                0 => {
                    let bytes: Vec<u8> = (0..len).map(|index| (index as u8).wrapping_add(next)).collect();
                    next = next.wrapping_add(31);
                    if let Ok(count) = send(ends[side], &bytes) {
                        sent[side].extend_from_slice(&bytes[..count]);
                    }
                }
                1 => {
                    if let Ok(bytes) = receive(ends[1 - side], len) {
                        received[side].extend(bytes);
                    }
                }
                _ => if side == 0 { one.run() } else { other.run() },
            }
        }
        shutdown(&client, false, true);
        shutdown(&server, false, true);
        for side in [0, 1] {
            loop {
                one.run();
                other.run();
                match receive(ends[1 - side], 4096) {
                    Ok(bytes) if bytes.is_empty() => break,
                    Ok(bytes) => received[side].extend(bytes),
                    Err(Errno::EAGAIN) => {}
                    Err(error) => panic!("{error}"),
                }
            }
        }
        prop_assert_eq!(sent, received);
        one.run();
        other.run();
        prop_assert!(one.tasks.is_empty() && other.tasks.is_empty());
    }
}
