//! One connection, without its socket: bytes in, work for shards out, responses in, bytes out.
//!
//! ```text
//!  receive ──> Input ──> Parser ──> next_work ──────────────> the shard that owns the key
//!                                      │ slot, in order            │
//!  take_output <── Output <── encode <─┴─────────── complete <─────┘
//! ```
//!
//! Responses may come back in any order; answers leave in the order of the requests, as both protocols
//! want it. A request that concerns all shards goes to each of them, and its answer waits for the last. The
//! keys of one read go to their shards one by one and join again in the answer by their order.
//!
//! Bounds, whatever a client does: at most `max_in_flight` requests are under way, no request is taken up
//! while `max_output_bytes` of answers wait, and unparsed input is less than one request. While
//! [`Session::wants_input`] is false its owner leaves the socket alone, and the window closes on the client.

use alloc::collections::VecDeque;
use alloc::sync::Arc;

use isola_iobuf::Chain;

use crate::config::Server;
use crate::input::Input;
use crate::key::ShardId;
use crate::output::Output;
use crate::protocol::{Action, Parsed, Parser, Reply, text};
use crate::request::{Broadcast, Request};
use crate::response::Response;
use crate::shard::Shard;
use crate::time::UnixTime;

/// Unparsed input above which a session that may not take up requests wants no more.
const ENOUGH_INPUT_BYTES: usize = 16 << 10;

/// Names a request of a session, for its response to be told to [`Session::complete`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket(u64);

/// A request for a shard.
#[derive(Debug)]
pub struct Work {
    /// What to hand back with the response.
    pub ticket: Ticket,
    /// Whose request it is.
    pub shard: ShardId,
    /// What to do.
    pub request: Request,
}

