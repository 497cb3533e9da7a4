//! An Ethernet switch whose ports belong to cells that do not trust each other: a state machine without devices.
//!
//! ```text
//!   port (a client cell) ── source checks ──┬── unicast to another port, or to the serving cell: there only
//!                                           ├── broadcast, multicast: to all others ──┐
//!                                           └── unicast to any other address ──> uplink <┘
//!   uplink ── unicast to a port or the serving cell: there only; broadcast, multicast: to all; other unicast: dropped
//! ```
//!
//! **Hardware addresses** are assigned, one a port ([`port_mac`]), so the switch never learns where one is: a client cannot
//! divert another's frames by sending with its address, and no table of them can overflow. A unicast address that no port
//! has is behind the uplink.
//!
//! **IP addresses** are learned: an address belongs to the first port that uses it as a source, until it was unused for
//! [`AGE`]. A port has at most [`MOST_ADDRESSES`]. Addresses that hosts behind the uplink announce belong to none of the
//! ports, and those of the serving cell are its own at all times. A frame with the source address of another port is
//! dropped, and so is all that only routers and DHCP servers send.
//!
//! **Requests for an address** (ARP, neighbour solicitations) whose owner is known go to no client but the owner, as only its
//! answer would be forwarded. They go to the uplink and to the serving cell as other broadcasts do.
//!
//! Not here: queues, rate limits and devices, which belong to the service cell (`isola-volume-service`).
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod addresses;
pub mod frame;
mod switch;

pub use addresses::{AGE, MOST_ADDRESSES, MOST_UPLINK_ADDRESSES};
pub use switch::{DropReason, PortId, PortRefusal, Recipients, Source, Switch, Targets, port_mac};
