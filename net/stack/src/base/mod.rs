//! The room of shared types: addresses, time, settings, counters, events, and the tables that several protocols use.
//! It depends on no other room.

mod address;
mod address6;
mod checksum;
mod counters;
mod event;
mod limit;
mod order;
mod owner;
mod settings;
mod slab;
mod time;
mod timers;

pub use address::{DNS_SERVERS, Flow, Ipv4Config, MacAddr};
pub use address6::{
    IPV6_ADDRESSES, IPV6_PREFIXES, IPV6_ROUTERS, Ipv6Address, Ipv6Config, Ipv6Prefix, Ipv6Settings,
    Preference,
};
pub use counters::{Counter, Counters};
pub use event::{ConnId, Event, Evidence, FailReason, ListenerId, UdpId};
pub use owner::Owner;
pub use settings::{Limits, MAX_MTU, MIN_MTU, RxChecksum, Secret, TxChecksum, TxSegments};
pub use time::{Duration, Instant};

pub(crate) use address::is_unicast;
pub(crate) use address6::{ALL_MLD_ROUTERS, ALL_NODES, ALL_ROUTERS, group_mac, is_unicast6, solicited_node};
pub(crate) use checksum::Sum;
pub(crate) use event::EventQueue;
pub(crate) use limit::{Permit, RateLimit};
pub(crate) use order::Order;
pub(crate) use settings::HOP_LIMIT;
pub(crate) use slab::{Key, Slab};
pub(crate) use timers::Timers;
