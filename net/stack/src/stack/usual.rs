//! The usual frame: a segment of a connection, with data or an acknowledgement and no options but timestamps, over IPv4 or
//! IPv6 without any of theirs. It is read in one look, without the steps between.
//!
//! Whatever is unusual about a frame is left to the general way (`receive.rs`), which would do the same with the usual
//! ones: nothing is dropped or counted here.

use crate::checksum::Sum;
use crate::interface::Interface;
use crate::ip::Mark;
use crate::ipv6;
use crate::tcp::connection::expected::Plain;
use crate::tcp::flow_map::FlowKey;
use crate::tcp::options::{Options, TIMESTAMPS_LEN, Timestamps};
use crate::tcp::sack::SackBlocks;
use crate::tcp::segment::{Flags, HEADER_LEN, Segment};
use crate::tcp::seq::Seq;
use crate::{ethernet, ipv4};
use alloc::boxed::Box;
use core::net::{Ipv4Addr, Ipv6Addr};
use core::ops::Range;
use etherparse::IpNumber;
use isola_iobuf::{Chain, IoBuf};

const TCP: u8 = IpNumber::TCP.0;

/// Where the flags stand in TCP's header.
const FLAGS: usize = 13;

/// What a usual frame says.
pub(super) struct Usual {
    pub flow: FlowKey,
    pub plain: Plain,
    flags: Flags,
    /// Where the data stands in the frame.
    pub data: Range<usize>,
    /// Where the packet's addresses stand in the frame, behind which the segment follows, and the segment's length.
    addresses_at: usize,
    segment_len: usize,
}

/// Reads a frame of which `rest_len` bytes stand elsewhere; `None` where it is not a usual one.
#[inline]
pub(super) fn read(frame: &[u8], rest_len: usize, interface: &Interface) -> Option<Usual> {
    let (link, packet) = frame.split_first_chunk::<{ ethernet::HEADER_LEN }>()?;
    let from_group = link[6] & 1 != 0;
    if link[..6] != interface.mac.0 || link[6..12] == interface.mac.0 || from_group {
        return None;
    }
    // Of the flags but PSH, the acknowledgement's alone has to be there: asked first, where the segment of a packet without
    // options stands, as that tells the beginnings and ends of connections apart.
    let flags_at = FLAGS + if link[12..] == [0x08, 0x00] { ipv4::HEADER_LEN } else { ipv6::HEADER_LEN };
    if packet.get(flags_at)? & !Flags::PSH.bits() != Flags::ACK.bits() {
        return None;
    }
    let (mut flow, headers_len, packet_len) = match link[12..] {
        [0x08, 0x00] => read_v4(packet, interface)?,
        [0x86, 0xdd] => read_v6(packet, interface)?,
        _ => return None,
    };
    let end = ethernet::HEADER_LEN + packet_len;
    let (fields, behind) = packet.get(headers_len..)?.split_first_chunk::<HEADER_LEN>()?;
    let (options_len, timestamps) = match fields[12] >> 4 {
        5 => (0, None),
        8 => (TIMESTAMPS_LEN, Some(Timestamps::read(behind.first_chunk()?)?)),
        _ => return None,
    };
    let flags = Flags::from_bits(fields[FLAGS]);
    let word = |at: usize| fields[at..].first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes));
    let half = |at: usize| fields[at..].first_chunk().map_or(0, |bytes| u16::from_be_bytes(*bytes));
    let start = ethernet::HEADER_LEN + headers_len + HEADER_LEN + options_len;
    // The rest belongs to the packet as a whole.
    let fits =
        start <= end && end <= frame.len() + rest_len && (rest_len == 0 || end == frame.len() + rest_len);
    flow.set_ports(half(2), half(0));
    let plain = Plain {
        seq: Seq(word(4)),
        ack: Seq(word(8)),
        window: half(14),
        timestamps,
        len: end.saturating_sub(start) as u32,
    };
    let segment_at = ethernet::HEADER_LEN + headers_len;
    fits.then_some(Usual {
        flow,
        plain,
        flags,
        data: start..end.min(frame.len()),
        addresses_at: segment_at - if headers_len == ipv4::HEADER_LEN { 8 } else { 32 },
        segment_len: end - segment_at,
    })
}

/// The flow of an IPv4 packet, without its ports, and the lengths of its header and of all of it.
#[inline(always)]
fn read_v4(packet: &[u8], interface: &Interface) -> Option<(FlowKey, usize, usize)> {
    let header = packet.first_chunk::<{ ipv4::HEADER_LEN }>()?;
    let [0x45, service, l0, l1, _, _, f0, f1, _, TCP, _, _, s0, s1, s2, s3, d0, d1, d2, d3] = *header else {
        return None;
    };
    let fragment = u16::from_be_bytes([f0, f1]) & 0x3fff;
    let (source, destination) = (Ipv4Addr::new(s0, s1, s2, s3), Ipv4Addr::new(d0, d1, d2, d3));
    if fragment != 0 || is_marked(service) || interface.ipv4?.address != destination {
        return None;
    }
    let words = header.as_chunks::<4>().0;
    let sum: u64 = words.iter().map(|word| u64::from(u32::from_be_bytes(*word))).sum();
    // A sum over its own complement is all ones, however it is folded.
    sum.is_multiple_of(0xffff).then(|| {
        let len = usize::from(u16::from_be_bytes([l0, l1]));
        (FlowKey::v4(destination, source), ipv4::HEADER_LEN, len)
    })
}

/// The same of an IPv6 packet.
#[inline]
fn read_v6(packet: &[u8], interface: &Interface) -> Option<(FlowKey, usize, usize)> {
    let header = packet.first_chunk::<{ ipv6::HEADER_LEN }>()?;
    let [v0, v1, _, _, l0, l1, TCP, _, ref ends @ ..] = *header else { return None };
    let (source, destination) = ends.split_first_chunk::<16>()?;
    let destination = Ipv6Addr::from(*destination.first_chunk::<16>()?);
    let service = v0 << 4 | v1 >> 4;
    if v0 >> 4 != 6 || is_marked(service) || !interface.ipv6.has(destination) {
        return None;
    }
    let len = ipv6::HEADER_LEN + usize::from(u16::from_be_bytes([l0, l1]));
    Some((FlowKey::v6(destination, Ipv6Addr::from(*source)), ipv6::HEADER_LEN, len))
}

/// Whether a router on the way was congested (RFC 3168 5): that is for the general way to tell.
#[inline]
const fn is_marked(service: u8) -> bool {
    service & 3 == 3
}

impl Usual {
    /// Whether the segment's checksum holds, of a frame that stands in one piece.
    pub fn is_intact(&self, frame: &[u8]) -> bool {
        // The pseudo-header's addresses stand right before the segment; its other words follow here.
        let Some(summed) = frame.get(self.addresses_at..self.data.end) else { return false };
        let mut sum = Sum::words(u64::from(TCP) + self.segment_len as u64);
        sum.add(summed);
        sum.checksum() == 0
    }

    /// The segment, with its data.
    pub fn into_segment(self, payload: IoBuf, rest: Option<Box<Chain>>) -> Segment {
        let Plain { seq, ack, window, timestamps, .. } = self.plain;
        Segment {
            source_port: self.flow.remote_port(),
            destination_port: self.flow.local_port(),
            seq,
            ack,
            flags: self.flags,
            window,
            options: Options::with_timestamps(timestamps),
            sack: SackBlocks::NONE,
            mark: Mark::Nothing,
            payload,
            rest,
        }
    }
}
