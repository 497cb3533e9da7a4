//! What tests need that boot machines: QEMU, images, and a client that speaks to a supervisor.
//!
//! The tests are in `tests/`, a file a part of Isola. Each boots machines of its own, and leaves nothing behind.

pub mod images;
pub mod management;
pub mod qemu;
pub mod supervised;
