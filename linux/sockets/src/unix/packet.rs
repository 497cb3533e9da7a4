//! Messages in the queue of their receiver.

use super::socket::UnixSocket;
use crate::message::PeerCredentials;
use alloc::sync::Arc;
use alloc::vec::Vec;
use isola_linux_files::OpenFile;

/// The bytes that a message counts beside its own: the memory of its place in a queue.
pub(super) const OVERHEAD: usize = 256;
/// The most bytes of a stream's chunk.
pub(super) const CHUNK_LEN: usize = 32 << 10;
/// A stream's bytes are added to the chunk before as long as it has no more than these.
pub(super) const MERGED_LEN: usize = 4096;

/// A message, or a chunk of a stream.
pub(super) struct Packet {
    pub bytes: Vec<u8>,
    /// The number of bytes that were received already.
    pub start: usize,
    pub rights: Vec<Arc<OpenFile>>,
    pub credentials: PeerCredentials,
    pub sender: Arc<UnixSocket>,
    /// The bytes for which the sender is charged.
    pub charge: usize,
}

impl Packet {
    /// Returns the bytes that were not received yet.
    pub fn rest(&self) -> &[u8] {
        &self.bytes[self.start..]
    }

    /// Returns whether bytes of a stream can be added.
    pub fn takes(&self, len: usize, credentials: PeerCredentials) -> bool {
        self.rights.is_empty() && self.credentials == credentials && self.bytes.len() + len <= MERGED_LEN
    }
}
