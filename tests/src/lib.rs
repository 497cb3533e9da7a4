//! What tests need that boot machines.
//!
//! | module | what |
//! |---|---|
//! | [`images`] | where images and the command are |
//! | [`qemu`] | QEMU as such, and what becomes of it |
//! | [`supervised`], [`management`] | a machine with a supervisor, and a client that speaks to it |
//! | [`isola`] | the `isola` command in a place of its own, with the machines that it starts |
//! | [`service`] | a machine with the key-value server in a cell |
//! | [`namespace`] | a network of its own, for tests that need more than QEMU's user-mode network |
//! | [`kv`] | a plain client of the key-value server, and a load that checks every answer |
//! | [`steady`] | the same at a steady rate, and how long answers take |
//! | [`loss`] | segments that were lost between a cell and this host |
//! | [`ports`] | ports of this host that stay free until a test uses them |
//! | [`wait`] | waiting until something is the case |
//!
//! The tests are in `tests/`, a file or folder a part of Isola. Each boots machines of its own, and leaves nothing
//! behind.

pub mod images;
pub mod isola;
pub mod kv;
pub mod loss;
pub mod management;
pub mod namespace;
pub mod ports;
pub mod qemu;
pub mod service;
pub mod steady;
pub mod supervised;
pub mod wait;
