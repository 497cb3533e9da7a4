//! Fast path for the frames of a connection: segments with data or a plain acknowledgement, without TCP options except
//! timestamps, over IPv4 without options or IPv6 without extension headers. One function parses all headers.
//!
//! Every other frame takes the general path (`stack/receive.rs`), which would process these frames with the same result.
//! Nothing is dropped or counted here.

use super::connection::header_prediction::PlainSegment;
use super::flow_map::{FlowKey, FlowKey4};
use super::options::{Options, TIMESTAMPS_LEN, Timestamps};
use super::sack::SackBlocks;
use super::segment::{Flags, HEADER_LEN, Segment};
use super::seq::Seq;
use super::stack_parts::StackParts;
use super::tables::Tcp;
use crate::base::{RxChecksum, Sum};
use crate::ip::{ETHERNET_HEADER_LEN, IPV4_HEADER_LEN, IPV6_HEADER_LEN, Interface, Mark};
use alloc::boxed::Box;
use core::net::Ipv6Addr;
use core::ops::Range;
use etherparse::{EtherType, IpNumber};
use isola_iobuf::{Chain, IoBuf};

const TCP: u8 = IpNumber::TCP.0;

/// Offset of the IP header.
const IP: usize = ETHERNET_HEADER_LEN;
/// Offset of the TCP header, for either version of IP.
const TCP_V4: usize = IP + IPV4_HEADER_LEN;
const TCP_V6: usize = IP + IPV6_HEADER_LEN;
/// Minimum length of a frame, for either version of IP: all headers without options, and no data.
const LEAST_V4: usize = TCP_V4 + HEADER_LEN;
const LEAST_V6: usize = TCP_V6 + HEADER_LEN;

/// The fields of a fast-path frame.
pub(crate) struct FastSegment {
    /// Index of the segment's connection.
    connection: u32,
    plain: PlainSegment,
    flags: Flags,
    /// The remote and the local port.
    ports: (u16, u16),
    /// Offset of the TCP header.
    segment_at: usize,
    /// Start and end of the data in the frame. The end may be in a later part of a merged frame.
    start: usize,
    end: usize,
}

impl Tcp {
    /// Parses a frame of a connection, of which `rest_len` further bytes are in other buffers; `None` if it must take
    /// the general path.
    #[inline(always)]
    pub fn fast_segment(
        &self,
        frame: &[u8],
        rest_len: usize,
        checksum: RxChecksum,
        interface: &Interface,
    ) -> Option<FastSegment> {
        let fast = read(frame, rest_len, interface, self)?;
        // A checksum over several buffers is left to the general path.
        let is_intact = checksum == RxChecksum::Verified || (rest_len == 0 && fast.is_intact(frame));
        is_intact.then_some(fast)
    }

    /// Processes a frame of a fast-path segment: `frame` is its first buffer, and `rest` the others.
    #[inline(always)]
    pub fn receive_fast(
        &mut self,
        fast: FastSegment,
        mut frame: IoBuf,
        rest: Option<Box<Chain>>,
        stack: StackParts<'_>,
    ) {
        // Taken apart, so that the references stay in registers: only the other branch needs them in memory.
        let StackParts { now, interface, counters, events } = stack;
        let Range { start, end } = fast.data(frame.len());
        frame.truncate(end);
        frame.advance(start);
        let index = fast.connection;
        let Some((connection, ready, delay)) = self.expecting(index, now, &fast.plain) else {
            let mut stack = StackParts { now, interface, counters, events };
            self.deliver_end(index, fast.into_segment(frame, rest), &mut stack);
            return;
        };
        interface.owner = connection.owner;
        connection.on_expected(now, &fast.plain, frame, rest, delay, counters);
        if !connection.signals.is_empty() {
            events.connections.push_new(index);
        }
        ready.push_new(index);
    }
}

/// Parses a frame of which `rest_len` further bytes are in other buffers; `None` if it must take the general path or
/// belongs to no connection.
#[inline(always)]
fn read(frame: &[u8], rest_len: usize, interface: &Interface, tcp: &Tcp) -> Option<FastSegment> {
    let head = frame.first_chunk::<LEAST_V4>()?;
    let from_group = head[6] & 1 != 0;
    if head[..6] != interface.mac.0 || head[6..12] == interface.mac.0 || from_group {
        return None;
    }
    let fast = match EtherType(half(head, 12)) {
        EtherType::IPV4 => read_v4(frame, head, interface, tcp)?,
        EtherType::IPV6 => read_v6(frame, interface, tcp)?,
        _ => return None,
    };
    // The other buffers must belong to the packet entirely.
    let len = frame.len() + rest_len;
    let fits = fast.start <= fast.end && fast.end <= len && (rest_len == 0 || fast.end == len);
    fits.then_some(fast)
}

