//! A key-value server that speaks memcached's text and binary protocols. The image adds only the arguments and the
//! listening socket.
//!
//! ```text
//!   core 0              core 1              core 2            the number of cores varies at run time
//!     Client  Client      Client              Client          a connection's handler: migrates with it (client, serve)
//!     Session Session     Session             Session         the protocol, without I/O (session, protocol)
//!        │       │           │                   │
//!        └───────┴───────┬───┴───────────────────┘
//!     Shard  Shard  Shard  Shard  Shard  ...                  the items, each shard behind a lock (shards, shard)
//! ```
//!
//! The hash of its key assigns an item to a shard. The number of shards depends on the memory for items and not on the
//! number of cores. Every core may work on every shard, under a lock that it holds for one operation. Cores can
//! therefore be added and removed, and connections can migrate between cores, without moving any item
//! (docs/decisions/0038-any-core-serves-any-key.md).
//!
//! ```
//! # use std::sync::Arc;
//! # use isola_iobuf::{Chain, IoBuf};
//! # use isola_kv::{Config, KeyHasher, ServeOutcome, Server, Session, UnixTime};
//! # fn main() -> Result<(), isola_kv::ConfigError> {
//! let now = UnixTime(1_800_000_000);
//! let server = Server::new(Config::new(64 << 20, 4)?, KeyHasher::new(0x1234_5678), now);
//!
//! let mut session = Session::new(Arc::new(server));
//! session.receive(Chain::from(IoBuf::from_static(b"set greeting 0 0 5\r\nhello\r\nget greeting\r\n")));
//! assert_eq!(session.serve(now), ServeOutcome::All);
//! let answer = session.take_output(usize::MAX).to_vec();
//! assert_eq!(answer, b"STORED\r\nVALUE greeting 0 5\r\nhello\r\nEND\r\n");
//! # Ok(())
//! # }
//! ```
//!
//! A value that one request reads alone is never copied on its way from the shard to the device, and a large value is
//! not copied on its way in either: see [`Answer`], [`Body`] and the crate's `shard::item` and `output`. A response
//! shares the memory of its item and does not change when another core changes the item. Sessions and shards have no
//! clock: each call that needs the time takes it as a parameter.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod answer;
mod client;
mod config;
mod holder;
mod input;
mod key;
mod number;
mod output;
mod owner;
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
pub use config::{Config, ConfigError, DEFAULT_MAX_VALUE_LEN, ItemLimit, SessionLimits};
pub use key::{Key, KeyHasher, MAX_KEY_LEN, ShardId, shard_of};
pub use owner::{ItemOwner, OwnedBytes};
pub use request::{
    Broadcast, Bump, Count, Direction, ExistingItem, MetaGet, OlderVersion, Operation, Payload, Request,
    Store, StoreMode,
};
pub use response::{Body, Description, Details, Hit, ListedItem, NotStored, Parts, Response, TimeLeft};
pub use serve::{prepare, serve, unix_time};
pub use server::Server;
pub use session::{ServeOutcome, Session};
pub use shard::{Counters, MovedMemory, Prefixes, Report, SMALLEST_SHARD_BYTES, Shard};
pub use shards::Shards;
pub use tally::{Tallies, Tally};
pub use time::{Deadline, Exptime, UnixTime};
