//! The calls of programs on unix sockets.

use super::connections::Receiver;
use super::services::OwnService;
use super::socket::{Role, UnixSocket};
use crate::Errno;
use crate::address::{SocketAddress, UnixAddress};
use crate::message::{Destination, MessageFlags, PeerCredentials, ReceivedMessage, SentMessage};
use crate::settings::SocketSettings;
use crate::socket::{Shutdown, Socket, SocketCaller, SocketFacts, Waiting};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use isola_linux_abi::net::{AF_UNIX, SO_PASSCRED};
use isola_linux_files::{Events, Outcome, Pollee};
use isola_linux_memory::{BoxFuture, UserBuffer};

impl Socket for UnixSocket {
    fn facts(&self) -> SocketFacts {
        SocketFacts { domain: AF_UNIX, kind: self.kind, protocol: 0 }
    }

    fn settings(&self) -> &SocketSettings {
        &self.settings
    }

    fn settings_changed(&self) {
        // A longer send buffer may have space.
        self.pollee.notify(Events::OUT);
    }

    fn bind<'a>(&'a self, address: &'a SocketAddress, caller: &'a SocketCaller<'a>) -> Outcome<'a, ()> {
        match address {
            SocketAddress::Unix(UnixAddress::Unnamed) => self.bind_chosen().into(),
            SocketAddress::Unix(UnixAddress::Abstract(name)) => self.bind_abstract(name).into(),
            SocketAddress::Unix(UnixAddress::Path(path)) => Outcome::of(self.bind_path(path, caller)),
            _ => Outcome::error(Errno::EINVAL),
        }
    }

