//! From a name to its addresses, without I/O: which server to query, how, and how to treat the answers.
//!
//! ```text
//!   next() ──> Send ── receive(): Ignored ── wait on
//!     ▲         │      receive(): Next ─┐
//!     │         └───── time_out() ──────┤
//!     └─────────────────────────────────┘        Done
//! ```
//!
//! Servers are queried in turn, in rounds with increasing timeouts. After a truncated answer the query is repeated over
//! TCP, which an off-path attacker cannot forge. It is also repeated over TCP after signs of a forgery attempt: many
//! wrong answers, or the right one with other letter case.

use crate::answer::{self, Answer, MAX_CHAIN, Mismatch};
use crate::error::ResolveError;
use crate::name::HostName;
use crate::query::{Edns, Kind, LetterCase, Query};
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};
use core::time::Duration;

/// The number of messages that do not answer a query after which it is repeated over TCP.
const MAX_MISMATCHES: u32 = 16;

/// The resolver's settings and bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// The time for an answer in the first round. It doubles in each further round.
    pub timeout: Duration,
    /// How often each server is queried.
    pub rounds: usize,
    /// The maximum number of servers.
    pub servers: usize,
    /// The maximum number of cached pairs of name and kind, per core.
    pub cache_entries: usize,
    /// The letter case of names in queries.
    pub letter_case: LetterCase,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(2),
            rounds: 2,
            servers: 4,
            cache_entries: 1024,
            letter_case: LetterCase::Mixed,
        }
    }
}

/// The transport of a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// A datagram.
    Udp,
    /// A connection, with the length before each message.
    Tcp,
}

/// A query to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueryMessage {
    /// The server to query.
    pub server: SocketAddr,
    /// The transport. For UDP, the source port must be unpredictable.
    pub transport: Transport,
    /// The message.
    pub message: Vec<u8>,
    /// The time limit of the answer.
    pub timeout: Duration,
}

/// The result of a successful lookup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LookupResult {
    /// The contents.
    pub outcome: Outcome,
    /// The time to live, in s; 0: not to be cached.
    pub ttl_s: u32,
}

/// The contents of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Addresses, at least one.
    Addresses(Vec<IpAddr>),
    /// The name exists, without addresses of this kind.
    Nothing,
    /// The name does not exist.
    NoName,
}

/// The next action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Send this query.
    Send(QueryMessage),
    /// The lookup is complete.
    Done(Result<LookupResult, ResolveError>),
}

/// The effect of a received message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageEffect {
    /// It does not answer the query: the answer may still arrive.
    Ignored,
    /// Call [`Lookup::next`] for the next action.
    Next,
}

/// A lookup in progress.
#[derive(Debug)]
pub struct Lookup {
    config: Config,
    kind: Kind,
    /// The name, or the alias target reached so far.
    name: HostName,
    servers: Vec<SocketAddr>,
    /// The number of servers given up so far, over all rounds.
    turn: usize,
    transport: Transport,
    edns: Edns,
    query: Option<Query>,
    mismatches: u32,
    aliases: usize,
    /// The shortest time to live of the aliases so far, in s.
    ttl_s: u32,
    /// Whether a server answered with a failure.
    failed: bool,
    done: Option<Result<LookupResult, ResolveError>>,
}

impl Lookup {
    /// Begins a lookup of the addresses of a name; `servers` are queried in their order.
    pub fn new(config: &Config, name: HostName, kind: Kind, servers: &[SocketAddr]) -> Self {
        let servers: Vec<_> = servers.iter().copied().take(config.servers).collect();
        let done = servers.is_empty().then_some(Err(ResolveError::NoServers));
        Self {
            config: *config,
            kind,
            name,
            servers,
            turn: 0,
            transport: Transport::Udp,
            edns: Edns::Offered,
            query: None,
            mismatches: 0,
            aliases: 0,
            ttl_s: u32::MAX,
            failed: false,
            done,
        }
    }

    /// Returns the next action. `random` returns unpredictable bits.
    pub fn next(&mut self, random: &mut dyn FnMut() -> u64) -> Step {
        if let Some(done) = &self.done {
            return Step::Done(done.clone());
        }
        let round = self.turn / self.servers.len();
        if round >= self.config.rounds {
            let error = if self.failed { ResolveError::Failed } else { ResolveError::Unanswered };
            return self.finish(Err(error));
        }
        let query = Query::new(&self.name, self.kind, self.edns, self.config.letter_case, random);
        let message = query.to_bytes();
        self.query = Some(query);
        self.mismatches = 0;
        let timeout = self.config.timeout.saturating_mul(1 << round.min(8));
        Step::Send(QueryMessage { server: self.server(), transport: self.transport, message, timeout })
    }

    fn server(&self) -> SocketAddr {
        self.servers[self.turn % self.servers.len()]
    }

    fn finish(&mut self, result: Result<LookupResult, ResolveError>) -> Step {
        self.done = Some(result.clone());
        Step::Done(result)
    }

    /// Records that no answer came in time, or that the query could not be sent.
    pub fn time_out(&mut self) {
        self.next_server();
    }

    fn next_server(&mut self) {
        self.turn += 1;
        self.transport = Transport::Udp;
        self.edns = Edns::Offered;
        self.query = None;
    }

    /// Returns the number of servers given up.
    pub fn servers_tried(&self) -> usize {
        self.turn
    }

    /// Processes a message from `from`.
    pub fn receive(&mut self, from: SocketAddr, message: &[u8]) -> MessageEffect {
        let Some(query) = &self.query else { return MessageEffect::Ignored };
        let read = if from == self.server() { answer::read(query, message) } else { Err(Mismatch::NoAnswer) };
        let answer = match read {
            Ok(answer) => answer,
            Err(mismatch) => return self.on_mismatch(mismatch),
        };
        self.query = None;
        match answer {
            Answer::Addresses(addresses, ttl_s) => self.found(Outcome::Addresses(addresses), Some(ttl_s)),
            Answer::Nothing(ttl_s) => self.found(Outcome::Nothing, ttl_s),
            Answer::NoName(ttl_s) => self.found(Outcome::NoName, ttl_s),
            Answer::Alias(name, ttl_s) => {
                self.aliases += 1;
                self.ttl_s = self.ttl_s.min(ttl_s);
                self.name = name;
                self.transport = Transport::Udp;
                if self.aliases > MAX_CHAIN {
                    self.finish(Err(ResolveError::Aliases));
                }
            }
            Answer::Truncated if self.transport == Transport::Udp => self.transport = Transport::Tcp,
            Answer::NoEdns if self.edns == Edns::Offered => self.edns = Edns::Omitted,
            Answer::Truncated | Answer::NoEdns | Answer::Failed => {
                self.failed = true;
                self.next_server();
            }
        }
        MessageEffect::Next
    }

    fn found(&mut self, outcome: Outcome, ttl_s: Option<u32>) {
        let ttl_s = ttl_s.unwrap_or(0).min(self.ttl_s);
        self.finish(Ok(LookupResult { outcome, ttl_s }));
    }

    /// Processes a message that does not answer the query.
    fn on_mismatch(&mut self, mismatch: Mismatch) -> MessageEffect {
        self.mismatches += 1;
        if self.transport == Transport::Tcp {
            // Only the server can send on its connection, so the server is faulty. Some always change the letter case.
            self.failed = true;
            self.next_server();
            return MessageEffect::Next;
        }
        if mismatch == Mismatch::Letters || self.mismatches >= MAX_MISMATCHES {
            self.transport = Transport::Tcp;
            self.query = None;
            return MessageEffect::Next;
        }
        MessageEffect::Ignored
    }
}
