//! The fast-path frames that begin and end a connection: SYNs and FINs, and the acknowledgements of a flow that has no connection
//! yet or no more. They are read at one look, as the fast-path frames of a connection are (`fast_path.rs`), without the steps between.
//!
//! Whatever is unusual about a frame is left to the general path (`receive.rs`), which would do the same with the usual
//! ones: nothing is dropped or counted here.

use crate::address::{Flow, is_unicast};
use crate::address6::is_unicast6;
use crate::checksum::Sum;
use crate::interface::Interface;
use crate::ip::Mark;
use crate::tcp::options::{Options, SYN_LEN, SynOptions, TIMESTAMPS_LEN, Timestamps};
use crate::tcp::sack::SackBlocks;
use crate::tcp::segment::{Flags, HEADER_LEN, Segment};
use crate::tcp::seq::Seq;
use crate::{ethernet, ipv4, ipv6};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use etherparse::{EtherType, IpNumber};
use isola_iobuf::IoBuf;

const TCP: u8 = IpNumber::TCP.0;

/// Where IP's header begins.
const IP: usize = ethernet::HEADER_LEN;
/// Where TCP's header begins behind either of IP's.
const TCP_V4: usize = IP + ipv4::HEADER_LEN;
const TCP_V6: usize = IP + ipv6::HEADER_LEN;

/// What a frame says of its packet: its addresses, where they stand, where TCP's header begins and where the packet ends.
struct Ends {
    local: IpAddr,
    remote: IpAddr,
    addresses_at: usize,
    segment_at: usize,
    end: usize,
}

/// A fast-path frame that begins or ends a connection.
pub(super) struct End {
    pub flow: Flow,
    seq: Seq,
    ack: Seq,
    flags: Flags,
    window: u16,
    options: Options,
    /// Where the packet's addresses stand in the frame, where its segment begins, where that's data do, and where they end.
    addresses_at: usize,
    segment_at: usize,
    data_at: usize,
    end: usize,
}

/// Reads a frame; `None` where it is not a fast-path one.
pub(super) fn read(frame: &[u8], interface: &Interface) -> Option<End> {
    let link = frame.first_chunk::<IP>()?;
    let from_group = link[6] & 1 != 0;
    if link[..6] != interface.mac.0 || link[6..12] == interface.mac.0 || from_group {
        return None;
    }
    let Ends { local, remote, addresses_at, segment_at, end } =
        match EtherType(u16::from_be_bytes([link[12], link[13]])) {
            EtherType::IPV4 => read_v4(frame.first_chunk()?, interface)?,
            EtherType::IPV6 => read_v6(frame.first_chunk()?, interface)?,
            _ => return None,
        };
    let (fields, behind) = frame.get(segment_at..)?.split_first_chunk::<HEADER_LEN>()?;
    let [p0, p1, q0, q1, s0, s1, s2, s3, a0, a1, a2, a3, len, flags, w0, w1, ..] = *fields;
    if !is_fast(flags) {
        return None;
    }
    let flags = Flags::from_bits(flags);
    let (options_len, options) = match len >> 4 {
        5 => (0, Options::default()),
        8 => (TIMESTAMPS_LEN, Options::with_timestamps(Some(Timestamps::read(behind.first_chunk()?)?))),
        10 if flags.has(Flags::SYN) => (SYN_LEN, SynOptions::read(behind.first_chunk()?)?),
        _ => return None,
    };
    let (from, to) = (u16::from_be_bytes([p0, p1]), u16::from_be_bytes([q0, q1]));
    let data_at = segment_at + HEADER_LEN + options_len;
    let fits = data_at <= end && end <= frame.len();
    fits.then_some(End {
        flow: Flow::new(local, to, remote, from),
        seq: Seq(u32::from_be_bytes([s0, s1, s2, s3])),
        ack: Seq(u32::from_be_bytes([a0, a1, a2, a3])),
        flags,
        window: u16::from_be_bytes([w0, w1]),
        options,
        addresses_at,
        segment_at,
        data_at,
        end,
    })
}

/// Whether a segment has these flags and no others: those of an acknowledgement, with the end of a stream or without, or of a
/// SYN or its answer.
const fn is_fast(flags: u8) -> bool {
    const ACK: u8 = Flags::ACK.bits();
    const LAST: u8 = Flags::FIN.bits() | ACK;
    const SYN: u8 = Flags::SYN.bits();
    const ANSWER: u8 = SYN | ACK;
    matches!(flags & !Flags::PSH.bits(), ACK | LAST) || matches!(flags, SYN | ANSWER)
}

