//! One connection, without its socket: bytes in, bytes out, and the work on the shards in between.
//!
//! ```text
//!  receive ──> Input ──> Parser ──> the shard that owns the key, under its lock
//!                                                │
//!  take_output <── Output <── encode <───────────┘
//! ```
//!
//! Whichever core has the connection carries its requests out, one after the other, and answers leave in their order. A
//! request that concerns all shards goes to one after the other. Where a shard is taken for long, the session stops there
//! ([`Served::Busy`]) and goes on with that very request when it is called again, on whatever core that is.
//!
//! Bounds, whatever a client does: no request is taken up while `max_output_bytes` of answers wait, and unparsed input is
//! less than one request. While [`Session::wants_input`] is false its owner leaves the socket alone, and the window closes
//! on the client.

use alloc::boxed::Box;
use alloc::sync::Arc;

use isola_iobuf::Chain;

use crate::input::Input;
use crate::key::Key;
use crate::output::Output;
use crate::protocol::{Action, Parsed, Parser, Reply, text};
use crate::request::{Broadcast, Operation, Request};
use crate::response::{Details, Response};
use crate::server::Server;
use crate::time::UnixTime;

/// Unparsed input above which a session that may not take up requests wants no more.
const ENOUGH_INPUT_BYTES: usize = 16 << 10;

/// How far [`Session::serve`] came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a session that stopped in the middle wants to go on"]
pub enum Served {
    /// All that can be answered now is: there has to be more input, or room for output.
    All,
    /// A shard is taken for long: to be called again in a later event.
    Busy,
}

/// The state of one connection.
#[derive(Debug)]
pub struct Session {
    server: Arc<Server>,
    input: Input,
    parser: Parser,
    output: Output,
    /// A request that was taken off the input and not carried out to its end, as a shard is taken.
    under_way: Option<Box<UnderWay>>,
    /// Requests that were answered.
    served: u64,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Requests are taken up.
    Open,
    /// The client sends no more: what is under way is finished.
    Ending,
    /// No further request is looked at.
    Closing,
}

/// A request that waits for a shard.
#[derive(Debug)]
enum UnderWay {
    /// One for the shard that owns a key.
    One(Key, Operation, Reply),
    /// One for all shards.
    All(Sweep),
}

/// A request for all shards, on its way from one to the next.
#[derive(Debug)]
struct Sweep {
    broadcast: Broadcast,
    reply: Reply,
    /// Shards that have done their part.
    done: usize,
    /// What these answered.
    so_far: Response,
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Answered,
    /// There is none that can be taken up now.
    None,
    /// Its shard is taken.
    Busy,
}

impl Session {
    /// A connection that has just been accepted.
    pub fn new(server: Arc<Server>) -> Self {
        Self {
            server,
            input: Input::default(),
            parser: Parser::default(),
            output: Output::default(),
            under_way: None,
            served: 0,
            state: State::Open,
        }
    }

    /// Takes all that there is out, and leaves a connection that has just been accepted.
    pub(crate) fn take(&mut self) -> Self {
        let new = Self::new(self.server.clone());
        core::mem::replace(self, new)
    }

    /// Takes in what the client sent.
    pub fn receive(&mut self, data: Chain) {
        if self.state == State::Open {
            self.input.receive(data);
        }
    }

    /// Takes in that the client sends no more, and still reads.
    pub fn end_of_input(&mut self) {
        if self.state == State::Open {
            self.state = State::Ending;
        }
    }

    /// Whether more input is of use now. Where it is not, it will be after output has been taken.
    pub fn wants_input(&self) -> bool {
        self.state == State::Open && (self.has_room() || self.input.len() < ENOUGH_INPUT_BYTES)
    }

    /// Whether [`Session::serve`] may find something to do without more input.
    pub fn has_work(&self) -> bool {
        self.under_way.is_some() || self.state == State::Ending || self.input.len() > 0
    }

    /// Carries out the requests that have come, as long as there is room for their answers.
    ///
    /// To be called after more input, after its end, and after output was taken. Most requests are answered where their
    /// bytes lie.
    pub fn serve(&mut self, now: UnixTime) -> Served {
        let served = self.serve_all_that_came(now);
        self.input.tidy();
        served
    }

    fn serve_all_that_came(&mut self, now: UnixTime) -> Served {
        loop {
            let mut outcome = self.serve_single_get(now);
            if outcome == Outcome::None {
                if self.input.len() == 0 && self.under_way.is_none() && self.state == State::Open {
                    return Served::All;
                }
                outcome = self.serve_next(now);
            }
            match outcome {
                Outcome::Answered => {}
                Outcome::None => return Served::All,
                Outcome::Busy => return Served::Busy,
            }
        }
    }

