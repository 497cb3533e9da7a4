//! The configuration of a stack: addresses, the device's offloads, and limits.
//!
//! Every table, queue and memory of the stack is bounded by a number here, or by a documented constant next to the
//! table, so that no traffic makes it grow without limit.

use crate::address::{Flow, Ipv4Config, MacAddr};
use crate::address6::Ipv6Config;
use crate::steering::Steering;
use crate::tcp::TcpConfig;
use alloc::sync::Arc;
use core::fmt;

/// The source of the interface's IPv4 address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Addressing {
    /// None until `set_ipv4` is called: for the instances of a cell that instance 0 informs.
    Unset,
    /// A fixed address from the start.
    Static(Ipv4Config),
    /// DHCP; only on instance 0.
    Dhcp,
}

/// The source of the interface's IPv6 addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ipv6Addressing {
    /// None until `set_ipv6` is called: for the instances of a cell that instance 0 informs, or without IPv6.
    Unset,
    /// A fixed address and the link-local one, after duplicate address detection; routers are not solicited. Only on
    /// instance 0.
    Static(Ipv6Config),
    /// Router advertisements (RFC 4862); without a router, only the link-local address. Only on instance 0.
    Auto,
}

/// The component that computes the TCP and UDP checksums of outgoing frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TxChecksum {
    /// The stack.
    Software,
    /// The device, at the position in [`PartialChecksum`](crate::PartialChecksum).
    Device,
}

/// The IP families for which the device segments TCP. It must complete checksums as well.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TxSegments {
    /// Over IPv4.
    pub ipv4: bool,
    /// Over IPv6.
    pub ipv6: bool,
}

/// Whether an incoming frame's TCP or UDP checksum was verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RxChecksum {
    /// No: the stack verifies it.
    Unverified,
    /// The device has verified it, or the frame was never on a wire (virtio `DATA_VALID`, `NEEDS_CSUM`).
    Verified,
}

/// The share of this instance among the stacks of one interface.
#[derive(Clone, Debug)]
pub struct CoreShare {
    /// The index of this instance, below the number of cores. Instance 0 processes packets without a flow: ARP, NDP,
    /// ICMP, DHCP.
    pub index: u16,
    /// The steering table, common to all instances.
    pub steering: Arc<Steering>,
}

impl CoreShare {
    /// Returns the share of a stack that has the interface alone.
    pub fn alone() -> Self {
        Self { index: 0, steering: Arc::new(Steering::alone()) }
    }

    /// Returns whether this is the instance that processes packets without a flow.
    pub const fn is_first(&self) -> bool {
        self.index == 0
    }

    /// Returns whether no other stack shares the interface.
    pub fn is_alone(&self) -> bool {
        self.steering.cores() == 1
    }

    /// Returns whether this instance owns a flow.
    pub fn serves(&self, flow: &Flow) -> bool {
        self.steering.core_of(flow) == self.index
    }
}

/// Limits of all protocols but TCP (see [`TcpConfig`]).
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Stored neighbours.
    pub neighbours: usize,
    /// Packets that wait for one neighbour's hardware address.
    pub neighbour_queue: usize,
    /// Frames that wait for `poll_transmit`, without TCP data.
    pub transmit_queue: usize,
    /// UDP sockets.
    pub udp_sockets: usize,
    /// Datagrams that wait in one UDP socket.
    pub udp_datagrams: usize,
    /// Memory of the datagrams that wait in one UDP socket, in bytes.
    pub udp_bytes: usize,
    /// Incomplete packets in reassembly.
    pub fragmented_packets: usize,
    /// Memory of waiting fragments, in bytes; beyond it the oldest packet is dropped.
    pub fragment_bytes: usize,
    /// ICMP messages per second: echo replies and errors each.
    pub icmp_per_second: u32,
    /// Resets per second for segments without a connection.
    pub resets_per_second: u32,
    /// Challenge acknowledgements (RFC 5961) per second.
    pub challenges_per_second: u32,
    /// Waiting events that belong to no connection or socket; the oldest is dropped.
    pub events: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            neighbours: 512,
            neighbour_queue: 16,
            transmit_queue: 1024,
            udp_sockets: 1024,
            udp_datagrams: 256,
            udp_bytes: 1 << 20,
            fragmented_packets: 64,
            fragment_bytes: 512 << 10,
            icmp_per_second: 1000,
            resets_per_second: 1000,
            challenges_per_second: 1000,
            events: 64,
        }
    }
}

/// Random secret bytes, new at each boot: the keys of all hashes and the seed of all choices that must be unpredictable
/// (sequence numbers, ports, transaction ids, the hashes of tables).
#[derive(Clone, Copy)]
pub struct Secret(pub [u8; 32]);

