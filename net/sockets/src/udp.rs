//! UDP sockets. All datagrams for a socket go to the core that bound it.

use crate::attribution::owner_of;
use crate::core_network::{NETWORK, stack_now};
use crate::device;
use crate::interface;
use alloc::rc::Rc;
use alloc::sync::Arc;
use core::cell::Cell;
use core::future::poll_fn;
use core::net::{IpAddr, SocketAddr};
use core::task::{Poll, Waker};
use isola_ebbs::current_core;
use isola_events::{current_activity, spawn_on};
use isola_iobuf::{Chain, IoBuf};
use isola_net_stack::{BindError, Datagram, SendToError, Stack, UdpId};
use isola_platform::CoreIndex;

use crate::interface::NetworkError;

/// The task that waits at a socket, or the recipient of its datagrams.
#[derive(Default)]
pub(crate) struct Socket {
    waiting: Cell<Option<Waker>>,
    /// Whether a notice of datagrams waits for an event of the activity.
    pub notice_waits: Cell<bool>,
    pub port: u16,
    pub recipient: Option<Arc<dyn DatagramRecipient>>,
}

impl Socket {
    pub fn of_recipient(port: u16, recipient: Arc<dyn DatagramRecipient>) -> Self {
        Self { port, recipient: Some(recipient), ..Self::default() }
    }

    pub fn readable(&self, id: UdpId) {
        if let Some(recipient) = &self.recipient {
            while let Some(datagram) = NETWORK.with(|stack| stack.udp_receive(id)).flatten() {
                recipient.received(datagram);
            }
        } else if let Some(waiting) = self.waiting.take() {
            waiting.wake();
            NETWORK.note_woken_task();
        }
    }
}

/// A UDP port of this cell, served by the core that bound it.
pub struct UdpSocket {
    id: UdpId,
    port: u16,
    socket: Rc<Socket>,
}

/// The reason for which a port cannot be bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UdpBindError {
    /// The cell has no network.
    Network(NetworkError),
    /// The stack rejected it.
    Bind(BindError),
}

impl core::fmt::Display for UdpBindError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Network(error) => error.fmt(f),
            Self::Bind(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for UdpBindError {}

/// Binds a port to the calling core.
fn bind(port: u16, socket: impl FnOnce() -> Socket) -> Result<(UdpId, Rc<Socket>), UdpBindError> {
    interface::bind_udp_port(port).map_err(|()| UdpBindError::Bind(BindError::PortInUse(port)))?;
    let owner = owner_of(current_activity());
    let bind = |stack: &mut Stack| stack.udp_bind(port).inspect(|id| stack.udp_set_owner(*id, owner));
    let bound = NETWORK.with(bind);
    let bound = bound.ok_or(UdpBindError::Network(NetworkError::NoDevice));
    let id = bound.and_then(|bound| bound.map_err(UdpBindError::Bind));
    let id = id.inspect_err(|_| interface::unbind_udp_port(port))?;
    device::steer_datagrams(port);
    Ok((id, NETWORK.add_socket(id, socket())))
}

/// Unbinds a port of the calling core.
fn unbind(id: UdpId, port: u16) {
    NETWORK.with(|stack| stack.udp_close(id));
    NETWORK.remove_socket(id);
    interface::unbind_udp_port(port);
    device::steer_datagrams(port);
}

impl UdpSocket {
    /// Binds a socket to a port.
    ///
    /// # Errors
    /// [`UdpBindError`], if the cell has no device, or any core has bound the port.
    pub fn bind(port: u16) -> Result<Self, UdpBindError> {
        let (id, socket) = bind(port, Socket::default)?;
        Ok(Self { id, port, socket })
    }

    /// Waits for the next datagram.
    pub async fn receive(&self) -> Datagram {
        poll_fn(|context| match NETWORK.with(|stack| stack.udp_receive(self.id)).flatten() {
            Some(datagram) => Poll::Ready(datagram),
            None => {
                self.socket.waiting.set(Some(context.waker().clone()));
                Poll::Pending
            }
        })
        .await
    }

    /// Sends a datagram, which may be lost.
    ///
    /// # Errors
    /// [`SendToError`], if it cannot be sent at all.
    pub fn send_to(&self, to: SocketAddr, data: Chain) -> Result<(), SendToError> {
        NETWORK.with(|stack| stack.udp_send_to(stack_now(), self.id, to, data)).unwrap_or(Ok(()))
    }

    /// Answers a datagram, from the address to which it was sent. The answer may be lost.
    ///
    /// # Errors
    /// [`SendToError`], if it cannot be sent at all.
    pub fn answer(&self, request: &Datagram, data: Chain) -> Result<(), SendToError> {
        NETWORK.with(|stack| stack.udp_answer(stack_now(), self.id, request, data)).unwrap_or(Ok(()))
    }
}

impl Drop for UdpSocket {
    fn drop(&mut self) {
        unbind(self.id, self.port);
    }
}

/// The recipient of a shared socket's datagrams. Its calls happen in events of the socket's core, and must not block.
pub trait DatagramRecipient: Send + Sync + 'static {
    /// Delivers a datagram, a view of its frame.
    fn received(&self, datagram: Datagram);

    /// Reports that `remote` has no socket at the port to which a datagram was sent.
    fn refused(&self, remote: SocketAddr);
}

/// A UDP port of this cell that all cores can use. The core that bound it delivers its datagrams; datagrams that other cores
/// send go to that core first.
pub struct SharedUdpSocket {
    core: CoreIndex,
    id: UdpId,
    port: u16,
}

impl SharedUdpSocket {
    /// Binds a socket to a port.
    ///
    /// # Errors
    /// [`UdpBindError`], if the cell has no device, or any core has bound the port.
    pub fn bind(port: u16, recipient: Arc<dyn DatagramRecipient>) -> Result<Self, UdpBindError> {
        let (id, _) = bind(port, || Socket::of_recipient(port, recipient))?;
        Ok(Self { core: current_core(), id, port })
    }

    /// Returns the port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Sends a datagram, which may be lost, from an address of this cell or from the one that suits `to`.
    ///
    /// # Errors
    /// [`SendToError`], if it cannot be sent at all, and the calling core has bound the socket.
    pub fn send_to(&self, from: Option<IpAddr>, to: SocketAddr, data: Chain) -> Result<(), SendToError> {
        let id = self.id;
        if self.core == current_core() {
            return send_from(id, from, to, data);
        }
        // As a datagram that is lost on its way.
        spawn_on(self.core, move || _ = send_from(id, from, to, data));
        Ok(())
    }
}

fn send_from(id: UdpId, from: Option<IpAddr>, to: SocketAddr, data: Chain) -> Result<(), SendToError> {
    let send = |stack: &mut Stack| match from {
        Some(local) => {
            let request = Datagram { remote: to, local, payload: IoBuf::from_static(&[]) };
            stack.udp_answer(stack_now(), id, &request, data)
        }
        None => stack.udp_send_to(stack_now(), id, to, data),
    };
    NETWORK.with(send).unwrap_or(Err(SendToError::NoSocket))
}

impl Drop for SharedUdpSocket {
    fn drop(&mut self) {
        let (id, port) = (self.id, self.port);
        if self.core == current_core() {
            unbind(id, port);
        } else {
            spawn_on(self.core, move || unbind(id, port));
        }
    }
}

impl core::fmt::Debug for SharedUdpSocket {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "SharedUdpSocket({})", self.port)
    }
}
