//! The internet sockets of Linux processes: TCP and UDP over IPv4 and IPv6, on the cell's own network stack.
//!
//! ```text
//!   a thread, on any core          Internet: ports -> bindings          the core of the connection
//!   TcpSocket: send ────────────> queue of bytes to send ─────────────> Handler ──> isola_net::TcpConnection
//!              receive <──────── queue of received views <───────────── Handler <──
//!   TcpSocket: send ────────────> queue of received views of the peer   (both ends in this cell)
//! ```
//!
//! - [`Internet`]: the ports of the cell, and the families `AF_INET` and `AF_INET6`.
//! - `tcp`: a socket has a lock, queues for both directions, and the identity of its connection. A thread on the
//!   connection's core sends to the stack directly; a thread on another core leaves its bytes in the queue, and wakes the
//!   connection's core once. Connections move with their flows, as their handlers have no state of a core.
//! - `udp`: a socket has a queue of received datagrams. The core that bound the port delivers and sends.
//! - [`CellInterfaces`]: the interfaces that programs see.
//!
//! **Loopback.** A connection between two sockets of this cell does not use the stack: a sender appends to its peer's
//! queue.
//!
//! **Locks** are spin locks, held for a few instructions. The locks of two sockets are never held together; the lock of the
//! ports is taken without that of a socket.
//!
//! Not here: raw sockets, groups, IP options, the queue of errors (docs/linux.md).
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod address;
mod bytes;
mod families;
mod interfaces;
mod options;
mod ports;
mod tcp;
mod udp;

pub use families::Internet;
pub use interfaces::CellInterfaces;
