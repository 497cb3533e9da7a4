//! The network of the clients.

use core::fmt;
use core::net::Ipv4Addr;
use core::str::FromStr;

/// An IPv4 network for clients: the first host is the gateway, all others are clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    network: u32,
    len: u8,
}

/// The reason why a network cannot be that of clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrefixError {
    /// It is not written as `ADDRESS/BITS`.
    Malformed,
    /// It has too few or too many hosts.
    Len(u8),
    /// Addresses of hosts outside may be in it.
    Public,
}

impl fmt::Display for PrefixError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed => f.write_str("a network is ADDRESS/BITS, as in 10.77.0.0/16"),
            Self::Len(len) => {
                write!(
                    f,
                    "a network of clients has {} to {} bits, not {len}",
                    Prefix::LEAST_LEN,
                    Prefix::MOST_LEN
                )
            }
            Self::Public => f.write_str(
                "a network of clients is within 10.0.0.0/8, 172.16.0.0/12, 192.168.0.0/16 or 100.64.0.0/10",
            ),
        }
    }
}

impl core::error::Error for PrefixError {}

impl Prefix {
    const LEAST_LEN: u8 = 8;
    const MOST_LEN: u8 = 28;

    /// Returns the network with this address and length.
    ///
    /// # Errors
    /// [`PrefixError::Len`] or [`PrefixError::Public`].
    pub fn new(address: Ipv4Addr, len: u8) -> Result<Self, PrefixError> {
        if !(Self::LEAST_LEN..=Self::MOST_LEN).contains(&len) {
            return Err(PrefixError::Len(len));
        }
        // RFC 1918, and RFC 6598 for the last.
        let permitted = [(0x0a00_0000_u32, 8_u8), (0xac10_0000, 12), (0xc0a8_0000, 16), (0x6440_0000, 10)];
        let bits = address.to_bits();
        let is_within = |(network, network_len): (u32, u8)| {
            len >= network_len && (bits ^ network) >> (32 - network_len) == 0
        };
        if !permitted.into_iter().any(is_within) {
            return Err(PrefixError::Public);
        }
        Ok(Self { network: bits & mask(len), len })
    }

    /// Returns the length of the network part, in bits.
    pub fn len_bits(self) -> u8 {
        self.len
    }

    /// Returns the network mask.
    pub fn mask(self) -> Ipv4Addr {
        Ipv4Addr::from_bits(mask(self.len))
    }

    /// Returns the address of the gateway.
    pub fn gateway(self) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.network + 1)
    }

    /// Returns whether the network has an address.
    pub fn contains(self, ip: Ipv4Addr) -> bool {
        ip.to_bits() & mask(self.len) == self.network
    }

    /// Returns whether two addresses are in one network with this length.
    pub(crate) fn is_same(one: Ipv4Addr, other: Ipv4Addr, len: u8) -> bool {
        (one.to_bits() ^ other.to_bits()) & mask(len) == 0
    }

    /// Returns whether the network and that of an address with this length have addresses in common.
    pub fn overlaps(self, address: Ipv4Addr, len: u8) -> bool {
        (self.network ^ address.to_bits()) & mask(self.len.min(len)) == 0
    }

    /// Returns the number of clients' addresses: all but those of the network, of the gateway, and for broadcasts.
    pub fn clients(self) -> u32 {
        (1 << (32 - self.len)) - 3
    }

    /// Returns a client's address, of which there are [`Self::clients`].
    pub fn client(self, index: u32) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.network + 2 + index % self.clients())
    }
}

fn mask(len: u8) -> u32 {
    u32::MAX.checked_shl(32 - u32::from(len.min(32))).unwrap_or(0)
}

impl FromStr for Prefix {
    type Err = PrefixError;

    fn from_str(text: &str) -> Result<Self, PrefixError> {
        let (address, len) = text.split_once('/').ok_or(PrefixError::Malformed)?;
        let malformed = |_| PrefixError::Malformed;
        Self::new(address.parse().map_err(malformed)?, len.parse().map_err(|_| PrefixError::Malformed)?)
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", Ipv4Addr::from_bits(self.network), self.len)
    }
}
