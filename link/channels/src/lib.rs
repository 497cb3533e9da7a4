//! Channels between cells of one machine (RainForest 5.4: RFcom): packets with back-pressure, and shared memory.
//!
//! A cell [listens](listen) for a service; another cell [opens](open) a channel to `CELL/SERVICE`. The supervisor checks
//! once that the manifest of the listening cell accepts the opener, and introduces the two; afterwards only the two cells
//! are involved (`isola_abi::links`). A packet is copied once into the sender's ring, and once out of it by the receiver
//! (`isola-link-rings`).
//!
//! **Cores.** All functions are for tasks of the cell's first core, the destination of doorbells: this core never leaves
//! the cell. On other cores [`open`] and [`listen`] return [`ChannelError::WrongCore`].
//!
//! **Floods.** A peer cannot take more of this cell than the reader grants: a packet is received by the task that reads,
//! for the task's activity; a ring that is not read fills, and its writer waits. After [`READS_IN_A_ROW`] packets a reader
//! gives way to other events. Any number of packets to a reader that has not run yet cause one interrupt, and at high
//! rates the rings are polled instead ([`isola_events::polling`]). A reader whose packets come soon polls for the next a short
//! time before its core halts, for its own activity and while the core has no other work.
//!
//! **The end.** A peer's death closes the channel at once: reads and writes return [`ChannelError::Closed`]. Packets that
//! were not read by then are lost; a protocol that needs them acknowledges them.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod bell;
mod channel;
mod error;
mod memory;
pub mod neighbours;
mod runtime;
mod stream;

pub use bell::Bell;
pub use channel::{
    Channel, Delivery, Listener, MOST_KEPT_PAGES, READS_IN_A_ROW, listen, listen_with, multicast, open,
    open_with,
};
pub use error::ChannelError;
pub use isola_abi::links::{LinkAccess, LinkRefusal};
pub use isola_link_rings::Message;
pub use memory::{MOST_SHARED_PAGES, PeerMemory, SharedMemory, WritableMemory};
pub use runtime::{MOST_RING_PAGES, RingSizes};
pub use stream::ChannelStream;
