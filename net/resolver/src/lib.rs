//! A DNS stub resolver, which queries the network's name servers for addresses (RFC 1034, 5.3.1; RFC 1035).
//!
//! | module | contents |
//! |---|---|
//! | [`name`] | a host's name |
//! | [`query`] | a query on the wire |
//! | [`answer`] | an answer on the wire, and the check that it answers the query |
//! | [`mod@lookup`] | from a name to its addresses, without I/O: servers in turn, aliases, truncation |
//! | [`cache`] | the results of lookups, while they are valid |
//! | [`resolver`] | [`resolve`]: lookups on the cell's network |
//! | [`mod@connect`] | [`connect()`]: to the address of a name that answers first |
//!
//! The `domain` crate parses and builds messages; it follows compression pointers only backwards, and counts them. This
//! crate decides which answers to trust (RFC 5452): an answer must come from the queried server and port, to an
//! unpredictable port, with an unpredictable id, and repeat the question with its random letter case. Of its records,
//! only those to which the question leads count; no others are cached.
//!
//! Bounds: servers, rounds and time ([`Config`]), aliases ([`answer::MAX_CHAIN`]), concurrent lookups of a core
//! ([`resolver::MAX_LOOKUPS`]), cached names ([`Config::cache_entries`]), addresses of a name
//! ([`answer::MAX_ADDRESSES`]).
//!
//! Not here: recursion, DNSSEC, records other than addresses, and search domains: a name is always complete.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod answer;
pub mod cache;
pub mod connect;
mod error;
pub mod lookup;
pub mod name;
pub mod query;
pub mod resolver;
mod transport;

pub use connect::{ConnectError, connect};
pub use error::ResolveError;
pub use lookup::Config;
pub use name::HostName;
pub use query::Kind;
pub use resolver::{lookup, resolve, set_servers};
