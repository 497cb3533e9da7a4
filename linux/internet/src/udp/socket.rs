//! A UDP socket, as the calls of programs see it.

use super::queue::{NativePorts, deliver};
use crate::address::{Domain, Scope, is_local};
use crate::bytes::{copy_in, copy_out, number};
use crate::families::Internet;
use crate::options::IpOptions;
use crate::ports::{Binding, PortSharing};
use crate::tcp::check_bind;
use alloc::collections::VecDeque;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use isola_iobuf::{Chain, IoBuf};
use isola_linux_abi::net::{
    IP_PKTINFO, IPPROTO_UDP, IPV6_PKTINFO, SO_BROADCAST, SO_REUSEADDR, SO_REUSEPORT, SOL_IP, SOL_IPV6,
    SOL_SOCKET, SOL_UDP,
};
use isola_linux_files::{Events, Outcome, Pollee};
use isola_linux_memory::UserBuffer;
use isola_linux_sockets::{
    ControlMessage, Errno, MessageFlags, ReceivedMessage, SentMessage, Shutdown, Socket, SocketAddress,
    SocketCaller, SocketFacts, SocketKind, SocketSettings, Waiting,
};
use isola_net::{SendToError, SharedUdpSocket};
use spin::Mutex;

/// The longest datagram.
const MAX_DATAGRAM: usize = 65_507;
/// The memory of a datagram in a queue, beside that of its frame.
const OVERHEAD: usize = 256;
/// The number of the interface of the cell's device; 1 is loopback.
const DEVICE: u32 = 2;
const LOOPBACK: u32 = 1;

/// The option that holds datagrams back, from Linux's `linux/udp.h`: it is off.
const UDP_CORK: u32 = 1;

/// A received datagram.
#[derive(Clone, Debug)]
pub(super) struct Received {
    pub from: SocketAddr,
    pub to: IpAddr,
    pub data: Chain,
}

impl Received {
    fn storage(&self) -> usize {
        OVERHEAD + self.data.parts().map(IoBuf::storage_len).sum::<usize>()
    }
}

/// A UDP socket.
pub(crate) struct UdpSocket {
    this: Weak<Self>,
    internet: Arc<Internet>,
    domain: Domain,
    settings: SocketSettings,
    options: IpOptions,
    pollee: Pollee,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    binding: Option<Binding<UdpSocket>>,
    bound: Option<SocketAddr>,
    native: Option<Arc<SharedUdpSocket>>,
    remote: Option<SocketAddr>,
    queue: VecDeque<Received>,
    storage: usize,
    error: Option<Errno>,
    /// Datagrams left the cell since the latest error.
    may_be_refused: bool,
    is_receive_shut: bool,
    is_shut: bool,
}

