//! Netlink sockets.

use super::reply::requests;
use super::route::{RequestOptions, answer};
use crate::Errno;
use crate::address::SocketAddress;
use crate::families::{AddressFamily, Families};
use crate::message::{MessageFlags, PeerCredentials, ReceivedMessage, SentMessage};
use crate::settings::SocketSettings;
use crate::socket::{Shutdown, Socket, SocketCaller, SocketFacts, SocketKind, Waiting};
use alloc::collections::{BTreeSet, VecDeque};
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use isola_linux_abi::net::{AF_NETLINK, SO_PASSCRED};
use isola_linux_abi::numbers::CAP_NET_ADMIN;
use isola_linux_files::{Events, Outcome, Pollee};
use isola_linux_memory::UserBuffer;
use spin::Mutex;

/// The protocol of requests about interfaces, addresses and routes.
const NETLINK_ROUTE: u32 = 0;
/// The level of options of netlink sockets, and the options that programs use.
const SOL_NETLINK: u32 = 270;
const NETLINK_ADD_MEMBERSHIP: u32 = 1;
const NETLINK_DROP_MEMBERSHIP: u32 = 2;
const NETLINK_PKTINFO: u32 = 3;
const NETLINK_BROADCAST_ERROR: u32 = 4;
const NETLINK_NO_ENOBUFS: u32 = 5;
const NETLINK_CAP_ACK: u32 = 10;
const NETLINK_EXT_ACK: u32 = 11;
const NETLINK_GET_STRICT_CHK: u32 = 12;
/// Ports that the system chooses when the process's number is taken begin here, and fall.
const FIRST_CHOSEN_PORT: u32 = 0xffff_f000;
/// The part of the send buffer that a message cannot use, as on Linux.
const BUFFER_RESERVE: usize = 32;

/// The netlink sockets of a system.
pub struct NetlinkFamily {
    /// The families have the network interfaces, and this family.
    families: Weak<Families>,
    ports: Arc<Mutex<BTreeSet<u32>>>,
}

impl NetlinkFamily {
    /// Creates the family, for the interfaces of these families.
    pub fn new(families: &Arc<Families>) -> Arc<Self> {
        Arc::new(Self { families: Arc::downgrade(families), ports: Arc::default() })
    }
}

impl AddressFamily for NetlinkFamily {
    fn create(
        &self,
        kind: SocketKind,
        protocol: u32,
        caller: &SocketCaller<'_>,
    ) -> Result<Arc<dyn Socket>, Errno> {
        if !matches!(kind, SocketKind::Raw | SocketKind::Datagram) {
            return Err(Errno::ESOCKTNOSUPPORT);
        }
        if protocol != NETLINK_ROUTE {
            return Err(Errno::EPROTONOSUPPORT);
        }
        Ok(Arc::new(NetlinkSocket {
            families: self.families.clone(),
            ports: self.ports.clone(),
            kind,
            creator: caller.credentials,
            is_admin: caller.check_capability(CAP_NET_ADMIN).is_ok(),
            settings: SocketSettings::default(),
            state: Mutex::default(),
            switches: AtomicU32::new(0),
            is_strict: AtomicBool::new(false),
            pollee: Pollee::new(),
        }))
    }
}

/// A netlink socket.
struct NetlinkSocket {
    families: Weak<Families>,
    ports: Arc<Mutex<BTreeSet<u32>>>,
    kind: SocketKind,
    creator: PeerCredentials,
    is_admin: bool,
    settings: SocketSettings,
    state: Mutex<State>,
    /// The options that are on: bit of their number.
    switches: AtomicU32,
    is_strict: AtomicBool,
    pollee: Pollee,
}

#[derive(Default)]
struct State {
    /// The own address: 0 before it is bound.
    port: u32,
    groups: u32,
    peer: u32,
    queue: VecDeque<Vec<u8>>,
    queued_len: usize,
    error: Option<Errno>,
}

