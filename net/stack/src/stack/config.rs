//! The configuration of a stack: addresses, the device's offloads, and limits.
//!
//! Every table, queue and memory of the stack is bounded by a number here, or by a documented constant next to the
//! table, so that no traffic makes it grow without limit.

use crate::base::{
    Ipv4Config, Ipv6Config, Limits, MAX_MTU, MIN_MTU, MacAddr, Secret, TxChecksum, TxSegments,
};
use crate::ip::InterfaceConfig;
use crate::steering::CoreShare;
use crate::tcp::TcpConfig;
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

    /// Returns the part that configures the interface.
    pub(crate) fn interface(&self) -> InterfaceConfig {
        InterfaceConfig {
            mac: self.mac,
            mtu: self.mtu,
            headroom: self.headroom,
            tx_checksum: self.tx_checksum,
            tx_segments: self.tx_segments,
            limits: self.limits,
            announces: self.core.is_first(),
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
