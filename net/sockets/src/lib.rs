//! The network of a cell: the protocol stack on events, one instance a core (EbbRT 3.3.1; Isola's design, 8).
//!
//! | module | what |
//! |---|---|
//! | [`tcp`] | listening, connecting, and [`tcp::TcpStream`] |
//! | [`byte_stream`] | [`ByteStream`]: a stream behind the traits of `embedded-io-async`, by copying |
//! | [`handler`] | connections served by handlers, called at once: the shortest way |
//! | [`udp`] | [`udp::UdpSocket`] |
//! | [`interface`] | start, the cell's address |
//! | [`manager`] | what the network is made of: an Ebb that an application can replace |
//! | [`latency`] | how long requests take |
//! | [`query`] | what the host tool is told: counters, connections |
//! | [`mod@filter`] | something between the device and the stack |
//! | [`steering`] | which core serves which flows, and moving them while they are used |
//! | [`port`] | what a network device is |
//!
//! Each core has a stack of its own (`isola-net-stack`), made when the first frame for the core arrives. A flow
//! belongs to the core that has its bucket: all of its frames, its connection and the application's handler
//! are there, and no other core ever touches them. The core that owns a device queue receives, looks at
//! the flow and hands frames on in batches; frames to send go the other way.
//!
//! Buffers are not copied between the device and the application, in either direction. `docs/network.md` is the user's page.
//!
//! # An echo server
//!
//! What comes in goes back, in the very buffers that it came in, on the core that the connection's flow belongs to:
//!
//! ```
//! use core::time::Duration;
//! use isola_net::{KeepAlive, PortInUse, StreamError, TcpStream, listen};
//!
//! /// Connections that wait on a core to be taken.
//! const BACKLOG: usize = 128;
//!
//! /// Sends back what comes, until the peer has nothing more to send.
//! async fn echo(mut stream: TcpStream) -> Result<(), StreamError> {
//!     // A chain of views of the frames that came: waiting for it costs nothing, and nobody copies it.
//!     while let Some(data) = stream.read().await? {
//!         // Waits for as long as the peer does not read. Nothing more is read meanwhile, so that the window closes, and
//!         // the peer waits in its turn: no more memory is held than the window and the send limit allow.
//!         stream.write(data).await?;
//!     }
//!     // The peer has ended its direction, this ends the other. Dropping the stream alone would do so as well.
//!     stream.shutdown();
//!     Ok(())
//! }
//!
//! /// Serves until it is cancelled.
//! async fn serve(port: u16) -> Result<(), PortInUse> {
//!     let _listening = listen(port, BACKLOG, |mut stream: TcpStream| async move {
//!         // A peer that is silent for long may be gone without a word: it is asked.
//!         stream.set_keep_alive(Some(KeepAlive {
//!             idle: Duration::from_secs(60).into(),
//!             interval: Duration::from_secs(5).into(),
//!             probes: 5,
//!         }));
//!         // Who is gone needs no answer.
//!         let _ = echo(stream).await;
//!     })?;
//!     core::future::pending().await
//! }
//! # use isola_gateway::test_cells::{dial, read_exactly, talk};
//! # let client = || async {
//! #     let mut stream = dial(7).await;
//! #     stream.write(isola_iobuf::IoBuf::from_static(b"hello").into()).await.unwrap();
//! #     assert_eq!(read_exactly(&mut stream, 5).await, b"hello");
//! # };
//! # talk(2, isola_hosted::Loss::Never, || async { serve(7).await.unwrap() }, client);
//! ```
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod attribution;
pub mod byte_stream;
mod connection;
mod core_network;
mod device;
mod drops;
pub mod filter;
mod halves;
pub mod handler;
pub mod interface;
pub mod latency;
pub mod manager;
mod outbox;
pub mod query;
pub mod steering;
pub mod tcp;
pub mod udp;

pub use byte_stream::ByteStream;
pub use device::set_polling;
pub use filter::{Filter, filter};
pub use halves::{ReadHalf, WriteHalf};
pub use handler::{ConnectionHandler, TcpConnection, listen_with};
pub use interface::{AddressIsGiven, address, ipv6, set_address, start, wait_for_address, wait_for_ipv6};
pub use isola_net_stack::{
    Addressing, ConfigError, ConnectError, FailReason, Ipv4Config, Ipv6Addressing, Ipv6Config, Ipv6Settings,
    KeepAlive, Limits, MacAddr, SendError, TcpConfig,
};
pub use isola_platform::network as port;
pub use manager::{CellNetwork, NETWORK_MANAGER, NetworkManager, NetworkSettings};
pub use steering::rebalance;
pub use tcp::{PortInUse, StreamError, TcpStream, connect, listen};
pub use udp::UdpSocket;
