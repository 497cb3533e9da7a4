//! Addresses of sockets: `struct sockaddr` of each family, as programs pass it.

use crate::Errno;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::{Ipv4Addr, Ipv6Addr, SocketAddrV4, SocketAddrV6};
use isola_linux_abi::net::{AF_INET, AF_INET6, AF_NETLINK, AF_UNIX, AF_UNSPEC};

/// The most bytes of an address (`struct sockaddr_storage`).
pub const MOST_ADDRESS_LEN: usize = 128;
/// The most bytes of the path of a unix socket (`sun_path`).
pub const UNIX_PATH_LEN: usize = 108;
/// The length of `struct sockaddr_in`.
const INET_LEN: usize = 16;
/// The length of `struct sockaddr_in6` without its scope, which older programs pass.
const SHORT_INET6_LEN: usize = 24;
/// The length of `struct sockaddr_nl`.
const NETLINK_LEN: usize = 12;
/// The length of the family, with which every address begins.
const FAMILY_LEN: usize = 2;

/// The address of a unix socket.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum UnixAddress {
    /// The socket has no name. In `bind`, the system chooses an abstract one.
    #[default]
    Unnamed,
    /// A path, without the zero byte at its end.
    Path(Arc<[u8]>),
    /// An abstract name: the bytes behind the zero byte of `sun_path`.
    Abstract(Arc<[u8]>),
}

/// An address of a socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SocketAddress {
    /// `AF_UNSPEC`: `connect` to it ends the association of a datagram socket.
    Unspecified,
    /// `AF_UNIX`.
    Unix(UnixAddress),
    /// `AF_INET`.
    Inet(SocketAddrV4),
    /// `AF_INET6`, with flow information and scope.
    Inet6(SocketAddrV6),
    /// `AF_NETLINK`.
    Netlink {
        /// The port; 0 is the kernel.
        port: u32,
        /// The multicast groups.
        groups: u32,
    },
    /// An address of a family that the system does not have.
    Other {
        /// The family.
        family: u16,
    },
}

impl SocketAddress {
    /// Parses an address that a program passed, of at most [`MOST_ADDRESS_LEN`] bytes.
    ///
    /// # Errors
    /// [`Errno::EINVAL`] if it is too short or too long for its family.
    pub fn parse(bytes: &[u8]) -> Result<Self, Errno> {
        let Some((family, rest)) = bytes.split_first_chunk::<FAMILY_LEN>() else {
            return Err(Errno::EINVAL);
        };
        let family = u16::from_ne_bytes(*family);
        let big = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        let word = |at: usize| u32::from_ne_bytes(core::array::from_fn(|index| bytes[at + index]));
        match u32::from(family) {
            AF_UNSPEC => Ok(Self::Unspecified),
            AF_UNIX => UnixAddress::parse(rest).map(Self::Unix),
            AF_INET if bytes.len() < INET_LEN => Err(Errno::EINVAL),
            AF_INET => {
                let host: [u8; 4] = core::array::from_fn(|index| bytes[4 + index]);
                Ok(Self::Inet(SocketAddrV4::new(Ipv4Addr::from(host), big(2))))
            }
            AF_INET6 if bytes.len() < SHORT_INET6_LEN => Err(Errno::EINVAL),
            AF_INET6 => {
                let host: [u8; 16] = core::array::from_fn(|index| bytes[8 + index]);
                let scope = if bytes.len() >= SHORT_INET6_LEN + 4 { word(SHORT_INET6_LEN) } else { 0 };
                // The flow information stays in network order.
                Ok(Self::Inet6(SocketAddrV6::new(Ipv6Addr::from(host), big(2), word(4), scope)))
            }
            AF_NETLINK if bytes.len() < NETLINK_LEN => Err(Errno::EINVAL),
            AF_NETLINK => Ok(Self::Netlink { port: word(4), groups: word(8) }),
            _ => Ok(Self::Other { family }),
        }
    }

    /// Returns the family (`AF_*`).
    pub fn family(&self) -> u32 {
        match self {
            Self::Unspecified => AF_UNSPEC,
            Self::Unix(_) => AF_UNIX,
            Self::Inet(_) => AF_INET,
            Self::Inet6(_) => AF_INET6,
            Self::Netlink { .. } => AF_NETLINK,
            Self::Other { family } => u32::from(*family),
        }
    }

