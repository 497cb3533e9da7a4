//! The protocol state of one connection, without its socket: bytes in, bytes out, and operations on the shards in
//! between.
//!
//! ```text
//!  receive ──> Input ──> Parser ──> the shard that owns the key, under its lock
//!                                                │
//!  take_output <── Output <── encode <───────────┘
//! ```
//!
//! The core that currently serves the connection executes its requests one after the other, and the answers leave in
//! the same order. A request to all shards visits them one after the other. If the lock of a shard is taken for long,
//! the session stops ([`ServeOutcome::Busy`]) and continues with that same request on its next call, on any core.
//!
//! The following bounds hold for every client: the session takes no request while `max_output_bytes` of answers wait,
//! and the unparsed input is less than one request. While [`Session::wants_input`] is false the owner does not read the
//! socket, and the TCP window closes.

use alloc::boxed::Box;
use alloc::sync::Arc;

use isola_iobuf::Chain;

use crate::input::Input;
use crate::key::Key;
use crate::output::Output;
use crate::owner::{ItemOwner, OwnedBytes, move_charges};
use crate::protocol::{Action, Parsed, Parser, Reply, text};
use crate::request::{Broadcast, Operation, Request};
use crate::response::{Details, Response};
use crate::server::Server;
use crate::time::UnixTime;

/// The length of unparsed input from which on a session that may not take requests wants no more, in bytes.
const ENOUGH_INPUT_BYTES: usize = 16 << 10;

/// The result of [`Session::serve`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a session that stopped in the middle of a request has to be served again"]
pub enum ServeOutcome {
    /// All requests that can be answered now are answered: the session needs more input, or room for output.
    All,
    /// The lock of a shard was taken for long: `serve` is to be called again in a later event.
    Busy,
}

/// The state of one connection.
#[derive(Debug)]
pub struct Session {
    server: Arc<Server>,
    /// The owner of the items that the client stores.
    owner: ItemOwner,
    input: Input,
    parser: Parser,
    output: Output,
    /// A request that was parsed but not completed because the lock of a shard was taken.
    pending: Option<Box<PendingRequest>>,
    /// The number of answered requests.
    served: u64,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The session takes requests.
    Open,
    /// The client has finished sending: the session answers the requests that have arrived.
    Ending,
    /// The session takes no further request.
    Closing,
}

/// A request that waits for a shard.
#[derive(Debug)]
enum PendingRequest {
    /// A request to the shard of a key.
    One(Key, Operation, Reply),
    /// A request to all shards.
    All(Sweep),
}

/// The progress of a request to all shards.
#[derive(Debug)]
struct Sweep {
    broadcast: Broadcast,
    reply: Reply,
    /// The number of shards that have done their part.
    done: usize,
    /// The merged responses of those shards.
    so_far: Response,
}

/// The result of an attempt to serve one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StepOutcome {
    Answered,
    /// No request can be taken now.
    None,
    /// The lock of the shard is taken.
    Busy,
}

impl Session {
    /// Creates the session of a new connection.
    pub fn new(server: Arc<Server>) -> Self {
        Self::for_owner(server, ItemOwner::SERVER)
    }

    /// Creates the session of a new connection that stores items for `owner`.
    pub(crate) fn for_owner(server: Arc<Server>, owner: ItemOwner) -> Self {
        Self {
            server,
            owner,
            input: Input::default(),
            parser: Parser::default(),
            output: Output::default(),
            pending: None,
            served: 0,
            state: State::Open,
        }
    }

    /// Returns the session, and leaves that of a new connection in its place.
    pub(crate) fn take(&mut self) -> Self {
        let new = Self::new(self.server.clone());
        core::mem::replace(self, new)
    }

    /// Adds received bytes.
    pub fn receive(&mut self, data: Chain) {
        if self.state == State::Open {
            self.input.receive(data);
        }
    }

    /// Records that the client has finished sending. The client may still read.
    pub fn end_of_input(&mut self) {
        if self.state == State::Open {
            self.state = State::Ending;
        }
    }

    /// Returns whether the session can use more input now. If it cannot, it will after output has been taken.
    pub fn wants_input(&self) -> bool {
        self.state == State::Open && (self.has_room() || self.input.len() < ENOUGH_INPUT_BYTES)
    }

    /// Returns whether [`Session::serve`] may make progress without more input.
    pub fn has_work(&self) -> bool {
        self.pending.is_some() || self.state == State::Ending || self.input.len() > 0
    }

