//! The interface of a socket.

use crate::Errno;
use crate::address::SocketAddress;
use crate::message::{Destination, MessageFlags, PeerCredentials, ReceivedMessage, SentMessage};
use crate::settings::SocketSettings;
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;
use isola_linux_abi::net::{SOCK_DGRAM, SOCK_RAW, SOCK_SEQPACKET, SOCK_STREAM};
use isola_linux_files::{Caller, Events, Outcome, Pollee};
use isola_linux_memory::{BoxFuture, UserBuffer};

/// The type of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketKind {
    /// A stream of bytes.
    Stream,
    /// Messages without a connection.
    Datagram,
    /// Messages of a protocol that the program builds itself.
    Raw,
    /// Messages of a connection.
    SeqPacket,
}

impl SocketKind {
    /// Returns the type of the number (`SOCK_*`), without the flags.
    pub fn of_number(number: u32) -> Option<Self> {
        match number {
            SOCK_STREAM => Some(Self::Stream),
            SOCK_DGRAM => Some(Self::Datagram),
            SOCK_RAW => Some(Self::Raw),
            SOCK_SEQPACKET => Some(Self::SeqPacket),
            _ => None,
        }
    }

    /// Returns the number.
    pub fn number(self) -> u32 {
        match self {
            Self::Stream => SOCK_STREAM,
            Self::Datagram => SOCK_DGRAM,
            Self::Raw => SOCK_RAW,
            Self::SeqPacket => SOCK_SEQPACKET,
        }
    }
}

/// Family, type and protocol of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketFacts {
    /// The family (`AF_*`).
    pub domain: u32,
    /// The type.
    pub kind: SocketKind,
    /// The protocol.
    pub protocol: u32,
}

/// The thread that executes a call.
#[derive(Clone, Copy)]
pub struct SocketCaller<'a> {
    /// Its directories, its credentials for files with its capabilities, its descriptors.
    pub files: &'a Caller<'a>,
    /// Its process, and its effective user and group.
    pub credentials: PeerCredentials,
}

impl SocketCaller<'_> {
    /// Checks a capability (`CAP_*`).
    ///
    /// # Errors
    /// [`Errno::EPERM`].
    pub fn check_capability(&self, capability: u32) -> Result<(), Errno> {
        if self.files.credentials.has_capability(capability) { Ok(()) } else { Err(Errno::EPERM) }
    }
}

/// Whether a call may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// It waits.
    Permitted,
    /// It returns at once (`O_NONBLOCK`, `MSG_DONTWAIT`).
    Refused,
}

/// Which directions `shutdown` ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shutdown {
    /// No more bytes are received.
    pub receive: bool,
    /// No more bytes are sent.
    pub send: bool,
}

/// A socket of an address family.
///
/// **Attempts.** [`Self::accept`], [`Self::send`] and [`Self::receive`] never wait: they return [`Errno::EAGAIN`], and
/// [`SocketFile`](crate::SocketFile) repeats them when [`Self::ready`] has an event, as `O_NONBLOCK`, `MSG_DONTWAIT`,
/// `SO_RCVTIMEO` and signals permit. Therefore [`Self::ready`] must not return [`Events::IN`] while `receive` (of a
/// listening socket: `accept`) returns EAGAIN, except with [`Events::RDHUP`], which ends waiting calls; after a `send` that returned EAGAIN, the same holds for
/// [`Self::wait_to_send`]. Otherwise the caller's loop would not end.
///
/// **Operations that may wait for other cores or files** return an [`Outcome`].
///
/// **State changes** that make an event true call [`Pollee::notify`], with no lock of the socket held.
///
/// **Locks.** All methods can be called from several cores at once.
pub trait Socket: Any + Send + Sync {
    /// Returns family, type and protocol.
    fn facts(&self) -> SocketFacts;

    /// Returns the options of `SOL_SOCKET`, which every socket has. After a change,
    /// [`Self::settings_changed`] is called.
    fn settings(&self) -> &SocketSettings;

    /// Notes that an option of [`Self::settings`] has changed.
    fn settings_changed(&self) {}

    /// Gives the socket an address. `address` can be of another family: then it is [`Errno::EAFNOSUPPORT`] or, for unix
    /// sockets, [`Errno::EINVAL`].
    fn bind<'a>(&'a self, address: &'a SocketAddress, caller: &'a SocketCaller<'a>) -> Outcome<'a, ()>;

