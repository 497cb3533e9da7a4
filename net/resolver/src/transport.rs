//! The transports of a query: a datagram from a port of its own, or a connection.

use crate::lookup::{Lookup, MessageEffect, QueryMessage, Transport};
use alloc::vec::Vec;
use core::net::SocketAddr;
use isola_ebbs::platform;
use isola_events::timeout;
use isola_iobuf::{Chain, IoBuf};
use isola_net::udp::UdpBindError;
use isola_net::{StreamError, TcpStream, UdpSocket, connect};

/// The first of the source ports, of which there are 2^15.
const FIRST_PORT: u16 = 32_768;

/// The number of ports to try if some are in use.
const PORT_TRIES: usize = 16;

/// Sends a query and passes received messages to the lookup, until that has a next action or the time is over.
pub async fn send(lookup: &mut Lookup, query: &QueryMessage) -> Result<(), UdpBindError> {
    let answered = match query.transport {
        Transport::Udp => {
            let socket = bind()?;
            timeout(query.timeout, by_udp(&socket, lookup, query)).await.unwrap_or(false)
        }
        Transport::Tcp => match timeout(query.timeout, by_tcp(query.server, &query.message)).await {
            Ok(Ok(Some(answer))) => lookup.receive(query.server, &answer) == MessageEffect::Next,
            _ => false,
        },
    };
    if !answered {
        lookup.time_out();
    }
    Ok(())
}

/// Binds a socket to an unpredictable port (RFC 5452, 9.2) that no other socket of the cell has.
fn bind() -> Result<UdpSocket, UdpBindError> {
    let mut tries = 0;
    loop {
        let bound = UdpSocket::bind(FIRST_PORT | platform().entropy() as u16);
        tries += 1;
        match bound {
            Err(UdpBindError::Bind(_)) if tries < PORT_TRIES => {}
            bound => return bound,
        }
    }
}

/// Returns true once the lookup has received an answer; false if the query cannot be sent.
async fn by_udp(socket: &UdpSocket, lookup: &mut Lookup, query: &QueryMessage) -> bool {
    if socket.send_to(query.server, Chain::from(IoBuf::copy_from_slice(&query.message))).is_err() {
        return false;
    }
    loop {
        let datagram = socket.receive().await;
        if lookup.receive(datagram.remote, &datagram.payload) == MessageEffect::Next {
            return true;
        }
    }
}

/// Sends the query and receives the answer over a connection, each behind its length (RFC 1035, 4.2.2).
async fn by_tcp(server: SocketAddr, message: &[u8]) -> Result<Option<Vec<u8>>, StreamError> {
    let mut stream = connect(server).await?;
    let len = u16::try_from(message.len()).unwrap_or(u16::MAX).to_be_bytes();
    stream.write(IoBuf::from([&len[..], message].concat()).into()).await?;
    let mut received = Chain::new();
    let Some(len) = read(&mut stream, &mut received, 2).await? else { return Ok(None) };
    let len = len.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte));
    read(&mut stream, &mut received, len).await
}

/// Reads the next `len` bytes; `None` if the server ends the connection before.
async fn read(
    stream: &mut TcpStream,
    received: &mut Chain,
    len: usize,
) -> Result<Option<Vec<u8>>, StreamError> {
    loop {
        if let Some(bytes) = received.split_to(len) {
            return Ok(Some(bytes.to_vec()));
        }
        match stream.read().await? {
            Some(more) => received.append(more),
            None => return Ok(None),
        }
    }
}