impl NetlinkSocket {
    /// Binds the socket to a port: 0 stands for the number of the process, or another one.
    fn bind_port(&self, state: &mut State, port: u32) -> Result<(), Errno> {
        if state.port != 0 {
            return if port == 0 || port == state.port { Ok(()) } else { Err(Errno::EINVAL) };
        }
        let mut ports = self.ports.lock();
        if port != 0 {
            if !ports.insert(port) {
                return Err(Errno::EADDRINUSE);
            }
            state.port = port;
            return Ok(());
        }
        let own = self.creator.process.max(1);
        let mut chosen = core::iter::once(own).chain((1..=FIRST_CHOSEN_PORT).rev());
        state.port = chosen.find(|port| ports.insert(*port)).ok_or(Errno::EADDRINUSE)?;
        Ok(())
    }
}

impl Socket for NetlinkSocket {
    fn facts(&self) -> SocketFacts {
        SocketFacts { domain: AF_NETLINK, kind: self.kind, protocol: NETLINK_ROUTE }
    }

    fn settings(&self) -> &SocketSettings {
        &self.settings
    }

    fn bind<'a>(&'a self, address: &'a SocketAddress, _caller: &'a SocketCaller<'a>) -> Outcome<'a, ()> {
        let SocketAddress::Netlink { port, groups } = address else { return Outcome::error(Errno::EINVAL) };
        let mut state = self.state.lock();
        let bound = self.bind_port(&mut state, *port);
        if bound.is_ok() {
            state.groups = *groups;
        }
        bound.into()
    }

