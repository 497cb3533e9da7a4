//! A TCP socket, as the calls of programs see it.

use super::options::TcpOptions;
use super::state::{Link, Phase, State};
use crate::address::{Domain, Scope, is_local};
use crate::families::Internet;
use crate::ports::PortSharing;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::fmt;
use core::net::SocketAddr;
use isola_linux_abi::net::{IPPROTO_TCP, SO_REUSEADDR, SO_REUSEPORT};
use isola_linux_abi::numbers::CAP_NET_BIND_SERVICE;
use isola_linux_files::{Events, Outcome, Pollee};
use isola_linux_memory::UserBuffer;
use isola_linux_sockets::{
    Errno, MessageFlags, ReceivedMessage, SentMessage, Shutdown, Socket, SocketAddress, SocketCaller,
    SocketFacts, SocketKind, SocketSettings, Waiting,
};
use spin::{Mutex, MutexGuard};

/// The lengths of buffers of a new socket (`tcp_wmem`, `tcp_rmem`).
const SEND_BUFFER: u32 = 87_040;
const RECEIVE_BUFFER: u32 = 131_072;
/// The first port that needs no capability (`ip_unprivileged_port_start`).
pub(crate) const FIRST_FREE_PORT: u16 = 1024;

/// A TCP socket.
pub(crate) struct TcpSocket {
    pub(super) this: Weak<Self>,
    pub(super) internet: Arc<Internet>,
    pub(super) domain: Domain,
    pub(super) settings: SocketSettings,
    pub(super) options: TcpOptions,
    pub(super) pollee: Pollee,
    state: Mutex<State>,
}

impl TcpSocket {
    /// Creates a socket.
    pub fn new(internet: Arc<Internet>, domain: Domain) -> Arc<Self> {
        let settings = SocketSettings::new(SEND_BUFFER, RECEIVE_BUFFER);
        Self::create(internet, domain, settings, TcpOptions::default(), State::default())
    }

    pub(super) fn create(
        internet: Arc<Internet>,
        domain: Domain,
        settings: SocketSettings,
        options: TcpOptions,
        state: State,
    ) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            this: this.clone(),
            internet,
            domain,
            settings,
            options,
            pollee: Pollee::new(),
            state: Mutex::new(state),
        })
    }

    /// Returns the state. No lock of another socket is held.
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Returns how the socket shares its port.
    pub(super) fn sharing(&self) -> PortSharing {
        PortSharing { address: self.settings.is_on(SO_REUSEADDR), port: self.settings.is_on(SO_REUSEPORT) }
    }

    /// Binds the socket to a port of its own if it has none. Returns the port.
    pub(super) fn bind_if_unbound(&self, address: SocketAddr) -> Result<u16, Errno> {
        let bound = self.state().binding.as_ref().map(|binding| binding.port());
        match bound {
            Some(port) => Ok(port),
            None => self.bind_to(address),
        }
    }

    fn bind_to(&self, address: SocketAddr) -> Result<u16, Errno> {
        let scope = Scope::of(self.domain, self.options.ip.is_v6_only(), address.ip());
        let random = self.internet.random();
        let binding = self.internet.tcp.bind(scope, address.port(), self.sharing(), &self.this, random)?;
        let port = binding.port();
        let mut state = self.state();
        let former = state.binding.replace(binding);
        state.bound = Some(SocketAddr::new(address.ip(), port));
        drop(state);
        drop(former);
        Ok(port)
    }
}

impl Socket for TcpSocket {
    fn facts(&self) -> SocketFacts {
        SocketFacts { domain: self.domain.number(), kind: SocketKind::Stream, protocol: IPPROTO_TCP as u32 }
    }

    fn settings(&self) -> &SocketSettings {
        &self.settings
    }

    fn settings_changed(&self) {
        self.apply_keep_alive();
    }

    fn bind<'a>(&'a self, address: &'a SocketAddress, caller: &'a SocketCaller<'a>) -> Outcome<'a, ()> {
        let bind = || {
            let address = match (self.domain, address) {
                // As Linux for old programs: the unspecified IPv4 address.
                (Domain::V4, SocketAddress::Unspecified) => return Err(Errno::EAFNOSUPPORT),
                _ => self.domain.parse(address)?,
            };
            check_bind(address, self.options.ip.is_free_bind(), caller)?;
            let state = self.state();
            if state.binding.is_some() || state.phase != Phase::Idle {
                return Err(Errno::EINVAL);
            }
            drop(state);
            self.bind_to(address).map(|_| ())
        };
        bind().into()
    }

