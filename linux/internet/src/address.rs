//! Addresses of internet sockets: IPv4, IPv6, and IPv4 within IPv6.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use isola_linux_abi::net::{AF_INET, AF_INET6};
use isola_linux_sockets::{Errno, SocketAddress};

/// The family of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Domain {
    /// `AF_INET`.
    V4,
    /// `AF_INET6`, which has IPv4 addresses too, in IPv6 form.
    V6,
}

/// The addresses of this cell at which a socket receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// All.
    All,
    /// All IPv4 addresses.
    AllV4,
    /// All IPv6 addresses.
    AllV6,
    /// One.
    One(IpAddr),
}

impl Domain {
    /// Returns the number (`AF_*`).
    pub fn number(self) -> u32 {
        match self {
            Self::V4 => AF_INET,
            Self::V6 => AF_INET6,
        }
    }

    /// Returns an address that a program passed, with IPv4 addresses in their own form.
    ///
    /// # Errors
    /// [`Errno::EAFNOSUPPORT`] for other families.
    pub fn parse(self, address: &SocketAddress) -> Result<SocketAddr, Errno> {
        match (self, address) {
            (Self::V4, SocketAddress::Inet(address)) => Ok(SocketAddr::V4(*address)),
            (Self::V6, SocketAddress::Inet6(address)) => Ok(match address.ip().to_ipv4_mapped() {
                Some(mapped) => SocketAddrV4::new(mapped, address.port()).into(),
                None => SocketAddr::V6(*address),
            }),
            // Linux's IPv6 sockets take the addresses of IPv4 sockets in neither direction.
            _ => Err(Errno::EAFNOSUPPORT),
        }
    }

    /// Returns an address as programs of the family read it.
    pub fn show(self, address: SocketAddr) -> SocketAddress {
        match (self, address) {
            (Self::V4, SocketAddr::V4(address)) => SocketAddress::Inet(address),
            (Self::V4, SocketAddr::V6(address)) => {
                SocketAddress::Inet(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, address.port()))
            }
            (Self::V6, SocketAddr::V6(address)) => SocketAddress::Inet6(address),
            (Self::V6, SocketAddr::V4(address)) if address.ip().is_unspecified() => {
                SocketAddress::Inet6(SocketAddrV6::new(Ipv6Addr::UNSPECIFIED, address.port(), 0, 0))
            }
            (Self::V6, SocketAddr::V4(address)) => {
                let mapped = address.ip().to_ipv6_mapped();
                SocketAddress::Inet6(SocketAddrV6::new(mapped, address.port(), 0, 0))
            }
        }
    }

    /// Returns the address of a socket that is not bound.
    pub fn unspecified(self) -> SocketAddr {
        match self {
            Self::V4 => SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0),
            Self::V6 => SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), 0),
        }
    }
}

impl Scope {
    /// Returns the scope of a socket of a family that binds `address`.
    pub fn of(domain: Domain, is_v6_only: bool, address: IpAddr) -> Self {
        match address {
            IpAddr::V4(ip) if ip.is_unspecified() => Self::AllV4,
            IpAddr::V6(ip) if ip.is_unspecified() && (is_v6_only || domain == Domain::V4) => Self::AllV6,
            IpAddr::V6(ip) if ip.is_unspecified() => Self::All,
            _ => Self::One(address),
        }
    }

    /// Returns whether a packet to `address` is for the socket.
    pub fn contains(self, address: IpAddr) -> bool {
        match self {
            Self::All => true,
            Self::AllV4 => address.is_ipv4(),
            Self::AllV6 => address.is_ipv6(),
            Self::One(own) => own == address,
        }
    }

    /// Returns whether a packet can be for both.
    pub fn overlaps(self, other: Self) -> bool {
        match (self, other) {
            (Self::One(address), scope) | (scope, Self::One(address)) => scope.contains(address),
            (Self::AllV4, Self::AllV6) | (Self::AllV6, Self::AllV4) => false,
            _ => true,
        }
    }

    /// Returns whether packets from other machines can be for the socket.
    pub fn is_reachable(self) -> bool {
        !matches!(self, Self::One(address) if address.is_loopback())
    }

    /// Returns whether it is one address.
    pub fn is_one(self) -> bool {
        matches!(self, Self::One(_))
    }
}

/// Returns whether an address is one of this cell.
pub(crate) fn is_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(ip) => ip.is_loopback() || isola_net::address().is_some_and(|own| own.address == ip),
        IpAddr::V6(ip) => ip.is_loopback() || isola_net::ipv6().has(ip),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mapped_addresses_are_ipv4_addresses_of_ipv6_sockets() {
        let mapped = SocketAddress::Inet6("[::ffff:10.1.2.3]:80".parse().unwrap());
        let plain: SocketAddr = "10.1.2.3:80".parse().unwrap();
        assert_eq!(Domain::V6.parse(&mapped), Ok(plain));
        assert_eq!(Domain::V6.show(plain), mapped);
        let v4 = SocketAddress::Inet("10.1.2.3:80".parse().unwrap());
        assert_eq!(Domain::V4.parse(&v4), Ok(plain));
        assert_eq!(Domain::V4.show(plain), v4);
        assert_eq!(Domain::V6.parse(&v4), Err(Errno::EAFNOSUPPORT));
        assert_eq!(Domain::V4.parse(&mapped), Err(Errno::EAFNOSUPPORT));
    }

    #[test]
    fn wildcards_overlap_where_a_packet_can_be_for_both() {
        let scope = |domain, only, text: &str| Scope::of(domain, only, text.parse().unwrap());
        let (all, v4) = (scope(Domain::V6, false, "::"), scope(Domain::V4, false, "0.0.0.0"));
        let (v6, one) = (scope(Domain::V6, true, "::"), scope(Domain::V4, false, "127.0.0.1"));
        assert!(all.overlaps(v4) && v4.overlaps(all) && all.overlaps(v6) && all.overlaps(one));
        assert!(!v4.overlaps(v6) && !v6.overlaps(one) && v4.overlaps(one) && one.overlaps(one));
        assert!(!one.is_reachable() && v4.is_reachable() && v6.is_reachable());
    }
}
