//! The addresses of clients.

use crate::Prefix;
use alloc::collections::BTreeMap;
use alloc::string::String;
use core::net::Ipv4Addr;

/// The address of a client follows from its name, so that it has the same after a restart of the service cell: only where
/// the addresses of two names are the same, the later one has the next free address.
#[derive(Debug)]
pub(crate) struct Leases {
    prefix: Prefix,
    most: usize,
    by_address: BTreeMap<Ipv4Addr, Lease>,
    connections: u64,
}

#[derive(Debug)]
struct Lease {
    name: String,
    is_connected: bool,
    /// The number of the connection that ended last, for those that are not connected.
    ended: u64,
}

impl Leases {
    /// Creates the leases of a network for at most `most` clients at once.
    pub fn new(prefix: Prefix, most: usize) -> Self {
        let most = most.min(prefix.clients() as usize);
        Self { prefix, most, by_address: BTreeMap::new(), connections: 0 }
    }

    /// Returns the address of a client, and the address of which another, former client lost the lease for it; `None` if all
    /// addresses belong to connected clients.
    pub fn connect(&mut self, name: &str) -> Option<(Ipv4Addr, Option<Ipv4Addr>)> {
        if let Some((address, lease)) = self.by_address.iter_mut().find(|(_, lease)| lease.name == name) {
            lease.is_connected = true;
            return Some((*address, None));
        }
        let mut lost = None;
        if self.by_address.len() >= self.most {
            let former = self.by_address.iter().filter(|(_, lease)| !lease.is_connected);
            let oldest = former.min_by_key(|(_, lease)| lease.ended).map(|(address, _)| *address)?;
            self.by_address.remove(&oldest);
            lost = Some(oldest);
        }
        let first = hash(name);
        let mut candidates = (0..=self.most as u32).map(|step| self.prefix.client(first.wrapping_add(step)));
        let address = candidates.find(|address| !self.by_address.contains_key(address))?;
        self.by_address.insert(address, Lease { name: name.into(), is_connected: true, ended: 0 });
        Some((address, lost))
    }

    /// Records that a client's connection has ended: it keeps its address unless another client needs it.
    pub fn disconnect(&mut self, address: Ipv4Addr) {
        self.connections += 1;
        if let Some(lease) = self.by_address.get_mut(&address) {
            (lease.is_connected, lease.ended) = (false, self.connections);
        }
    }
}

/// A hash of a name (FNV-1a, with a finalizer, as names differ in their last bytes).
fn hash(name: &str) -> u32 {
    let hash =
        name.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    let hash = (hash ^ (hash >> 16)).wrapping_mul(0x85eb_ca6b);
    // The sum of a step and the hash does not overflow.
    (hash ^ (hash >> 13)) >> 1
}
