//! The network of a cell: the protocol stack on events, one instance a core (EbbRT 3.3.1; Isola's design, 8).
//!
//! | module | what |
//! |---|---|
//! | [`tcp`] | listening, connecting, and [`tcp::TcpStream`] |
//! | [`udp`] | [`udp::UdpSocket`] |
//! | [`interface`] | start, the cell's address |
//! | [`manager`] | what the network is made of: an Ebb that an application can replace |
//! | [`mod@filter`] | something between the device and the stack |
//! | [`port`] | what a network device is |
//!
//! Each core has a stack of its own (`isola-net-stack`), made when the first frame for the core arrives. A flow
//! belongs to the core that its hash names: all of its frames, its connection and the application's handler
//! are there, and no other core ever touches them. The core that owns a device queue receives, looks at
//! the flow and hands frames on in batches; frames to send go the other way.
//!
//! Buffers are not copied between the device and the application, in either direction.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod core_network;
mod device;
pub mod filter;
pub mod interface;
pub mod manager;
pub mod tcp;
pub mod udp;

pub use device::set_polling;
pub use filter::{Filter, filter};
pub use interface::{address, set_address, start, wait_for_address};
pub use isola_net_stack::{
    Addressing, ConfigError, ConnectError, FailReason, Ipv4Config, KeepAlive, Limits, MacAddr, TcpConfig,
};
pub use isola_platform::network as port;
pub use manager::{CellNetwork, NETWORK_MANAGER, NetworkManager, NetworkSettings};
pub use tcp::{StreamError, TcpStream, connect, listen};
pub use udp::UdpSocket;
