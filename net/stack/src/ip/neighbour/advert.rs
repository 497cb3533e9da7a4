//! The effect of a neighbour advertisement (RFC 4861 7.2.5).

use super::{Evidence, LearnOutcome, MakeEntry, NeighbourCache, State};
use crate::base::{Counters, Instant, MacAddr};
use core::net::IpAddr;

/// The contents of a neighbour advertisement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Advert {
    pub mac: Option<MacAddr>,
    pub evidence: Evidence,
    pub strength: Strength,
}

/// Whether an advertisement overrides a known address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Strength {
    Replaces,
    Adds,
}

impl NeighbourCache {
    /// Processes a neighbour advertisement (RFC 4861 7.2.5).
    ///
    /// `unasked` decides whether an advertisement for an address without an entry creates one.
    pub fn advertised(
        &mut self,
        now: Instant,
        ip: IpAddr,
        advert: Advert,
        unasked: MakeEntry,
        counters: &mut Counters,
    ) -> LearnOutcome {
        let evidence = advert.evidence;
        let Some(entry) = self.entries.get_mut(&ip) else {
            let Some(mac) = advert.mac else { return LearnOutcome::Nothing };
            return self.learn(now, (ip, mac), evidence, unasked, counters);
        };
        let mac = match (&mut entry.state, advert.mac) {
            (State::Sought { .. }, None) => return LearnOutcome::Nothing,
            (State::Known { mac, .. }, None) => *mac,
            (State::Known { mac: before, reachable_until, .. }, Some(mac))
                if *before != mac && advert.strength == Strength::Adds =>
            {
                // It does not override the known address, but makes it stale.
                if now < *reachable_until {
                    *reachable_until = now;
                    self.epoch = self.epoch.wrapping_add(1);
                }
                return LearnOutcome::Nothing;
            }
            (_, Some(mac)) => mac,
        };
        self.learn(now, (ip, mac), evidence, MakeEntry::IfPresent, counters)
    }
}
