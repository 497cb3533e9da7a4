//! The hardware addresses of hosts outside, by ARP (RFC 826), with the frames that wait for them.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::net::Ipv4Addr;
use core::time::Duration;
use isola_switch::frame::Mac;

/// The most hosts outside whose hardware addresses are known or searched.
pub const MOST_NEIGHBOURS: usize = 256;

/// The most frames that wait for the hardware address of one host.
pub const MOST_HELD: usize = 2;

/// How long an address is used before it is asked for again.
const AGE: Duration = Duration::from_secs(60);

/// The least time between two requests for one address.
const PAUSE: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
struct Neighbour {
    mac: Option<Mac>,
    learned_at: Duration,
    asked_at: Option<Duration>,
    held: VecDeque<Vec<u8>>,
}

/// The hosts outside.
#[derive(Debug, Default)]
pub(crate) struct Neighbours {
    by_address: BTreeMap<Ipv4Addr, Neighbour>,
}

/// The hardware address of a host, and whether to ask for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Resolved {
    pub mac: Option<Mac>,
    pub must_ask: bool,
}

impl Neighbours {
    /// Returns the hardware address of `ip`, if it is known.
    pub fn resolve(&mut self, ip: Ipv4Addr, now: Duration) -> Resolved {
        if self.by_address.len() >= MOST_NEIGHBOURS && !self.by_address.contains_key(&ip) {
            self.remove_oldest();
        }
        let neighbour = self.by_address.entry(ip).or_default();
        let is_fresh = neighbour.mac.is_some() && now < neighbour.learned_at + AGE;
        let is_early = neighbour.asked_at.is_some_and(|at| now < at + PAUSE);
        let must_ask = !is_fresh && !is_early;
        if must_ask {
            neighbour.asked_at = Some(now);
        }
        Resolved { mac: neighbour.mac, must_ask }
    }

    /// Holds a frame until the hardware address of `ip` is known. Returns whether there is room.
    pub fn hold(&mut self, ip: Ipv4Addr, frame: &[u8]) -> bool {
        let Some(neighbour) = self.by_address.get_mut(&ip) else { return false };
        let has_room = neighbour.held.len() < MOST_HELD;
        if has_room {
            neighbour.held.push_back(frame.to_vec());
        }
        has_room
    }

    /// Records the hardware address of a host that was asked for it, and returns the frames that waited.
    pub fn learn(&mut self, ip: Ipv4Addr, mac: Mac, now: Duration) -> VecDeque<Vec<u8>> {
        // Others announce themselves too; only hosts with packets of clients take room.
        let Some(neighbour) = self.by_address.get_mut(&ip) else { return VecDeque::new() };
        (neighbour.mac, neighbour.learned_at) = (Some(mac), now);
        core::mem::take(&mut neighbour.held)
    }

    /// Forgets all hosts.
    pub fn clear(&mut self) {
        self.by_address.clear();
    }

    /// Removes the host that answered longest ago, one without an answer if there is any.
    fn remove_oldest(&mut self) {
        let age = |neighbour: &Neighbour| (neighbour.learned_at, neighbour.asked_at);
        let oldest = self.by_address.iter().min_by_key(|(_, neighbour)| age(neighbour));
        if let Some(ip) = oldest.map(|(ip, _)| *ip) {
            self.by_address.remove(&ip);
        }
    }
}
