//! A server in one thread, for tests that compare its answers.
#![allow(dead_code)] // No test uses all functions.

pub mod lines;
pub mod packet;
pub mod tcp;

use std::sync::Arc;

use isola_iobuf::{Chain, IoBuf};
use isola_kv::{Config, KeyHasher, ServeOutcome, Server, Session, Shard, ShardId, UnixTime};
use std::ops::DerefMut;

/// The start of the tests' clock.
pub const START: UnixTime = UnixTime(1_800_000_000);

/// A server and its clock.
pub struct Engine {
    pub server: Arc<Server>,
    pub now: UnixTime,
}

/// Creates a server with these limits.
pub fn server(config: Config) -> Server {
    Server { pid: 7, max_connections: 100, ..Server::new(config, KeyHasher::new(42), START) }
}

impl Engine {
    /// Creates a server with `shard_count` shards and 64 MiB of memory.
    pub fn new(shard_count: u16) -> Self {
        Self::with_config(Config::new(64 << 20, shard_count).unwrap())
    }

    pub fn with_config(config: Config) -> Self {
        Self { server: Arc::new(server(config)), now: START }
    }

    pub fn session(&self) -> Session {
        Session::new(self.server.clone())
    }

    /// Locks the shard with that number, which must be unlocked.
    pub fn shard(&self, number: u16) -> impl DerefMut<Target = Shard> {
        self.server.shards.lock(ShardId(number)).expect("the shard is not locked")
    }

    /// Returns the memory of all items, in bytes.
    pub fn bytes(&self) -> usize {
        self.server.shards.ids().map(|id| self.shard(id.0).bytes()).sum()
    }

    /// Executes all requests that have arrived.
    pub fn work(&mut self, session: &mut Session) {
        assert_eq!(session.serve(self.now), ServeOutcome::All);
    }

    /// Returns the answer of `session` to `input`.
    pub fn exchange(&mut self, session: &mut Session, input: &[u8]) -> Vec<u8> {
        session.receive(Chain::from(IoBuf::copy_from_slice(input)));
        let mut answer = Vec::new();
        loop {
            self.work(session);
            let output = session.take_output(usize::MAX).to_vec();
            if output.is_empty() {
                return answer;
            }
            answer.extend(output);
        }
    }

    /// Returns the answer of a new connection to `input`.
    pub fn execute(&mut self, input: &[u8]) -> Vec<u8> {
        let mut session = self.session();
        self.exchange(&mut session, input)
    }

    /// Returns the answer of a new connection to `input`, as text.
    pub fn execute_text(&mut self, input: &str) -> String {
        String::from_utf8(self.execute(input.as_bytes())).unwrap()
    }

    /// Advances the clock.
    pub fn wait(&mut self, seconds: u32) {
        self.now = UnixTime(self.now.0 + seconds);
    }
}
