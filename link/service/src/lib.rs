//! Volumes of a service cell (RainForest 5.4: RFtun, RFfuse): a cell that owns disks serves them to other cells as virtio
//! block devices over links.
//!
//! | module | contents |
//! |---|---|
//! | [`admission`] | clients of a served device: the first message, one writer, one activity by the device's name |
//! | [`server`] | serves block devices: requests |
//! | [`client`] | connects to a served volume, and connects again when the service cell was restarted |
//! | [`partitions`] | the partitions of a disk: one disk, many volumes |
//! | [`network`] | networks of service cells: one network device, many cells |
//! | `reconnecting` | the client's queue, which keeps its requests until they have completed |
//!
//! ```text
//!   client cell                                             service cell
//!   file system, block cache, block layer                   disk
//!   reconnecting queue                                      block layer: the activity of the volume
//!   virtio driver, buffers of a page  <-- shared memory --> isola-virtio-device
//! ```
//!
//! A client copies data to the shared memory and back; the server copies it to and from its own. So neither side can change
//! data under the other, and the server reaches nothing else of the client.
//!
//! **Failure.** A request counts as executed when the client has read its completion. When the service cell ends, all
//! others are issued again to its next incarnation: a read or a write that was executed before is the same the second
//! time. Not later than [`client::TIME_LIMIT`] after its submission, a request fails, and the device with it.
//!
//! Not here: folders of a service cell (`isola-folder-service`).
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod admission;
pub mod client;
pub mod network;
pub mod partitions;
mod reconnecting;
pub mod server;
