//! A connection's handler: what comes goes into the session, and what the session answers goes out, in the same event.
//!
//! It has all that belongs to its connection, and nothing of its core: so it goes to another core as it is.

use crate::serve::{Held, SERVING};
use crate::session::{Served, Session};
use alloc::boxed::Box;
use alloc::sync::Arc;
use isola_iobuf::Chain;
use isola_net::{ConnectionHandler, FailReason, SendError, TcpConnection, latency};

/// Bytes handed to a connection at once.
const WRITE_PIECE: usize = 64 << 10;

/// Serves a client's connection.
#[derive(Debug)]
pub struct Client {
    session: Session,
    /// What was taken from the session and not handed over yet.
    output: Chain,
    /// What the client's core knows of it.
    held: Arc<Held>,
    whereabouts: Whereabouts,
}

/// Where a client is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whereabouts {
    /// On a core, under this number.
    Here(u64),
    /// Between two cores.
    OnItsWay,
    /// Nowhere: it is one too many, or its connection is over.
    Nowhere,
}

/// Whether a connection goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    /// It does.
    Open,
    /// It does, once a shard is free.
    Waits,
    /// All is answered and handed over, and nothing else follows.
    Finished,
    /// Nobody reads the answers.
    Gone,
}

impl Client {
    /// A client of this core.
    pub(crate) fn new(number: u64, held: Arc<Held>, session: Session) -> Self {
        Self { session, output: Chain::new(), held, whereabouts: Whereabouts::Here(number) }
    }

    /// One whose connection was closed as it came.
    pub(crate) fn nobody(session: Session) -> Self {
        let held = Arc::new(Held::default());
        Self { session, output: Chain::new(), held, whereabouts: Whereabouts::Nowhere }
    }

    /// Goes on until nothing moves. How a connection ends concerns nobody: what the client sent before has been carried
    /// out.
    fn go_on(&mut self, connection: &TcpConnection) {
        match self.run(connection) {
            Progress::Open if self.session.wants_input() => connection.resume(),
            Progress::Open => connection.pause(),
            Progress::Waits => {
                connection.pause();
                connection.call_again();
            }
            Progress::Finished => {
                connection.close();
                return self.end();
            }
            Progress::Gone => {
                connection.abort();
                return self.end();
            }
        }
        self.held.set(self.session.held_bytes() + self.output.len());
    }

    fn run(&mut self, connection: &TcpConnection) -> Progress {
        let now = SERVING.begin();
        loop {
            let before = self.session.served();
            let served = self.session.serve(now);
            latency::answered(self.session.served() - before);
            match self.send(connection) {
                Err(_) => return Progress::Gone,
                Ok(_) if served == Served::Busy => return Progress::Waits,
                // What has gone out makes room for more work.
                Ok(1..) if self.session.has_work() => {}
                Ok(_) if self.session.is_finished() && self.output.is_empty() => return Progress::Finished,
                Ok(_) => return Progress::Open,
            }
        }
    }

    /// Hands over what there is room for; returns how many bytes.
    fn send(&mut self, connection: &TcpConnection) -> Result<usize, SendError> {
        let mut sent = 0;
        if !self.output.is_empty() {
            sent += connection.send_some(&mut self.output)?;
        }
        // Nearly all answers are handed over as a whole: only what is left of one is put down in the client.
        while self.output.is_empty() && self.session.output_len() > 0 {
            let mut output = self.session.take_output(WRITE_PIECE);
            sent += connection.send_some(&mut output)?;
            if !output.is_empty() {
                self.output = output;
            }
        }
        if sent > 0 {
            SERVING.tally().sent(sent);
        }
        Ok(sent)
    }

    /// The connection is over.
    fn end(&mut self) {
        match core::mem::replace(&mut self.whereabouts, Whereabouts::Nowhere) {
            Whereabouts::Here(number) => SERVING.forget(number),
            Whereabouts::OnItsWay => SERVING.tally().ended(),
            Whereabouts::Nowhere => {}
        }
    }
}

impl ConnectionHandler for Client {
    fn received(&mut self, connection: &TcpConnection, data: Chain) {
        SERVING.tally().received(data.len());
        self.session.receive(data);
        self.go_on(connection);
    }

    fn send_space(&mut self, connection: &TcpConnection) {
        self.go_on(connection);
    }

    fn called_again(&mut self, connection: &TcpConnection) {
        self.go_on(connection);
    }

    fn peer_closed(&mut self, connection: &TcpConnection) {
        self.session.end_of_input();
        self.go_on(connection);
    }

    fn moving(&mut self) -> Option<Box<dyn ConnectionHandler + Send>> {
        let Whereabouts::Here(number) = self.whereabouts else { return None };
        SERVING.let_go(number)?;
        let (session, output) = (self.session.take(), core::mem::take(&mut self.output));
        let (held, whereabouts) = (self.held.clone(), Whereabouts::OnItsWay);
        self.whereabouts = Whereabouts::Nowhere;
        Some(Box::new(Self { session, output, held, whereabouts }))
    }

    fn arrived(&mut self, connection: &TcpConnection) {
        self.whereabouts = Whereabouts::Here(SERVING.take_in(connection, &self.held));
        // A request may have waited for a shard where the client was.
        if self.session.has_work() {
            self.go_on(connection);
        }
    }

    fn ended(&mut self, _: Option<FailReason>) {
        self.end();
    }
}
