//! UDP sockets.

mod queue;
mod socket;

pub(crate) use queue::NativePorts;
pub(crate) use socket::UdpSocket;
