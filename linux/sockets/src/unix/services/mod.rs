//! Unix sockets whose peer is in another cell of the machine: services, by channels.
//!
//! ```text
//!   program          kernel                                        other cell
//!   UnixSocket <---> UnixSocket (its peer) <--- ChannelEnd ---> channel <---> native program, or the same
//! ```
//!
//! [`ServicesFs`] names the services. `connect` to such a name opens a channel; `listen` of a socket whose name is in the
//! directory of the own cell accepts channels. The socket's peer is a socket of the kernel, and a task moves messages
//! between that one and the channel. Therefore readiness, buffers, time limits and `shutdown` are those of all unix sockets,
//! and programs on any core use channels, which belong to the cell's first core.
//!
//! **Packets.** A message of a `SOCK_SEQPACKET` socket is a packet. Of a stream, a packet is a part of any length. An empty
//! packet ends the direction of its sender, as the end of a stream does. A channel that ends without one was cut off:
//! ECONNRESET. A sender's last packets are read before it closes the channel, as closing discards them.
//!
//! **A hostile cell** can send any bytes, fill the receive buffer of the socket to which it is connected, not read, and end.
//! A socket that the program has closed waits for a peer that does not read as long as [`PacketChannel::linger`].

mod end;
mod files;
mod listening;
mod opening;

pub use end::ChannelEnd;
pub use files::ServicesFs;
pub(super) use files::{OwnService, RemoteService};
pub use listening::ListeningSocket;
pub use opening::OpeningSocket;

use crate::Errno;
use crate::message::PeerCredentials;
use alloc::vec::Vec;
use core::future::poll_fn;
use core::pin::pin;
use core::task::Poll;
use isola_linux_memory::BoxFuture;

/// The credentials of a peer in another cell: no process and no user of this one, as Linux shows those of other namespaces.
const FOREIGN: PeerCredentials = PeerCredentials { process: 0, user: 65_534, group: 65_534 };

/// The other cell has closed the channel, or has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChannelEnded;

/// A channel to another cell.
pub trait PacketChannel {
    /// Returns the longest packet that can be written, in bytes.
    fn most_bytes(&self) -> usize;

    /// Writes a packet. Waits while the other cell does not read.
    fn write(&self, packet: &[u8]) -> impl Future<Output = Result<(), ChannelEnded>>;

    /// Reads the next packet into `packet`, replacing its contents.
    fn read(&self, packet: &mut Vec<u8>) -> impl Future<Output = Result<(), ChannelEnded>>;

    /// Waits until the other cell has read all packets.
    fn flush(&self) -> impl Future<Output = Result<(), ChannelEnded>>;

    /// Waits as long as a peer may take to read the last packets of a program that has closed its socket.
    fn linger(&self) -> impl Future<Output = ()>;
}

/// The channels of a cell. The methods may be called on any core.
pub trait CellChannels: Send + Sync {
    /// Opens a channel to a service of another cell, and passes it to [`OpeningSocket::run`], in a task.
    fn open(&self, cell: &str, service: &str, socket: OpeningSocket);

    /// Listens for a service. A task passes the channels to [`ListeningSocket::connect`] until the socket is closed.
    ///
    /// # Errors
    /// [`Errno::EADDRINUSE`] if the cell listens for it already, [`Errno::EOPNOTSUPP`] without channels.
    fn listen(&self, service: &str, socket: ListeningSocket) -> BoxFuture<'static, Result<(), Errno>>;
}

/// The first of two futures to complete.
enum FirstResult<A, B> {
    One(A),
    Other(B),
}

/// Waits for the first of two futures.
async fn first_of<A, B>(one: impl Future<Output = A>, other: impl Future<Output = B>) -> FirstResult<A, B> {
    let (mut one, mut other) = (pin!(one), pin!(other));
    poll_fn(|context| match one.as_mut().poll(context) {
        Poll::Ready(value) => Poll::Ready(FirstResult::One(value)),
        Poll::Pending => other.as_mut().poll(context).map(FirstResult::Other),
    })
    .await
}
