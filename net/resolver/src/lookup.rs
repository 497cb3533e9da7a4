//! From a name to its addresses, without I/O: who is asked, how, and what is made of it.
//!
//! ```text
//!   next() ──> Ask ── heard(): Ignored ── go on waiting
//!     ▲         │     heard(): Next ─┐
//!     │         └──── unanswered() ──┤
//!     └──────────────────────────────┘        Done
//! ```
//!
//! Servers are asked one after the other, in rounds, each round more patient than the last. A truncated answer is asked for
//! again by TCP, which nobody forges who does not see it. So is one after which there is reason to think that somebody
//! tries to: too many wrong answers, or the right one in other letters.

use crate::answer::{self, Answer, MAX_CHAIN, Mistrust};
use crate::error::ResolveError;
use crate::name::HostName;
use crate::query::{Casing, Edns, Kind, Query};
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};
use core::time::Duration;

/// Messages that are no answer to a question, until it is asked by TCP.
const MAX_MISTRUSTED: u32 = 16;

/// The resolver's settings and bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// How long a server has to answer in the first round; twice as long in the second, and so on.
    pub timeout: Duration,
    /// How often each server is asked.
    pub rounds: usize,
    /// Servers that are asked at most.
    pub servers: usize,
    /// Names and kinds of addresses that are remembered, a core.
    pub cache_entries: usize,
    /// How the letters of names are written.
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

/// How a question travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// In a datagram.
    Udp,
    /// Behind its length, in a connection.
    Tcp,
}

/// A question to be asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Of whom.
    pub server: SocketAddr,
    /// How. By UDP, from an unpredictable port.
    pub transport: Transport,
    /// The message.
    pub message: Vec<u8>,
    /// How long an answer is waited for.
    pub timeout: Duration,
}

/// What was found out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// What it is.
    pub outcome: Outcome,
    /// How long it is good for, in s; 0: not to be remembered.
    pub ttl_s: u32,
}

/// What there is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Addresses, at least one.
    Addresses(Vec<IpAddr>),
    /// The name, without addresses of this kind.
    Nothing,
    /// No such name.
    NoName,
}

/// What is to be done next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// To ask this.
    Ask(Ask),
    /// Nothing more.
    Done(Result<Found, ResolveError>),
}

/// What is made of a message that came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// It is no answer: the right one may still come.
    Ignored,
    /// [`Lookup::next`] has more to say.
    Next,
}

/// A name that is being looked up.
#[derive(Debug)]
pub struct Lookup {
    config: Config,
    kind: Kind,
    /// The name, or what it turned out to be an alias of.
    name: HostName,
    servers: Vec<SocketAddr>,
    /// How many servers were given up so far, over all rounds.
    turn: usize,
    transport: Transport,
    edns: Edns,
    query: Option<Query>,
    mistrusted: u32,
    aliases: usize,
    /// The shortest time that an alias on the way is good for, in s.
    ttl_s: u32,
    /// Somebody answered, and did not know.
    failed: bool,
    done: Option<Result<Found, ResolveError>>,
}

impl Lookup {
    /// Looks for addresses of a name; `servers` are asked in their order.
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

    /// What is to be done. `random` gives unpredictable bits.
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

    /// No answer came in time, or the question could not be asked.
    pub fn unanswered(&mut self) {
        self.give_up_server();
    }

    fn give_up_server(&mut self) {
        self.turn += 1;
        self.transport = Transport::Udp;
        self.edns = Edns::Offered;
        self.query = None;
    }

    /// How many servers were given up.
    pub fn servers_given_up(&self) -> usize {
        self.turn
    }

    /// A message came from `from`.
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

    /// A message is no answer.
    fn mistrust(&mut self, mistrust: Mistrust) -> Heard {
        self.mistrusted += 1;
        if self.transport == Transport::Tcp {
            // Nobody else speaks there: it is the server that talks nonsense. Some always change the letters.
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
