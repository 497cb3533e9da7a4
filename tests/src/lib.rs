//! Libraries of the tests that boot machines.
//!
//! | module | contents |
//! |---|---|
//! | [`images`] | paths of images and of the command |
//! | [`qemu`] | QEMU processes and their outcomes |
//! | [`supervised`], [`management`] | a machine with a supervisor, and a client of the management protocol |
//! | [`isola`] | the `isola` command in an environment of its own, with the machines that it starts |
//! | [`linux_root`] | root file systems for cells with Linux programs |
//! | [`suites`] | test suites of other projects in Linux cells |
//! | [`service`] | a machine with the key-value server in a cell |
//! | [`namespace`] | a network namespace, for tests that need more than QEMU's user-mode network |
//! | [`kv`] | a plain client of the key-value server, and a load that checks every answer |
//! | [`steady`] | the same load at a steady rate, with response times |
//! | `clients` | the client threads of both loads |
//! | [`loss`] | segments lost between a cell and this host |
//! | [`perfetto`] | a reader of trace files |
//! | [`ports`] | ports of this host that stay free until a test uses them |
//! | [`wait`] | waiting for a condition |
//!
//! The tests are in `tests/`, one file or folder for each part of Isola. Each boots its own machines, and leaves none
//! running.

mod clients;
pub mod images;
pub mod isola;
pub mod kv;
pub mod linux_root;
pub mod loss;
pub mod management;
pub mod namespace;
pub mod perfetto;
pub mod ports;
pub mod qemu;
pub mod service;
pub mod steady;
pub mod suites;
pub mod supervised;
pub mod wait;
