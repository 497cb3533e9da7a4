//! The ports of the cell: which sockets are bound to them.

use crate::address::Scope;
use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::net::IpAddr;
use core::sync::atomic::{AtomicBool, Ordering};
use isola_linux_sockets::Errno;
use spin::Mutex;

/// The first and the last port that the system chooses (`ip_local_port_range`).
const EPHEMERAL: core::ops::RangeInclusive<u16> = 32768..=60999;

/// Whether sockets share a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PortSharing {
    /// `SO_REUSEADDR`: with others that have it, while none of them listens.
    pub address: bool,
    /// `SO_REUSEPORT`: with others that have it.
    pub port: bool,
}

/// The sockets of a protocol by their ports.
#[derive(Debug)]
pub(crate) struct Ports<T> {
    ports: Mutex<BTreeMap<u16, Vec<Arc<Entry<T>>>>>,
}

/// A socket at a port.
#[derive(Debug)]
struct Entry<T> {
    scope: Scope,
    sharing: PortSharing,
    socket: Weak<T>,
    is_listening: AtomicBool,
}

/// The port of a socket, which it frees when it is dropped.
#[derive(Debug)]
pub(crate) struct Binding<T> {
    ports: Arc<Ports<T>>,
    port: u16,
    entry: Arc<Entry<T>>,
}

impl<T> Default for Ports<T> {
    fn default() -> Self {
        Self { ports: Mutex::default() }
    }
}

impl<T> Ports<T> {
    /// Binds a socket to a port, or to one that the system chooses, from a random number on, if `port` is 0. `is_rival`
    /// decides whether two sockets that share the port by `SO_REUSEADDR` cannot, as TCP's do if one listens.
    ///
    /// # Errors
    /// [`Errno::EADDRINUSE`], [`Errno::EADDRNOTAVAIL`] if no port is free.
    pub fn bind(
        self: &Arc<Self>,
        scope: Scope,
        port: u16,
        sharing: PortSharing,
        socket: &Weak<T>,
        random: u64,
    ) -> Result<Binding<T>, Errno> {
        let entry =
            Arc::new(Entry { scope, sharing, socket: socket.clone(), is_listening: AtomicBool::new(false) });
        let mut ports = self.ports.lock();
        let port = if port == 0 {
            let count = u64::from(EPHEMERAL.end() - EPHEMERAL.start()) + 1;
            let first = random % count;
            let candidate = |step: u64| EPHEMERAL.start() + ((first + step) % count) as u16;
            let free = (0..count).map(candidate).find(|port| !ports.contains_key(port));
            free.ok_or(Errno::EADDRINUSE)?
        } else {
            let others = ports.get(&port).into_iter().flatten();
            if others.into_iter().any(|other| other.conflicts(&entry)) {
                return Err(Errno::EADDRINUSE);
            }
            port
        };
        ports.entry(port).or_default().push(entry.clone());
        drop(ports);
        Ok(Binding { ports: self.clone(), port, entry })
    }

    /// Returns the sockets that receive the datagrams to an address and port: those that are bound to the address, or else
    /// those that are bound to all addresses.
    pub fn find(&self, address: IpAddr, port: u16) -> Vec<Arc<T>> {
        self.find_if(address, port, |_| true)
    }

    /// Returns all sockets at a port.
    pub fn all_at(&self, port: u16) -> Vec<Arc<T>> {
        let ports = self.ports.lock();
        let entries = ports.get(&port).into_iter().flatten();
        entries.filter_map(|entry| entry.socket.upgrade()).collect()
    }

    /// Returns one of the listening sockets that receive connections to an address and port: the same for the same
    /// `choice` (`SO_REUSEPORT`).
    pub fn find_listener(&self, address: IpAddr, port: u16, choice: usize) -> Option<Arc<T>> {
        let mut found = self.find_if(address, port, |entry| entry.is_listening.load(Ordering::Relaxed));
        if found.is_empty() { None } else { Some(found.swap_remove(choice % found.len())) }
    }

    fn find_if(&self, address: IpAddr, port: u16, is_wanted: impl Fn(&Entry<T>) -> bool) -> Vec<Arc<T>> {
        let ports = self.ports.lock();
        let Some(entries) = ports.get(&port) else { return Vec::new() };
        let matching = |is_one: bool| -> Vec<_> {
            let entries = entries.iter().filter(|entry| {
                entry.scope.is_one() == is_one && entry.scope.contains(address) && is_wanted(entry)
            });
            entries.filter_map(|entry| entry.socket.upgrade()).collect()
        };
        let exact = matching(true);
        if exact.is_empty() { matching(false) } else { exact }
    }
}