    fn connect<'a>(
        &'a self,
        address: &'a SocketAddress,
        _waiting: Waiting,
        _caller: &'a SocketCaller<'a>,
    ) -> Outcome<'a, ()> {
        let mut state = self.state.lock();
        match address {
            SocketAddress::Unspecified => state.peer = 0,
            SocketAddress::Netlink { port, .. } => {
                if let Err(error) = self.bind_port(&mut state, 0) {
                    return Outcome::error(error);
                }
                state.peer = *port;
            }
            _ => return Outcome::error(Errno::EINVAL),
        }
        Outcome::ok(())
    }

    fn send(&self, buffer: &mut UserBuffer, message: &mut SentMessage) -> Result<usize, Errno> {
        if message.flags.has(MessageFlags::OOB) {
            return Err(Errno::EOPNOTSUPP);
        }
        let mut state = self.state.lock();
        let receiver = match &message.address {
            None => state.peer,
            Some(SocketAddress::Netlink { port, .. }) => *port,
            Some(_) => return Err(Errno::EINVAL),
        };
        self.bind_port(&mut state, 0)?;
        let (port, queued_len) = (state.port, state.queued_len);
        drop(state);
        if buffer.len() > self.settings.send_buffer().saturating_sub(BUFFER_RESERVE) {
            return Err(Errno::EMSGSIZE);
        }
        // Only the kernel receives.
        if receiver != 0 {
            return Err(Errno::ECONNREFUSED);
        }
        let bytes = buffer.read_all();
        let Some(families) = self.families.upgrade() else { return Err(Errno::ECONNREFUSED) };
        let interfaces = families.interfaces();
        let options =
            RequestOptions { is_strict: self.is_strict.load(Ordering::Relaxed), is_admin: self.is_admin };
        let (mut datagrams, mut len) = (VecDeque::new(), queued_len);
        let mut has_overflow = false;
        for request in requests(&bytes) {
            if len > self.settings.receive_buffer() {
                has_overflow = true;
                break;
            }
            let answers = answer(&*interfaces, request, port, options);
            len += answers.iter().map(Vec::len).sum::<usize>();
            datagrams.extend(answers);
        }
        let mut state = self.state.lock();
        state.queued_len += datagrams.iter().map(Vec::len).sum::<usize>();
        state.queue.append(&mut datagrams);
        if has_overflow {
            state.error = Some(Errno::ENOBUFS);
        }
        drop(state);
        self.pollee.notify(Events::IN);
        Ok(bytes.len())
    }

    fn receive(
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
        let Some(datagram) = state.queue.front() else { return Err(Errno::EAGAIN) };
        message.len = datagram.len();
        let count = buffer.write(datagram);
        if !flags.has(MessageFlags::PEEK) {
            state.queued_len -= message.len;
            state.queue.pop_front();
        }
        drop(state);
        if count < message.len {
            message.flags.add(MessageFlags::TRUNC);
        }
        message.address = Some(SocketAddress::Netlink { port: 0, groups: 0 });
        if self.settings.is_on(SO_PASSCRED) {
            message.ancillary.credentials = Some(PeerCredentials { process: 0, user: 0, group: 0 });
        }
        Ok(count)
    }

    fn shutdown(&self, _how: Shutdown) -> Result<(), Errno> {
        Err(Errno::EOPNOTSUPP)
    }

    fn local_address(&self) -> Result<SocketAddress, Errno> {
        let state = self.state.lock();
        Ok(SocketAddress::Netlink { port: state.port, groups: state.groups })
    }

    fn peer_address(&self) -> Result<SocketAddress, Errno> {
        Ok(SocketAddress::Netlink { port: self.state.lock().peer, groups: 0 })
    }

    fn take_error(&self) -> Option<Errno> {
        self.state.lock().error.take()
    }

    fn option(&self, level: u32, name: u32) -> Result<Vec<u8>, Errno> {
        match (level, name) {
            (SOL_NETLINK, NETLINK_GET_STRICT_CHK) => {
                Ok(u32::from(self.is_strict.load(Ordering::Relaxed)).to_ne_bytes().to_vec())
            }
            (
                SOL_NETLINK,
                NETLINK_PKTINFO
                | NETLINK_BROADCAST_ERROR
                | NETLINK_NO_ENOBUFS
                | NETLINK_CAP_ACK
                | NETLINK_EXT_ACK,
            ) => Ok((self.switches.load(Ordering::Relaxed) >> name & 1).to_ne_bytes().to_vec()),
            _ => Err(Errno::ENOPROTOOPT),
        }
    }

    fn set_option(
        &self,
        level: u32,
        name: u32,
        value: &[u8],
        _caller: &SocketCaller<'_>,
    ) -> Result<(), Errno> {
        if level != SOL_NETLINK {
            return Err(Errno::ENOPROTOOPT);
        }
        let Some(number) = value.first_chunk::<4>().copied().map(u32::from_ne_bytes) else {
            return Err(Errno::EINVAL);
        };
        match name {
            NETLINK_GET_STRICT_CHK => self.is_strict.store(number != 0, Ordering::Relaxed),
            // No group ever gets a message.
            NETLINK_ADD_MEMBERSHIP | NETLINK_DROP_MEMBERSHIP if number == 0 => return Err(Errno::EINVAL),
            NETLINK_ADD_MEMBERSHIP | NETLINK_DROP_MEMBERSHIP => {
                if let Some(bit) = 1_u32.checked_shl(number - 1) {
                    let groups = &mut self.state.lock().groups;
                    *groups = if name == NETLINK_ADD_MEMBERSHIP { *groups | bit } else { *groups & !bit };
                }
            }
            NETLINK_PKTINFO
            | NETLINK_BROADCAST_ERROR
            | NETLINK_NO_ENOBUFS
            | NETLINK_CAP_ACK
            | NETLINK_EXT_ACK => {
                let bit = 1 << name;
                if number != 0 {
                    self.switches.fetch_or(bit, Ordering::Relaxed);
                } else {
                    self.switches.fetch_and(!bit, Ordering::Relaxed);
                }
            }
            _ => return Err(Errno::ENOPROTOOPT),
        }
        Ok(())
    }

    fn readable_len(&self) -> Result<usize, Errno> {
        Ok(self.state.lock().queue.front().map_or(0, Vec::len))
    }

    fn unsent_len(&self) -> Result<usize, Errno> {
        Ok(0)
    }

    fn ready(&self) -> Events {
        let state = self.state.lock();
        let mut events = Events::OUT;
        if !state.queue.is_empty() {
            events = events | Events::IN;
        }
        if state.error.is_some() {
            events = events | Events::IN | Events::ERR;
        }
        events
    }

    fn pollee(&self) -> &Pollee {
        &self.pollee
    }

    fn close(&self) {
        let mut state = self.state.lock();
        let port = core::mem::take(&mut state.port);
        if port != 0 {
            self.ports.lock().remove(&port);
        }
        let queue = core::mem::take(&mut state.queue);
        drop(state);
        drop(queue);
    }
}
