//! What connects a hosted cell to its host.
//!
//! | module | what |
//! |---|---|
//! | [`linux`] | Linux's own sockets as futures, for any code on a hosted core |
//! | [`gateway`] | [`start`]: a user-mode network, which needs no rights |
//! | [`published`] | ports of the host that lead to the cell |
//! | [`calls`] | connections and datagrams of the cell to the host |
//! | [`process`] | a process that is one cell, with the network that it is told to have |
//! | [`test_cells`] | cells on a network in memory, for tests of what talks |
//! | [`relay`] | a connection of the one and one of the other, end to end |
//!
//! The gateway is a cell of its own in the same process, of one core. It is on a link in memory with the cell it serves,
//! and has Linux's sockets on its other side:
//!
//! ```text
//!   application                      Linux
//!   the cell's stack                   sockets: 127.0.0.1, published ports
//!   10.0.2.15 ───── link ───── 10.0.2.2
//!                              the gateway's stack, and a task a connection
//! ```
//!
//! The addresses are those of QEMU's user-mode network, so that an application finds its host at the same address
//! wherever it runs. What the gateway holds of a connection is bounded: one piece each way, and the windows of both
//! stacks.
//!
//! It leads to the host alone, and there to `127.0.0.1`: what listens at another address of the host is not reached. What is
//! not here: the way to other machines (`isola-hosted`'s TAP interface has it), DNS, and IPv6.
#![forbid(unsafe_code)]

pub mod calls;
pub mod gateway;
pub mod linux;
pub mod process;
pub mod published;
pub mod relay;
pub mod test_cells;

pub use gateway::{CELL, GATEWAY, GatewayError, start};
