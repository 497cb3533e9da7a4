//! The device side of virtio (1.2), for a cell that serves another one over memory that this one shares.
//!
//! | module | contents | virtio 1.2 |
//! |---|---|---|
//! | [`memory`] | the shared memory, by device address | |
//! | [`queue`] | the split ring: takes chains, returns them | 2.6, 2.7 |
//! | [`block`] | requests of a block device | 5.2 |
//! | [`net`] | frames of a network device | 5.1 |
//! | [`message`] | requests that are a message and room for its answer | 5.11 |
//! | [`driver`] | the driver side of such a queue, for clients of a service cell without a driver of their own | 2.6, 2.7 |
//!
//! ```text
//!   driver in the client cell                     this crate in the service cell
//!   descriptors, available ring  --- take ----->  Chain: segments, each within the memory
//!   buffers                      <-- read, write -
//!   used ring                    <-- give_back --
//! ```
//!
//! # Trust in the driver
//! The driver is another cell, and can write any bytes to the memory at any time. So each word of a ring is read once, and
//! checked after the read: a later change has no effect. Everything that a chain names is in the shared memory, or the
//! chain is a [`DriverFault`], and the queue is broken for good. A loop of descriptors ends at the queue's length. No
//! function allocates more than the queue's length requires, and none waits. The contents of buffers are the client's own.
//!
//! The state machines know no cell, channel or event loop; their caller polls them, and notifies the driver.
//!
//! Not here: the introduction of the two cells (`isola_abi::service`), and the disk or network behind the
//! requests.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod block;
pub mod driver;
pub mod memory;
pub mod message;
pub mod net;
pub mod queue;

pub use memory::{DriverMemory, OutsideMemory};
pub use queue::{Chain, DeviceQueue, DriverFault, QueuePlace, Segment};
