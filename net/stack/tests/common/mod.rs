//! A test application that sends a known stream and checks the stream that it receives.

use isola_iobuf::{Chain, IoBuf};
use isola_net_sim::App;
use isola_net_stack::{ConnId, Event, FailReason, Instant, Stack};
use std::collections::HashMap;
use std::net::SocketAddr;

/// The source of an application's connections.
pub enum Role {
    /// Accepts connections on this port.
    Listen(u16),
    /// Opens this many connections to this address.
    Connect(SocketAddr, usize),
}

/// The state of one connection.
#[derive(Default)]
pub struct Progress {
    sent: usize,
    received: usize,
    ended: bool,
}

/// Sends `amount` bytes on each connection, then shuts down its sending direction. Compares the received data with the
/// same stream.
pub struct Transfers {
    pub role: Role,
    pub amount: usize,
    /// Size of the buffers that are passed to the stack.
    pub piece: usize,
    pub connections: HashMap<ConnId, Progress>,
    /// Streams that closed without failure, with their lengths.
    pub closed: Vec<usize>,
    pub failed: Vec<FailReason>,
    pub connected: usize,
    /// The entire stream, of which views are sent.
    stream: IoBuf,
}

/// Returns the byte at a position of the stream.
pub fn byte_at(position: usize) -> u8 {
    ((position as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

impl Transfers {
    pub fn new(role: Role, amount: usize) -> Self {
        let stream = (0..amount).map(byte_at).collect::<Vec<u8>>().into();
        Self {
            role,
            amount,
            piece: 3000,
            connections: HashMap::new(),
            closed: Vec::new(),
            failed: Vec::new(),
            connected: 0,
            stream,
        }
    }

    /// Opens a connection.
    pub fn connect(&mut self, stack: &mut Stack, now: Instant, remote: SocketAddr) {
        let conn = stack.connect(now, remote).unwrap();
        self.connections.insert(conn, Progress::default());
        self.push(stack, conn);
    }

    /// Returns the number of open connections.
    pub fn open(&self) -> usize {
        self.connections.len()
    }

    fn push(&mut self, stack: &mut Stack, conn: ConnId) {
        let Some(progress) = self.connections.get_mut(&conn) else { return };
        if progress.ended {
            return;
        }
        while progress.sent < self.amount {
            let end = (progress.sent + self.piece).min(self.amount);
            let mut chain = Chain::from(self.stream.slice(progress.sent..end).unwrap());
            let whole = chain.len();
            let taken = stack.send_some(conn, &mut chain).unwrap();
            progress.sent += taken;
            if taken < whole {
                return;
            }
        }
        progress.ended = true;
        stack.shutdown(conn);
    }

    fn pull(&mut self, stack: &mut Stack, conn: ConnId) {
        let Some(progress) = self.connections.get_mut(&conn) else { return };
        while let Some(piece) = stack.read(conn) {
            for &byte in piece.iter() {
                assert_eq!(byte, byte_at(progress.received), "the stream at {}", progress.received);
                progress.received += 1;
            }
        }
    }
}

impl App for Transfers {
    fn start(&mut self, stack: &mut Stack, now: Instant) {
        match self.role {
            Role::Listen(port) => {
                stack.listen(port, 1000).unwrap();
            }
            Role::Connect(remote, count) => {
                (0..count).for_each(|_| self.connect(stack, now, remote));
            }
        }
    }

    fn on_event(&mut self, stack: &mut Stack, _now: Instant, event: Event) {
        match event {
            Event::Accepted { conn, .. } => {
                self.connected += 1;
                self.connections.insert(conn, Progress::default());
                self.push(stack, conn);
            }
            Event::Connected(_) => self.connected += 1,
            Event::SendSpace(conn) => self.push(stack, conn),
            Event::Readable(conn) => self.pull(stack, conn),
            Event::PeerClosed(conn) => {
                self.pull(stack, conn);
                assert!(stack.is_at_end(conn));
            }
            Event::Closed(conn) => {
                let progress = self.connections.remove(&conn).unwrap();
                self.closed.push(progress.received);
            }
            Event::Failed(conn, reason) => {
                self.connections.remove(&conn);
                self.failed.push(reason);
            }
            _ => {}
        }
    }
}
