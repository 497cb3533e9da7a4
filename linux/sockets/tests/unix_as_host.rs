//! Random sequences of calls, on unix sockets of the personality and on the host's: both return the same.

mod common;

use common::{System, accept, named, of, receive_message, send_message};
use isola_linux_abi::numbers as linux;
use isola_linux_files::OpenFile;
use isola_linux_sockets::{
    Errno, MessageFlags, SentMessage, Shutdown, SocketAddress, SocketKind, UnixAddress,
};
use proptest::prelude::*;
use rustix::event::{PollFd, PollFlags, Timespec, poll as poll_host};
use rustix::io::Errno as HostErrno;
use rustix::net::{self, RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendFlags, SocketAddrUnix};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Calls in a sequence. The messages of so many fill no buffer, whose lengths differ.
const MOST_CALLS: usize = 40;
/// The length of the send buffers, on both sides.
const BUFFER_LEN: u32 = 212_992;
const NAMES: usize = 3;

#[derive(Clone, Debug)]
enum Call {
    Pair { kind: usize },
    Socket { kind: usize },
    Bind { socket: usize, name: usize },
    Listen { socket: usize, backlog: usize },
    Connect { socket: usize, name: usize },
    Disconnect { socket: usize },
    Accept { socket: usize },
    Send { socket: usize, len: usize, with_pipe: bool },
    SendTo { socket: usize, name: usize, len: usize },
    Receive { socket: usize, len: usize, flags: u32 },
    Shutdown { socket: usize, how: usize },
    Close { socket: usize },
    Poll { socket: usize },
    PeerName { socket: usize },
    Error { socket: usize },
    CloseFile,
    PollPipe { pipe: usize },
}

fn call() -> impl Strategy<Value = Call> {
    let socket = || 0..8_usize;
    let flags = prop_oneof![
        4 => Just(0),
        1 => Just(MessageFlags::PEEK.0),
        1 => Just(MessageFlags::TRUNC.0),
        1 => Just(MessageFlags::PEEK.0 | MessageFlags::TRUNC.0),
        1 => Just(MessageFlags::WAITALL.0),
    ];
    // Kernels differ about empty messages that a close finds.
    let len = || 1..200_usize;
    prop_oneof![
        3 => (0..3_usize).prop_map(|kind| Call::Pair { kind }),
        2 => (0..3_usize).prop_map(|kind| Call::Socket { kind }),
        2 => (socket(), 0..NAMES).prop_map(|(socket, name)| Call::Bind { socket, name }),
        2 => (socket(), 0..3_usize).prop_map(|(socket, backlog)| Call::Listen { socket, backlog }),
        4 => (socket(), 0..NAMES).prop_map(|(socket, name)| Call::Connect { socket, name }),
        1 => socket().prop_map(|socket| Call::Disconnect { socket }),
        3 => socket().prop_map(|socket| Call::Accept { socket }),
        9 => (socket(), len(), prop::bool::weighted(0.2))
            .prop_map(|(socket, len, with_pipe)| Call::Send { socket, len, with_pipe }),
        3 => (socket(), 0..NAMES, len()).prop_map(|(socket, name, len)| Call::SendTo { socket, name, len }),
        9 => (socket(), len(), flags).prop_map(|(socket, len, flags)| Call::Receive { socket, len, flags }),
        2 => (socket(), 0..3_usize).prop_map(|(socket, how)| Call::Shutdown { socket, how }),
        2 => socket().prop_map(|socket| Call::Close { socket }),
        5 => socket().prop_map(|socket| Call::Poll { socket }),
        1 => socket().prop_map(|socket| Call::PeerName { socket }),
        1 => socket().prop_map(|socket| Call::Error { socket }),
        1 => Just(Call::CloseFile),
        2 => (0..4_usize).prop_map(|pipe| Call::PollPipe { pipe }),
    ]
}

/// The result of a call: a number, bytes with flags, number of files and sender, or an error.
#[derive(Debug, PartialEq, Eq)]
enum Answer {
    Done,
    Number(u64),
    Message { bytes: Vec<u8>, len: usize, flags: u32, files: usize, from: Option<Vec<u8>> },
    Failed(i32),
}