/// Reads what a frame with a packet of IPv4 begins with.
fn read_v4(head: &[u8; TCP_V4], interface: &Interface) -> Option<Ends> {
    let (_, header) = head.split_last_chunk::<{ ipv4::HEADER_LEN }>()?;
    let [0x45, service, l0, l1, _, _, f0, f1, _, TCP, _, _, s0, s1, s2, s3, d0, d1, d2, d3] = *header else {
        return None;
    };
    let (remote, local) = (Ipv4Addr::new(s0, s1, s2, s3), Ipv4Addr::new(d0, d1, d2, d3));
    let is_fragment = u16::from_be_bytes([f0, f1]) & 0x3fff != 0;
    if is_fragment || is_marked(service) || interface.ipv4.as_ref()?.address != local {
        return None;
    }
    let words = header.as_chunks::<4>().0;
    let sum: u64 = words.iter().map(|word| u64::from(u32::from_be_bytes(*word))).sum();
    // A sum over its own complement is all ones, however it is folded.
    sum.is_multiple_of(0xffff).then(|| Ends {
        local: IpAddr::V4(local),
        remote: IpAddr::V4(remote),
        addresses_at: TCP_V4 - 8,
        segment_at: TCP_V4,
        end: IP + usize::from(u16::from_be_bytes([l0, l1])),
    })
}

/// The same of a packet of IPv6.
fn read_v6(head: &[u8; TCP_V6], interface: &Interface) -> Option<Ends> {
    let (_, header) = head.split_last_chunk::<{ ipv6::HEADER_LEN }>()?;
    let [v0, v1, _, _, l0, l1, TCP, _, ref ends @ ..] = *header else { return None };
    let (source, destination) = ends.split_first_chunk::<16>()?;
    let remote = Ipv6Addr::from(*source);
    let local = Ipv6Addr::from(*destination.first_chunk::<16>()?);
    if v0 >> 4 != 6 || is_marked(v0 << 4 | v1 >> 4) || !interface.ipv6.has(local) {
        return None;
    }
    Some(Ends {
        local: IpAddr::V6(local),
        remote: IpAddr::V6(remote),
        addresses_at: TCP_V6 - 32,
        segment_at: TCP_V6,
        end: TCP_V6 + usize::from(u16::from_be_bytes([l0, l1])),
    })
}

/// Whether a router on the way was congested (RFC 3168 5): that is for the general path to tell.
const fn is_marked(service: u8) -> bool {
    service & 3 == 3
}

impl End {
    /// Whether a flow that is not known can be that of the segment: its ports exist, and its sender can be answered and does
    /// not claim to be this interface.
    pub fn may_begin(&self, interface: &Interface) -> bool {
        let is_possible = match (self.flow.remote.ip(), &interface.ipv4) {
            (IpAddr::V4(ip), Some(own)) => is_unicast(ip) && !own.is_broadcast(ip) && ip != own.address,
            (IpAddr::V4(_), None) => false,
            (IpAddr::V6(ip), _) => is_unicast6(ip) && !interface.ipv6.has(ip),
        };
        is_possible && self.flow.local.port() != 0 && self.flow.remote.port() != 0
    }

    /// Whether the segment's checksum holds.
    pub fn is_intact(&self, frame: &[u8]) -> bool {
        // The pseudo-header's addresses stand right before the segment; its other words follow here.
        let Some(summed) = frame.get(self.addresses_at..self.end) else { return false };
        let mut sum = Sum::words(u64::from(TCP) + (self.end - self.segment_at) as u64);
        sum.add(summed);
        sum.checksum() == 0
    }

    /// The segment, with its data.
    pub fn into_segment(self, mut frame: IoBuf) -> Segment {
        frame.truncate(self.end);
        frame.advance(self.data_at);
        Segment {
            source_port: self.flow.remote.port(),
            destination_port: self.flow.local.port(),
            seq: self.seq,
            ack: self.ack,
            flags: self.flags,
            window: self.window,
            options: self.options,
            sack: SackBlocks::NONE,
            mark: Mark::Nothing,
            payload: frame,
            rest: None,
        }
    }
}
