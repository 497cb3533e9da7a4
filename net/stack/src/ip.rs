//! What both families of IP packets have in common once their headers are read.

use crate::counters::Counter;
use core::net::IpAddr;
use etherparse::IpNumber;
use isola_iobuf::IoBuf;

/// Hops that an outgoing packet may make, where nothing else is said.
pub(crate) const HOP_LIMIT: u8 = 64;

/// How a packet came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Came {
    /// As it was sent.
    InOnePiece,
    /// In parts, or as a single one with the header of one (RFC 6946).
    InParts,
}

/// What a router on the way says of its queue (RFC 3168 5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mark {
    Nothing,
    /// It is full: the packet would have been dropped.
    Congestion,
}

/// Marks the packet behind `ethernet_len` bytes of a frame as one whose sender knows marks: ECT(0).
pub(crate) fn mark_capable(frame: &mut [u8], ethernet_len: usize) {
    match frame.get_mut(ethernet_len..) {
        Some([first, service, header @ ..]) if *first >> 4 == 4 => {
            *service |= 2;
            // The checksum is the complement of a sum that has grown by two.
            if let Some(checksum) = header.get_mut(8..10).and_then(|bytes| bytes.as_mut_array::<2>()) {
                let (value, borrow) = u16::from_be_bytes(*checksum).overflowing_sub(2);
                *checksum = value.wrapping_sub(u16::from(borrow)).to_be_bytes();
            }
        }
        Some([_, class, ..]) => *class |= 2 << 4,
        _ => {}
    }
}

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
    /// What routers on the way say.
    pub fn mark(&self) -> Mark {
        let bits = match *self.whole {
            [first, service, ..] if first >> 4 == 4 => service & 3,
            [_, class, ..] => class >> 4 & 3,
            _ => 0,
        };
        if bits == 3 { Mark::Congestion } else { Mark::Nothing }
    }

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
