//! The fast-path frame: a segment of a connection, with data or an acknowledgement and no options but timestamps, over IPv4 or
//! IPv6 without any of theirs. It is read in one look, without the steps between.
//!
//! Whatever is unusual about a frame is left to the general path (`receive.rs`), which would do the same with the usual
//! ones: nothing is dropped or counted here.

use crate::checksum::Sum;
use crate::interface::Interface;
use crate::ip::Mark;
use crate::tcp::connection::header_prediction::Plain;
use crate::tcp::flow_map::{FlowKey, FlowKey4};
use crate::tcp::options::{Options, TIMESTAMPS_LEN, Timestamps};
use crate::tcp::sack::SackBlocks;
use crate::tcp::segment::{Flags, HEADER_LEN, Segment};
use crate::tcp::seq::Seq;
use crate::tcp::tables::Tcp;
use crate::{ethernet, ipv4, ipv6};
use alloc::boxed::Box;
use core::net::Ipv6Addr;
use core::ops::Range;
use etherparse::{EtherType, IpNumber};
use isola_iobuf::{Chain, IoBuf};

const TCP: u8 = IpNumber::TCP.0;

/// Where IP's header begins.
const IP: usize = ethernet::HEADER_LEN;
/// Where TCP's header begins behind either of IP's.
const TCP_V4: usize = IP + ipv4::HEADER_LEN;
const TCP_V6: usize = IP + ipv6::HEADER_LEN;
/// The least length of a frame of either: with headers that have no options, and no data.
const LEAST_V4: usize = TCP_V4 + HEADER_LEN;
const LEAST_V6: usize = TCP_V6 + HEADER_LEN;

/// What a fast-path frame says.
pub(super) struct FastSegment {
    /// The connection that it is for.
    pub connection: u32,
    pub plain: Plain,
    flags: Flags,
    /// The remote and the local port.
    ports: (u16, u16),
    /// Where TCP's header begins.
    segment_at: usize,
    /// Where the data stands in the packet, though its end may lie in another piece of the frame.
    start: usize,
    end: usize,
}

/// Reads a frame of which `rest_len` bytes stand elsewhere; `None` where it is not a fast-path one, or for no connection.
#[inline(always)]
pub(super) fn read(frame: &[u8], rest_len: usize, interface: &Interface, tcp: &Tcp) -> Option<FastSegment> {
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
    // The rest belongs to the packet as a whole.
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

/// Whether a segment has no flags but that of its acknowledgement, which has to be there, and PSH. That is asked early: it
/// tells the beginnings and ends of connections apart.
#[inline(always)]
const fn is_plain(flags: u8) -> bool {
    flags & !Flags::PSH.bits() == Flags::ACK.bits()
}

/// Reads a packet of IPv4 in `frame`, which begins with `head`.
#[inline(always)]
fn read_v4(frame: &[u8], head: &[u8; LEAST_V4], interface: &Interface, tcp: &Tcp) -> Option<FastSegment> {
    let (local, remote) = (word(head, IP + 16), word(head, IP + 12));
    let is_fragment = half(head, IP + 6) & 0x3fff != 0;
    let odd = head[IP] != 0x45 || head[IP + 9] != TCP || is_fragment || is_marked(head[IP + 1]);
    if odd || !is_plain(head[TCP_V4 + 13]) || interface.ipv4?.address.to_bits() != local {
        return None;
    }
    // A sum over its own complement is all ones, however it is folded, and whichever byte of a word comes first.
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

/// Reads a packet of IPv6.
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

/// Whether a router on the way was congested (RFC 3168 5): that is for the general path to tell.
#[inline(always)]
const fn is_marked(service: u8) -> bool {
    service & 3 == 3
}

impl FastSegment {
    /// Reads TCP's header, which begins at `at` in `head`; `behind` follows that, and the packet ends at `end`.
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
        let plain = Plain {
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

    /// Where the data stands in a frame of which so many bytes stand in one piece.
    #[inline]
    pub fn data(&self, len: usize) -> Range<usize> {
        self.start..self.end.min(len)
    }

    /// Whether the segment's checksum holds, of a frame that stands in one piece.
    pub fn is_intact(&self, frame: &[u8]) -> bool {
        // The pseudo-header's addresses stand right before the segment; its other words follow here.
        let addresses_len = if self.segment_at == TCP_V4 { 8 } else { 32 };
        let Some(summed) = frame.get(self.segment_at - addresses_len..self.end) else { return false };
        let mut sum = Sum::words(u64::from(TCP) + (self.end - self.segment_at) as u64);
        sum.add(summed);
        sum.checksum() == 0
    }

    /// The segment, with its data.
    pub fn into_segment(self, payload: IoBuf, rest: Option<Box<Chain>>) -> Segment {
        let Plain { seq, ack, window, timestamps, .. } = self.plain;
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
