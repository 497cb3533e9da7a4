//! Links to other cells, as the platform offers them: see [`isola_abi::links`].

use crate::block::BlockPort;
use crate::network::NetworkPort;
use alloc::string::String;
use core::fmt;
use core::sync::atomic::AtomicU64;
use isola_abi::id::PhysRange;
use isola_abi::links::{LinkAccess, LinkDemand, LinkPart, LinkTable};
use isola_abi::service::{DeviceOffer, DriverSetup};

/// The memory of a peer, and the permitted access. A store without permission is fatal.
pub type PeerWords = (&'static [AtomicU64], LinkAccess);

/// The links of the cell. News of a link, and answers, come with an interrupt with
/// [`DOORBELL_VECTOR`](isola_abi::links::DOORBELL_VECTOR) to the first core.
pub trait LinkPort: Sync + fmt::Debug {
    /// Returns the table of links, which the supervisor writes.
    fn table(&self) -> &'static LinkTable;

    /// Sends a request to the supervisor, after the previous one was answered. Returns its number.
    fn send(&self, demand: &LinkDemand) -> u32;

    /// Returns whether a peer can map words of the heap. Those in the image, from which the heap serves its first
    /// allocations, are not part of the cell's pool.
    fn can_share(&self, words: &[AtomicU64]) -> bool;

    /// Returns the physical memory of words in the cell's heap that a peer can map, which are whole pages.
    fn range_of(&self, words: &'static [AtomicU64]) -> PhysRange;

    /// Returns the memory of the peer of an open link; `None` if there is none. It stays mapped as long as the slot is not
    /// free, also after the link's end: it is memory of this cell then.
    fn peer_words(&self, slot: usize, part: LinkPart) -> Option<PeerWords>;

    /// Sends a doorbell to the peer of an open link.
    fn ring_doorbell(&self, slot: usize);

    /// Starts the driver of a block device that the peer of an open link offers. The device reaches `memory` only, and
    /// requests are copied there: whole pages of the heap, which the caller shares with the peer, and uses for nothing
    /// else until the queue of the port is dropped. The queue wakes a task, see [`BlockQueue::wake_by`].
    ///
    /// # Errors
    /// The text for users, if the device is not one that the driver supports.
    ///
    /// [`BlockQueue::wake_by`]: crate::block::BlockQueue::wake_by
    fn open_block_device(
        &self,
        slot: usize,
        offer: DeviceOffer,
        memory: &'static [AtomicU64],
    ) -> Result<(BlockPort, DriverSetup), String>;

    /// Starts the driver of a network device that the peer of an open link offers, as [`Self::open_block_device`] does for a
    /// block device. The device has one queue, without an interrupt: the caller polls it after doorbells.
    ///
    /// # Errors
    /// The text for users, if the device is not one that the driver supports.
    fn open_network_device(
        &self,
        slot: usize,
        offer: DeviceOffer,
        memory: &'static [AtomicU64],
    ) -> Result<(NetworkPort, DriverSetup), String>;
}
