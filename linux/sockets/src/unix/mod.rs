//! Unix sockets (unix(7)): streams, datagrams and sequenced packets between the processes of a cell.
//!
//! A message is copied once from the sender's frames into the queue of its receiver, and once from there. A sender is charged
//! for its messages until they are received: that is the back-pressure (`SO_SNDBUF`). A queue of datagrams holds few
//! messages of senders to which its socket is not connected, as on Linux.
//!
//! **Locks.** A call holds the state of one socket at a time. Calls that pass open files hold [`Flight`](flight::Flight)
//! before it. Observers are notified without locks.

mod calls;
mod connections;
mod family;
mod flight;
mod names;
mod packet;
mod receive;
mod send;
mod services;
mod socket;

pub use family::UnixFamily;
pub use flight::{MOST_IN_FLIGHT, MOST_RIGHTS};
pub use services::{
    CellChannels, ChannelEnd, ChannelEnded, ListeningSocket, OpeningSocket, PacketChannel, ServicesFs,
};
pub use socket::UnixSocket;
