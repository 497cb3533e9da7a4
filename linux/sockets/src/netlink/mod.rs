//! Netlink sockets (netlink(7)) of the protocol `NETLINK_ROUTE`: questions about interfaces, addresses and routes.
//!
//! A request is answered when it is sent, and the answer waits in the queue of the socket. Nothing changes: requests that
//! would change the network are errors, and groups never get messages.

mod reply;
mod route;
mod socket;

pub use socket::NetlinkFamily;