    fn listen<'a>(&'a self, backlog: usize, _caller: &'a SocketCaller<'a>) -> Outcome<'a, ()> {
        self.begin_to_listen(backlog).into()
    }

    fn accept(&self) -> Result<Arc<dyn Socket>, Errno> {
        self.take_connection()
    }

    fn connect<'a>(
        &'a self,
        address: &'a SocketAddress,
        _waiting: Waiting,
        _caller: &'a SocketCaller<'a>,
    ) -> Outcome<'a, ()> {
        self.begin_to_connect(address).into()
    }

    fn send(&self, buffer: &mut UserBuffer, message: &mut SentMessage) -> Result<usize, Errno> {
        self.send_bytes(buffer, message.flags)
    }

    fn receive(
        &self,
        buffer: &mut UserBuffer,
        flags: MessageFlags,
        message: &mut ReceivedMessage,
    ) -> Result<usize, Errno> {
        let count = self.receive_bytes(buffer, flags)?;
        message.len = count;
        Ok(count)
    }

    fn shutdown(&self, how: Shutdown) -> Result<(), Errno> {
        self.end_directions(how)
    }

    fn local_address(&self) -> Result<SocketAddress, Errno> {
        let state = self.state();
        let address = state.local.or(state.bound).unwrap_or(self.domain.unspecified());
        Ok(self.domain.show(address))
    }

    fn peer_address(&self) -> Result<SocketAddress, Errno> {
        let state = self.state();
        match (state.phase, state.remote) {
            (Phase::Connected, Some(remote)) => Ok(self.domain.show(remote)),
            _ => Err(Errno::ENOTCONN),
        }
    }

    fn take_error(&self) -> Option<Errno> {
        let mut state = self.state();
        state.connect_reports = false;
        state.error.take()
    }

    fn is_listening(&self) -> bool {
        self.state().phase == Phase::Listening
    }

    fn option(&self, level: u32, name: u32) -> Result<Vec<u8>, Errno> {
        self.get_option(level, name)
    }

    fn set_option(
        &self,
        level: u32,
        name: u32,
        value: &[u8],
        _caller: &SocketCaller<'_>,
    ) -> Result<(), Errno> {
        self.change_option(level, name, value)
    }

    fn readable_len(&self) -> Result<usize, Errno> {
        let state = self.state();
        if state.phase == Phase::Listening { Err(Errno::EINVAL) } else { Ok(state.incoming.len()) }
    }

    fn unsent_len(&self) -> Result<usize, Errno> {
        let state = self.state();
        if state.phase == Phase::Listening {
            return Err(Errno::EINVAL);
        }
        let (queued, link) = (state.outgoing.len(), state.link.clone());
        drop(state);
        Ok(match link {
            Link::Native(id) => {
                queued
                    + id.here()
                        .and_then(|found| found.statistics())
                        .map_or(0, |statistics| statistics.unacked)
            }
            Link::Peer(peer) => peer.upgrade().map_or(0, |peer| peer.state().incoming.len()),
            Link::None | Link::Moving => queued,
        })
    }

    fn ready(&self) -> Events {
        let state = self.state();
        let events = state.events();
        if state.phase != Phase::Connected || state.is_shut {
            return events;
        }
        let has_space = match state.link.clone() {
            Link::Peer(peer) => {
                drop(state);
                peer.upgrade().is_none_or(|peer| peer.takes_more(peer.state().incoming.len()))
            }
            _ => self.holds_few(state.outgoing.len()),
        };
        if has_space { events | Events::OUT } else { events }
    }

    fn pollee(&self) -> &Pollee {
        &self.pollee
    }

    fn close(&self) {
        self.end_socket();
    }
}

/// Checks the address of `bind`.
///
/// # Errors
/// [`Errno::EACCES`] for a port that needs a capability, [`Errno::EADDRNOTAVAIL`].
pub(crate) fn check_bind(address: SocketAddr, is_free: bool, caller: &SocketCaller<'_>) -> Result<(), Errno> {
    if address.port() != 0 && address.port() < FIRST_FREE_PORT {
        caller.check_capability(CAP_NET_BIND_SERVICE).map_err(|_| Errno::EACCES)?;
    }
    if address.ip().is_unspecified() || is_free || is_local(address.ip()) {
        Ok(())
    } else {
        Err(Errno::EADDRNOTAVAIL)
    }
}

impl fmt::Debug for TcpSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TcpSocket({:?})", self.domain)
    }
}
