//! The network of hosted cells, and Linux sockets for them.
//!
//! | module | contents |
//! |---|---|
//! | [`linux`] | Linux sockets as futures, for code on a hosted core |
//! | [`gateway`] | [`start`]: a user-mode network without privileges |
//! | [`published`] | ports of the host that lead to the cell |
//! | [`outbound`] | connections and datagrams from the cell to the host |
//! | [`process`] | a process that is one cell, with the network of its specification |
//! | [`relay`] | the relay between a connection of the cell and one of Linux |
//!
//! The gateway is a cell of its own in the same process, with one core. A link in memory connects it to the cell that
//! it serves; on its other side it has Linux sockets:
//!
//! ```text
//!   application                      Linux
//!   the cell's stack                   sockets: 127.0.0.1, published ports
//!   10.0.2.15 ───── link ───── 10.0.2.2
//!                              the gateway's stack, and one task per connection
//! ```
//!
//! The addresses are those of QEMU's user-mode network, so that an application finds its host at the same address on
//! both platforms. The gateway buffers a bounded amount of each connection: one piece in each direction, and the
//! windows of both stacks.
//!
//! It reaches only the host, and there only `127.0.0.1`, not the host's other addresses. What is *not* here:
//! connections to other machines (for which `isola-hosted` has a TAP interface), DNS, and IPv6.
#![forbid(unsafe_code)]

pub mod gateway;
pub mod linux;
pub mod outbound;
pub mod process;
pub mod published;
pub mod relay;

pub use gateway::{CELL, GATEWAY, GatewayError, start};
