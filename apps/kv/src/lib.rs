//! A key-value server that speaks memcached's text and binary protocols: all of it but arguments and listening.
//!
//! ```text
//!   core 0              core 1              core 2            as many as there are now
//!     Client  Client      Client              Client          a connection's handler: moves with it (client, serve)
//!     Session Session     Session             Session         the protocol, without I/O (session, protocol)
//!        │       │           │                   │
//!        └───────┴───────┬───┴───────────────────┘
//!     Shard  Shard  Shard  Shard  Shard  ...                  the items, each part behind a lock (shards, shard)
//! ```
//!
//! Items are divided among shards by the hash of their keys. How many there are follows from the memory for items and not
//! from the cores, and whichever core has a connection works on any of them, under a lock that is held for one operation.
//! So cores come and go, and connections move between them, without a word about items
//! (docs/decisions/0038-any-core-serves-any-key.md).
//!
//! ```
//! # use std::sync::Arc;
//! # use isola_iobuf::{Chain, IoBuf};
//! # use isola_kv::{Config, KeyHasher, Served, Server, Session, UnixTime};
//! # fn main() -> Result<(), isola_kv::ConfigError> {
//! let now = UnixTime(1_800_000_000);
//! let server = Server::new(Config::new(64 << 20, 4)?, KeyHasher::new(0x1234_5678), now);
//!
//! let mut session = Session::new(Arc::new(server));
//! session.receive(Chain::from(IoBuf::from_static(b"set greeting 0 0 5\r\nhello\r\nget greeting\r\n")));
//! assert_eq!(session.serve(now), Served::All);
//! let answer = session.take_output(usize::MAX).to_vec();
//! assert_eq!(answer, b"STORED\r\nVALUE greeting 0 5\r\nhello\r\nEND\r\n");
//! # Ok(())
//! # }
//! ```
//!
//! No value that is read alone is copied on its way from the shard to the device, and a large one not on its way in either:
//! see [`Answer`], [`Body`] and the crate's `shard::item` and `output`. A response shares the memory of its item, whatever another core
//! does to the item meanwhile. Sessions and shards know no clock: time comes in with the calls that need it.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod answer;
mod client;
mod config;
mod input;
mod key;
mod number;
mod output;
mod protocol;
mod request;
mod response;
mod serve;
mod server;
mod session;
mod shard;
mod shards;
mod stats;
mod tally;
mod time;

pub use answer::Answer;
pub use client::Client;
pub use config::{Config, ConfigError, DEFAULT_MAX_VALUE_LEN, SessionLimits};
pub use key::{Key, KeyHasher, MAX_KEY_LEN, ShardId, shard_of};
pub use request::{
    Broadcast, Bump, Count, Direction, MetaGet, OlderVersion, Operation, Payload, Request, Stale, Store,
    StoreMode,
};
pub use response::{Body, Description, Details, Hit, Listed, NotStored, Parts, Response, TimeLeft};
pub use serve::{prepare, serve, unix_time};
pub use server::Server;
pub use session::{Served, Session};
pub use shard::{Counters, Prefixes, Report, SMALLEST_SHARD_BYTES, Shard};
pub use shards::Shards;
pub use tally::{Tallies, Tally};
pub use time::{Deadline, Exptime, UnixTime};
