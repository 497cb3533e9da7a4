//! A server in one thread, for tests that say what goes in and look at what comes out.
#![allow(dead_code)] // No test uses all of it.

pub mod lines;
pub mod packet;
pub mod tcp;

use std::sync::Arc;

use isola_iobuf::{Chain, IoBuf};
use isola_kv::{Config, KeyHasher, Served, Server, Session, Shard, ShardId, UnixTime};
use std::ops::DerefMut;

/// When the tests' clock starts.
pub const START: UnixTime = UnixTime(1_800_000_000);

/// A server, and its clock.
pub struct Engine {
    pub server: Arc<Server>,
    pub now: UnixTime,
}

/// A server of such limits.
pub fn server(config: Config) -> Server {
    Server { pid: 7, max_connections: 100, ..Server::new(config, KeyHasher::new(42), START) }
}

impl Engine {
    /// A server of `shard_count` shards and 64 MiB.
    pub fn new(shard_count: u16) -> Self {
        Self::with_config(Config::new(64 << 20, shard_count).unwrap())
    }

    pub fn with_config(config: Config) -> Self {
        Self { server: Arc::new(server(config)), now: START }
    }

    pub fn session(&self) -> Session {
        Session::new(self.server.clone())
    }

    /// The shard of that number, of which nobody else has anything now.
    pub fn shard(&self, number: u16) -> impl DerefMut<Target = Shard> {
        self.server.shards.lock(ShardId(number)).expect("nobody works on it")
    }

    /// Memory of all items.
    pub fn bytes(&self) -> usize {
        self.server.shards.ids().map(|id| self.shard(id.0).bytes()).sum()
    }

    /// Carries out all requests that are there.
    pub fn work(&mut self, session: &mut Session) {
        assert_eq!(session.serve(self.now), Served::All);
    }

    /// What `session` answers to `input`.
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

    /// What a fresh connection answers to `input`.
    pub fn ask(&mut self, input: &[u8]) -> Vec<u8> {
        let mut session = self.session();
        self.exchange(&mut session, input)
    }

    /// The same, as text.
    pub fn say(&mut self, input: &str) -> String {
        String::from_utf8(self.ask(input.as_bytes())).unwrap()
    }

    /// Lets the clock go on.
    pub fn wait(&mut self, seconds: u32) {
        self.now = UnixTime(self.now.0 + seconds);
    }
}
