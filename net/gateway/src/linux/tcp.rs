//! Linux TCP sockets.

use super::readiness::{AsyncSocket, Direction};
use isola_iobuf::{Chain, IoBuf, IoBufMut};
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use std::io::{self, IoSlice, Write};
use std::net::{self, Shutdown, SocketAddr};
use std::task::{Context, Poll};
use std::time::Duration;

/// The maximum number of bytes per read.
const READ_LEN: usize = 16 << 10;

/// The maximum number of a chain's parts per write.
const MAX_PARTS: usize = 16;

/// A listening socket of the host.
pub struct TcpListener(AsyncSocket<net::TcpListener>);

impl TcpListener {
    /// Listens at an address.
    ///
    /// # Errors
    /// The error from Linux.
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        Self::from_std(net::TcpListener::bind(address)?)
    }

    /// Wraps an existing listener.
    ///
    /// # Errors
    /// The error from Linux.
    pub fn from_std(listener: net::TcpListener) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        Ok(Self(AsyncSocket::new(listener)?))
    }

    /// Returns the address at which it listens.
    ///
    /// # Errors
    /// The error from Linux.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.get().local_addr()
    }

    /// Waits for the next connection.
    ///
    /// # Errors
    /// The error from Linux. If the process has no free file descriptors, a later call may succeed.
    pub async fn accept(&self) -> io::Result<TcpStream> {
        let (stream, _) = self.0.when_ready(Direction::Read, net::TcpListener::accept).await?;
        TcpStream::from_std(stream)
    }
}

/// A TCP connection of the host.
pub struct TcpStream(AsyncSocket<net::TcpStream>);

impl TcpStream {
    fn from_std(stream: net::TcpStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        Ok(Self(AsyncSocket::new(stream)?))
    }

    /// Connects to an address.
    ///
    /// # Errors
    /// The error from Linux, most often that no program listens there.
    pub async fn connect(address: SocketAddr) -> io::Result<Self> {
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
        match rustix::net::connect(&socket, &address) {
            Ok(()) | Err(rustix::io::Errno::INPROGRESS) => {}
            Err(error) => return Err(error.into()),
        }
        let stream = Self::from_std(socket.into())?;
        // The connection is established once the socket has a peer.
        let connected = |socket: &net::TcpStream| match socket.take_error()? {
            Some(error) => Err(error),
            None => match socket.peer_addr() {
                Err(error) if error.kind() == io::ErrorKind::NotConnected => {
                    Err(io::ErrorKind::WouldBlock.into())
                }
                peer => peer.map(drop),
            },
        };
        stream.0.when_ready(Direction::Write, connected).await?;
        Ok(stream)
    }

    /// Returns received data once there is any; `None` after the peer's last byte.
    ///
    /// # Errors
    /// The error of the connection, from Linux.
    pub fn poll_read(&self, context: &mut Context<'_>) -> Poll<io::Result<Option<IoBuf>>> {
        self.0.poll(context, Direction::Read, |socket| {
            let mut buffer = IoBufMut::with_room(0, READ_LEN);
            let Some(room) = buffer.append(READ_LEN) else { return Ok(None) };
            let len = io::Read::read(&mut &*socket, room)?;
            buffer.truncate(len);
            Ok((len > 0).then(|| buffer.freeze()))
        })
    }

    /// Writes data and removes it from `data`; completes when `data` is empty.
    ///
    /// # Errors
    /// The error of the connection, from Linux.
    pub fn poll_write(&self, context: &mut Context<'_>, data: &mut Chain) -> Poll<io::Result<()>> {
        while !data.is_empty() {
            let written = self.0.poll(context, Direction::Write, |mut socket| {
                let mut slices = [IoSlice::new(&[]); MAX_PARTS];
                let count = data.parts().len().min(MAX_PARTS);
                slices.iter_mut().zip(data.parts()).for_each(|(slice, part)| *slice = IoSlice::new(part));
                socket.write_vectored(&slices[..count])
            });
            match written {
                Poll::Ready(Ok(count)) => data.advance(count),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Reads as [`Self::poll_read`] does, as a future.
    ///
    /// # Errors
    /// As [`Self::poll_read`].
    pub async fn read(&self) -> io::Result<Option<IoBuf>> {
        std::future::poll_fn(|context| self.poll_read(context)).await
    }

    /// Writes all bytes.
    ///
    /// # Errors
    /// As [`Self::poll_write`].
    pub async fn write_all(&self, bytes: &[u8]) -> io::Result<()> {
        let mut data = Chain::from(IoBuf::copy_from_slice(bytes));
        std::future::poll_fn(|context| self.poll_write(context, &mut data)).await
    }

    /// Ends the sending direction (FIN).
    pub fn shutdown(&self) {
        // The error of an ended connection is of no interest.
        let _ = self.0.get().shutdown(Shutdown::Write);
    }

    /// Ends the connection with a reset.
    pub fn abort(self) {
        // If that fails, the connection ends with a FIN instead.
        let _ = sockopt::set_socket_linger(self.0.get(), Some(Duration::ZERO));
    }
}
