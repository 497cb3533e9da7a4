//! Messages: flags of calls, and the data beside the bytes.

use crate::address::SocketAddress;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;
use isola_linux_files::OpenFile;

/// Flags of a message (`MSG_*`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MessageFlags(pub u32);

impl MessageFlags {
    /// No flags.
    pub const NONE: Self = Self(0);
    /// Urgent data.
    pub const OOB: Self = Self(0x1);
    /// The message stays in the queue.
    pub const PEEK: Self = Self(0x2);
    /// Only to hosts of the local networks.
    pub const DONTROUTE: Self = Self(0x4);
    /// Received: control data did not fit.
    pub const CTRUNC: Self = Self(0x8);
    /// Asked: return the length of the message. Received: the message did not fit.
    pub const TRUNC: Self = Self(0x20);
    /// The call does not wait.
    pub const DONTWAIT: Self = Self(0x40);
    /// The end of a record.
    pub const EOR: Self = Self(0x80);
    /// Wait until the buffer is full.
    pub const WAITALL: Self = Self(0x100);
    /// Confirms that the peer is reachable.
    pub const CONFIRM: Self = Self(0x800);
    /// Read the queue of errors.
    pub const ERRQUEUE: Self = Self(0x2000);
    /// No SIGPIPE.
    pub const NOSIGNAL: Self = Self(0x4000);
    /// More data follows at once.
    pub const MORE: Self = Self(0x8000);
    /// `recvmmsg` waits for the first message only.
    pub const WAITFORONE: Self = Self(0x1_0000);
    /// Send without a copy.
    pub const ZEROCOPY: Self = Self(0x400_0000);
    /// Connect and send at once.
    pub const FASTOPEN: Self = Self(0x2000_0000);
    /// Received descriptors are closed by `exec`.
    pub const CMSG_CLOEXEC: Self = Self(0x4000_0000);

    /// Returns whether all these flags are set.
    pub fn has(self, flags: Self) -> bool {
        self.0 & flags.0 == flags.0
    }

    /// Adds flags.
    pub fn add(&mut self, flags: Self) {
        self.0 |= flags.0;
    }
}

impl core::ops::BitOr for MessageFlags {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// The credentials of a process, as `SCM_CREDENTIALS` and `SO_PEERCRED` have them (`struct ucred`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerCredentials {
    /// The process; 0 if it is unknown.
    pub process: u32,
    /// The user.
    pub user: u32,
    /// The group.
    pub group: u32,
}

impl PeerCredentials {
    /// The credentials of an unknown process: the ids of the overflow user.
    pub const UNKNOWN: Self = Self { process: 0, user: 65534, group: 65534 };

    /// Returns `struct ucred`.
    pub fn encode(self) -> [u8; 12] {
        let words = [self.process, self.user, self.group].map(u32::to_ne_bytes);
        core::array::from_fn(|index| words[index / 4][index % 4])
    }

    /// Parses `struct ucred`.
    pub fn parse(bytes: [u8; 12]) -> Self {
        let word = |at: usize| u32::from_ne_bytes(core::array::from_fn(|index| bytes[at + index]));
        Self { process: word(0), user: word(4), group: word(8) }
    }
}

/// A control message whose meaning only the family knows, such as `IP_PKTINFO`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlMessage {
    /// The protocol (`cmsg_level`).
    pub level: u32,
    /// The type (`cmsg_type`).
    pub kind: u32,
    /// The data.
    pub data: Vec<u8>,
}

/// Data beside the bytes of a message.
#[derive(Debug, Default)]
pub struct Ancillary {
    /// Open files that are passed (`SCM_RIGHTS`).
    pub rights: Vec<Arc<OpenFile>>,
    /// Credentials (`SCM_CREDENTIALS`).
    pub credentials: Option<PeerCredentials>,
    /// Messages of other levels.
    pub others: Vec<ControlMessage>,
}

impl Ancillary {
    /// Returns whether there is none.
    pub fn is_empty(&self) -> bool {
        self.rights.is_empty() && self.credentials.is_none() && self.others.is_empty()
    }
}

/// A destination that [`Socket::destination`](crate::Socket::destination) has found, in the family's own form.
pub type Destination = Arc<dyn Any + Send + Sync>;

/// A message to send, beside its bytes.
#[derive(Default)]
pub struct SentMessage {
    /// The flags of the call.
    pub flags: MessageFlags,
    /// The address of the receiver, if the call has one.
    pub address: Option<SocketAddress>,
    /// That receiver, in the family's form.
    pub destination: Option<Destination>,
    /// The data beside the bytes. A socket takes it when it accepts the first byte, or the message.
    pub ancillary: Ancillary,
    /// The credentials of the sender, for receivers with `SO_PASSCRED`.
    pub sender: Option<PeerCredentials>,
}

/// A received message, beside its bytes.
#[derive(Debug, Default)]
pub struct ReceivedMessage {
    /// The length of the whole message, also if the buffer was shorter.
    pub len: usize,
    /// [`MessageFlags::TRUNC`] if the message did not fit, [`MessageFlags::EOR`].
    pub flags: MessageFlags,
    /// The sender, if the family reports it.
    pub address: Option<SocketAddress>,
    /// The data beside the bytes.
    pub ancillary: Ancillary,
}
