//! The sockets of Linux processes: the shape that all address families share, unix sockets, and netlink.
//!
//! ```text
//!   OpenFile -> SocketFile (waits, time limits, generic options) -> dyn Socket (attempts, readiness)
//!                   |                                                 ^
//!                   +-> Families: AF_UNIX, AF_NETLINK (here), AF_INET, AF_INET6 (registered by the cell)
//!                            \-> dyn NetworkInterfaces (netlink and SIOCGIF requests read it)
//! ```
//!
//! **To add a family**, implement [`Socket`] and [`AddressFamily`], and call [`Families::register`] for each domain. The
//! system calls, `read` and `write`, `poll` and `epoll`, `sendfile`, time limits, the options of [`SocketSettings`],
//! `MSG_DONTWAIT` and `MSG_WAITALL`, signals, and the lay-outs of addresses and control messages are done by the callers
//! of that interface:
//!
//! - `bind`, `listen` and `connect` return an [`Outcome`](isola_linux_files::Outcome), and may wait for other cores.
//! - `accept`, `send` and `receive` are attempts. Data moves directly between the program's frames and the family's buffers:
//!   [`UserBuffer::read`](isola_linux_memory::UserBuffer::read) and `write` copy once, and
//!   [`UserBuffer::advance`](isola_linux_memory::UserBuffer::advance) passes the frames themselves.
//! - [`Socket::ready`] computes the events, and [`Pollee::notify`](isola_linux_files::Pollee::notify) announces changes.
//! - Control messages that are neither `SCM_RIGHTS` nor `SCM_CREDENTIALS` arrive in [`Ancillary::others`], and a family
//!   returns its own there.
//! - Options that are not in [`SocketSettings`] arrive at [`Socket::option`] and [`Socket::set_option`].
//!
//! **Locks** are spin locks, held for a few instructions and never over an `await`; values whose drop may do more, such as
//! open files in flight, are dropped without them.
//!
//! Not here: the layouts of system calls (`isola-linux-processes`), TCP and UDP.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod address;
mod families;
mod interface_requests;
mod interfaces;
mod message;
mod netlink;
mod settings;
mod socket;
mod socket_file;
mod unix;

pub use address::{MOST_ADDRESS_LEN, SocketAddress, UNIX_PATH_LEN, UnixAddress};
pub use families::{AddressFamily, Families, SocketClock, SocketPair};
pub use interface_requests::interface_list;
pub use interfaces::{
    InterfaceAddress, InterfaceCounters, InterfaceKind, LoopbackOnly, NetworkInterface, NetworkInterfaces,
    Route, interface_flags,
};
pub use isola_linux_abi::Errno;
pub use message::{
    Ancillary, ControlMessage, Destination, MessageFlags, PeerCredentials, ReceivedMessage, SentMessage,
};
pub use netlink::NetlinkFamily;
pub use settings::{BUFFER_LEN, SocketSettings};
pub use socket::{Shutdown, Socket, SocketCaller, SocketFacts, SocketKind, Waiting};
pub use socket_file::SocketFile;
pub use unix::{
    CellChannels, ChannelEnd, ChannelEnded, ListeningSocket, MOST_IN_FLIGHT, MOST_RIGHTS, OpeningSocket,
    PacketChannel, ServicesFs, UnixFamily, UnixSocket,
};
