//! The map from flows to connections, half-open handshakes and TIME-WAIT entries.

use crate::base::{Flow, Secret};
use crate::steering::{CoreShare, Steering};
use alloc::collections::BTreeSet;
use alloc::sync::Arc;
use core::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use hashbrown::HashTable;
use siphasher::sip::SipHasher24;

/// The table entry of a flow: its table, and its index there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    Connection(u32),
    HalfOpen(u32),
    TimeWait(u32),
}

/// A flow in the form that is hashed and compared for each segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FlowKey {
    V4(FlowKey4),
    V6(FlowKey6),
}

/// An IPv4 flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FlowKey4 {
    local: u32,
    remote: u32,
    /// Local and remote port, in the upper and lower half.
    ports: u32,
}

/// An IPv6 flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FlowKey6 {
    local: u128,
    remote: u128,
    /// Local and remote port, in the upper and lower half.
    ports: u32,
}

impl FlowKey4 {
    /// Returns the key for two addresses and their ports.
    #[inline]
    pub const fn new(local: u32, remote: u32, local_port: u16, remote_port: u16) -> Self {
        Self { local, remote, ports: both(local_port, remote_port) }
    }
}

/// Packs both ports into one word.
#[inline]
const fn both(local: u16, remote: u16) -> u32 {
    (local as u32) << 16 | remote as u32
}

impl FlowKey {
    /// Returns the IPv4 key for two addresses, with ports 0.
    #[inline]
    pub const fn v4(local: Ipv4Addr, remote: Ipv4Addr) -> Self {
        Self::V4(FlowKey4 { local: local.to_bits(), remote: remote.to_bits(), ports: 0 })
    }

    /// Returns the IPv6 key for two addresses, with ports 0.
    #[inline]
    pub const fn v6(local: Ipv6Addr, remote: Ipv6Addr) -> Self {
        Self::V6(FlowKey6 { local: local.to_bits(), remote: remote.to_bits(), ports: 0 })
    }

    #[inline]
    pub fn of(flow: &Flow) -> Self {
        let mut key = match (flow.local, flow.remote) {
            (SocketAddr::V4(local), SocketAddr::V4(remote)) => Self::v4(*local.ip(), *remote.ip()),
            (local, remote) => Self::v6(in_v6(local), in_v6(remote)),
        };
        key.set_ports(flow.local.port(), flow.remote.port());
        key
    }

    #[inline]
    pub fn set_ports(&mut self, local: u16, remote: u16) {
        let ports = both(local, remote);
        match self {
            Self::V4(key) => key.ports = ports,
            Self::V6(key) => key.ports = ports,
        }
    }
}

fn in_v6(end: SocketAddr) -> Ipv6Addr {
    match end {
        SocketAddr::V4(end) => end.ip().to_ipv6_mapped(),
        SocketAddr::V6(end) => *end.ip(),
    }
}

/// Number of hash keys: one for each word, plus an initial value.
const KEYS: usize = 10;

/// Hashes words to a sum of products with secret keys. Two given flows collide with probability 2^-32, even if an
/// adversary chose them: the upper half of multilinear hashing is strongly universal (Lemire and Kaser, "Strongly
/// universal string hashing is fast", 2014). A word costs one multiplication.
#[derive(Debug)]
struct Hasher([u64; KEYS]);

impl Hasher {
    fn new(secret: &Secret) -> Self {
        let (a, b) = secret.keys(3);
        let random = SipHasher24::new_with_keys(a, b);
        Self(core::array::from_fn(|index| random.hash(&index.to_le_bytes())))
    }

    #[inline(always)]
    fn hash<const N: usize>(&self, words: [u32; N]) -> u64 {
        let [mut sum, keys @ ..] = self.0;
        for (word, key) in words.iter().zip(&keys) {
            sum = sum.wrapping_add(u64::from(*word).wrapping_mul(*key));
        }
        // The table selects slots by the lower bits, so the upper half is copied there.
        sum & 0xffff_ffff_0000_0000 | sum >> 32
    }

    #[inline]
    fn hash4(&self, key: &FlowKey4) -> u64 {
        self.hash([key.local, key.remote, key.ports])
    }

    fn hash6(&self, key: &FlowKey6) -> u64 {
        let word = |bits: u128, index: u32| (bits >> (32 * index)) as u32;
        let (l, r) = (key.local, key.remote);
        self.hash([
            word(l, 0),
            word(l, 1),
            word(l, 2),
            word(l, 3),
            word(r, 0),
            word(r, 1),
            word(r, 2),
            word(r, 3),
            key.ports,
        ])
    }
}

/// All flows of a stack. The hash is keyed because peers choose the hashed values: without the keys they cannot cause
/// collisions.
#[derive(Debug)]
pub(crate) struct FlowMap {
    v4: HashTable<(FlowKey4, Target)>,
    v6: HashTable<(FlowKey6, Target)>,
    hasher: Hasher,
    left_behind: Option<LeftBehindFlows>,
}

/// Flows whose buckets belong to another core, and whose frames that core forwards here until they are removed.
#[derive(Debug)]
struct LeftBehindFlows {
    flows: BTreeSet<Flow>,
    steering: Arc<Steering>,
}

impl LeftBehindFlows {
    #[cold]
    fn remove(&mut self, flow: &Flow) -> LeftBehind {
        if !self.flows.remove(flow) {
            return LeftBehind::No;
        }
        self.steering.forget(flow);
        LeftBehind::Yes
    }
}

