//! Links to other cells: the machine's, for the library OS.

use crate::state::AUTHORITY;
use crate::supervisor;
use crate::{channel_block, channel_network};
use alloc::string::String;
use core::sync::atomic::AtomicU64;
use isola_abi::id::PhysRange;
use isola_abi::links::{LinkDemand, LinkPart, LinkTable};
use isola_abi::service::{DeviceOffer, DriverSetup};
use isola_drivers::transport::Notify;
use isola_machine::cell::links;
use isola_platform::block::BlockPort;
use isola_platform::network::NetworkPort;
use isola_platform::{LinkPort, PeerWords};
use spin::Once;

/// The links, once they are enabled.
static LINKS: Once<&'static dyn LinkPort> = Once::new();

/// Enables links to other cells. An image that does not call this contains no code of links.
pub fn enable() {
    LINKS.call_once(|| &BareLinks);
}

/// Returns the links of a cell that has a supervisor, if they are enabled.
pub(crate) fn port() -> Option<&'static dyn LinkPort> {
    LINKS.get().copied()
}

/// The doorbell of the peer of a link, as a driver's notification of its device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LinkBell(pub(crate) usize);

impl Notify for LinkBell {
    fn notify(&self) {
        links::ring_doorbell(AUTHORITY, self.0);
    }
}

/// The links of a cell that has a supervisor.
#[derive(Debug)]
struct BareLinks;

impl LinkPort for BareLinks {
    fn table(&self) -> &'static LinkTable {
        links::table()
    }

    fn send(&self, demand: &LinkDemand) -> u32 {
        let number = links::demand(demand);
        supervisor::notify();
        number
    }

    fn can_share(&self, words: &[AtomicU64]) -> bool {
        links::is_in_pool(words)
    }

    fn range_of(&self, words: &'static [AtomicU64]) -> PhysRange {
        links::range_of(words)
    }

    fn peer_words(&self, slot: usize, part: LinkPart) -> Option<PeerWords> {
        links::peer_words(slot, part)
    }

    fn ring_doorbell(&self, slot: usize) {
        links::ring_doorbell(AUTHORITY, slot);
    }

    fn open_block_device(
        &self,
        slot: usize,
        offer: DeviceOffer,
        memory: &'static [AtomicU64],
    ) -> Result<(BlockPort, DriverSetup), String> {
        // SAFETY: a caller of this method uses the memory for nothing else until then.
        unsafe { channel_block::open(slot, offer, memory) }
    }

    fn open_network_device(
        &self,
        slot: usize,
        offer: DeviceOffer,
        memory: &'static [AtomicU64],
    ) -> Result<(NetworkPort, DriverSetup), String> {
        // SAFETY: as for `open_block_device`.
        unsafe { channel_network::open(slot, offer, memory) }
    }
}
