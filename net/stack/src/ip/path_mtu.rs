//! Path MTUs of single destinations (RFC 1191, RFC 8201), from routers' messages.
//!
//! The caller has verified that a message quotes a packet of ours (RFC 5927 4.1). TCP verifies the sequence number of
//! data in flight, which an off-path attacker does not know; UDP verifies that a long datagram was sent recently
//! (`udp/sent.rs`), which is easier to guess. So each has its own entries: a message about UDP does not
//! reduce segments of connections.
//!
//! Entries expire after ten minutes, so that an increased path MTU is detected (RFC 8201 4).

use super::ipv6::MIN_LINK_MTU;
use crate::base::{Duration, Instant, MIN_MTU};
use alloc::collections::BTreeMap;
use core::net::IpAddr;

/// The lifetime of a path MTU.
const BELIEVED: Duration = Duration::from_secs(600);
/// The most destinations for each user; the oldest entry is replaced.
const DESTINATIONS: usize = 256;

/// The transport that uses a path, by its knowledge of its sent packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum PathUser {
    Tcp,
    Udp,
}

/// Path MTUs, and when they were learned.
type KnownMtus = BTreeMap<IpAddr, (u16, Instant)>;

/// Destinations whose path MTU is less than the link's.
#[derive(Debug, Default)]
pub(crate) struct PathMtus {
    tcp: KnownMtus,
    udp: KnownMtus,
}

/// Returns the smallest accepted path MTU to `destination`.
pub(crate) fn least_mtu(destination: IpAddr) -> usize {
    if destination.is_ipv4() { MIN_MTU } else { MIN_LINK_MTU }
}

impl PathMtus {
    /// Returns the path MTU, if its user has learned one.
    pub fn get(&self, now: Instant, (destination, user): (IpAddr, PathUser)) -> Option<usize> {
        let known = match user {
            PathUser::Tcp => &self.tcp,
            PathUser::Udp => &self.udp,
        };
        let (mtu, learned) = known.get(&destination)?;
        (now < *learned + BELIEVED).then_some(usize::from(*mtu))
    }

    /// Processes a router's message; returns the accepted MTU.
    pub fn learn(&mut self, now: Instant, (destination, user): (IpAddr, PathUser), mtu: u32) -> usize {
        let before = self.get(now, (destination, user));
        let known = match user {
            PathUser::Tcp => &mut self.tcp,
            PathUser::Udp => &mut self.udp,
        };
        if known.len() >= DESTINATIONS && !known.contains_key(&destination) {
            known.retain(|_, (_, learned)| now < *learned + BELIEVED);
            let oldest = known.iter().min_by_key(|(_, (_, learned))| *learned).map(|(&ip, _)| ip);
            if let Some(ip) = oldest.filter(|_| known.len() >= DESTINATIONS) {
                known.remove(&ip);
            }
        }
        let mtu = mtu.max(least_mtu(destination) as u32).min(u16::MAX.into()) as u16;
        // A message can only reduce a path MTU; the expiry of the entry restores it.
        let mtu = before.map_or(mtu, |known| mtu.min(known as u16));
        known.insert(destination, (mtu, now));
        usize::from(mtu)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::Ipv4Addr;
    use isola_proves::proves;

    #[proves("RFC 8201 4", "a path's MTU expires after ten minutes.")]
    #[proves("RFC 8201 4", "a path's MTU never falls below the least that every link carries.")]
    #[test]
    fn a_path_mtu_expires_after_ten_minutes() {
        let mut paths = PathMtus::default();
        let now = Instant::ZERO;
        let four = (IpAddr::from([10, 0, 0, 1]), PathUser::Udp);
        let six = (IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, 1]), PathUser::Udp);
        assert_eq!((paths.learn(now, four, 0), paths.learn(now, six, 100)), (576, 1280));
        assert_eq!(paths.learn(now, six, 1400), 1280, "a message increased the path MTU");
        assert_eq!(paths.get(now + Duration::from_secs(599), six), Some(1280));
        assert_eq!(paths.get(now + Duration::from_secs(600), six), None);
        assert_eq!(paths.learn(now + Duration::from_secs(600), six, 1400), 1400);
    }

    #[test]
    fn a_flood_of_destinations_stays_within_bounds() {
        let mut paths = PathMtus::default();
        for i in 0..2000u32 {
            let now = Instant::from_nanos(u64::from(i));
            paths.learn(now, (Ipv4Addr::from_bits(i).into(), PathUser::Tcp), 1000);
        }
        assert_eq!(paths.tcp.len(), DESTINATIONS);
        assert!(
            paths.get(Instant::from_nanos(2000), (Ipv4Addr::from_bits(1999).into(), PathUser::Tcp)).is_some()
        );
    }
}