fn own<T>(result: Result<T, Errno>, answer: impl FnOnce(T) -> Answer) -> Answer {
    result.map_or_else(|error| Answer::Failed(error.number().into()), answer)
}

fn host<T>(result: Result<T, HostErrno>, answer: impl FnOnce(T) -> Answer) -> Answer {
    result.map_or_else(|error| Answer::Failed(error.raw_os_error()), answer)
}

const KINDS: [(SocketKind, net::SocketType); 3] = [
    (SocketKind::Stream, net::SocketType::STREAM),
    (SocketKind::Datagram, net::SocketType::DGRAM),
    (SocketKind::SeqPacket, net::SocketType::SEQPACKET),
];

static NEXT_RUN: AtomicU64 = AtomicU64::new(0);

/// Both systems, with the same sockets at the same indices.
struct Both {
    system: System,
    sockets: Vec<Option<(Arc<OpenFile>, OwnedFd)>>,
    /// Ends for writing of pipes whose other ends were sent.
    pipes: Vec<(Arc<OpenFile>, OwnedFd)>,
    /// Received files.
    files: Vec<(Arc<OpenFile>, OwnedFd)>,
    prefix: String,
    sent: u8,
}

impl Both {
    fn new() -> Self {
        let run = NEXT_RUN.fetch_add(1, Ordering::Relaxed);
        let prefix = format!("isola-{}-{run}-", std::process::id());
        Self { system: System::new(), sockets: vec![], pipes: vec![], files: vec![], prefix, sent: 0 }
    }

    fn add(&mut self, file: Arc<OpenFile>, descriptor: OwnedFd) {
        net::sockopt::set_socket_send_buffer_size(&descriptor, BUFFER_LEN as usize).unwrap();
        let value = BUFFER_LEN.to_ne_bytes();
        let (level, name) = (isola_linux_abi::net::SOL_SOCKET, isola_linux_abi::net::SO_SNDBUF);
        let socket = common::socket_file(&file);
        self.system.with(|caller| socket.set_option(level, name, &value, caller)).unwrap();
        self.sockets.push(Some((file, descriptor)));
    }

    fn host_name(&self, name: usize) -> SocketAddrUnix {
        SocketAddrUnix::new_abstract_name(format!("{}{name}", self.prefix).as_bytes()).unwrap()
    }

    fn own_name(&self, name: usize) -> SocketAddress {
        named(&format!("{}{name}", self.prefix))
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        self.sent = self.sent.wrapping_add(1);
        (0..len).map(|at| self.sent.wrapping_add(at as u8)).collect()
    }

