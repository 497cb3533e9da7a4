//! The block layer of a cell: requests to a block device as futures.
//!
//! ```text
//!   Request (future) --> Waiting, by activity --> BlockQueue --> device
//!        ^                                           |
//!        +----- Operation, by id <-- completion <----+
//! ```
//!
//! - [`BlockDevice`]: a queue of a device, served by the core that started it. Clones are handles of the same queue.
//! - [`QueuePort`]: one of several queues of a device, for any core.
//! - [`Request`]: a read, write, flush, discard or fill with zeros. It is submitted when it is first polled, for the
//!   activity that created it, and continues if it is dropped afterwards.
//! - [`BlockSettings`]: the time limit, the bounds of waiting requests, and the resource whose policy orders them.
//!
//! **Splitting.** A request beyond the device's limits becomes several; it fails with the first error of its parts.
//!
//! **Order.** Requests are executed in any order: a caller that needs one after another awaits the first. A flush makes
//! all writes permanent that were completed before it was submitted.
//!
//! **Back-pressure.** If the device's queue is full, requests wait. If [`BlockSettings::most_waiting`] requests wait, a
//! further one stays in its future until there is room.
//!
//! **Policy.** While the resource has a policy, requests beyond [`BlockSettings::depth`] wait here instead of in the
//! device, ordered by activity with their bytes as cost: start-time fair queueing with depth, if the policy is `wfq`.
//! Without a policy, or while the device has room, a request goes to the device at once.
//!
//! **Failure.** If the device fails, or exceeds the time limit, all requests complete with that error, and so do all
//! later ones.
//!
//! Not here: the cache (`isola-block-cache`), and the drivers, which implement [`isola_platform::block`].
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod device;
mod error;
mod follower;
mod parts;
mod queue_port;
mod request;
mod usage;
mod waiting;

pub use device::{BlockDevice, BlockSettings};
pub use error::BlockError;
pub use queue_port::QueuePort;
pub use request::Request;
pub use usage::BlockUsage;
