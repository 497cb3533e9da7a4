//! The network interfaces that programs see, by netlink and by requests of `ioctl`.

use alloc::string::String;
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// `IFF_UP`, `IFF_BROADCAST`, `IFF_LOOPBACK`, `IFF_RUNNING`, `IFF_MULTICAST`, `IFF_LOWER_UP`, from Linux's `linux/if.h`.
pub mod interface_flags {
    /// The interface is in use.
    pub const UP: u32 = 0x1;
    /// It has a broadcast address.
    pub const BROADCAST: u32 = 0x2;
    /// It is the loopback interface.
    pub const LOOPBACK: u32 = 0x8;
    /// It is connected.
    pub const RUNNING: u32 = 0x40;
    /// It can send to groups.
    pub const MULTICAST: u32 = 0x1000;
    /// Its link is up.
    pub const LOWER_UP: u32 = 0x1_0000;
}

/// The type of an interface (`ARPHRD_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InterfaceKind {
    /// Ethernet.
    Ethernet = 1,
    /// The host itself.
    Loopback = 772,
}

/// An address of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterfaceAddress {
    /// The address.
    pub address: IpAddr,
    /// The number of its bits that are the network's.
    pub prefix_len: u8,
}

impl InterfaceAddress {
    /// Returns the network mask of an IPv4 address.
    pub fn mask(&self) -> Ipv4Addr {
        let host_bits = 32_u32.saturating_sub(self.prefix_len.into());
        Ipv4Addr::from_bits(u32::MAX.checked_shl(host_bits).unwrap_or(0))
    }

    /// Returns the broadcast address of an IPv4 network with more than two hosts.
    pub fn broadcast(&self) -> Option<Ipv4Addr> {
        match self.address {
            IpAddr::V4(address) if self.prefix_len < 31 => {
                Some(Ipv4Addr::from_bits(address.to_bits() | !self.mask().to_bits()))
            }
            _ => None,
        }
    }
}

/// Counters of an interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InterfaceCounters {
    /// Received packets.
    pub received_packets: u64,
    /// Received bytes.
    pub received_bytes: u64,
    /// Sent packets.
    pub sent_packets: u64,
    /// Sent bytes.
    pub sent_bytes: u64,
}

/// A network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkInterface {
    /// Its number, from 1 on.
    pub index: u32,
    /// Its name, of at most 15 bytes.
    pub name: String,
    /// Its type.
    pub kind: InterfaceKind,
    /// Its hardware address; zeros for loopback.
    pub hardware_address: [u8; 6],
    /// The most bytes of a packet.
    pub mtu: u32,
    /// Its flags: [`interface_flags`].
    pub flags: u32,
    /// Its addresses.
    pub addresses: Vec<InterfaceAddress>,
    /// Its counters.
    pub counters: InterfaceCounters,
}

impl NetworkInterface {
    /// Returns the loopback interface, with number 1.
    pub fn loopback() -> Self {
        use interface_flags::{LOOPBACK, LOWER_UP, RUNNING, UP};
        Self {
            index: 1,
            name: "lo".into(),
            kind: InterfaceKind::Loopback,
            hardware_address: [0; 6],
            mtu: 65536,
            flags: UP | LOOPBACK | RUNNING | LOWER_UP,
            addresses: alloc::vec![
                InterfaceAddress { address: Ipv4Addr::LOCALHOST.into(), prefix_len: 8 },
                InterfaceAddress { address: Ipv6Addr::LOCALHOST.into(), prefix_len: 128 },
            ],
            counters: InterfaceCounters::default(),
        }
    }
}

/// A route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// The network; the unspecified address with prefix length 0 is the default route.
    pub destination: IpAddr,
    /// The number of its bits that are the network's.
    pub prefix_len: u8,
    /// The next hop; none if the network is that of the interface.
    pub gateway: Option<IpAddr>,
    /// The number of the interface.
    pub interface: u32,
    /// The source address.
    pub source: Option<IpAddr>,
}

/// The network interfaces and routes of a cell.
pub trait NetworkInterfaces: Send + Sync {
    /// Returns the interfaces, in the order of their numbers.
    fn interfaces(&self) -> Vec<NetworkInterface>;

    /// Returns the routes.
    fn routes(&self) -> Vec<Route>;
}

/// The loopback interface alone.
pub struct LoopbackOnly;

impl NetworkInterfaces for LoopbackOnly {
    fn interfaces(&self) -> Vec<NetworkInterface> {
        alloc::vec![NetworkInterface::loopback()]
    }

    fn routes(&self) -> Vec<Route> {
        Vec::new()
    }
}
