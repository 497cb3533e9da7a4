//! The errors of name resolution.

use alloc::string::String;
use core::fmt;
use isola_net::udp::UdpBindError;

/// The reason why a name has no addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResolveError {
    /// It is not a valid name.
    Name(String),
    /// No name server is known.
    NoServers,
    /// The name does not exist.
    NoName,
    /// The name has no addresses of the requested kind.
    NoAddresses,
    /// No server answered in time.
    Unanswered,
    /// The servers that answered failed or refused.
    Failed,
    /// There are too many aliases, for example in a loop.
    Aliases,
    /// The core has reached the maximum number of concurrent lookups.
    TooMany,
    /// No port is available for queries.
    Bind(UdpBindError),
}

impl fmt::Display for ResolveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => write!(f, "{name:?} is not a valid host name"),
            Self::NoServers => {
                f.write_str("no name server is known: the network announces none; set one with set_servers")
            }
            Self::NoName => f.write_str("there is no such name; check its spelling"),
            Self::NoAddresses => f.write_str("the name has no addresses"),
            Self::Unanswered => f.write_str("the name servers do not answer; check the network"),
            Self::Failed => f.write_str("the name servers failed; try again later"),
            Self::Aliases => f.write_str("the name is an alias without end: its zone is misconfigured"),
            Self::TooMany => f.write_str("too many names are being looked up; try again later"),
            Self::Bind(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for ResolveError {}
