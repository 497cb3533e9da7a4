//! From a flow to what this stack knows of it.

use super::isn::flow_bytes;
use crate::address::Flow;
use crate::config::Secret;
use core::net::SocketAddr;
use hashbrown::HashTable;
use siphasher::sip::SipHasher13;

/// What a flow leads to, by its place in the table of its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    Connection(u32),
    HalfOpen(u32),
    TimeWait(u32),
}

/// An IPv4 flow in three words: what is hashed and compared for each segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Key4 {
    local: u32,
    remote: u32,
    /// Local and remote.
    ports: u32,
}

impl Key4 {
    #[inline]
    fn of(flow: &Flow) -> Option<Self> {
        match (flow.local, flow.remote) {
            (SocketAddr::V4(local), SocketAddr::V4(remote)) => Some(Self {
                local: local.ip().to_bits(),
                remote: remote.ip().to_bits(),
                ports: u32::from(local.port()) << 16 | u32::from(remote.port()),
            }),
            _ => None,
        }
    }

    #[inline]
    fn hash(&self, hasher: &SipHasher13) -> u64 {
        let mut bytes = [0; 12];
        for (into, word) in bytes.as_chunks_mut::<4>().0.iter_mut().zip([self.local, self.remote, self.ports])
        {
            *into = word.to_ne_bytes();
        }
        hasher.hash(&bytes)
    }
}

/// All flows of one stack. Peers choose what is hashed, so the hash is keyed (SipHash-1-3): nobody can make
/// flows collide on purpose.
#[derive(Debug)]
pub(crate) struct FlowMap {
    v4: HashTable<(Key4, Target)>,
    /// Flows of any other kind.
    other: HashTable<(Flow, Target)>,
    hasher: SipHasher13,
}

impl FlowMap {
    pub fn new(secret: &Secret) -> Self {
        let (a, b) = secret.keys(3);
        let hasher = SipHasher13::new_with_keys(a, b);
        Self { v4: HashTable::new(), other: HashTable::new(), hasher }
    }

    /// What the flow leads to.
    #[inline]
    pub fn get(&self, flow: &Flow) -> Option<Target> {
        if let Some(key) = Key4::of(flow) {
            return self.v4.find(key.hash(&self.hasher), |entry| entry.0 == key).map(|entry| entry.1);
        }
        let hash = self.hasher.hash(&flow_bytes(flow));
        self.other.find(hash, |entry| entry.0 == *flow).map(|entry| entry.1)
    }

    /// Makes the flow lead to `target`, and nowhere else.
    pub fn insert(&mut self, flow: Flow, target: Target) {
        let hasher = &self.hasher;
        match Key4::of(&flow) {
            Some(key) => put(&mut self.v4, key, target, |key| key.hash(hasher)),
            None => put(&mut self.other, flow, target, |flow| hasher.hash(&flow_bytes(flow))),
        }
    }

    /// Forgets the flow, where it leads to `target`.
    pub fn remove(&mut self, flow: &Flow, target: Target) {
        match Key4::of(flow) {
            Some(key) => take(&mut self.v4, (key, target), key.hash(&self.hasher)),
            None => take(&mut self.other, (*flow, target), self.hasher.hash(&flow_bytes(flow))),
        }
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

fn take<K: PartialEq>(table: &mut HashTable<(K, Target)>, wanted: (K, Target), hash: u64) {
    if let Ok(entry) = table.find_entry(hash, |entry| *entry == wanted) {
        entry.remove();
    }
}
