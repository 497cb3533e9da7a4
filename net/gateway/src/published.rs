//! Published ports: ports of the host that lead to the cell.

use crate::gateway::CELL;
use crate::linux;
use crate::relay::relay;
use isola_events::{sleep, spawn_task, timeout};
use isola_iobuf::IoBuf;
use isola_net::UdpSocket;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::rc::Rc;
use std::time::Duration;

/// The maximum number of connections of a published port; further ones wait in Linux's queue.
const MAX_CONNECTIONS: usize = 4096;

/// The time after which a connection attempt to the cell fails.
const CONNECT_LIMIT: Duration = Duration::from_secs(20);

/// The pause after a failed accept, for example if the process has no free file descriptors.
const PAUSE: Duration = Duration::from_millis(20);

/// The maximum number of senders of datagrams to a published port.
const MAX_PEERS: usize = 512;

/// The time without datagrams after which a sender is forgotten.
const PEER_LIMIT: Duration = Duration::from_secs(60);

/// The gateway's ports that represent senders of datagrams to the cell.
const PEER_PORTS: std::ops::Range<u16> = 40_000..60_000;

/// Forwards connections from `listener` to a port of the cell.
pub(crate) async fn serve(listener: TcpListener, cell_port: u16) {
    let Ok(listener) = linux::TcpListener::from_std(listener) else { return };
    let connections = Rc::new(Cell::new(0));
    loop {
        if connections.get() >= MAX_CONNECTIONS {
            sleep(PAUSE).await;
            continue;
        }
        match listener.accept().await {
            Ok(client) => {
                connections.set(connections.get() + 1);
                let connections = connections.clone();
                spawn_task(async move {
                    match timeout(CONNECT_LIMIT, isola_net::connect((CELL, cell_port).into())).await {
                        Ok(Ok(cell)) => relay(cell, client).await,
                        // As if the cell itself had refused the connection.
                        _ => client.abort(),
                    }
                    connections.set(connections.get() - 1);
                })
                .detach();
            }
            Err(_) => sleep(PAUSE).await,
        }
    }
}

/// A sender of datagrams.
struct Peer {
    socket: Rc<UdpSocket>,
    /// The number of its datagrams.
    sent: Rc<Cell<u64>>,
}

/// Forwards datagrams from `socket` to a port of the cell, and the answers back.
pub(crate) async fn forward_datagrams(socket: std::net::UdpSocket, cell_port: u16) {
    let Ok(socket) = linux::UdpSocket::from_std(socket).map(Rc::new) else { return };
    let mut peers: BTreeMap<SocketAddr, Peer> = BTreeMap::new();
    loop {
        // An error concerns an earlier datagram, which is lost.
        let Ok((data, from)) = socket.receive().await else { continue };
        if !peers.contains_key(&from) {
            // The task `forward_answers` of a silent sender has ended and dropped its reference to the socket.
            peers.retain(|_, peer| Rc::strong_count(&peer.socket) > 1);
            match free_port() {
                Some(bound) if peers.len() < MAX_PEERS => {
                    let peer = Peer { socket: Rc::new(bound), sent: Rc::default() };
                    spawn_task(forward_answers(peer.socket.clone(), peer.sent.clone(), socket.clone(), from))
                        .detach();
                    peers.insert(from, peer);
                }
                // A datagram without room in the table is dropped.
                _ => continue,
            }
        }
        if let Some(peer) = peers.get(&from) {
            peer.sent.set(peer.sent.get() + 1);
            let _ = peer.socket.send_to((CELL, cell_port).into(), IoBuf::from(data).into());
        }
    }
}

/// Binds a free UDP port of the gateway.
fn free_port() -> Option<UdpSocket> {
    thread_local! {
        static NEXT: Cell<u16> = const { Cell::new(PEER_PORTS.start) };
    }
    (0..MAX_PEERS + 1).find_map(|_| {
        let port = NEXT.get();
        NEXT.set(if port + 1 < PEER_PORTS.end { port + 1 } else { PEER_PORTS.start });
        UdpSocket::bind(port).ok()
    })
}

/// Forwards the cell's answers to a sender, until neither has sent for `PEER_LIMIT`.
async fn forward_answers(
    cell: Rc<UdpSocket>,
    sent: Rc<Cell<u64>>,
    linux: Rc<linux::UdpSocket>,
    to: SocketAddr,
) {
    loop {
        let before = sent.get();
        match timeout(PEER_LIMIT, cell.receive()).await {
            Ok(datagram) => linux.send_to(to, &datagram.payload),
            Err(_) if sent.get() == before => return,
            Err(_) => {}
        }
    }
}
