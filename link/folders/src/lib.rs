//! Folders of a service cell (RainForest 5.4: RFfuse): a cell that owns a volume serves its folders to other cells by
//! virtio-fs (virtio 1.2, 5.11), which carries the protocol of FUSE.
//!
//! | module | contents |
//! |---|---|
//! | [`server`] | serves folders: admission, one activity a folder, requests |
//! | [`client`] | a served folder as a file system, which connects again when the service cell was restarted |
//! | `wire` | the messages |
//! | [`link`] | the interface of a channel that both use, so that tests need none |
//!
//! ```text
//!   client cell                                            service cell
//!   Volume, File                                           Volume: ext4, block cache, disk
//!   FolderFileSystem, on the volume's fiber                Session: the nodes of a client
//!   driver queue, message, answer   <-- shared memory -->  isola-virtio-device
//! ```
//!
//! A message and its answer are copied on both sides, so neither can change them under the other.
//!
//! **Failure.** The service makes a change of names permanent before it answers. The client keeps writes and other changes
//! of contents and attributes until a sync, or a change of names, has made them permanent. When the service cell ends, the
//! client connects to its next incarnation, finds its files again by their paths, repeats these changes in their order,
//! and then the request that had no answer.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod client;
pub mod link;
pub mod server;
mod wire;

#[cfg(test)]
mod tests;

/// The device type (virtio 1.2, 5.11).
pub const DEVICE_TYPE: u32 = 26;

/// The most bytes of a file in one request.
pub const MOST_DATA: usize = 128 << 10;

/// The most bytes of a message or an answer: data, and structures and names around it.
pub const MOST_MESSAGE: usize = MOST_DATA + 4096;

/// Queues of a device: for messages without an answer, and for requests.
pub const QUEUES: usize = 2;