impl<T> Entry<T> {
    fn conflicts(&self, other: &Self) -> bool {
        let is_listening =
            self.is_listening.load(Ordering::Relaxed) || other.is_listening.load(Ordering::Relaxed);
        let shares = self.sharing.port && other.sharing.port
            || self.sharing.address && other.sharing.address && !is_listening;
        self.scope.overlaps(other.scope) && !shares
    }
}

impl<T> Binding<T> {
    /// Returns the port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the addresses.
    pub fn scope(&self) -> Scope {
        self.entry.scope
    }

    /// Marks the socket as listening.
    ///
    /// # Errors
    /// [`Errno::EADDRINUSE`] if another one listens at the same address.
    pub fn listen(&self) -> Result<(), Errno> {
        let ports = self.ports.ports.lock();
        let entries = ports.get(&self.port).into_iter().flatten();
        let is_taken = entries.filter(|other| !Arc::ptr_eq(other, &self.entry)).any(|other| {
            other.is_listening.load(Ordering::Relaxed)
                && other.scope.overlaps(self.entry.scope)
                && !(other.sharing.port && self.entry.sharing.port)
        });
        if is_taken {
            return Err(Errno::EADDRINUSE);
        }
        self.entry.is_listening.store(true, Ordering::Relaxed);
        Ok(())
    }
}

impl<T> Drop for Binding<T> {
    fn drop(&mut self) {
        let mut ports = self.ports.ports.lock();
        if let Some(entries) = ports.get_mut(&self.port) {
            entries.retain(|entry| !Arc::ptr_eq(entry, &self.entry));
            if entries.is_empty() {
                ports.remove(&self.port);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope(text: &str) -> Scope {
        Scope::of(crate::address::Domain::V4, false, text.parse().unwrap())
    }

    #[test]
    fn a_port_is_shared_as_both_sockets_permit() {
        let ports: Arc<Ports<u8>> = Arc::default();
        let socket = Weak::new();
        let bind = |address: &str, sharing| ports.bind(scope(address), 80, sharing, &socket, 0);
        let (none, reuse) = (PortSharing::default(), PortSharing { address: true, port: false });
        let spread = PortSharing { address: false, port: true };
        let first = bind("127.0.0.1", none).unwrap();
        assert_eq!(bind("0.0.0.0", none).err(), Some(Errno::EADDRINUSE));
        let other = bind("127.0.0.2", none).unwrap();
        drop((first, other));
        let (first, second) = (bind("0.0.0.0", reuse).unwrap(), bind("0.0.0.0", reuse).unwrap());
        first.listen().unwrap();
        assert_eq!(second.listen(), Err(Errno::EADDRINUSE));
        assert_eq!(bind("127.0.0.1", reuse).err(), Some(Errno::EADDRINUSE));
        drop((first, second));
        let (first, second) = (bind("0.0.0.0", spread).unwrap(), bind("0.0.0.0", spread).unwrap());
        assert_eq!((first.listen(), second.listen()), (Ok(()), Ok(())));
        assert_eq!(bind("0.0.0.0", reuse).err(), Some(Errno::EADDRINUSE));
    }

    #[test]
    fn chosen_ports_are_free_ones_and_run_out() {
        let ports: Arc<Ports<u8>> = Arc::default();
        let socket = Weak::new();
        let mut all = Vec::new();
        for number in EPHEMERAL {
            let random = u64::from(number) / 2 * 2;
            all.push(ports.bind(scope("0.0.0.0"), 0, PortSharing::default(), &socket, random).unwrap());
        }
        let one_more = ports.bind(scope("0.0.0.0"), 0, PortSharing::default(), &socket, 5);
        assert_eq!(one_more.err(), Some(Errno::EADDRINUSE));
        let mut numbers: Vec<_> = all.iter().map(Binding::port).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), all.len());
    }

    #[test]
    fn the_socket_of_the_address_precedes_that_of_all() {
        let ports: Arc<Ports<u8>> = Arc::default();
        let (all, one) = (Arc::new(1), Arc::new(2));
        let bind = |address: &str, socket: &Arc<u8>| {
            let sharing = PortSharing { address: true, port: false };
            ports.bind(scope(address), 80, sharing, &Arc::downgrade(socket), 0).unwrap()
        };
        let (_first, second) = (bind("0.0.0.0", &all), bind("127.0.0.1", &one));
        let find = |address: &str| ports.find(address.parse().unwrap(), 80);
        assert_eq!(
            (find("127.0.0.1"), find("127.0.0.2")),
            (alloc::vec![one.clone()], alloc::vec![all.clone()])
        );
        assert_eq!(ports.find_listener("127.0.0.1".parse().unwrap(), 80, 0), None);
        drop(second);
        assert_eq!(find("127.0.0.1"), [all]);
        assert!(find("::1").is_empty());
    }
}