    /// Returns the bytes of the address, as programs read it.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = (self.family() as u16).to_ne_bytes().to_vec();
        match self {
            Self::Unspecified | Self::Other { .. } | Self::Unix(UnixAddress::Unnamed) => {}
            Self::Unix(UnixAddress::Path(path)) => {
                bytes.extend_from_slice(path);
                bytes.push(0);
            }
            Self::Unix(UnixAddress::Abstract(name)) => {
                bytes.push(0);
                bytes.extend_from_slice(name);
            }
            Self::Inet(address) => {
                bytes.extend(address.port().to_be_bytes());
                bytes.extend(address.ip().octets());
                bytes.resize(INET_LEN, 0);
            }
            Self::Inet6(address) => {
                bytes.extend(address.port().to_be_bytes());
                bytes.extend(address.flowinfo().to_ne_bytes());
                bytes.extend(address.ip().octets());
                bytes.extend(address.scope_id().to_ne_bytes());
            }
            Self::Netlink { port, groups } => {
                bytes.extend([0, 0]);
                bytes.extend(port.to_ne_bytes());
                bytes.extend(groups.to_ne_bytes());
            }
        }
        bytes
    }
}

impl UnixAddress {
    /// Parses the bytes behind the family.
    fn parse(bytes: &[u8]) -> Result<Self, Errno> {
        match bytes {
            _ if bytes.len() > UNIX_PATH_LEN => Err(Errno::EINVAL),
            [] => Ok(Self::Unnamed),
            [0, name @ ..] => Ok(Self::Abstract(name.into())),
            _ => {
                let len = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
                Ok(Self::Path(bytes[..len].into()))
            }
        }
    }

    /// Returns the name as `/proc/net/unix` shows it: an abstract name begins with `@`, and zero bytes are `@` too.
    pub fn shown(&self) -> Vec<u8> {
        match self {
            Self::Unnamed => Vec::new(),
            Self::Path(path) => path.to_vec(),
            Self::Abstract(name) => {
                let name = name.iter().map(|byte| if *byte == 0 { b'@' } else { *byte });
                core::iter::once(b'@').chain(name).collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_encoding() {
        let path = UnixAddress::Path(b"/run/x".as_slice().into());
        let name = UnixAddress::Abstract(b"a\0b".as_slice().into());
        for address in [
            SocketAddress::Unspecified,
            SocketAddress::Unix(UnixAddress::Unnamed),
            SocketAddress::Unix(path),
            SocketAddress::Unix(name.clone()),
            SocketAddress::Inet("1.2.3.4:80".parse().unwrap()),
            SocketAddress::Inet6("[fe80::1%7]:443".parse().unwrap()),
            SocketAddress::Netlink { port: 5, groups: 1 << 31 },
            SocketAddress::Other { family: 40 },
        ] {
            assert_eq!(SocketAddress::parse(&address.encode()), Ok(address));
        }
        assert_eq!(name.shown(), b"@a@b");
    }

    #[test]
    fn no_bytes_of_a_program_make_a_parse_panic() {
        for family in [0, 1, 2, 10, 16, 17, 0xffff_u16] {
            for len in 0..=MOST_ADDRESS_LEN {
                let mut bytes = alloc::vec![0xff; len];
                let family_len = len.min(2);
                bytes[..family_len].copy_from_slice(&family.to_ne_bytes()[..family_len]);
                let parsed = SocketAddress::parse(&bytes);
                let shortest = match family {
                    2 => 16,
                    10 => 24,
                    16 => 12,
                    _ => 2,
                };
                let fits = len >= shortest && (family != 1 || len <= 2 + UNIX_PATH_LEN);
                assert_eq!(parsed.is_ok(), fits, "family {family}, {len} bytes");
            }
        }
    }

    #[test]
    fn a_path_ends_at_its_zero_byte_or_at_the_end_of_the_address() {
        let parse = |path: &[u8]| SocketAddress::parse(&[&[1, 0], path].concat());
        let path = |path: &[u8]| Ok(SocketAddress::Unix(UnixAddress::Path(path.into())));
        assert_eq!(parse(b"/a\0b"), path(b"/a"));
        assert_eq!(parse(&[b'x'; UNIX_PATH_LEN]), path(&[b'x'; UNIX_PATH_LEN]));
        assert_eq!(parse(&[b'x'; UNIX_PATH_LEN + 1]), Err(Errno::EINVAL));
    }
}
