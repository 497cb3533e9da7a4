//! Network address translation between clients with private IPv4 addresses and the network outside: a state machine
//! without devices and without a clock (RFC 3022; timeouts and rules of RFC 4787, 5382 and 5508).
//!
//! ```text
//!   a client's frame  ──> Gateway::from_client  ──> to the device, an answer to the client, or a request by ARP
//!   a device's frame  ──> Gateway::from_outside ──> to a client, or to the stack of the serving cell
//! ```
//!
//! | module | contents |
//! |---|---|
//! | `gateway` | frames: the router of the clients' network, which answers ARP, DHCP and pings |
//! | `translator` | IPv4 packets: which are translated, and how |
//! | `table` | flows: look-up, timeouts, limits by client |
//! | `packet` | IPv4 headers, rewritten in place with incremental checksums (RFC 1624) |
//! | `leases`, `dhcp` | the clients' addresses, which follow from their names, and the server that assigns them |
//! | `neighbours` | the hardware addresses of hosts outside (RFC 826) |
//!
//! **Flows.** A flow is a TCP connection, an exchange of UDP datagrams between two ports, or of ICMP echoes with one
//! identifier. Only a client opens flows, or a host outside at a published port: any other packet from outside is for the
//! stack of the serving cell. A flow keeps the client's port where it is free for the same remote port, so two clients share
//! a port number as long as their remote ports differ.
//!
//! **Limits.** A client has at most [`Limits::flows`] flows. One more replaces that of its own which would end first, but no
//! TCP connection that was in use within [`IDLE`]; a packet that finds no room is dropped. So no client, and no host
//! outside that floods a published port, takes the flows of other clients.
//!
//! **Restarts.** An empty table learns a TCP connection from its next segment, of the client or at a published port, and
//! assigns the port that it had unless another flow has it by now. A segment of a host outside with an unknown flow is
//! dropped rather than answered by a reset, so that the connection survives until the client's next segment.
//!
//! Not here: IPv6, fragments, IP options and other protocols, which are dropped and counted by their [`DropReason`].
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod dhcp;
mod gateway;
mod leases;
mod neighbours;
mod packet;
mod prefix;
mod table;
mod translator;

pub use gateway::{ClientFrame, Gateway, OutsideFrame, is_of_connection};
pub use neighbours::{MOST_HELD, MOST_NEIGHBOURS};
pub use prefix::{Prefix, PrefixError};
pub use table::{IDLE, Protocol, timeouts};
pub use translator::{Forward, ForwardError, LEAST_PORT};

use core::fmt;
use core::net::Ipv4Addr;

/// The network of the service cell's own device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outside {
    /// The service cell's address, which all packets of clients get.
    pub address: Ipv4Addr,
    /// The network part of the address, in bits.
    pub prefix_len: u8,
    /// The router for all other networks.
    pub router: Option<Ipv4Addr>,
    /// The name servers, for the clients.
    pub dns: [Option<Ipv4Addr>; 2],
}

/// The limits of a gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The most flows of a client.
    pub flows: usize,
    /// The most clients.
    pub clients: usize,
}

/// The reason why a packet was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropReason {
    /// It is shorter than its lengths demand.
    Malformed,
    /// Its source address is not the client's.
    ForeignAddress,
    /// It is of a protocol that is not translated, or has IP options.
    Protocol,
    /// It is a fragment.
    Fragment,
    /// It has passed too many routers.
    Hops,
    /// A client's packet has a destination that no host outside has.
    Destination,
    /// The client has too many flows.
    Full,
    /// It belongs to no flow.
    NoFlow,
    /// The service cell has no address yet, or the next hop's hardware address is unknown.
    Unreachable,
}

impl fmt::Display for DropReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Malformed => "the packet is malformed",
            Self::ForeignAddress => "the source address is not the client's",
            Self::Protocol => "the protocol is not translated",
            Self::Fragment => "fragments are not translated",
            Self::Hops => "the packet has passed too many routers",
            Self::Destination => "no host outside has the destination",
            Self::Full => "the client has too many flows",
            Self::NoFlow => "the packet belongs to no flow",
            Self::Unreachable => "the next hop is not known",
        })
    }
}

impl core::error::Error for DropReason {}
