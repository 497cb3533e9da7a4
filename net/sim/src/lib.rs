//! A deterministic network for tests of [`isola_net_stack`] and the layers above it.
//!
//! - [`Sim`]: several stacks, each with an [`App`], on one virtual switch. Links lose, duplicate, delay, reorder and
//!   corrupt frames as [`Link`] specifies. Time is simulated and all randomness comes from a seed: the same seed gives
//!   the same run, frame by frame.
//! - [`Peer`]: one stack against a test that sends and checks single segments, for tests of protocol rules.
//! - [`script`]: the same with conversations written down segment by segment.
//! - [`device`]: the offloads of a simulated device, for hosts that use them.
//! - [`check`]: checks of every frame that a stack sends, by a wire-format crate that the stack does not use.
//!
//! For tests only: errors panic.

pub mod check;
pub mod device;
mod link;
mod peer;
mod random;
pub mod script;
mod segment;
mod sim;

pub use link::Link;
pub use peer::{Peer, PeerConnection};
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

/// Returns the address of host `number` on the simulated network, 10.0.0.0/16.
pub fn host_ip(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, number)
}

/// Returns the IPv6 address of host `number` on the simulated network, fd00::/64.
pub fn host_ip6(number: u8) -> Ipv6Addr {
    Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, number.into())
}

/// Returns the hardware address of host `number`.
pub fn host_mac(number: u8) -> MacAddr {
    MacAddr([2, 0, 0, 0, 0, number])
}

/// Returns a configuration for host `number`, with a static IPv4 address. Hosts with even numbers have a device with
/// checksum and segmentation offloads.
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

/// Returns the share of one of several stacks on one interface. Each call creates a new steering table: for stacks that
/// never look at the others' flows.
pub fn share(index: u16, cores: u16) -> CoreShare {
    CoreShare { index, steering: steering(cores) }
}

/// Returns a table that steers flows over `cores` stacks.
pub fn steering(cores: u16) -> Arc<Steering> {
    Arc::new(Steering::new(cores, std::array::from_fn(|byte| (byte * 37 + 11) as u8)))
}

/// Returns a configuration for host `number`, with a static IPv6 address beside the IPv4 one.
pub fn host_config6(number: u8) -> Config {
    let gateway = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 254);
    let ipv6 = Ipv6Addressing::Static(Ipv6Config::new(host_ip6(number), 64, Some(gateway)));
    Config { ipv6, ..host_config(number) }
}