    /// Executes the requests that have arrived, as long as there is room for their answers.
    ///
    /// To be called after input was received, after its end, and after output was taken. Most requests are parsed and
    /// answered in place, without removing their bytes from the input first.
    pub fn serve(&mut self, now: UnixTime) -> ServeOutcome {
        let served = self.serve_received(now);
        self.input.tidy();
        served
    }

    fn serve_received(&mut self, now: UnixTime) -> ServeOutcome {
        loop {
            let mut outcome = self.serve_single_get(now);
            if outcome == StepOutcome::None {
                if self.input.len() == 0 && self.pending.is_none() && self.state == State::Open {
                    return ServeOutcome::All;
                }
                outcome = self.serve_next(now);
            }
            match outcome {
                StepOutcome::Answered => {}
                StepOutcome::None => return ServeOutcome::All,
                StepOutcome::Busy => return ServeOutcome::Busy,
            }
        }
    }

    /// Answers a `get` of one key, if that is the next request and can be answered now.
    fn serve_single_get(&mut self, now: UnixTime) -> StepOutcome {
        let Parser::Text(parser) = &self.parser else { return StepOutcome::None };
        if self.state == State::Closing || self.pending.is_some() || !self.has_room() {
            return StepOutcome::None;
        }
        let Some((key, taken)) = parser.single_get(self.input.chain(), &self.server) else {
            return StepOutcome::None;
        };
        let shard = key.shard(self.server.config.shard_count());
        let Some(mut shard) = self.server.shards.lock(shard) else { return StepOutcome::Busy };
        text::single_get(shard.read_in_place(now, key), &mut self.output);
        let freed = shard.take_freed();
        drop(shard);
        self.move_charges(&freed);
        self.input.advance(taken);
        self.served += 1;
        StepOutcome::Answered
    }

    /// Executes the pending request, or the next one.
    fn serve_next(&mut self, now: UnixTime) -> StepOutcome {
        if let Some(pending) = self.pending.take() {
            return match *pending {
                PendingRequest::One(key, operation, reply) => self.serve_one(now, key, operation, reply),
                PendingRequest::All(sweep) => self.serve_all(now, sweep),
            };
        }
        if self.state == State::Closing || !self.has_room() {
            return StepOutcome::None;
        }
        let Some(Parsed { action, reply }) = self.parser.next(self.input.chain_mut(), &self.server) else {
            if self.state == State::Ending {
                self.close();
            }
            return StepOutcome::None;
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
        StepOutcome::Answered
    }

    fn serve_one(&mut self, now: UnixTime, key: Key, operation: Operation, reply: Reply) -> StepOutcome {
        let shard = key.shard(self.server.config.shard_count());
        let Some(mut shard) = self.server.shards.lock(shard) else {
            return self.wait(PendingRequest::One(key, operation, reply));
        };
        let response = shard.execute_for(self.owner, now, Request::Item { key, operation });
        let freed = shard.take_freed();
        drop(shard);
        self.move_charges(&freed);
        self.write(&reply, &response);
        StepOutcome::Answered
    }

    #[cold]
    fn serve_all(&mut self, now: UnixTime, mut sweep: Sweep) -> StepOutcome {
        for id in self.server.shards.ids().skip(sweep.done) {
            let Some(mut shard) = self.server.shards.lock(id) else {
                return self.wait(PendingRequest::All(sweep));
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
        StepOutcome::Answered
    }

    #[inline]
    fn move_charges(&self, freed: &[OwnedBytes]) {
        if !freed.is_empty() {
            move_charges(freed, self.server.activity);
        }
    }

    #[cold]
    fn wait(&mut self, pending: PendingRequest) -> StepOutcome {
        self.pending = Some(Box::new(pending));
        StepOutcome::Busy
    }

    /// Returns the number of answered requests.
    pub fn served(&self) -> u64 {
        self.served
    }

    /// Returns the number of bytes that wait for the client to read them.
    pub fn output_len(&self) -> usize {
        self.output.len()
    }

    /// Returns an upper bound of the memory that the connection holds, in bytes: received frames that are not parsed
    /// yet, and answers. A server with many connections compares it to find those that hold too much.
    pub fn held_bytes(&self) -> usize {
        self.input.pinned_bytes() + self.output.len()
    }

    /// Returns the next bytes for the client, at most `limit` of them.
    pub fn take_output(&mut self, limit: usize) -> Chain {
        self.output.take(limit)
    }

    /// Returns whether the connection is to be closed: all answers were taken, and no other will follow.
    pub fn is_finished(&self) -> bool {
        self.state == State::Closing && self.output.len() == 0
    }

    /// Returns whether the session may take another request.
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

/// Merges the responses of two shards.
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
