//! UDP sockets. All datagrams for a socket go to the core that bound it.

use crate::attribution::owner_of;
use crate::core_network::{NETWORK, stack_now};
use crate::device;
use crate::interface;
use alloc::rc::Rc;
use core::cell::Cell;
use core::future::poll_fn;
use core::net::SocketAddr;
use core::task::{Poll, Waker};
use isola_events::current_activity;
use isola_iobuf::Chain;
use isola_net_stack::{BindError, Datagram, SendToError, Stack, UdpId};

use crate::interface::NetworkError;

/// The task that waits at a socket.
#[derive(Default)]
pub(crate) struct Socket {
    waiting: Cell<Option<Waker>>,
}

impl Socket {
    pub fn readable(&self) {
        if let Some(waiting) = self.waiting.take() {
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

impl UdpSocket {
    /// Binds a socket to a port.
    ///
    /// # Errors
    /// [`UdpBindError`], if the cell has no device, or any core has bound the port.
    pub fn bind(port: u16) -> Result<Self, UdpBindError> {
        interface::bind_udp_port(port).map_err(|()| UdpBindError::Bind(BindError::PortInUse(port)))?;
        let owner = owner_of(current_activity());
        let bind = |stack: &mut Stack| stack.udp_bind(port).inspect(|id| stack.udp_set_owner(*id, owner));
        let bound = NETWORK.with(bind);
        let bound = bound.ok_or(UdpBindError::Network(NetworkError::NoDevice));
        let id = bound.and_then(|bound| bound.map_err(UdpBindError::Bind));
        let id = id.inspect_err(|_| interface::unbind_udp_port(port))?;
        device::steer_datagrams(port);
        Ok(Self { id, port, socket: NETWORK.add_socket(id) })
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
        NETWORK.with(|stack| stack.udp_close(self.id));
        NETWORK.remove_socket(self.id);
        interface::unbind_udp_port(self.port);
        device::steer_datagrams(self.port);
    }
}