impl UdpSocket {
    /// Creates a socket.
    pub fn new(internet: Arc<Internet>, domain: Domain) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            this: this.clone(),
            internet,
            domain,
            settings: SocketSettings::default(),
            options: IpOptions::default(),
            pollee: Pollee::new(),
            state: Mutex::default(),
        })
    }

    /// Returns the address from which alone the socket receives, if it is connected.
    pub(super) fn remote(&self) -> Option<SocketAddr> {
        self.state.lock().remote
    }

    /// Adds a datagram, unless the queue is full.
    pub(super) fn push(&self, received: Received) {
        let mut state = self.state.lock();
        let storage = received.storage();
        if state.is_receive_shut || state.storage + storage > self.settings.receive_buffer() {
            drop(state);
            return drop(received);
        }
        state.storage += storage;
        state.queue.push_back(received);
        drop(state);
        self.pollee.notify(Events::IN);
    }

    /// Notes that a message of the network says that a host has refused a datagram. Anyone can send it: it counts for a
    /// socket that is connected to this host, and has sent something since the latest error (RFC 5927 3).
    pub(super) fn refused_by_host(&self, remote: SocketAddr) {
        {
            let mut state = self.state.lock();
            if state.remote != Some(remote) || !core::mem::take(&mut state.may_be_refused) {
                return;
            }
        }
        self.refused(remote);
    }

    /// Notes that a datagram was refused: an error of a connected socket.
    fn refused(&self, remote: SocketAddr) {
        let mut state = self.state.lock();
        if state.remote != Some(remote) {
            return;
        }
        state.error = Some(Errno::ECONNREFUSED);
        drop(state);
        self.pollee.notify(Events::ERR | Events::IN | Events::OUT);
    }

    fn bind_to(&self, address: SocketAddr) -> Result<u16, Errno> {
        let scope = Scope::of(self.domain, self.options.is_v6_only(), address.ip());
        let sharing = PortSharing {
            address: self.settings.is_on(SO_REUSEADDR),
            port: self.settings.is_on(SO_REUSEPORT),
        };
        let binding =
            self.internet.udp.bind(scope, address.port(), sharing, &self.this, self.internet.random())?;
        let port = binding.port();
        let native = if scope.is_reachable() { NativePorts::open(&self.internet, port)? } else { None };
        let mut state = self.state.lock();
        let former = (state.binding.replace(binding), core::mem::replace(&mut state.native, native));
        state.bound = Some(SocketAddr::new(address.ip(), port));
        drop(state);
        drop(former);
        Ok(port)
    }

    fn bind_if_unbound(&self) -> Result<SocketAddr, Errno> {
        let bound = self.state.lock().bound;
        match bound {
            Some(bound) => Ok(bound),
            None => {
                let address = self.domain.unspecified();
                Ok(SocketAddr::new(address.ip(), self.bind_to(address)?))
            }
        }
    }

    fn begin_to_connect(&self, address: &SocketAddress) -> Result<(), Errno> {
        if *address == SocketAddress::Unspecified {
            self.state.lock().remote = None;
            return Ok(());
        }
        let remote = to_host(self.domain.parse(address)?);
        if !has_route(remote.ip()) {
            return Err(Errno::ENETUNREACH);
        }
        self.bind_if_unbound()?;
        // As on Linux, datagrams of others that arrived before stay in the queue.
        self.state.lock().remote = Some(remote);
        Ok(())
    }

    fn own_address(&self) -> SocketAddr {
        let (bound, remote) = {
            let state = self.state.lock();
            (state.bound.unwrap_or(self.domain.unspecified()), state.remote)
        };
        match remote {
            Some(remote) if bound.ip().is_unspecified() => {
                SocketAddr::new(source_for(remote.ip()).unwrap_or(bound.ip()), bound.port())
            }
            _ => bound,
        }
    }

    fn send_datagram(&self, buffer: &mut UserBuffer, message: &mut SentMessage) -> Result<usize, Errno> {
        if message.flags.has(MessageFlags::OOB) {
            return Err(Errno::EOPNOTSUPP);
        }
        let given = match &message.address {
            Some(address) => Some(to_host(self.domain.parse(address)?)),
            None => None,
        };
        let source = self.given_source(&message.ancillary.others)?;
        if buffer.len() > MAX_DATAGRAM {
            return Err(Errno::EMSGSIZE);
        }
        let mut state = self.state.lock();
        if let Some(error) = state.error.take() {
            return Err(error);
        }
        if state.is_shut {
            return Err(Errno::EPIPE);
        }
        let connected = state.remote;
        drop(state);
        let to = given.or(connected).ok_or(Errno::EDESTADDRREQ)?;
        if to.port() == 0 {
            return Err(Errno::EINVAL);
        }
        if is_broadcast(to.ip()) && !self.settings.is_on(SO_BROADCAST) {
            return Err(Errno::EACCES);
        }
        let bound = self.bind_if_unbound()?;
        let source = source.or(Some(bound.ip()).filter(|ip| !ip.is_unspecified()));
        let data = copy_in(buffer, usize::MAX);
        let len = data.len();
        if is_local(to.ip()) {
            let from = SocketAddr::new(source.unwrap_or(to.ip()), bound.port());
            let received = Received { from, to: to.ip(), data };
            if !deliver(&self.internet, to.port(), received) {
                self.refused(to);
            }
            return Ok(len);
        }
        let native = {
            let mut state = self.state.lock();
            state.may_be_refused = true;
            state.native.clone().ok_or(Errno::ENETUNREACH)?
        };
        native.send_to(source, to, data).map_err(|error| match error {
            SendToError::TooLong(_) => Errno::EMSGSIZE,
            SendToError::Congested => Errno::ENOBUFS,
            SendToError::NoSocket | SendToError::NoAddress | SendToError::NoRoute => Errno::ENETUNREACH,
        })?;
        Ok(len)
    }

    /// Returns the source address of `IP_PKTINFO` or `IPV6_PKTINFO`.
    fn given_source(&self, messages: &[ControlMessage]) -> Result<Option<IpAddr>, Errno> {
        let mut source = None;
        for message in messages {
            let address: Option<IpAddr> = match (message.level, message.kind, &message.data[..]) {
                (SOL_IP, IP_PKTINFO, [_, _, _, _, a, b, c, d, ..]) if message.data.len() >= 12 => {
                    Some(Ipv4Addr::new(*a, *b, *c, *d).into())
                }
                (SOL_IPV6, IPV6_PKTINFO, data) if data.len() >= 20 => {
                    let octets: [u8; 16] = core::array::from_fn(|index| data[index]);
                    let address = Ipv6Addr::from(octets);
                    Some(address.to_ipv4_mapped().map_or(address.into(), IpAddr::from))
                }
                // Other messages that programs send, such as the type of service, have no effect.
                (SOL_IP | SOL_IPV6, _, _) if !message.data.is_empty() => None,
                _ => return Err(Errno::EINVAL),
            };
            if let Some(address) = address.filter(|address| !address.is_unspecified()) {
                if !is_local(address) {
                    return Err(Errno::EADDRNOTAVAIL);
                }
                source = Some(address);
            }
        }
        Ok(source)
    }

    fn receive_datagram(
        &self,
        buffer: &mut UserBuffer,
        flags: MessageFlags,
        message: &mut ReceivedMessage,
    ) -> Result<usize, Errno> {
        if flags.has(MessageFlags::OOB) {
            return Err(Errno::EOPNOTSUPP);
        }
        let mut state = self.state.lock();
        if let Some(error) = state.error.take() {
            return Err(error);
        }
        let received = if flags.has(MessageFlags::PEEK) {
            state.queue.front().cloned()
        } else {
            let received = state.queue.pop_front();
            state.storage = state.storage.saturating_sub(received.as_ref().map_or(0, Received::storage));
            received
        };
        let Some(received) = received else {
            return if state.is_receive_shut { Ok(0) } else { Err(Errno::EAGAIN) };
        };
        drop(state);
        message.len = received.data.len();
        if received.data.len() > buffer.len() {
            message.flags.add(MessageFlags::TRUNC);
        }
        message.address = Some(self.domain.show(received.from));
        let (v4, v6) = self.options.has_packet_information();
        if v4 && let IpAddr::V4(to) = received.to {
            message.ancillary.others.push(packet_information(to));
        }
        if v6 && self.domain == Domain::V6 {
            message.ancillary.others.push(packet_information6(received.to));
        }
        Ok(copy_out(&received.data, buffer))
    }
}

