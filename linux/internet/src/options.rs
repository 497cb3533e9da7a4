//! Options of the levels `IPPROTO_IP` and `IPPROTO_IPV6`, which TCP and UDP share.
//!
//! Most of them are recorded only: a program reads back what it wrote. docs/linux.md lists those.

use crate::address::Domain;
use crate::bytes::number;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicI32, Ordering};
use isola_linux_abi::net as linux;
use isola_linux_sockets::Errno;

/// The options that are numbers: level, name, first value, least and largest value.
const NUMBERS: &[(u32, u32, i32, i32, i32)] = &[
    (IP, linux::IP_TOS, 0, 0, 255),
    (IP, linux::IP_TTL, 64, -1, 255),
    (IP, linux::IP_MTU_DISCOVER, 1, 0, 5),
    (IP, linux::IP_RECVERR, 0, 0, 1),
    (IP, linux::IP_FREEBIND, 0, 0, 1),
    (IP, linux::IP_TRANSPARENT, 0, 0, 0),
    (IP, linux::IP_BIND_ADDRESS_NO_PORT, 0, 0, 1),
    (IP, linux::IP_PKTINFO, 0, 0, 1),
    (IP, linux::IP_RECVTTL, 0, 0, 0),
    (IP, linux::IP_RECVTOS, 0, 0, 0),
    (IP, linux::IP_MULTICAST_TTL, 1, -1, 255),
    (IP, linux::IP_MULTICAST_LOOP, 1, 0, 1),
    (IP, linux::IP_MULTICAST_ALL, 1, 0, 1),
    (IP6, linux::IPV6_V6ONLY, 0, 0, 1),
    (IP6, linux::IPV6_UNICAST_HOPS, 64, -1, 255),
    (IP6, linux::IPV6_MULTICAST_HOPS, 1, -1, 255),
    (IP6, linux::IPV6_MULTICAST_LOOP, 1, 0, 1),
    (IP6, linux::IPV6_MTU_DISCOVER, 1, 0, 5),
    (IP6, linux::IPV6_RECVERR, 0, 0, 1),
    (IP6, linux::IPV6_RECVPKTINFO, 0, 0, 1),
    (IP6, linux::IPV6_TCLASS, 0, -1, 255),
    (IP6, linux::IPV6_RECVTCLASS, 0, 0, 0),
    (IP6, linux::IPV6_RECVHOPLIMIT, 0, 0, 0),
    (IP6, linux::IPV6_FREEBIND, 0, 0, 1),
    (IP6, linux::IPV6_AUTOFLOWLABEL, 1, 0, 1),
];

const IP: u32 = linux::SOL_IP;
const IP6: u32 = linux::SOL_IPV6;

/// The options of a socket at the levels of IP.
pub(crate) struct IpOptions([AtomicI32; NUMBERS.len()]);

impl Default for IpOptions {
    fn default() -> Self {
        Self(core::array::from_fn(|index| AtomicI32::new(NUMBERS[index].2)))
    }
}

impl IpOptions {
    /// Returns a copy, for a connection that a listening socket accepts.
    pub fn inherited(&self) -> Self {
        Self(core::array::from_fn(|index| AtomicI32::new(self.0[index].load(Ordering::Relaxed))))
    }

    fn value(&self, level: u32, name: u32) -> Option<i32> {
        let index = NUMBERS.iter().position(|option| (option.0, option.1) == (level, name))?;
        Some(self.0[index].load(Ordering::Relaxed))
    }

    /// Returns whether an IPv6 socket takes no IPv4 addresses.
    pub fn is_v6_only(&self) -> bool {
        self.value(IP6, linux::IPV6_V6ONLY) == Some(1)
    }

    /// Returns whether the socket binds addresses that the cell does not have.
    pub fn is_free_bind(&self) -> bool {
        self.value(IP, linux::IP_FREEBIND) == Some(1) || self.value(IP6, linux::IPV6_FREEBIND) == Some(1)
    }

