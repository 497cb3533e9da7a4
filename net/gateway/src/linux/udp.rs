//! Linux UDP sockets.

use super::readiness::{AsyncSocket, Direction};
use std::io;
use std::net::{self, Ipv4Addr, SocketAddr};

/// The maximum length of a received datagram, in bytes; a longer one is truncated.
const MAX_DATAGRAM: usize = 65_535;

/// A UDP socket of Linux.
pub struct UdpSocket(AsyncSocket<net::UdpSocket>);

impl UdpSocket {
    /// Binds a socket to an address.
    ///
    /// # Errors
    /// The error from Linux.
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        Self::from_std(net::UdpSocket::bind(address)?)
    }

    /// Wraps an existing socket.
    ///
    /// # Errors
    /// The error from Linux.
    pub fn from_std(socket: net::UdpSocket) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        Ok(Self(AsyncSocket::new(socket)?))
    }

    /// Binds a socket to any free port, for datagrams from and to `peer` only.
    ///
    /// # Errors
    /// The error from Linux.
    pub fn connect(peer: SocketAddr) -> io::Result<Self> {
        let socket = net::UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        socket.connect(peer)?;
        Self::from_std(socket)
    }

    /// Waits for the next datagram; returns it and its sender.
    ///
    /// # Errors
    /// The error from Linux, for example that the peer's port has no socket.
    pub async fn receive(&self) -> io::Result<(Vec<u8>, SocketAddr)> {
        let mut buffer = vec![0; MAX_DATAGRAM];
        let (len, from) = self.0.when_ready(Direction::Read, |socket| socket.recv_from(&mut buffer)).await?;
        buffer.truncate(len);
        buffer.shrink_to_fit();
        Ok((buffer, from))
    }

    /// Sends a datagram, which is dropped if the socket's buffer is full.
    pub fn send_to(&self, to: SocketAddr, data: &[u8]) {
        let _ = self.0.get().send_to(data, to);
    }

    /// Sends a datagram to the connected peer; it is dropped if the socket's buffer is full.
    pub fn send(&self, data: &[u8]) {
        let _ = self.0.get().send(data);
    }
}
