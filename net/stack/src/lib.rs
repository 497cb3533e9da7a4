//! Isola's network stack: Ethernet, ARP, NDP, IPv4, IPv6, ICMP, UDP, TCP, DHCP and DHCPv6 as state machines
//! without I/O.
//!
//! A [`Stack`] is the protocol state of one core. Its input are frames, time and calls of the application, its output
//! frames, events and deadlines. It reads no clock, owns no device, takes no lock and does nothing by itself, so it
//! runs unchanged in a cell, in a hosted process and in a simulated network.
//!
//! ```text
//!   device ──frame──> receive ─┐                    ┌─> next_event ──> application
//!                              ├──> Stack (a core's)┤
//!   clock ──────────> on_timer ┘    ^               ├─> poll_transmit ──frame──> device
//!   application ──────calls─────────┘               └─> next_deadline ──> the loop's timer
//! ```
//!
//! **The event loop.** After frames or timers: take events until there are none, let the application process them, then
//! call `poll_transmit` until it returns nothing. In this order an acknowledgement is piggybacked on the response.
//! Before the core halts: `next_deadline`.
//!
//! **No copies.** Received data stays in its frame, and the application reads views of it. The stack sends and
//! retransmits views of the application's data. The exceptions are deliberate and counted: small payloads that would
//! keep large frames allocated (see `tcp/receive_queue.rs`).
//!
//! **Several cores.** Every core has its own stack for the same interface, and [`Steering`] assigns each frame to one.
//! Listeners and UDP ports are opened in all stacks. Instance 0 processes ARP, NDP, ICMP and DHCP, and the layer above
//! forwards its results ([`Event::Neighbour`], [`Event::AddressChanged`], [`Event::Ipv6Changed`]) to the others.
//!
//! **Bounds.** Every table, queue and memory has a limit in [`Config`] or a documented constant; every dropped frame is
//! counted by its reason in [`Counters`].
//!
//! **Rooms.** The crate is divided into rooms: folders whose `mod.rs` exports everything that other rooms may use.
//! `cargo xtask check rooms` has the table of permitted directions, and enforces it (`docs/decisions/0063`).
//!
//! ```text
//!   stack ──> tcp, udp ──> steering ──> configuration ──> ip ──> base
//! ```
//!
//! Not here: DNS, packets of a machine to itself, and the event loop.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod base;
mod configuration;
mod ip;
mod stack;
mod steering;
mod tcp;
mod udp;

pub use base::{
    ConnId, Counter, Counters, DNS_SERVERS, Duration, Event, Evidence, FailReason, Flow, IPV6_ADDRESSES,
    IPV6_PREFIXES, IPV6_ROUTERS, Instant, Ipv4Config, Ipv6Address, Ipv6Config, Ipv6Prefix, Ipv6Settings,
    Limits, ListenerId, MAX_MTU, MIN_MTU, MacAddr, Owner, Preference, RxChecksum, Secret, TxChecksum,
    TxSegments, UdpId,
};
pub use isola_iobuf::{Frame, PartialChecksum};
pub use stack::{Addressing, Config, ConfigError, Ipv6Addressing, MovedBuckets, Occupancy, Stack};
pub use steering::{
    BUCKETS, Bucket, Buckets, CoreShare, KEY_LEN, MAX_CORES, Move, Steering, continues_connection,
    datagram_port, fast_path_flow_of, flow_of,
};
pub use tcp::{
    AckedData, Algorithm, CongestionControl, ConnectError, ConnectionStats, ConnectionView, Ecn, KeepAlive,
    ListenError, Round, SendError, StreamEnd, TcpConfig, Timeout, use_tcp,
};
pub use udp::{BindError, Datagram, SendToError};