    /// Executes a call on both sides. Returns both answers.
    fn execute(&mut self, call: &Call) -> Option<(Answer, Answer)> {
        match *call {
            Call::Pair { kind } => {
                let (own_kind, host_kind) = KINDS[kind];
                let (domain, flags) = (net::AddressFamily::UNIX, net::SocketFlags::NONBLOCK);
                let (first, second) = net::socketpair(domain, host_kind, flags, None).unwrap();
                let [one, other] = self.system.pair(own_kind);
                self.add(one, first);
                self.add(other, second);
                return None;
            }
            Call::Socket { kind } => {
                let (own_kind, host_kind) = KINDS[kind];
                let (domain, flags) = (net::AddressFamily::UNIX, net::SocketFlags::NONBLOCK);
                let descriptor = net::socket_with(domain, host_kind, flags, None).unwrap();
                self.add(self.system.socket(own_kind), descriptor);
                return None;
            }
            Call::CloseFile => {
                self.files.pop();
                return None;
            }
            Call::PollPipe { pipe } => {
                let (file, descriptor) = self.pipes.get(pipe)?;
                let has_reader = |events: u32| Answer::Number((events & linux::EPOLLERR).into());
                return Some((has_reader(file.ready().0), has_reader(host_events(descriptor))));
            }
            _ => {}
        }
        let index = match *call {
            Call::Bind { socket, .. }
            | Call::Listen { socket, .. }
            | Call::Connect { socket, .. }
            | Call::Disconnect { socket }
            | Call::Accept { socket }
            | Call::Send { socket, .. }
            | Call::SendTo { socket, .. }
            | Call::Receive { socket, .. }
            | Call::Shutdown { socket, .. }
            | Call::Close { socket }
            | Call::Poll { socket }
            | Call::PeerName { socket }
            | Call::Error { socket } => socket,
            _ => return None,
        };
        if let Call::Close { .. } = call {
            self.sockets.get_mut(index)?.take();
            return None;
        }
        let new_bytes = match *call {
            Call::Send { len, .. } | Call::SendTo { len, .. } => self.bytes(len),
            _ => vec![],
        };
        let (file, descriptor) = self.sockets.get(index)?.as_ref()?;
        let file = file.clone();
        let done = |()| Answer::Done;
        Some(match *call {
            Call::Bind { name, .. } => (
                own(self.system.bind(&file, &self.own_name(name)), done),
                host(net::bind(descriptor, &self.host_name(name)), done),
            ),
            Call::Listen { backlog, .. } => (
                own(self.system.listen(&file, backlog), done),
                host(net::listen(descriptor, backlog as i32), done),
            ),
            Call::Connect { name, .. } => (
                own(self.system.connect(&file, &self.own_name(name)), done),
                host(net::connect(descriptor, &self.host_name(name)), done),
            ),
            Call::Disconnect { .. } => (
                own(self.system.connect(&file, &SocketAddress::Unspecified), done),
                host(net::connect_unspec(descriptor), done),
            ),
            Call::Accept { .. } => {
                match (accept(&file), net::accept_with(descriptor, net::SocketFlags::NONBLOCK)) {
                    (Ok(one), Ok(other)) => {
                        self.add(one, other);
                        return None;
                    }
                    (one, other) => (own(one, |_| Answer::Done), host(other, |_| Answer::Done)),
                }
            }
            Call::Send { with_pipe, .. } => {
                let mut message = SentMessage::default();
                let mut space = [MaybeUninit::uninit(); 64];
                let mut control = SendAncillaryBuffer::new(&mut space);
                let part = [IoSlice::new(&new_bytes)];
                let ends = with_pipe.then(|| {
                    (isola_linux_files::pipe(linux::O_NONBLOCK).unwrap(), rustix::pipe::pipe().unwrap())
                });
                let readers = ends.as_ref().map(|((_, _), (reader, _))| [reader.as_fd()]);
                if let (Some(readers), Some(((reader, _), _))) = (&readers, &ends) {
                    assert!(control.push(net::SendAncillaryMessage::ScmRights(readers)));
                    message.ancillary.rights.push(reader.clone());
                }
                let one = send_message(&file, &new_bytes, message);
                let other =
                    net::sendmsg(descriptor, &part, &mut control, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
                if let Some(((_, writer), (_, host_writer))) = ends {
                    self.pipes.push((writer, host_writer));
                }
                let number = |count| Answer::Number(count as u64);
                (own(one, number), host(other, number))
            }
            Call::SendTo { name, .. } => {
                let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
                let one = self.system.send_to(&file, &new_bytes, self.own_name(name));
                let other = net::sendto(descriptor, &new_bytes, flags, &self.host_name(name));
                let number = |count| Answer::Number(count as u64);
                (own(one, number), host(other, number))
            }
            Call::Receive { len, flags, .. } => {
                let one = receive_message(&file, len, MessageFlags(flags));
                let mut place = vec![0; len];
                let mut space = [MaybeUninit::uninit(); 512];
                let mut control = RecvAncillaryBuffer::new(&mut space);
                let host_flags = RecvFlags::from_bits_retain(flags) | RecvFlags::DONTWAIT;
                let mut parts = [IoSliceMut::new(&mut place)];
                let other = net::recvmsg(descriptor, &mut parts, &mut control, host_flags);
                // A peek at a stream passes the host's files of the message behind the last byte, too.
                let peeks = flags & MessageFlags::PEEK.0 != 0;
                let host_files: Vec<OwnedFd> = control
                    .drain()
                    .filter_map(|message| match message {
                        net::RecvAncillaryMessage::ScmRights(files) => Some(files.collect::<Vec<_>>()),
                        _ => None,
                    })
                    .flatten()
                    .collect();
                let is_stream = of(&file).facts().kind == SocketKind::Stream;
                let wants_len = flags & MessageFlags::TRUNC.0 != 0 && !is_stream;
                let host_answer = host(other, |message| Answer::Message {
                    bytes: place[..message.bytes.min(len)].to_vec(),
                    len: message.bytes,
                    flags: message.flags.bits() & !MessageFlags::CMSG_CLOEXEC.0,
                    files: if peeks { 0 } else { host_files.len() },
                    from: message.address.and_then(|address| {
                        let address = SocketAddrUnix::try_from(address).ok()?;
                        Some(address.abstract_name()?.to_vec())
                    }),
                });
                let mut rights = vec![];
                let own_answer = own(one, |(bytes, message)| {
                    rights = message.ancillary.rights;
                    Answer::Message {
                        len: if wants_len { message.len } else { bytes.len() },
                        bytes,
                        flags: message.flags.0,
                        files: if peeks { 0 } else { rights.len() },
                        from: message.address.and_then(|address| match address {
                            SocketAddress::Unix(UnixAddress::Abstract(name)) => Some(name.to_vec()),
                            _ => None,
                        }),
                    }
                });
                if !peeks {
                    self.files.extend(rights.into_iter().zip(host_files));
                }
                (own_answer, host_answer)
            }
            Call::Shutdown { how, .. } => {
                let (receive, send) = [(true, false), (false, true), (true, true)][how];
                let host_how = [net::Shutdown::Read, net::Shutdown::Write, net::Shutdown::Both][how];
                (
                    own(of(&file).shutdown(Shutdown { receive, send }), done),
                    host(net::shutdown(descriptor, host_how), done),
                )
            }
            Call::Poll { .. } => {
                let asked = host_asked().bits();
                let events = file.ready().0 & u32::from(asked);
                (Answer::Number(events.into()), Answer::Number(host_events(descriptor).into()))
            }
            Call::PeerName { .. } => (
                own(of(&file).peer_address(), |_| Answer::Done),
                host(net::getpeername(descriptor), |_| Answer::Done),
            ),
            Call::Error { .. } => {
                let error = of(&file).take_error().map_or(0, |error| error.number().into());
                let other = net::sockopt::socket_error(descriptor).unwrap();
                let other = other.err().map_or(0, |error| error.raw_os_error());
                (Answer::Number(error), Answer::Number(other as u64))
            }
            _ => return None,
        })
    }
}

fn host_asked() -> PollFlags {
    PollFlags::IN | PollFlags::OUT | PollFlags::PRI | PollFlags::RDHUP | PollFlags::ERR | PollFlags::HUP
}

fn host_events(descriptor: &OwnedFd) -> u32 {
    let mut entry = [PollFd::new(descriptor, host_asked())];
    poll_host(&mut entry, Some(&Timespec::default())).unwrap();
    entry[0].revents().bits().into()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn sequences_of_calls_have_the_answers_of_the_host(calls in prop::collection::vec(call(), 1..MOST_CALLS)) {
        let mut both = Both::new();
        for (index, call) in calls.iter().enumerate() {
            if let Some((own, host)) = both.execute(call) {
                prop_assert_eq!(own, host, "call {}: {:?}", index, call);
            }
        }
        // Closing everything closes the files in flight.
        both.sockets.clear();
        both.files.clear();
        for (file, descriptor) in &both.pipes {
            prop_assert_eq!(file.ready().0 & linux::EPOLLERR, linux::EPOLLERR);
            prop_assert_eq!(host_events(descriptor) & linux::EPOLLERR, linux::EPOLLERR);
        }
        prop_assert_eq!(both.system.unix.files_in_flight(), 0);
        prop_assert_eq!(both.system.unix.socket_count(), 0);
    }
}
