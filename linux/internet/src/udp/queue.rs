//! Datagrams from the stack, and the ports at which it receives them.

use super::socket::Received;
use crate::families::Internet;
use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};
use isola_linux_sockets::Errno;
use isola_net::udp::UdpBindError;
use isola_net::{BindError, Datagram, DatagramRecipient, SharedUdpSocket};
use spin::Mutex;

/// The ports at which the stack receives datagrams for sockets.
#[derive(Default)]
pub(crate) struct NativePorts(Mutex<BTreeMap<u16, Weak<SharedUdpSocket>>>);

/// The recipient of a port's datagrams.
struct Recipient {
    internet: Weak<Internet>,
    port: u16,
}

impl DatagramRecipient for Recipient {
    fn received(&self, datagram: Datagram) {
        let Some(internet) = self.internet.upgrade() else { return };
        let Datagram { remote, local, payload } = datagram;
        let received = Received { from: remote, to: local, data: payload.into() };
        deliver(&internet, self.port, received);
    }

    fn refused(&self, remote: SocketAddr) {
        let Some(internet) = self.internet.upgrade() else { return };
        internet.udp.all_at(self.port).iter().for_each(|socket| socket.refused_by_host(remote));
    }
}

/// Gives a datagram to the sockets at a port that receive it. Returns whether there is one.
pub(super) fn deliver(internet: &Internet, port: u16, received: Received) -> bool {
    let is_group = is_group(received.to);
    let sockets = if is_group { internet.udp.all_at(port) } else { internet.udp.find(received.to, port) };
    let connected: Vec<_> =
        sockets.iter().filter(|socket| socket.remote() == Some(received.from)).cloned().collect();
    let free: Vec<_> = sockets.into_iter().filter(|socket| socket.remote().is_none()).collect();
    if is_group {
        connected.iter().chain(&free).for_each(|socket| socket.push(received.clone()));
        return true;
    }
    let candidates = if connected.is_empty() { free } else { connected };
    let choice = usize::from(received.from.port()) % candidates.len().max(1);
    candidates.get(choice).map(|socket| socket.push(received)).is_some()
}

fn is_group(address: IpAddr) -> bool {
    let is_broadcast = match address {
        IpAddr::V4(ip) => isola_net::address().is_some_and(|own| own.is_broadcast(ip)),
        IpAddr::V6(_) => false,
    };
    address.is_multicast() || is_broadcast
}

impl NativePorts {
    /// Returns the stack's socket of a port, which it binds on the calling core if no other socket has it yet. `None` if the
    /// cell has no network.
    ///
    /// # Errors
    /// [`Errno::EADDRINUSE`] if a component of the cell itself has the port, [`Errno::ENOBUFS`].
    pub fn open(internet: &Arc<Internet>, port: u16) -> Result<Option<Arc<SharedUdpSocket>>, Errno> {
        let mut ports = internet.datagram_ports.0.lock();
        if let Some(open) = ports.get(&port).and_then(Weak::upgrade) {
            return Ok(Some(open));
        }
        let recipient = Arc::new(Recipient { internet: Arc::downgrade(internet), port });
        match SharedUdpSocket::bind(port, recipient) {
            Ok(socket) => {
                let socket = Arc::new(socket);
                ports.retain(|_, other| other.strong_count() > 0);
                ports.insert(port, Arc::downgrade(&socket));
                Ok(Some(socket))
            }
            Err(UdpBindError::Network(_)) => Ok(None),
            Err(UdpBindError::Bind(BindError::TooManySockets)) => Err(Errno::ENOBUFS),
            Err(UdpBindError::Bind(_)) => Err(Errno::EADDRINUSE),
        }
    }
}
