//! A TCP echo server (RFC 862). It returns received data in the same buffers, without a copy.
//!
//! This library handles one connection. The image parses arguments and listens.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

use alloc::boxed::Box;
use isola_iobuf::Chain;
use isola_net::{ConnectionHandler, TcpConnection, latency};

/// Returns the data of a connection, until the peer has closed its side.
#[derive(Debug, Default)]
pub struct Echo {
    /// Data for which the send queue has no room yet.
    unsent: Chain,
    peer: Peer,
}

/// Whether the peer may send more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Peer {
    #[default]
    Open,
    Closed,
}

/// Sends as much of `unsent` as the connection accepts, and removes it. Pauses reception while some data remains.
fn send(unsent: &mut Chain, peer: Peer, connection: &TcpConnection) {
    match connection.send_some(unsent) {
        Ok(_) if !unsent.is_empty() => connection.pause(),
        Ok(_) if peer == Peer::Closed => connection.close(),
        Ok(_) => connection.resume(),
        // The connection has failed, so the peer gets no answer.
        Err(_) => connection.abort(),
    }
}

impl ConnectionHandler for Echo {
    fn received(&mut self, connection: &TcpConnection, mut data: Chain) {
        if self.unsent.is_empty() {
            // Usually the connection accepts all data, and nothing is stored.
            send(&mut data, self.peer, connection);
            if !data.is_empty() {
                self.unsent = data;
            }
        } else {
            self.unsent.append(data);
            send(&mut self.unsent, self.peer, connection);
        }
        // Each received piece of data counts as one answered request, also if part of it waits in `unsent`.
        latency::answered(1);
    }

    fn send_space(&mut self, connection: &TcpConnection) {
        send(&mut self.unsent, self.peer, connection);
    }

    fn peer_closed(&mut self, connection: &TcpConnection) {
        self.peer = Peer::Closed;
        match self.unsent.is_empty() {
            true => connection.close(),
            false => send(&mut self.unsent, self.peer, connection),
        }
    }

    fn moving(&mut self) -> Option<Box<dyn ConnectionHandler + Send>> {
        Some(Box::new(core::mem::take(self)))
    }
}