/// Returns the number of the interface of an address.
fn interface_of(address: IpAddr) -> u32 {
    if address.is_loopback() { LOOPBACK } else { DEVICE }
}

/// Returns `struct in_pktinfo`.
fn packet_information(to: Ipv4Addr) -> ControlMessage {
    let mut data = interface_of(to.into()).to_ne_bytes().to_vec();
    data.extend(to.octets());
    data.extend(to.octets());
    ControlMessage { level: SOL_IP, kind: IP_PKTINFO, data }
}

/// Returns `struct in6_pktinfo`.
fn packet_information6(to: IpAddr) -> ControlMessage {
    let address = match to {
        IpAddr::V4(to) => to.to_ipv6_mapped(),
        IpAddr::V6(to) => to,
    };
    let mut data = address.octets().to_vec();
    data.extend(interface_of(to).to_ne_bytes());
    ControlMessage { level: SOL_IPV6, kind: IPV6_PKTINFO, data }
}

/// Returns the address of the host itself for an unspecified one, as on Linux.
fn to_host(mut address: SocketAddr) -> SocketAddr {
    if address.ip().is_unspecified() {
        address.set_ip(match address {
            SocketAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        });
    }
    address
}

fn is_broadcast(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(ip) => {
            ip.is_broadcast()
                || isola_net::address().is_some_and(|own| own.address != ip && own.is_broadcast(ip))
        }
        IpAddr::V6(_) => false,
    }
}

/// Returns the address of this cell from which a datagram leaves.
fn source_for(to: IpAddr) -> Option<IpAddr> {
    if is_local(to) {
        return Some(to);
    }
    match to {
        IpAddr::V4(_) => isola_net::address().map(|own| own.address.into()),
        IpAddr::V6(to) => isola_net::ipv6().source_for(to).map(IpAddr::from),
    }
}