/// The state of one connection.
#[derive(Debug)]
pub struct Session {
    server: Arc<Server>,
    input: Input,
    parser: Parser,
    output: Output,
    /// The requests under way, in order.
    slots: VecDeque<Slot>,
    /// The ticket of the first slot.
    first: u64,
    /// A request for all shards that has not gone to all of them yet.
    broadcast: Option<(Ticket, Broadcast, u16)>,
    /// How long answers of late were, in bytes: rises at once and falls slowly.
    answer_estimate: usize,
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

/// A request whose answer has not been written.
#[derive(Debug)]
struct Slot {
    reply: Reply,
    progress: Progress,
}

#[derive(Debug)]
enum Progress {
    /// So many responses are outstanding; what has come is merged.
    Waiting { shards: u16, so_far: Option<Response> },
    /// Only an earlier answer has to go first.
    Ready(Response),
}

impl Session {
    /// A connection that has just been accepted.
    pub fn new(server: Arc<Server>) -> Self {
        Self {
            server,
            input: Input::default(),
            parser: Parser::default(),
            output: Output::default(),
            slots: VecDeque::new(),
            first: 0,
            broadcast: None,
            answer_estimate: 0,
            served: 0,
            state: State::Open,
        }
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

    /// Whether more input is of use now. Where it is not, it will be after a completion or after output has
    /// been taken.
    pub fn wants_input(&self) -> bool {
        self.state == State::Open && (self.has_room() || self.input.len() < ENOUGH_INPUT_BYTES)
    }

    /// Whether [`Session::serve`] may find something to do without more input or a completion.
    pub fn has_work(&self) -> bool {
        self.broadcast.is_some() || self.state == State::Ending || self.input.len() > 0
    }

    /// Carries out the requests for `shard`, which is this core's own, and returns the next one for another
    /// shard, or `None` until there is more input, a completion or room for output.
    ///
    /// To be called until it returns `None`, after each of these. Does what [`Session::next_work`],
    /// [`Shard::execute`] and [`Session::complete`] do one after the other, and less of it: most requests are
    /// answered where their bytes lie.
    pub fn serve(&mut self, shard: &mut Shard, now: UnixTime) -> Option<Work> {
        loop {
            while self.serve_single_get(shard, now).is_some() {}
            if self.input.len() == 0 && self.broadcast.is_none() && self.state == State::Open {
                return None;
            }
            let Work { ticket, shard: owner, request } = self.next_work()?;
            if owner != shard.id() {
                return Some(Work { ticket, shard: owner, request });
            }
            let response = shard.execute(now, request);
            self.complete(ticket, response);
        }
    }

    /// Answers a `get` of one key, where that is the next request, can be answered now and is for `shard`.
    fn serve_single_get(&mut self, shard: &mut Shard, now: UnixTime) -> Option<()> {
        let Parser::Text(parser) = &self.parser else { return None };
        if self.state == State::Closing || !self.slots.is_empty() || !self.has_room() {
            return None;
        }
        let (key, taken) = parser.single_get(self.input.chain(), &self.server)?;
        if key.shard(self.server.config.shard_count()) != shard.id() {
            return None;
        }
        let before = self.output.len();
        text::single_get(shard.read_in_place(now, key), &mut self.output);
        self.answered(self.output.len() - before);
        self.input.chain_mut().advance(taken);
        Some(())
    }

    /// The next request to carry out, or `None` until there is more input, a completion or room for output.
    ///
    /// To be called until it returns `None`, after each of these.
    pub fn next_work(&mut self) -> Option<Work> {
        loop {
            if let Some(work) = self.next_of_broadcast() {
                return Some(work);
            }
            if self.state == State::Closing || !self.has_room() {
                return None;
            }
            let Some(Parsed { action, reply }) = self.parser.next(self.input.chain_mut(), &self.server)
            else {
                if self.state == State::Ending {
                    self.close();
                }
                return None;
            };
            let shard_count = self.server.config.shard_count();
            match action {
                Action::Run(key, operation) => {
                    let shard = key.shard(shard_count);
                    let ticket = self.queue(reply, Progress::Waiting { shards: 1, so_far: None });
                    return Some(Work { ticket, shard, request: Request::Item { key, operation } });
                }
                Action::All(broadcast) => {
                    let progress = Progress::Waiting { shards: shard_count, so_far: None };
                    self.broadcast = Some((self.queue(reply, progress), broadcast, 0));
                }
                Action::Answer => self.answer(reply),
                Action::Close => {
                    self.answer(reply);
                    self.close();
                }
            }
        }
    }

    /// Takes in the response to a request. A ticket that is not outstanding is left alone.
    pub fn complete(&mut self, ticket: Ticket, response: Response) {
        let index = ticket.0.wrapping_sub(self.first);
        let Some(slot) = usize::try_from(index).ok().and_then(|index| self.slots.get_mut(index)) else {
            return;
        };
        let response = match &mut slot.progress {
            Progress::Waiting { shards: 1, so_far: None } => response,
            Progress::Waiting { shards, so_far } => {
                let merged = merge(so_far.take(), response);
                *shards -= 1;
                if *shards > 0 {
                    *so_far = Some(merged);
                    return;
                }
                merged
            }
            Progress::Ready(_) => return,
        };
        if index > 0 {
            slot.progress = Progress::Ready(response);
            return;
        }
        if let Some(slot) = self.slots.pop_front() {
            self.first += 1;
            self.write(&slot.reply, &response);
        }
        while let Some(Slot { progress: Progress::Ready(_), .. }) = self.slots.front() {
            if let Some(Slot { reply, progress: Progress::Ready(response) }) = self.slots.pop_front() {
                self.first += 1;
                self.write(&reply, &response);
            }
        }
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

    /// Requests that were answered.
    pub fn served(&self) -> u64 {
        self.served
    }

    /// Number of requests under way.
    pub fn in_flight(&self) -> usize {
        self.slots.len()
    }

    /// Whether the connection is to be closed: everything is answered and taken, and nothing else follows.
    pub fn is_finished(&self) -> bool {
        self.state == State::Closing && self.slots.is_empty() && self.output.len() == 0
    }

    /// Whether another request may be taken up.
    fn has_room(&self) -> bool {
        let limits = self.server.config.session();
        let in_flight = self.slots.len();
        in_flight < limits.max_in_flight
            && self.output.len() + in_flight * self.answer_estimate < limits.max_output_bytes
    }

    fn next_of_broadcast(&mut self) -> Option<Work> {
        let (ticket, broadcast, shard) = self.broadcast?;
        let next = shard + 1;
        self.broadcast = (next < self.server.config.shard_count()).then_some((ticket, broadcast, next));
        Some(Work { ticket, shard: ShardId(shard), request: Request::All(broadcast) })
    }

    fn queue(&mut self, reply: Reply, progress: Progress) -> Ticket {
        let ticket = Ticket(self.first + self.slots.len() as u64);
        self.slots.push_back(Slot { reply, progress });
        ticket
    }

    /// Writes a reply that waits for no shard, or queues it behind those that do.
    fn answer(&mut self, reply: Reply) {
        if self.slots.is_empty() {
            self.write(&reply, &Response::Done);
        } else {
            self.queue(reply, Progress::Ready(Response::Done));
        }
    }

    fn write(&mut self, reply: &Reply, response: &Response) {
        let before = self.output.len();
        reply.encode(response, &self.server, &mut self.output);
        self.answered(self.output.len() - before);
    }

    /// Counts an answer, and learns from its length.
    fn answered(&mut self, answer_len: usize) {
        self.served += 1;
        self.answer_estimate = answer_len.max(self.answer_estimate - self.answer_estimate / 8);
    }

    fn close(&mut self) {
        self.state = State::Closing;
        self.input.clear();
    }
}

/// What two shards' responses say together.
fn merge(so_far: Option<Response>, response: Response) -> Response {
    match (so_far, response) {
        (Some(Response::Report(mut sum)), Response::Report(report)) => {
            sum.add(&report);
            Response::Report(sum)
        }
        (_, response) => response,
    }
}
