//! What both families of IP packets have in common once their headers are read.

use crate::counters::Counter;
use core::net::IpAddr;
use etherparse::IpNumber;
use isola_iobuf::IoBuf;

/// Hops that an outgoing packet may make, where nothing else is said.
pub(crate) const HOP_LIMIT: u8 = 64;

/// A received packet whose headers were checked.
pub(crate) struct IpPacket {
    pub source: IpAddr,
    pub destination: IpAddr,
    /// What the payload is.
    pub protocol: IpNumber,
    /// TTL, or hop limit.
    pub hops: u8,
    /// The packet with its headers: what an ICMP error quotes.
    pub whole: IoBuf,
    /// Length of all headers of IP within `whole`, extensions included.
    pub headers_len: usize,
}

impl IpPacket {
    /// What follows the headers.
    pub fn into_payload(mut self) -> IoBuf {
        self.whole.advance(self.headers_len);
        self.whole
    }
}

/// Why a packet goes nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// It is dropped and counted.
    Drop(Counter),
    /// The same, and its sender is told what is wrong with it (RFC 4443 3.4).
    Problem { counter: Counter, code: u8, pointer: u32 },
}

impl From<Counter> for Refusal {
    fn from(counter: Counter) -> Self {
        Self::Drop(counter)
    }
}

impl Refusal {
    /// The reason that is counted.
    pub const fn counter(self) -> Counter {
        match self {
            Self::Drop(counter) | Self::Problem { counter, .. } => counter,
        }
    }
}
