//! Packets of either version of IP: received ones whose headers were parsed, and outgoing ones before their headers.

use crate::base::Counter;
use core::net::IpAddr;
use etherparse::IpNumber;
use isola_iobuf::{Chain, IoBuf, IoBufMut};

/// Whether a packet was fragmented.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fragmentation {
    /// It was not.
    None,
    /// It was, or it has a fragment header as the only fragment (RFC 6946).
    Present,
}

/// A router's congestion mark (RFC 3168 5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mark {
    Nothing,
    /// Congestion experienced: the packet would have been dropped.
    Congestion,
}

/// Sets ECT(0) in the IP header behind `ethernet_len` bytes of a frame.
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

/// A received packet whose headers were validated.
pub(crate) struct IpPacket {
    pub source: IpAddr,
    pub destination: IpAddr,
    /// The protocol of the payload.
    pub protocol: IpNumber,
    /// TTL or hop limit.
    pub hops: u8,
    /// The packet with its headers, for quotes in ICMP errors.
    pub whole: IoBuf,
    /// Length of all IP headers within `whole`, including extensions.
    pub headers_len: usize,
}

impl IpPacket {
    /// Returns the routers' congestion mark.
    pub fn mark(&self) -> Mark {
        let bits = match *self.whole {
            [first, service, ..] if first >> 4 == 4 => service & 3,
            [_, class, ..] => class >> 4 & 3,
            _ => 0,
        };
        if bits == 3 { Mark::Congestion } else { Mark::Nothing }
    }

    /// Returns the data after the headers.
    pub fn into_payload(mut self) -> IoBuf {
        self.whole.advance(self.headers_len);
        self.whole
    }
}

/// The reason for which a packet is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// It is dropped and counted.
    Drop(Counter),
    /// It is dropped and counted, and its sender is notified of the defect (RFC 4443 3.4).
    Problem { counter: Counter, code: u8, pointer: u32 },
}

impl From<Counter> for Refusal {
    fn from(counter: Counter) -> Self {
        Self::Drop(counter)
    }
}

impl Refusal {
    /// Returns the counter of the reason.
    pub const fn counter(self) -> Counter {
        match self {
            Self::Drop(counter) | Self::Problem { counter, .. } => counter,
        }
    }
}

/// An IP packet without its IP header.
pub(crate) struct Packet {
    pub source: IpAddr,
    pub destination: IpAddr,
    pub protocol: IpNumber,
    /// The transport header, with headroom for the others.
    pub head: IoBufMut,
    pub payload: Chain,
    /// The offset of the checksum that the device completes, from the start of the transport header.
    pub checksum_offset: Option<u16>,
}