    /// Returns whether datagrams are received with the addresses to which they were sent, as IPv4's and as IPv6's option.
    pub fn has_packet_information(&self) -> (bool, bool) {
        let is_on = |level, name| self.value(level, name) == Some(1);
        (is_on(IP, linux::IP_PKTINFO), is_on(IP6, linux::IPV6_RECVPKTINFO))
    }

    /// Returns the value of an option.
    ///
    /// # Errors
    /// [`Errno::ENOPROTOOPT`], [`Errno::EOPNOTSUPP`] for a level that the family does not have.
    pub fn get(&self, domain: Domain, level: u32, name: u32) -> Result<Vec<u8>, Errno> {
        match (level, name) {
            (IP6, _) if domain == Domain::V4 => Err(Errno::EOPNOTSUPP),
            (IP, linux::IP_MTU) | (IP6, linux::IPV6_MTU) => Ok(number(1500)),
            (IP, linux::IP_OPTIONS) => Ok(Vec::new()),
            _ => self.value(level, name).map(number).ok_or(Errno::ENOPROTOOPT),
        }
    }

    /// Sets an option. `is_bound` forbids a change of `IPV6_V6ONLY`.
    ///
    /// # Errors
    /// [`Errno::ENOPROTOOPT`], [`Errno::EINVAL`].
    pub fn set(
        &self,
        domain: Domain,
        level: u32,
        name: u32,
        value: &[u8],
        is_bound: bool,
    ) -> Result<(), Errno> {
        if level == IP6 && domain == Domain::V4 {
            return Err(Errno::ENOPROTOOPT);
        }
        let index = NUMBERS.iter().position(|option| (option.0, option.1) == (level, name));
        let index = index.ok_or(Errno::ENOPROTOOPT)?;
        let (_, _, first, least, largest) = NUMBERS[index];
        // Linux reads one byte of a short IPv4 option.
        let new = match (value, level) {
            ([a, b, c, d, ..], _) => i32::from_ne_bytes([*a, *b, *c, *d]),
            ([byte, ..], IP) => i32::from(*byte),
            _ => return Err(Errno::EINVAL),
        };
        let is_switch = (least, largest) == (0, 1);
        let new = if is_switch { i32::from(new != 0) } else { new };
        if new < least || new > largest || (level, name) == (IP6, linux::IPV6_V6ONLY) && is_bound {
            return Err(Errno::EINVAL);
        }
        let new = if new == -1 { first } else { new };
        self.0[index].store(new, Ordering::Relaxed);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_have_limits_and_families() {
        let options = IpOptions::default();
        let set =
            |domain, level, name, value: i32| options.set(domain, level, name, &value.to_ne_bytes(), false);
        assert_eq!(set(Domain::V4, IP, linux::IP_TOS, 16), Ok(()));
        assert_eq!(options.get(Domain::V4, IP, linux::IP_TOS), Ok(number(16)));
        assert_eq!(set(Domain::V4, IP, linux::IP_TTL, 256), Err(Errno::EINVAL));
        assert_eq!(set(Domain::V4, IP6, linux::IPV6_V6ONLY, 1), Err(Errno::ENOPROTOOPT));
        assert_eq!(set(Domain::V6, IP6, linux::IPV6_V6ONLY, 5), Ok(()));
        assert!(options.is_v6_only());
        let bound = options.set(Domain::V6, IP6, linux::IPV6_V6ONLY, &[0; 4], true);
        assert_eq!(bound, Err(Errno::EINVAL));
        assert_eq!(set(Domain::V6, IP, 9999, 1), Err(Errno::ENOPROTOOPT));
        assert_eq!(options.set(Domain::V6, IP, linux::IP_TOS, &[], false), Err(Errno::EINVAL));
        assert_eq!(options.set(Domain::V6, IP, linux::IP_TOS, &[8], false), Ok(()));
    }
}
