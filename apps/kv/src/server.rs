//! The state that all cores and connections of a server share.

use crate::config::{Config, ItemLimit};
use crate::key::KeyHasher;
use crate::shards::Shards;
use crate::tally::Tallies;
use crate::time::UnixTime;
use isola_abi::id::ActivityId;
use isola_events::activity::APPLICATION;

/// The state that all cores and connections of a server share.
#[derive(Debug)]
pub struct Server {
    /// The limits of the server.
    pub config: Config,
    /// The hash function that assigns keys to shards and buckets.
    pub hasher: KeyHasher,
    /// The process number that `stats` reports: the number of the cell.
    pub pid: u32,
    /// The port that the server listens on.
    pub port: u16,
    /// The number of connections that a core serves at the same time.
    pub max_connections: u32,
    /// How the memory for items follows that of the cell.
    pub item_limit: ItemLimit,
    /// The activity that has prepared the server.
    pub activity: ActivityId,
    /// The start time of the server.
    pub started: UnixTime,
    /// The items of the server.
    pub shards: Shards,
    /// The counts of the cores.
    pub tallies: Tallies,
}

impl Server {
    /// The answer to `version`.
    pub const VERSION: &str = concat!("1.6.0-isola-", env!("CARGO_PKG_VERSION"));

    /// Creates a server without items whose start time is `started`.
    pub fn new(config: Config, hasher: KeyHasher, started: UnixTime) -> Self {
        let (shards, tallies) = (Shards::new(&config), Tallies::default());
        let item_limit = ItemLimit::default();
        Self {
            config,
            hasher,
            pid: 0,
            port: 11211,
            max_connections: 1024,
            item_limit,
            activity: APPLICATION,
            started,
            shards,
            tallies,
        }
    }
}
