//! Isola's network stack: Ethernet, ARP, NDP, IPv4, IPv6, ICMP, UDP, TCP, DHCP and DHCPv6 as state machines
//! without I/O.
//!
//! A [`Stack`] is the protocol state of one core. Frames, time and the application's calls go in; frames,
//! events and deadlines come out. It reads no clock, owns no device, takes no lock and starts nothing by
//! itself, so it runs alike in a cell, in a hosted process and under a simulated network.
//!
//! ```text
//!   device ──frame──> receive ─┐                    ┌─> next_event ──> application
//!                              ├──> Stack (a core's)┤
//!   clock ──────────> on_timer ┘    ^               ├─> poll_transmit ──frame──> device
//!   application ──────calls─────────┘               └─> next_deadline ──> the loop's timer
//! ```
//!
//! **The loop around it.** After frames or timers: take events until there are none, let the application act
//! on them, then call `poll_transmit` until it has nothing. In this order an acknowledgement travels with
//! the answer. Before the core halts: `next_deadline`.
//!
//! **No copies.** A payload stays in the frame that it came in, and is read as a view of it; what is sent is
//! views of what the application gave, also when it is sent again. The exceptions are deliberate and
//! counted: small payloads that would pin large frames (see `tcp/receive_queue.rs`).
//!
//! **Several cores.** Every core has its own stack for the same interface, and a frame goes to the one that
//! [`Steering`] names. Listeners and UDP ports are opened in each. Instance 0 gets ARP, NDP, ICMP and DHCP,
//! and what it learns ([`Event::Neighbour`], [`Event::AddressChanged`], [`Event::Ipv6Changed`]) the layer above
//! passes on.
//!
//! **Bounds.** Every table, queue and memory has a limit in [`Config`] or a documented constant; every frame
//! that goes nowhere is counted by its reason in [`Counters`].
//!
//! Not here: DNS, packets of the machine to itself, and who calls all this.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod address;
mod address6;
mod arp;
mod autoconf;
mod checksum;
mod config;
mod counters;
mod dhcp;
mod dhcp6;
mod ethernet;
mod event;
mod flow;
mod fragments;
mod heads;
mod icmp;
mod icmp6;
mod interface;
mod ip;
mod ipv4;
mod ipv6;
mod limit;
mod link_message;
mod mld;
mod ndp;
mod neighbour;
mod order;
mod owner;
mod path_mtu;
mod sent_datagrams;
mod slab;
mod stack;
mod steering;
mod tcp;
mod time;
mod timers;
mod toeplitz;
mod udp;

pub use address::{DNS_SERVERS, Flow, Ipv4Config, MacAddr};
pub use address6::{
    IPV6_ADDRESSES, IPV6_PREFIXES, IPV6_ROUTERS, Ipv6Address, Ipv6Config, Ipv6Prefix, Ipv6Settings,
    Preference,
};
pub use config::{
    Addressing, Config, ConfigError, CoreShare, Ipv6Addressing, Limits, MAX_MTU, MIN_MTU, RxChecksum, Secret,
    TxChecksum, TxSegments,
};
pub use counters::{Counter, Counters};
pub use event::{ConnId, Event, FailReason, ListenerId, UdpId};
pub use flow::{datagram_port, fast_path_flow_of, flow_of};
pub use isola_iobuf::{Frame, PartialChecksum};
pub use neighbour::Evidence;
pub use owner::Owner;
pub use stack::{Moved, Occupancy, Stack};
pub use steering::{BUCKETS, Bucket, Buckets, MAX_CORES, Move, Steering};
pub use tcp::{
    Algorithm, Arrived, CongestionControl, ConnectError, ConnectionStats, ConnectionView, Ecn, EndCame,
    KeepAlive, ListenError, Round, SendError, TcpConfig, Timeout,
};
pub use time::{Duration, Instant};
pub use toeplitz::KEY_LEN;
pub use udp::{BindError, Datagram, SendToError};
