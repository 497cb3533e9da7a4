//! The handler of a connection: it passes received bytes to the session and sends the session's answers in the same
//! event.
//!
//! It owns all state of its connection and none of its core, so it migrates to another core unchanged.

use crate::serve::{CLIENTS, HeldBytes};
use crate::session::{ServeOutcome, Session};
use alloc::boxed::Box;
use alloc::sync::Arc;
use isola_iobuf::Chain;
use isola_net::{ConnectionHandler, FailReason, SendError, TcpConnection, latency};

/// The most bytes taken from the session for one send.
const WRITE_PIECE: usize = 64 << 10;

/// The handler of a client's connection.
#[derive(Debug)]
pub struct Client {
    session: Session,
    /// The bytes that were taken from the session and that the connection has not accepted yet.
    output: Chain,
    /// The client's memory, as its core reads it.
    held: Arc<HeldBytes>,
    location: Location,
}

/// The location of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Location {
    /// The client is on this core, under this number.
    Here(u64),
    /// The client is migrating between two cores.
    Moving,
    /// The client is on no core: it was rejected, it has migrated, or its connection is over.
    Away,
}

/// The state of a connection after its session has run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    /// The connection is open.
    Open,
    /// The connection is open and waits for the lock of a shard.
    Waiting,
    /// The session is finished and the connection has accepted all answers.
    Finished,
    /// The connection accepts no answers any more.
    Failed,
}

impl Client {
    /// Creates the handler of a client on this core.
    pub(crate) fn new(number: u64, held: Arc<HeldBytes>, session: Session) -> Self {
        Self { session, output: Chain::new(), held, location: Location::Here(number) }
    }

    /// Creates the handler of a rejected client, whose connection is being closed.
    pub(crate) fn rejected(session: Session) -> Self {
        let held = Arc::new(HeldBytes::default());
        Self { session, output: Chain::new(), held, location: Location::Away }
    }

    /// Runs the session until it needs an event, and updates the connection. A failed connection is only aborted: the
    /// server has executed the requests that the client sent before.
    fn advance(&mut self, connection: &TcpConnection) {
        match self.run(connection) {
            Progress::Open if self.session.wants_input() => connection.resume(),
            Progress::Open => connection.pause(),
            Progress::Waiting => {
                connection.pause();
                connection.call_again();
            }
            Progress::Finished => {
                connection.close();
                return self.end();
            }
            Progress::Failed => {
                connection.abort();
                return self.end();
            }
        }
        self.held.set(self.session.held_bytes() + self.output.len());
    }

    fn run(&mut self, connection: &TcpConnection) -> Progress {
        let now = CLIENTS.begin();
        loop {
            let before = self.session.served();
            let served = self.session.serve(now);
            latency::answered(self.session.served() - before);
            match self.send(connection) {
                Err(_) => return Progress::Failed,
                Ok(_) if served == ServeOutcome::Busy => return Progress::Waiting,
                // The sent bytes made room for the answers to further requests.
                Ok(1..) if self.session.has_work() => {}
                Ok(_) if self.session.is_finished() && self.output.is_empty() => return Progress::Finished,
                Ok(_) => return Progress::Open,
            }
        }
    }

    /// Sends as many bytes as the connection accepts. Returns their number.
    fn send(&mut self, connection: &TcpConnection) -> Result<usize, SendError> {
        let mut sent = 0;
        if !self.output.is_empty() {
            sent += connection.send_some(&mut self.output)?;
        }
        // The connection accepts nearly all answers completely; the client stores only the rest of one.
        while self.output.is_empty() && self.session.output_len() > 0 {
            let mut output = self.session.take_output(WRITE_PIECE);
            sent += connection.send_some(&mut output)?;
            if !output.is_empty() {
                self.output = output;
            }
        }
        if sent > 0 {
            CLIENTS.tally().sent(sent);
        }
        Ok(sent)
    }

    /// Records the end of the connection.
    fn end(&mut self) {
        match core::mem::replace(&mut self.location, Location::Away) {
            Location::Here(number) => CLIENTS.end(number),
            Location::Moving => CLIENTS.tally().ended(),
            Location::Away => {}
        }
    }
}

impl ConnectionHandler for Client {
    fn received(&mut self, connection: &TcpConnection, data: Chain) {
        CLIENTS.tally().received(data.len());
        self.session.receive(data);
        self.advance(connection);
    }

    fn send_space(&mut self, connection: &TcpConnection) {
        self.advance(connection);
    }

    fn called_again(&mut self, connection: &TcpConnection) {
        self.advance(connection);
    }

    fn peer_closed(&mut self, connection: &TcpConnection) {
        self.session.end_of_input();
        self.advance(connection);
    }

    fn moving(&mut self) -> Option<Box<dyn ConnectionHandler + Send>> {
        let Location::Here(number) = self.location else { return None };
        CLIENTS.remove(number)?;
        let (session, output) = (self.session.take(), core::mem::take(&mut self.output));
        let (held, location) = (self.held.clone(), Location::Moving);
        self.location = Location::Away;
        Some(Box::new(Self { session, output, held, location }))
    }

    fn arrived(&mut self, connection: &TcpConnection) {
        self.location = Location::Here(CLIENTS.add(connection, &self.held));
        // A request may have been waiting for a shard on the previous core.
        if self.session.has_work() {
            self.advance(connection);
        }
    }

    fn ended(&mut self, _: Option<FailReason>) {
        self.end();
    }
}
