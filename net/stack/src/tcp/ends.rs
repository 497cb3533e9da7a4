//! Fast path for the frames of a handshake or close: SYN, SYN-ACK, FIN, and acknowledgements of flows without a
//! connection. One function parses all headers, as `fast_path.rs` does for the frames of a connection.
//!
//! Every other frame takes the general path (`stack/receive.rs`), which would process these frames with the same result.
//! Nothing is dropped or counted here.

use super::options::{Options, SYN_LEN, SynOptions, TIMESTAMPS_LEN, Timestamps};
use super::sack::SackBlocks;
use super::segment::{Flags, HEADER_LEN, Segment};
use super::seq::Seq;
use super::stack_parts::StackParts;
use super::tables::Tcp;
use crate::base::{Flow, RxChecksum, Sum, is_unicast, is_unicast6};
use crate::ip::{ETHERNET_HEADER_LEN, IPV4_HEADER_LEN, IPV6_HEADER_LEN, Interface, Mark};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use etherparse::{EtherType, IpNumber};
use isola_iobuf::IoBuf;

const TCP: u8 = IpNumber::TCP.0;

/// Offset of the IP header.
const IP: usize = ETHERNET_HEADER_LEN;
/// Offset of the TCP header, for either version of IP.
const TCP_V4: usize = IP + IPV4_HEADER_LEN;
const TCP_V6: usize = IP + IPV6_HEADER_LEN;

impl Tcp {
    /// Processes a frame of a handshake or close; returns any other.
    #[inline]
    pub fn receive_end_frame(
        &mut self,
        frame: IoBuf,
        checksum: RxChecksum,
        stack: &mut StackParts<'_>,
    ) -> Option<IoBuf> {
        let Some(end) = read(&frame, stack.interface) else { return Some(frame) };
        let (flow, target) = (end.flow, self.target(&end.flow));
        if (target.is_some() || end.may_begin(stack.interface))
            && (checksum == RxChecksum::Verified || end.is_intact(&frame))
        {
            self.receive_end(flow, target, end.into_segment(frame), stack);
            return None;
        }
        Some(frame)
    }
}

/// The fields of a packet: its addresses, their offset in the frame, the offset of the TCP header, and the end of the
/// packet.
struct Ends {
    local: IpAddr,
    remote: IpAddr,
    addresses_at: usize,
    segment_at: usize,
    end: usize,
}

/// A frame of a handshake or close.
struct End {
    flow: Flow,
    seq: Seq,
    ack: Seq,
    flags: Flags,
    window: u16,
    options: Options,
    /// Offsets in the frame: of the packet's addresses, of the TCP header, of the data, and of the end of the packet.
    addresses_at: usize,
    segment_at: usize,
    data_at: usize,
    end: usize,
}

/// Parses a frame; `None` if it must take the general path.
fn read(frame: &[u8], interface: &Interface) -> Option<End> {
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

/// Returns whether the flags are exactly those of an acknowledgement (with or without FIN or PSH), a SYN, or a SYN-ACK.
const fn is_fast(flags: u8) -> bool {
    const ACK: u8 = Flags::ACK.bits();
    const LAST: u8 = Flags::FIN.bits() | ACK;
    const SYN: u8 = Flags::SYN.bits();
    const ANSWER: u8 = SYN | ACK;
    matches!(flags & !Flags::PSH.bits(), ACK | LAST) || matches!(flags, SYN | ANSWER)
}

/// Parses the IPv4 header of a frame.
fn read_v4(head: &[u8; TCP_V4], interface: &Interface) -> Option<Ends> {
    let (_, header) = head.split_last_chunk::<{ IPV4_HEADER_LEN }>()?;
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
    // The one's complement sum of a header with its checksum is all ones; so a sum with wider words is a multiple of
    // 0xffff.
    sum.is_multiple_of(0xffff).then(|| Ends {
        local: IpAddr::V4(local),
        remote: IpAddr::V4(remote),
        addresses_at: TCP_V4 - 8,
        segment_at: TCP_V4,
        end: IP + usize::from(u16::from_be_bytes([l0, l1])),
    })
}

/// Parses the IPv6 header of a frame.
fn read_v6(head: &[u8; TCP_V6], interface: &Interface) -> Option<Ends> {
    let (_, header) = head.split_last_chunk::<{ IPV6_HEADER_LEN }>()?;
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

/// Returns whether the packet has a congestion mark (RFC 3168 5), which only the general path processes.
const fn is_marked(service: u8) -> bool {
    service & 3 == 3
}

impl End {
    /// Returns whether the segment may open a new flow: its ports are not zero, and its source address can be answered
    /// and is not this interface's.
    fn may_begin(&self, interface: &Interface) -> bool {
        let is_possible = match (self.flow.remote.ip(), &interface.ipv4) {
            (IpAddr::V4(ip), Some(own)) => is_unicast(ip) && !own.is_broadcast(ip) && ip != own.address,
            (IpAddr::V4(_), None) => false,
            (IpAddr::V6(ip), _) => is_unicast6(ip) && !interface.ipv6.has(ip),
        };
        is_possible && self.flow.local.port() != 0 && self.flow.remote.port() != 0
    }

    /// Returns whether the segment's checksum is correct.
    fn is_intact(&self, frame: &[u8]) -> bool {
        // The addresses of the pseudo-header precede the segment; protocol and length are added here.
        let Some(summed) = frame.get(self.addresses_at..self.end) else { return false };
        let mut sum = Sum::words(u64::from(TCP) + (self.end - self.segment_at) as u64);
        sum.add(summed);
        sum.checksum() == 0
    }

    /// Returns the segment with its data.
    fn into_segment(self, mut frame: IoBuf) -> Segment {
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
