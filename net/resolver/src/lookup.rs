//! From a name to its addresses, without I/O: which server to query, how, and how to treat the answers.
//!
//! ```text
//!   next() ──> Ask ── heard(): Ignored ── wait on
//!     ▲         │     heard(): Next ─┐
//!     │         └──── unanswered() ──┤
//!     └──────────────────────────────┘        Done
//! ```
//!
//! Servers are queried in turn, in rounds with increasing timeouts. After a truncated answer the query is repeated over
//! TCP, which an off-path attacker cannot forge. It is also repeated over TCP after signs of a forgery attempt: many
//! wrong answers, or the right one with other letter case.

use crate::answer::{self, Answer, MAX_CHAIN, Mistrust};
use crate::error::ResolveError;
use crate::name::HostName;
use crate::query::{Casing, Edns, Kind, Query};
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};
use core::time::Duration;

/// The number of messages that do not answer a query after which it is repeated over TCP.
const MAX_MISTRUSTED: u32 = 16;

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
    pub casing: Casing,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(2),
            rounds: 2,
            servers: 4,
            cache_entries: 1024,
            casing: Casing::Mixed,
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
pub struct Ask {
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
pub struct Found {
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
    Ask(Ask),
    /// The lookup is complete.
    Done(Result<Found, ResolveError>),
}

/// The effect of a received message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
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
    mistrusted: u32,
    aliases: usize,
    /// The shortest time to live of the aliases so far, in s.
    ttl_s: u32,
    /// Whether a server answered with a failure.
    failed: bool,
    done: Option<Result<Found, ResolveError>>,
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
            mistrusted: 0,
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
        let query = Query::new(&self.name, self.kind, self.edns, self.config.casing, random);
        let message = query.to_bytes();
        self.query = Some(query);
        self.mistrusted = 0;
        let timeout = self.config.timeout.saturating_mul(1 << round.min(8));
        Step::Ask(Ask { server: self.server(), transport: self.transport, message, timeout })
    }

    fn server(&self) -> SocketAddr {
        self.servers[self.turn % self.servers.len()]
    }

    fn finish(&mut self, result: Result<Found, ResolveError>) -> Step {
        self.done = Some(result.clone());
        Step::Done(result)
    }

    /// Records that no answer came in time, or that the query could not be sent.
    pub fn unanswered(&mut self) {
        self.give_up_server();
    }

    fn give_up_server(&mut self) {
        self.turn += 1;
        self.transport = Transport::Udp;
        self.edns = Edns::Offered;
        self.query = None;
    }

    /// Returns the number of servers given up.
    pub fn servers_given_up(&self) -> usize {
        self.turn
    }

    /// Processes a message from `from`.
    pub fn heard(&mut self, from: SocketAddr, message: &[u8]) -> Heard {
        let Some(query) = &self.query else { return Heard::Ignored };
        let read = if from == self.server() { answer::read(query, message) } else { Err(Mistrust::NoAnswer) };
        let answer = match read {
            Ok(answer) => answer,
            Err(mistrust) => return self.mistrust(mistrust),
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
            Answer::NoOffers if self.edns == Edns::Offered => self.edns = Edns::Left,
            Answer::Truncated | Answer::NoOffers | Answer::Failed => {
                self.failed = true;
                self.give_up_server();
            }
        }
        Heard::Next
    }

    fn found(&mut self, outcome: Outcome, ttl_s: Option<u32>) {
        let ttl_s = ttl_s.unwrap_or(0).min(self.ttl_s);
        self.finish(Ok(Found { outcome, ttl_s }));
    }

    /// Processes a message that does not answer the query.
    fn mistrust(&mut self, mistrust: Mistrust) -> Heard {
        self.mistrusted += 1;
        if self.transport == Transport::Tcp {
            // Only the server can send on its connection, so the server is faulty. Some always change the letter case.
            self.failed = true;
            self.give_up_server();
            return Heard::Next;
        }
        if mistrust == Mistrust::Letters || self.mistrusted >= MAX_MISTRUSTED {
            self.transport = Transport::Tcp;
            self.query = None;
            return Heard::Next;
        }
        Heard::Ignored
    }
}
