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

/// Sends what there is room for, and takes it off `unsent`. While there is none for all of it the peer waits.
fn send(unsent: &mut Chain, peer: Peer, connection: &TcpConnection) {
    match connection.send_some(unsent) {
        Ok(_) if !unsent.is_empty() => connection.pause(),
        Ok(_) if peer == Peer::Closed => connection.close(),
        Ok(_) => connection.resume(),
        // A peer that is gone needs no answer.
        Err(_) => connection.abort(),
    }
}

impl ConnectionHandler for Echo {
    fn received(&mut self, connection: &TcpConnection, mut data: Chain) {
        if self.unsent.is_empty() {
            // Most of the time there is room for all of it, and nothing is stored.
            send(&mut data, self.peer, connection);
            if !data.is_empty() {
                self.unsent = data;
            }
        } else {
            self.unsent.append(data);
            send(&mut self.unsent, self.peer, connection);
        }
        // What goes back is on its way, or waits for the peer.
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
