//! A TCP echo server (RFC 862): what comes in goes back, in the very buffers that it came in.
//!
//! Here is what is done with a connection. Arguments and listening are the image's.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

use alloc::boxed::Box;
use isola_iobuf::Chain;
use isola_net::{ConnectionHandler, TcpConnection, latency};

/// Sends back what comes on a connection, until the peer has nothing more to send.
#[derive(Debug, Default)]
pub struct Echo {
    /// What there is no room for yet.
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

impl Echo {
    /// Sends what there is room for. While there is none for all of it the peer waits.
    fn send(&mut self, connection: &TcpConnection) {
        match connection.send_some(&mut self.unsent) {
            Ok(_) if !self.unsent.is_empty() => connection.pause(),
            Ok(_) if self.peer == Peer::Closed => connection.close(),
            Ok(_) => connection.resume(),
            // A peer that is gone needs no answer.
            Err(_) => connection.abort(),
        }
    }
}

impl ConnectionHandler for Echo {
    fn received(&mut self, connection: &TcpConnection, data: Chain) {
        self.unsent.append(data);
        self.send(connection);
        // What goes back is on its way, or waits for the peer.
        latency::answered(1);
    }

    fn send_space(&mut self, connection: &TcpConnection) {
        self.send(connection);
    }

    fn peer_closed(&mut self, connection: &TcpConnection) {
        self.peer = Peer::Closed;
        match self.unsent.is_empty() {
            true => connection.close(),
            false => self.send(connection),
        }
    }

    fn moving(&mut self) -> Option<Box<dyn ConnectionHandler + Send>> {
        Some(Box::new(core::mem::take(self)))
    }
}
