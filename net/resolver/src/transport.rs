//! Asking a server: a datagram from a port of its own, or a connection.

use crate::lookup::{Ask, Heard, Lookup, Transport};
use alloc::vec::Vec;
use core::net::SocketAddr;
use isola_ebbs::platform;
use isola_events::timeout;
use isola_iobuf::{Chain, IoBuf};
use isola_net::udp::UdpBindError;
use isola_net::{StreamError, TcpStream, UdpSocket, connect};

/// The first of the ports that questions are asked from: 15 bits of them.
const FIRST_PORT: u16 = 32_768;

/// Ports that are tried, where others have them.
const PORT_TRIES: usize = 16;

/// Asks, and lets the lookup hear what comes, until it has something new to say or the time is over.
pub async fn ask(lookup: &mut Lookup, ask: &Ask) -> Result<(), UdpBindError> {
    let answered = match ask.transport {
        Transport::Udp => {
            let socket = bind()?;
            timeout(ask.timeout, by_udp(&socket, lookup, ask)).await.unwrap_or(false)
        }
        Transport::Tcp => match timeout(ask.timeout, by_tcp(ask.server, &ask.message)).await {
            Ok(Ok(Some(answer))) => lookup.heard(ask.server, &answer) == Heard::Next,
            _ => false,
        },
    };
    if !answered {
        lookup.unanswered();
    }
    Ok(())
}

/// A socket of a port that nobody can foresee (RFC 5452, 9.2), and that nobody else of the cell has.
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

/// Whether the lookup has heard an answer.
async fn by_udp(socket: &UdpSocket, lookup: &mut Lookup, ask: &Ask) -> bool {
    if socket.send_to(ask.server, Chain::from(IoBuf::copy_from_slice(&ask.message))).is_err() {
        return false;
    }
    loop {
        let datagram = socket.receive().await;
        if lookup.heard(datagram.remote, &datagram.payload) == Heard::Next {
            return true;
        }
    }
}

/// The answer that comes in a connection, behind its length (RFC 1035, 4.2.2).
async fn by_tcp(server: SocketAddr, message: &[u8]) -> Result<Option<Vec<u8>>, StreamError> {
    let mut stream = connect(server).await?;
    let len = u16::try_from(message.len()).unwrap_or(u16::MAX).to_be_bytes();
    stream.write(IoBuf::from([&len[..], message].concat()).into()).await?;
    let mut come = Chain::new();
    let Some(len) = read(&mut stream, &mut come, 2).await? else { return Ok(None) };
    let len = len.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte));
    read(&mut stream, &mut come, len).await
}

/// The next so many bytes; `None` where the server ends before.
async fn read(stream: &mut TcpStream, come: &mut Chain, len: usize) -> Result<Option<Vec<u8>>, StreamError> {
    loop {
        if let Some(bytes) = come.split_to(len) {
            return Ok(Some(bytes.to_vec()));
        }
        match stream.read().await? {
            Some(more) => come.append(more),
            None => return Ok(None),
        }
    }
}