    /// Answers a `get` of one key, where that is the next request and can be answered now.
    fn serve_single_get(&mut self, now: UnixTime) -> Outcome {
        let Parser::Text(parser) = &self.parser else { return Outcome::None };
        if self.state == State::Closing || self.under_way.is_some() || !self.has_room() {
            return Outcome::None;
        }
        let Some((key, taken)) = parser.single_get(self.input.chain(), &self.server) else {
            return Outcome::None;
        };
        let shard = key.shard(self.server.config.shard_count());
        let Some(mut shard) = self.server.shards.lock(shard) else { return Outcome::Busy };
        text::single_get(shard.read_in_place(now, key), &mut self.output);
        drop(shard);
        self.input.advance(taken);
        self.served += 1;
        Outcome::Answered
    }

    /// Carries out the request that is under way, or the next one.
    fn serve_next(&mut self, now: UnixTime) -> Outcome {
        if let Some(under_way) = self.under_way.take() {
            return match *under_way {
                UnderWay::One(key, operation, reply) => self.serve_one(now, key, operation, reply),
                UnderWay::All(sweep) => self.serve_all(now, sweep),
            };
        }
        if self.state == State::Closing || !self.has_room() {
            return Outcome::None;
        }
        let Some(Parsed { action, reply }) = self.parser.next(self.input.chain_mut(), &self.server) else {
            if self.state == State::Ending {
                self.close();
            }
            return Outcome::None;
        };
        match action {
            Action::Run(key, operation) => return self.serve_one(now, key, operation, reply),
            Action::All(broadcast) => {
                return self.serve_all(now, Sweep { broadcast, reply, done: 0, so_far: Response::Done });
            }
            Action::Answer => self.write(&reply, &Response::Done),
            Action::Close => {
                self.write(&reply, &Response::Done);
                self.close();
            }
        }
        Outcome::Answered
    }

    fn serve_one(&mut self, now: UnixTime, key: Key, operation: Operation, reply: Reply) -> Outcome {
        let shard = key.shard(self.server.config.shard_count());
        let Some(mut shard) = self.server.shards.lock(shard) else {
            return self.wait(UnderWay::One(key, operation, reply));
        };
        let response = shard.execute(now, Request::Item { key, operation });
        drop(shard);
        self.write(&reply, &response);
        Outcome::Answered
    }

    #[cold]
    fn serve_all(&mut self, now: UnixTime, mut sweep: Sweep) -> Outcome {
        for id in self.server.shards.ids().skip(sweep.done) {
            let Some(mut shard) = self.server.shards.lock(id) else {
                return self.wait(UnderWay::All(sweep));
            };
            let response = shard.execute(now, Request::All(sweep.broadcast));
            drop(shard);
            sweep.so_far = merge(sweep.so_far, response);
            sweep.done += 1;
        }
        if let Response::Details(details) = &mut sweep.so_far
            && let Details::Report(report) = &mut **details
        {
            self.server.tallies.add_to(report);
        }
        if sweep.broadcast == Broadcast::ResetStats {
            self.server.tallies.reset();
        }
        self.write(&sweep.reply, &sweep.so_far);
        Outcome::Answered
    }

    #[cold]
    fn wait(&mut self, under_way: UnderWay) -> Outcome {
        self.under_way = Some(Box::new(under_way));
        Outcome::Busy
    }

    /// Requests that were answered.
    pub fn served(&self) -> u64 {
        self.served
    }

    /// Number of bytes that wait for the client to read them.
    pub fn output_len(&self) -> usize {
        self.output.len()
    }

    /// Memory that the connection holds, at most, in bytes: received frames that are not parsed yet, and
    /// answers. What a server with many connections adds up to decide whom to read from.
    pub fn held_bytes(&self) -> usize {
        self.input.pinned_bytes() + self.output.len()
    }

    /// Takes the next bytes for the client, at most `limit` of them.
    pub fn take_output(&mut self, limit: usize) -> Chain {
        self.output.take(limit)
    }

    /// Whether the connection is to be closed: everything is answered and taken, and nothing else follows.
    pub fn is_finished(&self) -> bool {
        self.state == State::Closing && self.output.len() == 0
    }

    /// Whether another request may be taken up.
    fn has_room(&self) -> bool {
        self.output.len() < self.server.config.session().max_output_bytes
    }

    fn write(&mut self, reply: &Reply, response: &Response) {
        reply.encode(response, &self.server, &mut self.output);
        self.served += 1;
    }

    fn close(&mut self) {
        self.state = State::Closing;
        self.input.clear();
    }
}

/// What two shards' responses say together.
fn merge(so_far: Response, response: Response) -> Response {
    let (mut so_far, more) = match (so_far, response) {
        (Response::Details(so_far), Response::Details(more)) => (so_far, more),
        (_, response) => return response,
    };
    match (&mut *so_far, *more) {
        (Details::Report(sum), Details::Report(report)) => sum.add(&report),
        (Details::Prefixes(sum), Details::Prefixes(prefixes)) => sum.add(&prefixes),
        (Details::List(list), Details::List(items)) => list.extend(items),
        _ => {}
    }
    Response::Details(so_far)
}
