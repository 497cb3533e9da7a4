//! Linux's own sockets as futures, for any code on a hosted core.
//!
//! All sockets of a core stand in one epoll, and that epoll is one device of the core: it interrupts when any of them is
//! ready, and the handler wakes who waits. A socket belongs to the core that made it.
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