    fn listen<'a>(&'a self, backlog: usize, caller: &'a SocketCaller<'a>) -> Outcome<'a, ()> {
        if !self.is_connection_based() {
            return Outcome::error(Errno::EOPNOTSUPP);
        }
        let state = self.state.lock();
        if state.address == UnixAddress::Unnamed {
            return Outcome::error(Errno::EINVAL);
        }
        let has_service =
            state.location.as_ref().is_some_and(|at| at.inode().downcast::<OwnService>().is_some());
        drop(state);
        let credentials = caller.credentials;
        if !has_service {
            return self.begin_to_listen(backlog, credentials).into();
        }
        Outcome::of(async move {
            self.listen_for_channels().await?;
            self.begin_to_listen(backlog, credentials)
        })
    }

    fn accept(&self) -> Result<Arc<dyn Socket>, Errno> {
        if !self.is_connection_based() {
            return Err(Errno::EOPNOTSUPP);
        }
        let mut state = self.state.lock();
        let ended = state.receive_ended;
        let Role::Listening { pending, .. } = &mut state.role else { return Err(Errno::EINVAL) };
        let Some(socket) = pending.pop_front() else {
            return Err(if ended { Errno::EINVAL } else { Errno::EAGAIN });
        };
        socket.listener.store(0, Ordering::Relaxed);
        drop(state);
        self.space.notify(Events::OUT);
        Ok(socket)
    }

    fn connect<'a>(
        &'a self,
        address: &'a SocketAddress,
        waiting: Waiting,
        caller: &'a SocketCaller<'a>,
    ) -> Outcome<'a, ()> {
        if !self.is_connection_based() && *address == SocketAddress::Unspecified {
            return self.associate(None).into();
        }
        Outcome::of(async move {
            if self.settings.is_on(SO_PASSCRED) {
                self.bind_chosen()?;
            }
            loop {
                let found = match self.find(address, caller).await? {
                    Receiver::Socket(found) => found,
                    Receiver::Service(service) => return self.open_service(&service, address),
                };
                if !self.is_connection_based() {
                    return self.associate(Some(found));
                }
                match self.connect_to(&found, caller.credentials) {
                    Err(Errno::EAGAIN) if waiting == Waiting::Permitted => {
                        let ready = || {
                            let state = found.state.lock();
                            match &state.role {
                                Role::Listening { backlog, pending } if pending.len() > *backlog => {
                                    Events::NONE
                                }
                                _ => Events::OUT,
                            }
                        };
                        found.space.wait(Events::OUT, ready).await;
                    }
                    result => return result,
                }
            }
        })
    }

    fn destination<'a>(
        &'a self,
        address: &'a SocketAddress,
        caller: &'a SocketCaller<'a>,
    ) -> Outcome<'a, Option<Destination>> {
        let fails = {
            let state = self.state.lock();
            state.send_ended || state.error.is_some()
        };
        if self.is_connection_based() || fails {
            // An address of a connection is an error or is ignored, and the own state is an error before it.
            return Outcome::ok(None);
        }
        Outcome::of(async move {
            match self.find(address, caller).await? {
                Receiver::Socket(found) => {
                    let found: Destination = found;
                    Ok(Some(found))
                }
                Receiver::Service(_) => Err(Errno::EPROTOTYPE),
            }
        })
    }

    fn send(&self, buffer: &mut UserBuffer, message: &mut SentMessage) -> Result<usize, Errno> {
        self.send_message(buffer, message)
    }

    fn wait_to_send<'a>(&'a self, message: &'a SentMessage) -> BoxFuture<'a, ()> {
        alloc::boxed::Box::pin(self.wait_for_space(message))
    }

    fn receive(
        &self,
        buffer: &mut UserBuffer,
        flags: MessageFlags,
        message: &mut ReceivedMessage,
    ) -> Result<usize, Errno> {
        self.receive_message(buffer, flags, message)
    }

    fn shutdown(&self, how: Shutdown) -> Result<(), Errno> {
        let mut state = self.state.lock();
        state.receive_ended |= how.receive;
        state.send_ended |= how.send;
        let peer = state.peer.clone().filter(|_| self.is_connection_based());
        drop(state);
        if let Some(peer) = peer {
            let mut state = peer.state.lock();
            state.receive_ended |= how.send;
            state.send_ended |= how.receive;
            drop(state);
            peer.pollee.notify(Events::IN | Events::OUT | Events::HUP | Events::RDHUP);
        }
        self.space.notify(Events::OUT);
        self.pollee.notify(Events::IN | Events::OUT | Events::HUP | Events::RDHUP);
        Ok(())
    }

    fn local_address(&self) -> Result<SocketAddress, Errno> {
        Ok(SocketAddress::Unix(self.address()))
    }

    fn peer_address(&self) -> Result<SocketAddress, Errno> {
        let peer = self.state.lock().peer.clone().ok_or(Errno::ENOTCONN)?;
        Ok(SocketAddress::Unix(peer.address()))
    }

    fn take_error(&self) -> Option<Errno> {
        self.state.lock().error.take()
    }

    fn is_listening(&self) -> bool {
        matches!(self.state.lock().role, Role::Listening { .. })
    }

    fn peer_credentials(&self) -> PeerCredentials {
        let unknown = PeerCredentials { process: 0, user: u32::MAX, group: u32::MAX };
        self.state.lock().peer_credentials.unwrap_or(unknown)
    }

    fn option(&self, level: u32, _name: u32) -> Result<Vec<u8>, Errno> {
        Err(if level == isola_linux_abi::net::SOL_SOCKET { Errno::ENOPROTOOPT } else { Errno::EOPNOTSUPP })
    }

    fn set_option(&self, level: u32, _: u32, _: &[u8], _: &SocketCaller<'_>) -> Result<(), Errno> {
        Err(if level == isola_linux_abi::net::SOL_SOCKET { Errno::ENOPROTOOPT } else { Errno::EOPNOTSUPP })
    }

    fn readable_len(&self) -> Result<usize, Errno> {
        let state = self.state.lock();
        if matches!(state.role, Role::Listening { .. }) {
            return Err(Errno::EINVAL);
        }
        let mut lens = state.queue.iter().map(|packet| packet.rest().len());
        Ok(if self.is_connection_based() { lens.sum() } else { lens.next().unwrap_or(0) })
    }

    fn unsent_len(&self) -> Result<usize, Errno> {
        if self.is_listening() { Err(Errno::EINVAL) } else { Ok(self.charge.load(Ordering::Relaxed)) }
    }

    fn ready(&self) -> Events {
        let state = self.state.lock();
        if matches!(state.role, Role::Opening) {
            return Events::NONE;
        }
        let mut events = Events::NONE;
        if state.error.is_some() {
            events = events | Events::ERR;
        }
        if state.receive_ended {
            events = events | Events::RDHUP | Events::IN;
            if state.send_ended {
                events = events | Events::HUP;
            }
        }
        let has_input = match &state.role {
            Role::Listening { pending, .. } => !pending.is_empty(),
            _ => !state.queue.is_empty(),
        };
        if has_input {
            events = events | Events::IN;
        }
        let is_listening = matches!(state.role, Role::Listening { .. });
        if self.is_connection_based() && matches!(state.role, Role::Unconnected | Role::Connecting) {
            events = events | Events::HUP;
        }
        let peer = if self.is_connection_based() { None } else { state.peer.clone() };
        drop(state);
        let is_quarter_used = self.charge.load(Ordering::Relaxed) * 4 > self.settings.send_buffer();
        if !is_listening && !is_quarter_used && peer.is_none_or(|peer| self.may_send_to(&peer)) {
            events = events | Events::OUT;
        }
        events
    }

    fn pollee(&self) -> &Pollee {
        &self.pollee
    }

    fn close(&self) {
        self.close_with(Errno::ECONNRESET);
    }
}
