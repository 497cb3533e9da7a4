//! Linux sockets as futures, for code on a hosted core.
//!
//! All sockets of a core are in one epoll set, which is a device of the core: it interrupts when any socket is ready,
//! and the handler wakes the waiting tasks. A socket belongs to the core that created it.
//!
//! ```no_run
//! # async fn example() -> std::io::Result<()> {
//! let listener = isola_gateway::linux::TcpListener::bind("127.0.0.1:8080".parse().unwrap())?;
//! let stream = listener.accept().await?;
//! stream.write_all(b"hello\n").await?;
//! # Ok(()) }
//! ```

mod readiness;
mod tcp;
mod udp;

pub use tcp::{TcpListener, TcpStream};
pub use udp::UdpSocket;
