//! The family of unix sockets.

use super::flight::Flight;
use super::names::Names;
use super::socket::UnixSocket;
use crate::Errno;
use crate::families::{AddressFamily, SocketPair};
use crate::socket::{Socket, SocketCaller, SocketKind};
use alloc::string::String;
use alloc::sync::Arc;
use core::fmt::Write;
use isola_linux_abi::net::AF_UNIX;

/// The unix sockets of a system.
#[derive(Default)]
pub struct UnixFamily {
    shared: Arc<Shared>,
}

/// The state that all unix sockets share.
#[derive(Default)]
pub(super) struct Shared {
    pub names: Names,
    pub flight: Flight,
}

impl UnixFamily {
    /// Creates the family without sockets.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Returns the number of open files in messages that were not received yet.
    pub fn files_in_flight(&self) -> usize {
        self.shared.flight.count()
    }

    /// Returns the number of sockets.
    pub fn socket_count(&self) -> usize {
        self.shared.names.sockets().len()
    }

    /// Returns the text of `/proc/net/unix`.
    pub fn list(&self) -> String {
        let mut text = String::from("Num       RefCount Protocol Flags    Type St Inode Path\n");
        for socket in self.shared.names.sockets() {
            let line = socket.line();
            // Writes to strings do not fail.
            let _ = writeln!(text, "{line}");
        }
        text
    }

    fn check(kind: SocketKind, protocol: u32) -> Result<SocketKind, Errno> {
        if protocol != 0 && protocol != AF_UNIX {
            return Err(Errno::EPROTONOSUPPORT);
        }
        // A raw socket is a datagram socket, as on Linux.
        Ok(if kind == SocketKind::Raw { SocketKind::Datagram } else { kind })
    }
}

impl AddressFamily for UnixFamily {
    fn create(
        &self,
        kind: SocketKind,
        protocol: u32,
        caller: &SocketCaller<'_>,
    ) -> Result<Arc<dyn Socket>, Errno> {
        let kind = Self::check(kind, protocol)?;
        Ok(UnixSocket::new(&self.shared, kind, caller.credentials))
    }

    fn create_pair(
        &self,
        kind: SocketKind,
        protocol: u32,
        caller: &SocketCaller<'_>,
    ) -> Result<SocketPair, Errno> {
        let kind = Self::check(kind, protocol)?;
        let (one, other) = UnixSocket::pair(&self.shared, kind, caller.credentials);
        Ok((one, other))
    }
}