    /// Accepts connections from now on. A further call changes the number of connections that wait. `backlog` is the
    /// number of the call, limited to `somaxconn`.
    fn listen<'a>(&'a self, _backlog: usize, _caller: &'a SocketCaller<'a>) -> Outcome<'a, ()> {
        Outcome::error(Errno::EOPNOTSUPP)
    }

    /// Attempts to take a connection. [`Errno::EINVAL`] if the socket does not listen.
    ///
    /// # Errors
    /// [`Errno::EAGAIN`] if none waits, and those of accept(2).
    fn accept(&self) -> Result<Arc<dyn Socket>, Errno> {
        Err(Errno::EOPNOTSUPP)
    }

    /// Connects to an address.
    ///
    /// A connection that takes its time is begun and returns [`Errno::EINPROGRESS`], and [`Errno::EALREADY`] while it is
    /// not complete, whatever `waiting` is: the caller waits for [`Events::OUT`] and then asks for [`Self::take_error`].
    /// A socket that has to wait before it can begin does so itself if `waiting` permits it, otherwise it returns
    /// [`Errno::EAGAIN`].
    fn connect<'a>(
        &'a self,
        address: &'a SocketAddress,
        waiting: Waiting,
        caller: &'a SocketCaller<'a>,
    ) -> Outcome<'a, ()>;

    /// Finds the receiver of an address with which a message is sent. It is called once before the attempts, and the result
    /// is [`SentMessage::destination`]. Families that need no look-up return `None`.
    fn destination<'a>(
        &'a self,
        _address: &'a SocketAddress,
        _caller: &'a SocketCaller<'a>,
    ) -> Outcome<'a, Option<Destination>> {
        Outcome::ok(None)
    }

    /// Attempts to send bytes from the buffer's position on, which it advances. A stream may accept a part, others accept
    /// the whole message or none of it. Returns the number of bytes.
    ///
    /// # Errors
    /// [`Errno::EAGAIN`] if there is no space; [`Errno::EPIPE`] (the caller sends the signal), and those of send(2).
    fn send(&self, buffer: &mut UserBuffer, message: &mut SentMessage) -> Result<usize, Errno>;

    /// Waits until a `send` that returned EAGAIN may succeed, or the socket has failed.
    fn wait_to_send<'a>(&'a self, _message: &'a SentMessage) -> BoxFuture<'a, ()> {
        Box::pin(async {
            self.pollee().wait(Events::OUT, || self.ready()).await;
        })
    }

    /// Attempts to receive bytes at the buffer's position, which it advances. Returns the number of bytes: 0 at the end of
    /// a stream. Of `flags`, only [`MessageFlags::PEEK`] and [`MessageFlags::OOB`] are the socket's;
    /// [`ReceivedMessage::len`] is the length of the whole message.
    ///
    /// # Errors
    /// [`Errno::EAGAIN`] if there are none, the pending error of the socket, and those of recv(2).
    fn receive(
        &self,
        buffer: &mut UserBuffer,
        flags: MessageFlags,
        message: &mut ReceivedMessage,
    ) -> Result<usize, Errno>;

    /// Ends directions of the connection.
    ///
    /// # Errors
    /// [`Errno::ENOTCONN`].
    fn shutdown(&self, how: Shutdown) -> Result<(), Errno>;

    /// Returns the socket's own address (`getsockname`).
    ///
    /// # Errors
    /// Those of getsockname(2).
    fn local_address(&self) -> Result<SocketAddress, Errno>;

    /// Returns the address of the peer (`getpeername`).
    ///
    /// # Errors
    /// [`Errno::ENOTCONN`].
    fn peer_address(&self) -> Result<SocketAddress, Errno>;

    /// Returns the pending error and clears it (`SO_ERROR`).
    fn take_error(&self) -> Option<Errno> {
        None
    }

    /// Returns whether the socket accepts connections (`SO_ACCEPTCONN`).
    fn is_listening(&self) -> bool {
        false
    }

    /// Returns the credentials of the peer (`SO_PEERCRED`).
    fn peer_credentials(&self) -> PeerCredentials {
        PeerCredentials { process: 0, user: u32::MAX, group: u32::MAX }
    }

    /// Returns the value of an option that is not in [`Self::settings`].
    ///
    /// # Errors
    /// [`Errno::ENOPROTOOPT`] for an unknown one, [`Errno::EOPNOTSUPP`] for an unknown level.
    fn option(&self, _level: u32, _name: u32) -> Result<Vec<u8>, Errno> {
        Err(Errno::ENOPROTOOPT)
    }

    /// Sets an option that is not in [`Self::settings`].
    ///
    /// # Errors
    /// [`Errno::ENOPROTOOPT`] for an unknown one, [`Errno::EINVAL`] for a bad value.
    fn set_option(
        &self,
        _level: u32,
        _name: u32,
        _value: &[u8],
        _caller: &SocketCaller<'_>,
    ) -> Result<(), Errno> {
        Err(Errno::ENOPROTOOPT)
    }

    /// Returns the number of bytes that can be received (`FIONREAD`).
    ///
    /// # Errors
    /// [`Errno::EINVAL`] for a listening socket.
    fn readable_len(&self) -> Result<usize, Errno>;

    /// Returns the number of bytes that were sent and that the peer has not taken (`SIOCOUTQ`).
    ///
    /// # Errors
    /// [`Errno::EINVAL`] for a listening socket.
    fn unsent_len(&self) -> Result<usize, Errno>;

    /// Executes a request of `ioctl` that is none of all sockets.
    fn control<'a>(&'a self, _request: u32, _argument: u64, _buffer: &'a mut UserBuffer) -> Outcome<'a, u64> {
        Outcome::error(Errno::ENOTTY)
    }

    /// Returns the events that are true now. A stream whose peer has ended its direction has [`Events::IN`] and
    /// [`Events::RDHUP`]; one that is closed in both directions, or not connected, has [`Events::HUP`].
    fn ready(&self) -> Events;

    /// Returns the observers.
    fn pollee(&self) -> &Pollee;

    /// Notes that the last descriptor was closed. The socket is dropped when its family holds no reference any more.
    fn close(&self);
}

impl dyn Socket {
    /// Returns the socket as a type of a family.
    pub fn downcast<T: Socket>(&self) -> Option<&T> {
        let any: &dyn Any = self;
        any.downcast_ref()
    }
}