/// Whether a flow was a left-behind flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LeftBehind {
    Yes,
    No,
}

impl FlowMap {
    pub fn new(secret: &Secret) -> Self {
        Self { v4: HashTable::new(), v6: HashTable::new(), hasher: Hasher::new(secret), left_behind: None }
    }

    /// Returns the target of a flow.
    #[inline]
    pub fn get(&self, key: &FlowKey) -> Option<Target> {
        match key {
            FlowKey::V4(key) => self.get4(key),
            FlowKey::V6(key) => Some(self.v6.find(self.hasher.hash6(key), |entry| entry.0 == *key)?.1),
        }
    }

    /// Returns the target of an IPv4 flow.
    #[inline(always)]
    pub fn get4(&self, key: &FlowKey4) -> Option<Target> {
        Some(self.v4.find(self.hasher.hash4(key), |entry| entry.0 == *key)?.1)
    }

    /// Maps a flow to `target`, in place of any previous target.
    pub fn insert(&mut self, flow: Flow, target: Target) {
        let hasher = &self.hasher;
        match FlowKey::of(&flow) {
            FlowKey::V4(key) => put(&mut self.v4, key, target, |key| hasher.hash4(key)),
            FlowKey::V6(key) => put(&mut self.v6, key, target, |key| hasher.hash6(key)),
        }
    }

    /// Removes a flow if it is mapped to `target`. Returns whether it was a left-behind flow; that record is removed
    /// too.
    pub fn remove(&mut self, flow: &Flow, target: Target) -> LeftBehind {
        let taken = match FlowKey::of(flow) {
            FlowKey::V4(key) => take(&mut self.v4, (key, target), self.hasher.hash4(&key)),
            FlowKey::V6(key) => take(&mut self.v6, (key, target), self.hasher.hash6(&key)),
        };
        match &mut self.left_behind {
            Some(left_behind) if taken.is_some() => left_behind.remove(flow),
            _ => LeftBehind::No,
        }
    }

    /// Records a left-behind flow: until it is removed, its frames are forwarded to this core even if its bucket
    /// belongs to another.
    pub fn keep(&mut self, flow: Flow, core: &CoreShare) {
        core.steering.keep(flow, core.index);
        let none = || LeftBehindFlows { flows: BTreeSet::new(), steering: core.steering.clone() };
        self.left_behind.get_or_insert_with(none).flows.insert(flow);
    }
}

fn put<K: PartialEq>(table: &mut HashTable<(K, Target)>, key: K, target: Target, hash: impl Fn(&K) -> u64) {
    let hashed = hash(&key);
    match table.find_mut(hashed, |entry| entry.0 == key) {
        Some(entry) => entry.1 = target,
        None => {
            table.insert_unique(hashed, (key, target), |entry| hash(&entry.0));
        }
    }
}

fn take<K: PartialEq>(table: &mut HashTable<(K, Target)>, wanted: (K, Target), hash: u64) -> Option<()> {
    let entry = table.find_entry(hash, |entry| *entry == wanted).ok()?;
    entry.remove();
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    fn flows(v6: bool) -> impl Iterator<Item = Flow> {
        (0..64u16).flat_map(move |host| {
            (1..65u16).map(move |port| {
                let (local, remote): (core::net::IpAddr, core::net::IpAddr) = if v6 {
                    (Ipv6Addr::LOCALHOST.into(), Ipv6Addr::new(0xfe80, 0, 0, host, 0, 0, 0, 1).into())
                } else {
                    (Ipv4Addr::LOCALHOST.into(), Ipv4Addr::new(10, host as u8, 0, 1).into())
                };
                Flow::new(local, 80, remote, port)
            })
        })
    }

    #[test]
    fn a_flow_maps_to_its_latest_target_until_that_target_is_removed() {
        let mut map = FlowMap::new(&Secret([7; 32]));
        for (index, flow) in flows(false).chain(flows(true)).enumerate() {
            map.insert(flow, Target::HalfOpen(1));
            map.insert(flow, Target::Connection(index as u32));
        }
        for (index, flow) in flows(false).chain(flows(true)).enumerate() {
            let (key, target) = (FlowKey::of(&flow), Target::Connection(index as u32));
            assert_eq!(map.get(&key), Some(target));
            map.remove(&flow, Target::HalfOpen(1));
            assert_eq!(map.get(&key), Some(target));
            map.remove(&flow, target);
            assert_eq!(map.get(&key), None);
        }
    }

    #[test]
    fn similar_flows_spread_evenly_and_differently_for_each_key() {
        let slots = |seed: u8| -> Vec<u64> {
            let hasher = Hasher::new(&Secret([seed; 32]));
            flows(false)
                .chain(flows(true))
                .map(|flow| match FlowKey::of(&flow) {
                    FlowKey::V4(key) => hasher.hash4(&key) % 8192,
                    FlowKey::V6(key) => hasher.hash6(&key) % 8192,
                })
                .collect()
        };
        let (one, other) = (slots(1), slots(2));
        // As many flows as slots: random flows would occupy a share of 1 - 1/e, 5178 slots.
        for slots in [&one, &other] {
            let taken = slots.iter().collect::<BTreeSet<_>>().len();
            assert!(taken > 4500, "{taken}");
        }
        let same = one.iter().zip(&other).filter(|(one, other)| one == other).count();
        assert!(same < 20, "{same}");
    }
}
