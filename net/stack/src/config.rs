//! Everything that a stack is told when it is made: who it is, what the device does for it, and its limits.
//!
//! Every table, queue and memory of the stack is bounded by a number here or by a documented constant next
//! to the table, so that no traffic makes it grow without end.

use crate::address::{Flow, Ipv4Config, MacAddr};
use crate::address6::Ipv6Config;
use crate::steering::Steering;
use crate::tcp::TcpConfig;
use alloc::sync::Arc;
use core::fmt;

/// How the interface comes by its IPv4 address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Addressing {
    /// None until `set_ipv4` is called: for the instances of a cell that instance 0 tells.
    Unset,
    /// This one, from the start.
    Static(Ipv4Config),
    /// Asked for by DHCP; only on instance 0.
    Dhcp,
}

/// How the interface comes by its IPv6 addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ipv6Addressing {
    /// None until `set_ipv6` is called: for the instances of a cell that instance 0 tells, and for no IPv6.
    Unset,
    /// This one beside the link-local one, from when nobody else turned out to have them; routers are not
    /// asked. Only on instance 0.
    Static(Ipv6Config),
    /// As the link's routers say (RFC 4862); without a router the link-local one alone. Only on instance 0.
    Auto,
}

/// Who fills in the TCP and UDP checksums of outgoing frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TxChecksum {
    /// The stack.
    Software,
    /// The device, told where by [`PartialChecksum`](crate::PartialChecksum).
    Device,
}

/// Over which family the device cuts long TCP segments. It has to complete checksums as well.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TxSegments {
    /// Over IPv4.
    pub ipv4: bool,
    /// Over IPv6.
    pub ipv6: bool,
}

/// What is known of an incoming frame's TCP or UDP checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RxChecksum {
    /// Nothing: the stack checks it.
    Unverified,
    /// The device has checked it, or the frame never was on a wire (virtio `DATA_VALID`, `NEEDS_CSUM`).
    Verified,
}

/// Which of the stacks that share one interface this one is.
#[derive(Clone, Debug)]
pub struct CoreShare {
    /// This instance's number, below the number of cores. Instance 0 serves what belongs to no flow: ARP, NDP, ICMP, DHCP.
    pub index: u16,
    /// Which flows are whose: the same table for all.
    pub steering: Arc<Steering>,
}

impl CoreShare {
    /// A stack that has the interface for itself.
    pub fn alone() -> Self {
        Self { index: 0, steering: Arc::new(Steering::alone()) }
    }

    /// Whether this is the instance that serves what belongs to no flow.
    pub const fn is_first(&self) -> bool {
        self.index == 0
    }

    /// Whether no other stack shares the interface.
    pub fn is_alone(&self) -> bool {
        self.steering.cores() == 1
    }

    /// Whether a flow is served by this instance.
    pub fn serves(&self, flow: &Flow) -> bool {
        self.steering.core_of(flow) == self.index
    }
}

/// Bounds on what is not TCP's (see [`TcpConfig`] for that).
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Neighbours whose hardware addresses are kept.
    pub neighbours: usize,
    /// Packets that wait for one neighbour's hardware address.
    pub neighbour_queue: usize,
    /// Frames that are ready and wait for `poll_transmit`, TCP data not included.
    pub transmit_queue: usize,
    /// UDP sockets.
    pub udp_sockets: usize,
    /// Datagrams that wait in one UDP socket.
    pub udp_datagrams: usize,
    /// Memory that the datagrams waiting in one UDP socket keep alive, in bytes.
    pub udp_bytes: usize,
    /// Packets that wait for their further fragments.
    pub fragmented_packets: usize,
    /// Memory that the fragments which wait keep alive, in bytes; the packet that began first goes for more.
    pub fragment_bytes: usize,
    /// ICMP messages that may be sent in a second: echo replies and errors, each by itself.
    pub icmp_per_second: u32,
    /// Resets for segments without a connection that may be sent in a second.
    pub resets_per_second: u32,
    /// Challenge acknowledgements (RFC 5961) that may be sent in a second.
    pub challenges_per_second: u32,
    /// Events other than a connection's or a socket's that wait to be taken; the oldest is dropped.
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

/// Secret bytes from a good source, fresh at each boot: keys of all hashes and seed of all choices that an
/// outsider must not foresee (sequence numbers, ports, transaction ids, the tables' hashes).
#[derive(Clone, Copy)]
pub struct Secret(pub [u8; 32]);

impl Secret {
    /// The four words of the secret; each use takes its own pair, told apart by `purpose`.
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

/// What a [`Stack`](crate::Stack) is made from.
#[derive(Clone, Debug)]
pub struct Config {
    /// The interface's hardware address.
    pub mac: MacAddr,
    /// Where its IPv4 address comes from.
    pub addressing: Addressing,
    /// Where its IPv6 addresses come from.
    pub ipv6: Ipv6Addressing,
    /// The longest IP packet that the link carries, in bytes: [`MIN_MTU`] to [`MAX_MTU`].
    pub mtu: usize,
    /// Bytes left free before each outgoing frame, for a header that the driver puts there.
    pub headroom: usize,
    /// Who completes outgoing checksums.
    pub tx_checksum: TxChecksum,
    /// Whether the device takes segments that are longer than the link's frames.
    pub tx_segments: TxSegments,
    /// This instance's place among those that share the interface.
    pub core: CoreShare,
    /// Keys and seeds.
    pub secret: Secret,
    /// Bounds of everything but TCP.
    pub limits: Limits,
    /// TCP's settings and bounds.
    pub tcp: TcpConfig,
}

/// The smallest MTU an interface may have: what every host must accept (RFC 791).
pub const MIN_MTU: usize = 576;

/// The largest MTU an interface may have: the length field of IPv4.
pub const MAX_MTU: usize = 65_535;

impl Config {
    /// The defaults for an interface on Ethernet that asks for its address by DHCP, and routers for IPv6.
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

    /// Checks what a stack relies on, as [`Stack::new`](crate::Stack::new) does.
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

/// Why a stack cannot be made from a [`Config`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfigError {
    /// The hardware address is a group's or all zero.
    Mac(MacAddr),
    /// The MTU is out of range.
    Mtu(usize),
    /// The instance's number is not below the number of instances.
    Core {
        /// The instance's number.
        index: u16,
        /// How many there are.
        cores: u16,
    },
    /// The static address cannot be an interface's.
    Address(Ipv4Config),
    /// DHCP was asked for on an instance that gets no DHCP traffic.
    DhcpNotFirst,
    /// The static IPv6 address cannot be an interface's.
    Address6(Ipv6Config),
    /// IPv6 was to be set up on an instance that gets no messages about the link.
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
