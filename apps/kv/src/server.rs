//! What all cores and connections of a server share.

use crate::config::Config;
use crate::key::KeyHasher;
use crate::shards::Shards;
use crate::tally::Tallies;
use crate::time::UnixTime;

/// What all cores and connections of a server share.
#[derive(Debug)]
pub struct Server {
    /// Its limits.
    pub config: Config,
    /// Places keys.
    pub hasher: KeyHasher,
    /// What `stats` tells as the process: the cell's number.
    pub pid: u32,
    /// The port it listens on.
    pub port: u16,
    /// Connections that a core accepts at once.
    pub max_connections: u32,
    /// When it started.
    pub started: UnixTime,
    /// Its items.
    pub shards: Shards,
    /// What cores count.
    pub tallies: Tallies,
}

impl Server {
    /// What `version` tells.
    pub const VERSION: &str = concat!("1.6.0-isola-", env!("CARGO_PKG_VERSION"));

    /// A server without items, which starts now.
    pub fn new(config: Config, hasher: KeyHasher, started: UnixTime) -> Self {
        let (shards, tallies) = (Shards::new(&config), Tallies::default());
        Self { config, hasher, pid: 0, port: 11211, max_connections: 1024, started, shards, tallies }
    }
}
