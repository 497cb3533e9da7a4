//! The IP addresses that ports use as sources.

use crate::frame::Mac;
use alloc::collections::BTreeMap;
use core::net::IpAddr;
use core::time::Duration;

/// The time after its last use when an address is free for another port.
pub const AGE: Duration = Duration::from_secs(300);

/// The most addresses of a port.
pub const MOST_ADDRESSES: usize = 16;

/// The most addresses behind the uplink that are reserved.
pub const MOST_UPLINK_ADDRESSES: usize = 1024;

/// The least time between two searches for unused addresses of one owner: a search looks at all addresses.
const SEARCH_PAUSE: Duration = Duration::from_secs(1);

/// The owner of an address. A port's addresses belong to its hardware address, so that a client keeps them while its link
/// is opened again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Owner {
    /// A host behind the uplink.
    Uplink,
    /// The serving cell.
    Own,
    /// A port, or an earlier one with the same hardware address.
    Port(Mac),
}

#[derive(Clone, Copy, Debug)]
struct Binding {
    owner: Owner,
    used_at: Duration,
}

#[derive(Clone, Copy, Debug, Default)]
struct OwnerState {
    count: usize,
    searched_at: Option<Duration>,
}

/// The addresses and their owners.
#[derive(Debug, Default)]
pub(crate) struct Addresses {
    bindings: BTreeMap<IpAddr, Binding>,
    owners: BTreeMap<Owner, OwnerState>,
}

impl Addresses {
    /// Returns whether `owner` has an address, and assigns it a free one. The serving cell gets any.
    pub fn claim(&mut self, owner: Owner, ip: IpAddr, now: Duration) -> bool {
        if !is_assignable(ip) {
            return false;
        }
        if let Some(binding) = self.bindings.get_mut(&ip) {
            if binding.owner == owner {
                // A reserved address stays so.
                binding.used_at = binding.used_at.max(now);
                return true;
            }
            if owner != Owner::Own && !is_unused(binding, now) {
                return false;
            }
            self.remove(ip);
        }
        if !self.has_room(owner, now) {
            return false;
        }
        self.bindings.insert(ip, Binding { owner, used_at: now });
        self.owners.entry(owner).or_default().count += 1;
        true
    }

    /// Returns the owner of an address that was in use within the last [`AGE`].
    pub fn owner(&self, ip: IpAddr, now: Duration) -> Option<Owner> {
        self.bindings.get(&ip).filter(|binding| !is_unused(binding, now)).map(|binding| binding.owner)
    }

    /// Reserves an address for the hosts behind the uplink for good, whichever port has it now.
    pub fn reserve(&mut self, ip: IpAddr) {
        if is_assignable(ip) {
            self.remove(ip);
            self.bindings.insert(ip, Binding { owner: Owner::Uplink, used_at: Duration::MAX });
            self.owners.entry(Owner::Uplink).or_default().count += 1;
        }
    }

    fn has_room(&mut self, owner: Owner, now: Duration) -> bool {
        let most = if owner == Owner::Uplink { MOST_UPLINK_ADDRESSES } else { MOST_ADDRESSES };
        let state = self.owners.entry(owner).or_default();
        if state.count < most {
            return true;
        }
        if state.searched_at.is_some_and(|at| now.saturating_sub(at) < SEARCH_PAUSE) {
            return false;
        }
        state.searched_at = Some(now);
        let before = self.bindings.len();
        self.bindings.retain(|_, binding| binding.owner != owner || !is_unused(binding, now));
        let removed = before - self.bindings.len();
        self.owners.entry(owner).and_modify(|state| state.count -= removed);
        removed > 0
    }

    fn remove(&mut self, ip: IpAddr) {
        if let Some(Binding { owner, .. }) = self.bindings.remove(&ip) {
            self.owners.entry(owner).and_modify(|state| state.count -= 1);
        }
    }

    /// Forgets owners that have no address left, and addresses of ports that were unused for [`AGE`].
    pub fn purge(&mut self, now: Duration) {
        self.bindings.retain(|_, binding| !is_unused(binding, now));
        self.owners.clear();
        for Binding { owner, .. } in self.bindings.values() {
            self.owners.entry(*owner).or_default().count += 1;
        }
    }
}

fn is_unused(binding: &Binding, now: Duration) -> bool {
    now.saturating_sub(binding.used_at) >= AGE
}

/// Returns whether a host can have the address.
fn is_assignable(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => {
            !(ip.is_unspecified() || ip.is_multicast() || ip.is_loopback() || ip.is_broadcast())
        }
        IpAddr::V6(ip) => {
            !(ip.is_unspecified() || ip.is_multicast() || ip.is_loopback() || ip.to_ipv4().is_some())
        }
    }
}