#[inline(always)]
fn half<const N: usize>(bytes: &[u8; N], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

#[inline(always)]
fn word<const N: usize>(bytes: &[u8; N], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Returns whether the flags are ACK alone, or with PSH. This is tested early, because it excludes the frames of
/// handshakes and closes.
#[inline(always)]
const fn is_plain(flags: u8) -> bool {
    flags & !Flags::PSH.bits() == Flags::ACK.bits()
}

/// Parses an IPv4 packet in `frame`, whose first bytes are `head`.
#[inline(always)]
fn read_v4(frame: &[u8], head: &[u8; LEAST_V4], interface: &Interface, tcp: &Tcp) -> Option<FastSegment> {
    let (local, remote) = (word(head, IP + 16), word(head, IP + 12));
    let is_fragment = half(head, IP + 6) & 0x3fff != 0;
    let odd = head[IP] != 0x45 || head[IP + 9] != TCP || is_fragment || is_marked(head[IP + 1]);
    if odd || !is_plain(head[TCP_V4 + 13]) || interface.ipv4?.address.to_bits() != local {
        return None;
    }
    // The one's complement sum of a header with its checksum is all ones, in either byte order; so a sum with wider
    // words is a multiple of 0xffff.
    let words = head[IP..TCP_V4].as_chunks::<4>().0;
    let sum: u64 = words.iter().map(|word| u64::from(u32::from_ne_bytes(*word))).sum();
    if !sum.is_multiple_of(0xffff) {
        return None;
    }
    let ports = (half(head, TCP_V4), half(head, TCP_V4 + 2));
    let connection = tcp.connection_at4(&FlowKey4::new(local, remote, ports.1, ports.0))?;
    let end = IP + usize::from(half(head, IP + 2));
    FastSegment::new(connection, head, frame.get(LEAST_V4..)?, TCP_V4, end)
}

/// Parses an IPv6 packet.
#[inline]
fn read_v6(frame: &[u8], interface: &Interface, tcp: &Tcp) -> Option<FastSegment> {
    let head = frame.first_chunk::<LEAST_V6>()?;
    let service = head[IP] << 4 | head[IP + 1] >> 4;
    let odd = head[IP] >> 4 != 6 || head[IP + 6] != TCP || is_marked(service);
    if odd || !is_plain(head[TCP_V6 + 13]) {
        return None;
    }
    let address = |at: usize| head[at..].first_chunk::<16>().map(|bytes| Ipv6Addr::from(*bytes));
    let (local, remote) = (address(IP + 24)?, address(IP + 8)?);
    if !interface.ipv6.has(local) {
        return None;
    }
    let mut flow = FlowKey::v6(local, remote);
    flow.set_ports(half(head, TCP_V6 + 2), half(head, TCP_V6));
    let end = TCP_V6 + usize::from(half(head, IP + 4));
    FastSegment::new(tcp.connection_at(&flow)?, head, frame.get(LEAST_V6..)?, TCP_V6, end)
}

/// Returns whether the packet has a congestion mark (RFC 3168 5), which only the general path processes.
#[inline(always)]
const fn is_marked(service: u8) -> bool {
    service & 3 == 3
}

impl FastSegment {
    /// Parses the TCP header at offset `at` of `head`. `behind` are the bytes behind that header, and `end` is the end
    /// of the packet.
    #[inline(always)]
    fn new<const N: usize>(
        connection: u32,
        head: &[u8; N],
        behind: &[u8],
        at: usize,
        end: usize,
    ) -> Option<Self> {
        let (options_len, timestamps) = match head[at + 12] >> 4 {
            5 => (0, None),
            8 => (TIMESTAMPS_LEN, Some(Timestamps::read(behind.first_chunk()?)?)),
            _ => return None,
        };
        let start = at + HEADER_LEN + options_len;
        let plain = PlainSegment {
            seq: Seq(word(head, at + 4)),
            ack: Seq(word(head, at + 8)),
            window: half(head, at + 14),
            timestamps,
            len: end.saturating_sub(start) as u32,
        };
        let ports = (half(head, at), half(head, at + 2));
        let flags = Flags::from_bits(head[at + 13]);
        Some(Self { connection, plain, flags, ports, segment_at: at, start, end })
    }

    /// Returns the range of the data in the frame's first buffer, which has `len` bytes.
    #[inline]
    fn data(&self, len: usize) -> Range<usize> {
        self.start..self.end.min(len)
    }

    /// Returns whether the segment's checksum is correct, for a frame in one buffer.
    fn is_intact(&self, frame: &[u8]) -> bool {
        // The addresses of the pseudo-header precede the segment; protocol and length are added here.
        let addresses_len = if self.segment_at == TCP_V4 { 8 } else { 32 };
        let Some(summed) = frame.get(self.segment_at - addresses_len..self.end) else { return false };
        let mut sum = Sum::words(u64::from(TCP) + (self.end - self.segment_at) as u64);
        sum.add(summed);
        sum.checksum() == 0
    }

    /// Returns the segment with its data.
    fn into_segment(self, payload: IoBuf, rest: Option<Box<Chain>>) -> Segment {
        let PlainSegment { seq, ack, window, timestamps, .. } = self.plain;
        Segment {
            source_port: self.ports.0,
            destination_port: self.ports.1,
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
