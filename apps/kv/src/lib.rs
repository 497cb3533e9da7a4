//! A key-value server that speaks memcached's text and binary protocols: all of it but the sockets.
//!
//! The keys are divided among shards by their hash, one shard a core. A core owns its [`Shard`] and the
//! [`Session`]s of its connections, and no lock is taken anywhere. A session answers at once what is for the
//! core's own shard ([`Session::serve`]) and hands out [`Work`] for the others: that goes to its core as a
//! message, is carried out by [`Shard::execute`], and its response comes back to [`Session::complete`].
//!
//! ```
//! # use std::sync::Arc;
//! # use isola_iobuf::{Chain, IoBuf};
//! # use isola_kv::{Config, KeyHasher, Server, Session, Shard, ShardId, UnixTime};
//! # fn main() -> Result<(), isola_kv::ConfigError> {
//! let now = UnixTime(1_800_000_000);
//! let config = Config::new(64 << 20, 1)?;
//! let mut shard = Shard::new(ShardId(0), &config);
//! let hasher = KeyHasher::new(0x1234_5678);
//! let server = Server { config, hasher, pid: 1, port: 11211, max_connections: 1024, started: now };
//!
//! let mut session = Session::new(Arc::new(server));
//! session.receive(Chain::from(IoBuf::from_static(b"set greeting 0 0 5\r\nhello\r\nget greeting\r\n")));
//! while let Some(work) = session.serve(&mut shard, now) {
//!     unreachable!("with one shard, no work is for another: {work:?}");
//! }
//! let answer = session.take_output(usize::MAX).to_vec();
//! assert_eq!(answer, b"STORED\r\nVALUE greeting 0 5\r\nhello\r\nEND\r\n");
//! # Ok(())
//! # }
//! ```
//!
//! No value is copied on its way from the shard to the device, and a large one not on its way in either:
//! see [`Body`] and the crate's `shard::item` and `output`. Time comes in with the calls that need it.
//!
//! What is not here: sockets, events, messages between cores and the clock. The cell image around this
//! crate has them.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod config;
mod input;
mod key;
mod number;
mod output;
mod protocol;
mod request;
mod response;
mod session;
mod shard;
mod stats;
mod time;

pub use config::{Config, ConfigError, DEFAULT_MAX_VALUE_LEN, Server, SessionLimits};
pub use key::{Key, KeyHasher, MAX_KEY_LEN, ShardId, shard_of};
pub use request::{Broadcast, Count, Direction, Operation, Payload, Request, Store, StoreMode};
pub use response::{Body, Hit, NotStored, Parts, Response};
pub use session::{Session, Ticket, Work};
pub use shard::{Counters, SMALLEST_SHARD_BYTES, Shard, ShardReport};
pub use time::{Deadline, Exptime, UnixTime};
