//! A deterministic network for tests of everything that stands on [`isola_net_stack`].
//!
//! - [`Sim`]: several stacks, each with an [`App`] on top, on one virtual switch. Links lose, duplicate,
//!   delay, reorder and corrupt frames as [`Link`] says. Time is simulated, all chance comes from a seed: the
//!   same seed gives the same run, frame by frame.
//! - [`Peer`]: one stack against a hand that writes and reads single segments, for tests of the rules.
//! - [`script`]: conversations written down segment by segment, for the same.
//! - [`device`]: what a device does in a stack's place, for hosts that leave it to theirs.
//! - [`check`]: every frame that a stack sends is read by a wire-format crate that is not ours.
//!
//! For tests only: it panics where something is wrong.

pub mod check;
pub mod device;
mod link;
mod peer;
mod random;
pub mod script;
mod segment;
mod sim;

pub use link::Link;
pub use peer::{Peer, Talk};
pub use random::Random;
pub use script::{Family, Script};
pub use segment::Segment;
pub use sim::{App, Host, Sim, chain_of};

use isola_net_stack::{
    Addressing, Config, CoreShare, Ipv4Config, Ipv6Addressing, Ipv6Config, MacAddr, Secret, Steering,
    TxChecksum, TxSegments,
};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

/// The address of the host with a number on the simulated network, 10.0.0.0/16.
pub fn host_ip(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, number)
}

/// The IPv6 address of the host with a number on the simulated network, fd00::/64.
pub fn host_ip6(number: u8) -> Ipv6Addr {
    Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, number.into())
}

/// The hardware address of the host with a number.
pub fn host_mac(number: u8) -> MacAddr {
    MacAddr([2, 0, 0, 0, 0, number])
}

/// A configuration for the host with a number, with a static IPv4 address. Those with even numbers have a device that sums
/// in the stack's place.
pub fn host_config(number: u8) -> Config {
    let mut config = Config::new(host_mac(number), Secret([number; 32]));
    config.addressing = Addressing::Static(Ipv4Config::new(host_ip(number), 16, Some(host_ip(254))));
    config.ipv6 = Ipv6Addressing::Unset;
    if number.is_multiple_of(2) {
        config.tx_checksum = TxChecksum::Device;
        config.tx_segments = TxSegments { ipv4: true, ipv6: true };
    }
    config
}

/// The place of one of several stacks with one interface. The table is another one in each call: for stacks that never look
/// at the others' flows.
pub fn share(index: u16, cores: u16) -> CoreShare {
    CoreShare { index, steering: steering(cores) }
}

/// What spreads flows over so many stacks.
pub fn steering(cores: u16) -> Arc<Steering> {
    Arc::new(Steering::new(cores, std::array::from_fn(|byte| (byte * 37 + 11) as u8)))
}

/// A configuration for the host with a number, with a static IPv6 address beside the other.
pub fn host_config6(number: u8) -> Config {
    let gateway = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 254);
    let ipv6 = Ipv6Addressing::Static(Ipv6Config::new(host_ip6(number), 64, Some(gateway)));
    Config { ipv6, ..host_config(number) }
}
