//! Why a name has no addresses.

use alloc::string::String;
use core::fmt;
use isola_net::udp::UdpBindError;

/// Why a name has no addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResolveError {
    /// It is no name.
    Name(String),
    /// There is nobody to ask.
    NoServers,
    /// There is no such name.
    NoName,
    /// The name has no addresses of the kind that is asked for.
    NoAddresses,
    /// Nobody answered in time.
    Unanswered,
    /// Those who answered do not know, or do not want to say.
    Failed,
    /// It is an alias of an alias, and so on without end.
    Aliases,
    /// As many names are being looked up as can be.
    TooMany,
    /// There is no port to ask from.
    Bind(UdpBindError),
}

impl fmt::Display for ResolveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => write!(f, "{name:?} is no name of a host"),
            Self::NoServers => {
                f.write_str("no name server is known: the network names none, say which by set_servers")
            }
            Self::NoName => f.write_str("there is no such name; check its spelling"),
            Self::NoAddresses => f.write_str("the name has no addresses"),
            Self::Unanswered => f.write_str("the name servers do not answer; check the network"),
            Self::Failed => f.write_str("the name servers do not know; try again later"),
            Self::Aliases => f.write_str("the name is an alias without end; tell who keeps it"),
            Self::TooMany => f.write_str("too many names are being looked up; try again later"),
            Self::Bind(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for ResolveError {}
