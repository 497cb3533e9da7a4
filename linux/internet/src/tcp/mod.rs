//! TCP sockets.

mod connecting;
mod handler;
mod listening;
mod options;
mod socket;
mod state;
mod transfer;

pub(crate) use listening::NativeListeners;
pub(crate) use socket::{TcpSocket, check_bind};
