//! A server in one thread, for tests that say what goes in and look at what comes out.
#![allow(dead_code)] // No test uses all of it.

pub mod packet;
pub mod tcp;

use std::sync::Arc;

use isola_iobuf::{Chain, IoBuf};
use isola_kv::{Config, KeyHasher, Server, Session, Shard, ShardId, UnixTime};

/// When the tests' clock starts.
pub const START: UnixTime = UnixTime(1_800_000_000);

/// A server with its shards.
pub struct Engine {
    pub server: Arc<Server>,
    pub shards: Vec<Shard>,
    pub now: UnixTime,
}

/// A server description around `config`.
pub fn server(config: Config) -> Server {
    Server { config, hasher: KeyHasher::new(42), pid: 7, port: 11211, max_connections: 100, started: START }
}

impl Engine {
    /// A server of `shard_count` shards and 64 MiB.
    pub fn new(shard_count: u16) -> Self {
        Self::with_config(Config::new(64 << 20, shard_count).unwrap())
    }

    pub fn with_config(config: Config) -> Self {
        let shards = (0..config.shard_count()).map(|id| Shard::new(ShardId(id), &config)).collect();
        Self { server: Arc::new(server(config)), shards, now: START }
    }

    pub fn session(&self) -> Session {
        Session::new(self.server.clone())
    }

    /// Carries out all requests that are there, each as it comes. The first shard is the session's own.
    pub fn work(&mut self, session: &mut Session) {
        while let Some(work) = session.serve(&mut self.shards[0], self.now) {
            let response = self.shards[usize::from(work.shard.0)].execute(self.now, work.request);
            session.complete(work.ticket, response);
        }
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
