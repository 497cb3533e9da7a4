//! How long packets to single destinations may be (RFC 1191, RFC 8201), as routers on the way said.
//!
//! Who believes a router has checked that it quotes something under way (RFC 5927). What was learned is
//! forgotten after ten minutes, so that a longer way is found again (RFC 8201 4).

use crate::config::MIN_MTU;
use crate::ipv6::MIN_LINK_MTU;
use crate::time::{Duration, Instant};
use alloc::collections::BTreeMap;
use core::net::IpAddr;

/// How long a path's MTU is believed.
const BELIEVED: Duration = Duration::from_secs(600);
/// Destinations whose path's MTU is kept; the one that was learned first goes for another.
const DESTINATIONS: usize = 256;

/// Destinations to which the way is narrower than the link.
#[derive(Debug, Default)]
pub(crate) struct PathMtus {
    known: BTreeMap<IpAddr, (u16, Instant)>,
}

/// The smallest MTU that is believed of a path to `destination`.
pub(crate) fn least_mtu(destination: IpAddr) -> usize {
    if destination.is_ipv4() { MIN_MTU } else { MIN_LINK_MTU }
}

impl PathMtus {
    /// The path's MTU, where it was told.
    pub fn get(&self, now: Instant, destination: IpAddr) -> Option<usize> {
        let (mtu, learned) = self.known.get(&destination)?;
        (now < *learned + BELIEVED).then_some(usize::from(*mtu))
    }

    /// Notes what a router said; returns the MTU that is believed.
    pub fn learn(&mut self, now: Instant, destination: IpAddr, mtu: u32) -> usize {
        let mtu = mtu.max(least_mtu(destination) as u32).min(u16::MAX.into()) as u16;
        if self.known.len() >= DESTINATIONS && !self.known.contains_key(&destination) {
            self.known.retain(|_, (_, learned)| now < *learned + BELIEVED);
            let oldest = self.known.iter().min_by_key(|(_, (_, learned))| *learned).map(|(&ip, _)| ip);
            if let Some(ip) = oldest.filter(|_| self.known.len() >= DESTINATIONS) {
                self.known.remove(&ip);
            }
        }
        // A router can only make a path narrower; wider it gets by being forgotten.
        let mtu = self.get(now, destination).map_or(mtu, |known| mtu.min(known as u16));
        self.known.insert(destination, (mtu, now));
        usize::from(mtu)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::Ipv4Addr;

    /// RFC 8201 4: what was learned of a path is forgotten after ten minutes.
    /// RFC 8201 4: a path's MTU never falls below the least that every link carries.
    #[test]
    fn a_narrow_path_is_believed_for_ten_minutes() {
        let mut paths = PathMtus::default();
        let now = Instant::ZERO;
        let (four, six) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, 1]));
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
            paths.learn(now, Ipv4Addr::from_bits(i).into(), 1000);
        }
        assert_eq!(paths.known.len(), DESTINATIONS);
        assert!(paths.get(Instant::from_nanos(2000), Ipv4Addr::from_bits(1999).into()).is_some());
    }
}
