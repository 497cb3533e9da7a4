//! Addresses of names, by DNS: a stub resolver, which asks the network's own servers (RFC 1034, 5.3.1; RFC 1035).
//!
//! | module | what |
//! |---|---|
//! | [`name`] | a host's name |
//! | [`query`] | a question on the wire |
//! | [`answer`] | an answer on the wire, and whether it is one to the question |
//! | [`mod@lookup`] | from a name to its addresses, without I/O: servers in turn, aliases, truncation |
//! | [`cache`] | what was found out, for as long as it is good |
//! | [`resolver`] | [`resolve`]: the same on the cell's network |
//! | [`mod@connect`] | [`connect()`]: to whichever address of a name answers first |
//!
//! Messages are read and written by the `domain` crate: it follows pointers in names backwards only, and counts. What is
//! believed of an answer is decided here (RFC 5452): it has to come from the server and port that were asked, to a port and
//! with an id that nobody can foresee, and repeat the question to the letter, whose letters are large and small at random.
//! Of its records, those alone count that the question leads to; nothing else is remembered.
//!
//! Bounds: servers, rounds and time ([`Config`]), aliases ([`answer::MAX_CHAIN`]), lookups of a core at once
//! ([`resolver::MAX_LOOKUPS`]), names that are remembered ([`Config::cache_entries`]), addresses of a name
//! ([`answer::MAX_ADDRESSES`]).
//!
//! What is not here: recursion, DNSSEC, other records than addresses, and lists of domains to search: a name is asked for as
//! it is.
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
