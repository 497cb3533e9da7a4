//! The client's end of a connection.

use crate::SERVER;
use isola_events::sleep;
use isola_iobuf::Chain;
use isola_net::{FailReason, StreamError, TcpStream, connect};
use std::net::SocketAddr;
use std::time::Duration;

/// Connects to a port of the server; tries again until the server listens.
///
/// # Panics
/// As [`dial_to`].
pub async fn dial(port: u16) -> TcpStream {
    dial_to((SERVER, port).into()).await
}

/// Connects to an address; tries again until a program listens there.
///
/// # Panics
/// If the connection fails for another reason.
pub async fn dial_to(there: SocketAddr) -> TcpStream {
    loop {
        match connect(there).await {
            Ok(stream) => return stream,
            Err(StreamError::Failed(FailReason::Refused)) => sleep(Duration::from_millis(5)).await,
            Err(error) => panic!("{error}"),
        }
    }
}

/// Reads the next `len` bytes of a connection, and any that arrived with the last of them.
///
/// # Panics
/// If the connection ends before.
pub async fn read_exactly(stream: &mut TcpStream, len: usize) -> Vec<u8> {
    let mut all = Chain::new();
    while all.len() < len {
        all.append(stream.read().await.expect("the connection holds").expect("there is more"));
    }
    all.to_vec()
}
