//! How long packets to single destinations may be (RFC 1191, RFC 8201), as routers on the way said.
//!
//! Who believes a router has checked that it quotes something of ours (RFC 5927 4.1). TCP knows what is under way, down
//! to the sequence number, which an outsider does not know; of datagrams, which long ones were sent lately
//! ([`crate::sent_datagrams`]), which is easier to guess. So each learns for itself: what UDP believes makes no connection's
//! segments shorter.
//!
//! What was learned is forgotten after ten minutes, so that a longer way is found again (RFC 8201 4).

use crate::config::MIN_MTU;
use crate::ipv6::MIN_LINK_MTU;
use crate::time::{Duration, Instant};
use alloc::collections::BTreeMap;
use core::net::IpAddr;

/// How long a path's MTU is believed.
const BELIEVED: Duration = Duration::from_secs(600);
/// Destinations whose path's MTU is kept for each user; the one that was learned first goes for another.
const DESTINATIONS: usize = 256;

/// Who uses a path, by what it knows of what it sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum PathUser {
    Tcp,
    Udp,
}

/// What was learned, and when.
type Known = BTreeMap<IpAddr, (u16, Instant)>;

/// Destinations to which the way is narrower than the link.
#[derive(Debug, Default)]
pub(crate) struct PathMtus {
    tcp: Known,
    udp: Known,
}

/// The smallest MTU that is believed of a path to `destination`.
pub(crate) fn least_mtu(destination: IpAddr) -> usize {
    if destination.is_ipv4() { MIN_MTU } else { MIN_LINK_MTU }
}

impl PathMtus {
    /// The path's MTU, where its user was told.
    pub fn get(&self, now: Instant, (destination, user): (IpAddr, PathUser)) -> Option<usize> {
        let known = match user {
            PathUser::Tcp => &self.tcp,
            PathUser::Udp => &self.udp,
        };
        let (mtu, learned) = known.get(&destination)?;
        (now < *learned + BELIEVED).then_some(usize::from(*mtu))
    }

    /// Notes what a router said; returns the MTU that is believed.
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
        // A router can only make a path narrower; wider it gets by being forgotten.
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

    #[proves("RFC 8201 4", "what was learned of a path is forgotten after ten minutes.")]
    #[proves("RFC 8201 4", "a path's MTU never falls below the least that every link carries.")]
    #[test]
    fn a_narrow_path_is_believed_for_ten_minutes() {
        let mut paths = PathMtus::default();
        let now = Instant::ZERO;
        let four = (IpAddr::from([10, 0, 0, 1]), PathUser::Udp);
        let six = (IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, 1]), PathUser::Udp);
        assert_eq!((paths.learn(now, four, 0), paths.learn(now, six, 100)), (576, 1280));
        assert_eq!(paths.learn(now, six, 1400), 1280, "no router makes a path wider");
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
