//! UDP sockets of Linux.

use super::readiness::{Direction, Watched};
use std::io;
use std::net::{self, Ipv4Addr, SocketAddr};

/// Longest datagram that is received; the rest of a longer one is cut off.
const LONGEST: usize = 65_535;

/// A UDP socket of Linux.
pub struct UdpSocket(Watched<net::UdpSocket>);

impl UdpSocket {
    /// The socket of a port.
    ///
    /// # Errors
    /// What Linux says.
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        Self::from_std(net::UdpSocket::bind(address)?)
    }

    /// A socket that was made elsewhere.
    ///
    /// # Errors
    /// What Linux says.
    pub fn from_std(socket: net::UdpSocket) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        Ok(Self(Watched::new(socket)?))
    }

    /// A socket of whichever port is free, for `peer` alone.
    ///
    /// # Errors
    /// What Linux says.
    pub fn connect(peer: SocketAddr) -> io::Result<Self> {
        let socket = net::UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        socket.connect(peer)?;
        Self::from_std(socket)
    }

    /// The next datagram, and who sent it.
    ///
    /// # Errors
    /// What Linux says, as of a peer at which nobody listens.
    pub async fn receive(&self) -> io::Result<(Vec<u8>, SocketAddr)> {
        let mut buffer = vec![0; LONGEST];
        let (len, from) = self.0.when_ready(Direction::Read, |socket| socket.recv_from(&mut buffer)).await?;
        buffer.truncate(len);
        buffer.shrink_to_fit();
        Ok((buffer, from))
    }

    /// Sends a datagram; where the socket has no room, it is lost.
    pub fn send_to(&self, to: SocketAddr, data: &[u8]) {
        let _ = self.0.get().send_to(data, to);
    }

    /// Sends a datagram to the one peer; where the socket has no room, it is lost.
    pub fn send(&self, data: &[u8]) {
        let _ = self.0.get().send(data);
    }
}