impl Secret {
    /// Returns the keys for a use, which `purpose` identifies: 1 sequence numbers, 2 ports of connections, 3 flow tables,
    /// 4 DHCP (the first key) and ports of UDP (the second), 5 IPv6 addresses, 6 DHCPv6, 7 SYN cookies. No two uses
    /// share a key: a seed whose numbers leave the machine would reveal the key of another.
    pub(crate) fn keys(&self, purpose: u64) -> (u64, u64) {
        let mut words = [0u64; 4];
        for (word, bytes) in words.iter_mut().zip(self.0.as_chunks::<8>().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        let [a, b, c, d] = words;
        let hasher = siphasher::sip::SipHasher24::new_with_keys(a, b);
        let first = hasher.hash(&[c, purpose].map(u64::to_le_bytes).concat());
        let second = hasher.hash(&[d, !purpose].map(u64::to_le_bytes).concat());
        (first, second)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// The configuration of a [`Stack`](crate::Stack).
#[derive(Clone, Debug)]
pub struct Config {
    /// The interface's hardware address.
    pub mac: MacAddr,
    /// The source of its IPv4 address.
    pub addressing: Addressing,
    /// The source of its IPv6 addresses.
    pub ipv6: Ipv6Addressing,
    /// The longest IP packet of the link, in bytes: [`MIN_MTU`] to [`MAX_MTU`].
    pub mtu: usize,
    /// Bytes left free before each outgoing frame, for the driver's header.
    pub headroom: usize,
    /// The component that completes outgoing checksums.
    pub tx_checksum: TxChecksum,
    /// Whether the device accepts segments longer than the link's frames.
    pub tx_segments: TxSegments,
    /// The share of this instance of the interface.
    pub core: CoreShare,
    /// Keys and seeds.
    pub secret: Secret,
    /// Limits of all protocols but TCP.
    pub limits: Limits,
    /// TCP's settings and limits.
    pub tcp: TcpConfig,
}

/// The smallest MTU of an interface: the packet length that every host must accept (RFC 791).
pub const MIN_MTU: usize = 576;

/// The largest MTU of an interface: the limit of IPv4's length field.
pub const MAX_MTU: usize = 65_535;

impl Config {
    /// Returns the defaults for an interface on Ethernet with DHCP and IPv6 autoconfiguration.
    pub fn new(mac: MacAddr, secret: Secret) -> Self {
        Self {
            mac,
            addressing: Addressing::Dhcp,
            ipv6: Ipv6Addressing::Auto,
            mtu: 1500,
            headroom: 0,
            tx_checksum: TxChecksum::Software,
            tx_segments: TxSegments::default(),
            core: CoreShare::alone(),
            secret,
            limits: Limits::default(),
            tcp: TcpConfig::default(),
        }
    }

    /// Validates the configuration, as [`Stack::new`](crate::Stack::new) does.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn validate(&self) -> Result<(), ConfigError> {
        if !self.mac.is_unicast() {
            return Err(ConfigError::Mac(self.mac));
        }
        if !(MIN_MTU..=MAX_MTU).contains(&self.mtu) {
            return Err(ConfigError::Mtu(self.mtu));
        }
        let (index, cores) = (self.core.index, self.core.steering.cores());
        if index >= cores {
            return Err(ConfigError::Core { index, cores });
        }
        match self.ipv6 {
            Ipv6Addressing::Static(ipv6) if !ipv6.is_valid() => return Err(ConfigError::Address6(ipv6)),
            Ipv6Addressing::Static(_) | Ipv6Addressing::Auto if !self.core.is_first() => {
                return Err(ConfigError::Ipv6NotFirst);
            }
            _ => {}
        }
        match self.addressing {
            Addressing::Static(ipv4) if !ipv4.is_valid() => Err(ConfigError::Address(ipv4)),
            Addressing::Dhcp if !self.core.is_first() => Err(ConfigError::DhcpNotFirst),
            _ => Ok(()),
        }
    }
}

/// The reason for which a [`Config`] is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfigError {
    /// The hardware address is a group address or all zero.
    Mac(MacAddr),
    /// The MTU is out of range.
    Mtu(usize),
    /// The instance's index is not below the number of instances.
    Core {
        /// The instance's index.
        index: u16,
        /// The number of instances.
        cores: u16,
    },
    /// The fixed address cannot be an interface's.
    Address(Ipv4Config),
    /// DHCP was requested on an instance that receives no DHCP packets.
    DhcpNotFirst,
    /// The fixed IPv6 address cannot be an interface's.
    Address6(Ipv6Config),
    /// IPv6 was configured on an instance that receives no packets about the link.
    Ipv6NotFirst,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mac(mac) => write!(f, "{mac} is not one interface's address; give a unicast one"),
            Self::Mtu(mtu) => write!(f, "an MTU of {mtu} is not possible; choose {MIN_MTU} to {MAX_MTU}"),
            Self::Core { index, cores } => {
                write!(f, "instance {index} of {cores}: count instances from 0 up")
            }
            Self::Address(ipv4) => {
                write!(f, "{}/{} is not a host's address", ipv4.address, ipv4.prefix_len)
            }
            Self::Address6(ipv6) => {
                write!(f, "{}/{} is not a host's address", ipv6.address, ipv6.prefix_len)
            }
            Self::Ipv6NotFirst => {
                f.write_str("only instance 0 can set IPv6 up; leave the others' addresses unset")
            }
            Self::DhcpNotFirst => {
                f.write_str("only instance 0 can use DHCP; leave the others' address unset")
            }
        }
    }
}

impl core::error::Error for ConfigError {}
