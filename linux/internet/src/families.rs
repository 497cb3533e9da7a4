//! The families `AF_INET` and `AF_INET6`.

use crate::address::Domain;
use crate::ports::Ports;
use crate::tcp::{NativeListeners, TcpSocket};
use crate::udp::{NativePorts, UdpSocket};
use alloc::sync::Arc;
use isola_linux_abi::net::{AF_INET, AF_INET6, IPPROTO_TCP, IPPROTO_UDP};
use isola_linux_sockets::{AddressFamily, Errno, Families, Socket, SocketCaller, SocketKind};

/// The internet sockets of a cell.
pub struct Internet {
    pub(crate) tcp: Arc<Ports<TcpSocket>>,
    pub(crate) udp: Arc<Ports<UdpSocket>>,
    pub(crate) listeners: NativeListeners,
    pub(crate) datagram_ports: NativePorts,
    random: fn() -> u64,
}

impl Internet {
    /// Creates the sockets' shared state, with a source of random numbers for ports.
    pub fn new(random: fn() -> u64) -> Arc<Self> {
        Arc::new(Self {
            tcp: Arc::default(),
            udp: Arc::default(),
            listeners: NativeListeners::default(),
            datagram_ports: NativePorts::default(),
            random,
        })
    }

    /// Registers the families.
    pub fn register(self: &Arc<Self>, families: &Families) {
        for (number, domain) in [(AF_INET, Domain::V4), (AF_INET6, Domain::V6)] {
            families.register(number, Arc::new(Family { internet: self.clone(), domain }));
        }
    }

    /// Returns a random number.
    pub(crate) fn random(&self) -> u64 {
        (self.random)()
    }
}

struct Family {
    internet: Arc<Internet>,
    domain: Domain,
}

impl AddressFamily for Family {
    fn create(
        &self,
        kind: SocketKind,
        protocol: u32,
        _caller: &SocketCaller<'_>,
    ) -> Result<Arc<dyn Socket>, Errno> {
        let (tcp, udp) = (IPPROTO_TCP as u32, IPPROTO_UDP as u32);
        match kind {
            SocketKind::Stream if protocol == 0 || protocol == tcp => {
                Ok(TcpSocket::new(self.internet.clone(), self.domain))
            }
            SocketKind::Datagram if protocol == 0 || protocol == udp => {
                Ok(UdpSocket::new(self.internet.clone(), self.domain))
            }
            SocketKind::Stream | SocketKind::Datagram => Err(Errno::EPROTONOSUPPORT),
            // No packets of the program's own making leave the cell.
            SocketKind::Raw => Err(Errno::EPERM),
            SocketKind::SeqPacket => Err(Errno::ESOCKTNOSUPPORT),
        }
    }
}