/// Returns whether an address can be reached.
fn has_route(to: IpAddr) -> bool {
    if is_local(to) {
        return true;
    }
    match to {
        IpAddr::V4(to) => isola_net::address().is_some_and(|own| own.gateway.is_some() || own.on_link(to)),
        IpAddr::V6(to) => {
            let own = isola_net::ipv6();
            !own.is_empty() && (own.on_link(to) || own.routers[0].is_some())
        }
    }
}

impl Socket for UdpSocket {
    fn facts(&self) -> SocketFacts {
        SocketFacts { domain: self.domain.number(), kind: SocketKind::Datagram, protocol: IPPROTO_UDP as u32 }
    }

    fn settings(&self) -> &SocketSettings {
        &self.settings
    }

    fn bind<'a>(&'a self, address: &'a SocketAddress, caller: &'a SocketCaller<'a>) -> Outcome<'a, ()> {
        let bind = || {
            let address = self.domain.parse(address)?;
            if !address.ip().is_multicast() && !is_broadcast(address.ip()) {
                check_bind(address, self.options.is_free_bind(), caller)?;
            }
            if self.state.lock().binding.is_some() {
                return Err(Errno::EINVAL);
            }
            self.bind_to(address).map(|_| ())
        };
        bind().into()
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
        self.send_datagram(buffer, message)
    }

    fn receive(
        &self,
        buffer: &mut UserBuffer,
        flags: MessageFlags,
        message: &mut ReceivedMessage,
    ) -> Result<usize, Errno> {
        self.receive_datagram(buffer, flags, message)
    }

    fn shutdown(&self, how: Shutdown) -> Result<(), Errno> {
        let mut state = self.state.lock();
        if state.remote.is_none() {
            return Err(Errno::ENOTCONN);
        }
        state.is_receive_shut |= how.receive;
        state.is_shut |= how.send;
        drop(state);
        self.pollee.notify(Events::IN | Events::RDHUP | Events::HUP);
        Ok(())
    }

    fn local_address(&self) -> Result<SocketAddress, Errno> {
        Ok(self.domain.show(self.own_address()))
    }

    fn peer_address(&self) -> Result<SocketAddress, Errno> {
        self.remote().map(|remote| self.domain.show(remote)).ok_or(Errno::ENOTCONN)
    }

    fn take_error(&self) -> Option<Errno> {
        self.state.lock().error.take()
    }

    fn option(&self, level: u32, name: u32) -> Result<Vec<u8>, Errno> {
        match level {
            SOL_IP | SOL_IPV6 => self.options.get(self.domain, level, name),
            SOL_UDP if name == UDP_CORK => Ok(number(0)),
            SOL_SOCKET | SOL_UDP => Err(Errno::ENOPROTOOPT),
            _ => Err(Errno::EOPNOTSUPP),
        }
    }

    fn set_option(
        &self,
        level: u32,
        name: u32,
        value: &[u8],
        _caller: &SocketCaller<'_>,
    ) -> Result<(), Errno> {
        match level {
            SOL_IP | SOL_IPV6 => {
                let is_bound = self.state.lock().binding.is_some();
                self.options.set(self.domain, level, name, value, is_bound)
            }
            _ => Err(Errno::ENOPROTOOPT),
        }
    }

    fn readable_len(&self) -> Result<usize, Errno> {
        Ok(self.state.lock().queue.front().map_or(0, |received| received.data.len()))
    }

    fn unsent_len(&self) -> Result<usize, Errno> {
        Ok(0)
    }

    fn ready(&self) -> Events {
        let state = self.state.lock();
        let mut events = Events::OUT;
        if !state.queue.is_empty() || state.is_receive_shut {
            events = events | Events::IN;
        }
        if state.error.is_some() {
            events = events | Events::ERR | Events::IN;
        }
        if state.is_receive_shut {
            events = events | Events::RDHUP;
        }
        if state.is_receive_shut && state.is_shut {
            events = events | Events::HUP;
        }
        events
    }

    fn pollee(&self) -> &Pollee {
        &self.pollee
    }

    fn close(&self) {
        let former = core::mem::take(&mut *self.state.lock());
        drop(former);
    }
}

impl fmt::Debug for UdpSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UdpSocket({:?})", self.domain)
    }
}
