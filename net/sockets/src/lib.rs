//! The network of a cell: the protocol stack on events, one instance per core (EbbRT 3.3.1; Isola's design, 8).
//!
//! | module | contents |
//! |---|---|
//! | [`tcp`] | listening, connecting, and [`tcp::TcpStream`] |
//! | [`byte_stream`] | [`ByteStream`]: a stream with the traits of `embedded-io-async`, which copies |
//! | [`handler`] | connection handlers, called directly: the shortest path |
//! | [`udp`] | [`udp::UdpSocket`] |
//! | [`interface`] | start, the cell's address |
//! | [`manager`] | selection of device and settings: an Ebb that an application can replace |
//! | [`latency`] | service latency of requests |
//! | [`query`] | answers to the host tool: counters, connections, captures |
//! | [`mod@filter`] | packet filters between the device and the stack |
//! | [`steering`] | assignment of flows to cores, and their migration under load |
//! | [`neighbours`] | what a queue needs that sends frames to cells of the same machine another way |
//! | [`port`] | the interface of a network device |
//!
//! Each core has its own stack (`isola-net-stack`), created when the first frame for the core arrives. A flow belongs
//! to the core that owns its bucket: this core alone processes its frames, its connection and the application's
//! handler. The core that owns a device queue receives, determines the flow and forwards frames in batches; frames to
//! send go the other way.
//!
//! Buffers are not copied between device and application, in either direction. `docs/network.md` is the user's page.
//!
//! # An echo server
//!
//! Received data returns in the same buffers, on the core that owns the connection's flow:
//!
//! ```
//! use core::time::Duration;
//! use isola_net::{KeepAlive, PortInUse, StreamError, TcpStream, listen};
//!
//! /// Connections that wait on a core to be accepted.
//! const BACKLOG: usize = 128;
//!
//! /// Sends received data back, until the peer's stream ends.
//! async fn echo(mut stream: TcpStream) -> Result<(), StreamError> {
//!     // A chain of views of the received frames, which are not copied. Waiting costs nothing.
//!     while let Some(data) = stream.read().await? {
//!         // Waits while the peer does not read. Meanwhile nothing more is read, so that the window closes and the peer
//!         // waits in turn: the memory in use is bounded by the window and the send limit.
//!         stream.write(data).await?;
//!     }
//!     // The peer has ended its direction, this ends the other. Dropping the stream would also do so.
//!     stream.shutdown();
//!     Ok(())
//! }
//!
//! /// Serves until it is cancelled.
//! async fn serve(port: u16) -> Result<(), PortInUse> {
//!     let _listening = listen(port, BACKLOG, |mut stream: TcpStream| async move {
//!         // A silent peer may be gone without notice: it is probed.
//!         stream.set_keep_alive(Some(KeepAlive {
//!             idle: Duration::from_secs(60).into(),
//!             interval: Duration::from_secs(5).into(),
//!             probes: 5,
//!         }));
//!         // A peer that is gone needs no response.
//!         let _ = echo(stream).await;
//!     })?;
//!     core::future::pending().await
//! }
//! # use isola_test_cells::{dial, read_exactly, run_server_and_client};
//! # let client = || async {
//! #     let mut stream = dial(7).await;
//! #     stream.write(isola_iobuf::IoBuf::from_static(b"hello").into()).await.unwrap();
//! #     assert_eq!(read_exactly(&mut stream, 5).await, b"hello");
//! # };
//! # run_server_and_client(2, isola_hosted::Loss::Never, || async { serve(7).await.unwrap() }, client);
//! ```
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod activity_rules;
mod attribution;
pub mod bridge;
pub mod byte_stream;
mod connection;
mod core_network;
mod device;
mod divided_events;
mod divided_input;
mod divided_output;
mod drops;
pub mod filter;
mod flow;
mod halves;
pub mod handler;
pub mod interface;
pub mod latency;
pub mod manager;
pub mod neighbours;
mod outbox;
pub mod query;
pub mod steering;
pub mod tcp;
pub mod udp;

pub use activity_rules::{
    ActivityRuleError, MAX_ACTIVITY_RULES, activity_rules, add_activity_rule, clear_activity_rules,
};
pub use byte_stream::ByteStream;
pub use connection::EarlyRead;
pub use device::{set_polling, write_report, write_statistics};
pub use filter::{Filter, filter};
pub use flow::{Relayed, relay};
pub use halves::{ReadHalf, WriteHalf};
pub use handler::{ConnectionHandler, ConnectionId, TcpConnection, connect_with, listen_with};
pub use interface::{AddressIsGiven, address, ipv6, set_address, start, wait_for_address, wait_for_ipv6};
pub use isola_net_stack::{
    Addressing, BindError, ConfigError, ConnectError, ConnectionStats, Datagram, FailReason, Ipv4Config,
    Ipv6Addressing, Ipv6Config, Ipv6Settings, KeepAlive, Limits, MacAddr, SendError, SendToError, TcpConfig,
};
pub use isola_platform::network as port;
pub use manager::{CellNetwork, NETWORK_MANAGER, NetworkManager, NetworkSettings};
pub use steering::rebalance;
pub use tcp::{PortInUse, PortListener, StreamError, TcpStream, connect, listen};
pub use udp::{DatagramRecipient, SharedUdpSocket, UdpSocket};
