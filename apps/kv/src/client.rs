//! A connection's handler: what comes goes into the session, and what the session answers goes out, in the same event.

use crate::serve::{STORE, forget, send_work, unix_time};
use alloc::rc::Rc;
use core::cell::RefCell;
use isola::iobuf::Chain;
use isola::latency;
use isola::net::{ConnectionHandler, FailReason, SendError, TcpConnection};
use isola::prelude::*;
use isola_kv::{Response, Session, Ticket};

/// Bytes handed to a connection at once.
const WRITE_PIECE: usize = 64 << 10;

/// A client of this core.
pub struct Client {
    number: u64,
    connection: TcpConnection,
    talk: RefCell<Talk>,
}

/// What was said and is to be said.
struct Talk {
    session: Session,
    /// What was taken from the session and not handed over yet.
    output: Chain,
}

/// Whether a connection goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    /// It does.
    Open,
    /// All is answered and handed over, and nothing else follows.
    Finished,
    /// Nobody reads the answers.
    Gone,
}

impl Client {
    /// The client of that number.
    pub fn new(number: u64, connection: TcpConnection, session: Session) -> Self {
        Self { number, connection, talk: RefCell::new(Talk { session, output: Chain::new() }) }
    }

    /// Memory that is the connection's alone, about, in bytes. Frames that were not read take up more than they carry.
    pub fn held_bytes(&self) -> usize {
        let talk = self.talk.borrow();
        let stream = self.connection.statistics().map_or(0, |stream| stream.unacked + 2 * stream.unread);
        talk.session.held_bytes() + talk.output.len() + stream
    }

    /// Ends the connection at once.
    pub fn abort(&self) {
        self.connection.abort();
        forget(self.number);
    }

    /// Takes in the responses of another core's shard.
    pub fn complete(&self, responses: Vec<(Ticket, Response)>) {
        self.go_on(|session| {
            responses.into_iter().for_each(|(ticket, response)| session.complete(ticket, response));
        });
    }

    /// Tells the session something, and goes on until nothing moves. How a connection ends concerns nobody: what the
    /// client sent before has been carried out.
    fn go_on(&self, tell: impl FnOnce(&mut Session)) {
        let mut talk = self.talk.borrow_mut();
        let served = talk.session.served();
        tell(&mut talk.session);
        let progress = self.run(&mut talk);
        latency::answered(talk.session.served() - served);
        let wants_input = talk.session.wants_input();
        drop(talk);
        match progress {
            Progress::Open if wants_input => self.connection.resume(),
            Progress::Open => self.connection.pause(),
            Progress::Finished => {
                self.connection.close();
                forget(self.number);
            }
            Progress::Gone => self.abort(),
        }
    }

    fn run(&self, talk: &mut Talk) -> Progress {
        let now = unix_time();
        loop {
            let mut serve = || talk.session.serve(&mut STORE.shard(), now);
            if let Some(work) = serve() {
                send_work(self.number, work, serve);
            }
            match self.send(talk) {
                Err(_) => return Progress::Gone,
                // What has gone out makes room for more work.
                Ok(1..) if talk.session.has_work() => {}
                Ok(_) if talk.session.is_finished() && talk.output.is_empty() => return Progress::Finished,
                Ok(_) => return Progress::Open,
            }
        }
    }

    /// Hands over what there is room for; returns how many bytes.
    fn send(&self, talk: &mut Talk) -> Result<usize, SendError> {
        let mut sent = 0;
        loop {
            if talk.output.is_empty() {
                talk.output = talk.session.take_output(WRITE_PIECE);
            }
            if talk.output.is_empty() {
                break;
            }
            sent += self.connection.send_some(&mut talk.output)?;
            if !talk.output.is_empty() || talk.session.output_len() == 0 {
                break;
            }
        }
        if sent > 0 {
            STORE.transferred(0, sent);
        }
        Ok(sent)
    }
}

/// Serves a client's connection.
pub struct Served(Option<Rc<Client>>);

impl Served {
    /// By this client's record.
    pub fn by(client: Rc<Client>) -> Self {
        Self(Some(client))
    }

    /// By nobody: there are too many.
    pub fn nobody() -> Self {
        Self(None)
    }
}

impl ConnectionHandler for Served {
    fn received(&mut self, _: &TcpConnection, data: Chain) {
        if let Some(client) = &self.0 {
            STORE.transferred(data.len(), 0);
            client.go_on(|session| session.receive(data));
        }
    }

    fn send_space(&mut self, _: &TcpConnection) {
        if let Some(client) = &self.0 {
            client.go_on(|_| ());
        }
    }

    fn peer_closed(&mut self, _: &TcpConnection) {
        if let Some(client) = &self.0 {
            client.go_on(Session::end_of_input);
        }
    }

    fn ended(&mut self, _: Option<FailReason>) {
        if let Some(client) = &self.0 {
            forget(client.number);
        }
    }
}
