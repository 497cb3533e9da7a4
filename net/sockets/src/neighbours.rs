//! The interface for a queue that sends some frames to cells of the same machine over links in memory
//! (`isola-neighbours`). All functions are for the first core.

use crate::core_network::{NETWORK, stack_now};
use crate::{device, drops, interface};
use alloc::vec::Vec;
use core::net::IpAddr;
use isola_net_stack::{Counter, MacAddr};

/// The reason why a frame of a link was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkDrop {
    /// Too many frames wait for the neighbour.
    Full,
    /// A received frame has an address that is not the neighbour's.
    Source,
    /// The device cannot send the frame, which was made for a link that has ended.
    Ended,
    /// The packet is not translated to another network, or belongs to no flow.
    Untranslated,
    /// A client has too many flows to another network.
    Flows,
}

/// Polls the calling core's queue, in an event behind all others.
pub fn poll() {
    device::poll();
}

/// Counts a dropped frame.
pub fn count_dropped(reason: LinkDrop) {
    let counter = match reason {
        LinkDrop::Full => Counter::DropLinkFull,
        LinkDrop::Source => Counter::DropLinkSource,
        LinkDrop::Ended => Counter::DropDeviceFull,
        LinkDrop::Untranslated => Counter::DropNat,
        LinkDrop::Flows => Counter::DropNatFull,
    };
    drops::count_dropped(counter, 1);
}

/// Returns the hardware address of a host on the cell's network, as ARP or neighbour discovery found it.
pub fn mac_of(ip: IpAddr) -> Option<[u8; 6]> {
    NETWORK.inspect(|stack| stack.neighbour(ip)).flatten().map(|MacAddr(mac)| mac)
}

/// Returns a number that changes whenever [`mac_of`] a host changes.
pub fn epoch() -> u32 {
    NETWORK.inspect(isola_net_stack::Stack::neighbour_epoch).unwrap_or_default()
}

/// Begins a search for the hardware address of a host.
pub fn seek(ip: IpAddr) {
    NETWORK.with(|stack| stack.seek_neighbour(stack_now(), ip));
}

/// Sets the hardware addresses to which the stacks of all cores may send long frames without checksums.
pub fn set_linked(macs: Vec<[u8; 6]>) {
    interface::publish_linked(macs.into_iter().map(MacAddr).collect());
}
