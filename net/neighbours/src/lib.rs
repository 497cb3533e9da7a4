//! Network traffic between cells of one machine stays in memory (RainForest 5.4: RFloop).
//!
//! [`over_links`] puts a queue in front of the cell's network device. A TCP or UDP frame to a *neighbour*, a cell of this
//! machine whose specification agrees (`[channels] loop`), goes over a link's rings; all other frames take the device.
//! Programs, addresses and sockets are the same with and without links.
//!
//! ```text
//!   stack ── taps, filters ── LinkedQueue ─┬─ device ── switch ── other machines, cells without links, ARP, DHCP, ICMP
//!                                          └─ Router ── link ── ring ── neighbour's Router ── neighbour's stack
//! ```
//!
//! **Finding neighbours.** The first frame to an unknown hardware address takes the device, and a task asks the
//! supervisor for a link to that address (`isola_abi::links::LinkDemand::OpenNeighbour`). A refusal holds until a cell that
//! may be a neighbour starts or ends, which the supervisor counts in the cell's link table.
//!
//! **TCP.** The stack knows the hardware addresses with a link (`isola_net::neighbours`). For a connection to one of
//! them it computes no checksums, and one frame has up to 64 KiB of data: the rings lose and change nothing. The sequence
//! numbers stay those of TCP, so the connection continues over the device at the same byte when the link ends; frames that
//! were on the way are retransmitted.
//!
//! **Addresses.** A frame is accepted from a link only if its source hardware address is the one that the supervisor names,
//! and its source IP address belongs to that hardware address according to ARP or neighbour discovery, which always take
//! the device, where the switch checks them.
//!
//! **A slow neighbour** delays no other traffic: beyond [`MOST_WAITING_BYTES`] frames to it are dropped.
//!
//! Not here: the rings and their hostile peers (`isola-link-rings`), introductions (the supervisor).
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod forwarding;
mod headers;
mod queue;
mod router;

pub use queue::over_links;
pub use router::{
    DropReason, FrameLink, MOST_NEIGHBOURS, MOST_WAITING_BYTES, Routed, Router, RouterEnvironment,
};
