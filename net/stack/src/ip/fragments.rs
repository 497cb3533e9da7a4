//! Reassembly of fragmented packets (RFC 791 3.2, RFC 8200 4.5), within bounds of memory and time.
//!
//! Overlapping fragments invalidate their packet, regardless of the sender (RFC 5722). An exact duplicate is ignored as
//! caused by the network. Fragments are stored as views of their frames; the frames' memory counts against the bound.
//! The reassembled packet is a copy, as a transport needs contiguous bytes.

use super::ethernet;
use super::packet::Refusal;
use crate::base::{Counter, Counters, Duration, Instant, Limits, Sum};
use alloc::vec::Vec;
use core::net::IpAddr;
use etherparse::{IpNumber, Ipv6Header};
use isola_iobuf::{IoBuf, IoBufMut};

/// The reassembly timeout (RFC 1122 3.3.2, RFC 8200 4.5).
const PATIENCE: Duration = Duration::from_secs(60);
/// The most fragments of a packet: 64 KiB in fragments of 1,280 bytes need 52.
const MAX_PARTS: usize = 64;
/// The longest packet, headers included.
const MAX_LEN: usize = 65_535;

/// The key that the fragments of a packet share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PacketId {
    pub source: IpAddr,
    pub destination: IpAddr,
    pub identification: u32,
    /// IPv4 counts identifications for each protocol; zero for IPv6.
    pub protocol: u8,
}

/// A fragment of a packet.
pub(crate) struct Fragment {
    pub id: PacketId,
    /// The protocol of the packet's payload.
    pub next: IpNumber,
    /// The offset of this fragment in the packet's data, in bytes.
    pub offset: usize,
    /// Whether fragments follow.
    pub more: bool,
    /// Length of the headers that also precede the reassembled packet's data.
    pub headers_len: usize,
    /// The offset of the payload's protocol number in these headers.
    pub next_header_at: usize,
    /// The offset of this fragment's data in `whole`.
    pub data_at: usize,
    /// The packet that contained the fragment.
    pub whole: IoBuf,
}

struct Part {
    offset: usize,
    data: IoBuf,
}

struct Partial {
    id: PacketId,
    parts: Vec<Part>,
    /// Length of the data, once the last fragment has arrived.
    total: Option<usize>,
    /// The packet of the first fragment, for its headers.
    first: Option<(IoBuf, usize, usize, IpNumber)>,
    until: Instant,
    /// Fragments overlapped: further ones are dropped.
    spoilt: bool,
}

/// All incomplete packets.
pub(crate) struct Reassembler {
    /// The oldest packet is the first.
    packets: Vec<Partial>,
    /// Memory of the fragments, in bytes.
    bytes: usize,
    max_packets: usize,
    max_bytes: usize,
}

impl Reassembler {
    pub fn new(limits: &Limits) -> Self {
        Self {
            packets: Vec::new(),
            bytes: 0,
            max_packets: limits.fragmented_packets,
            max_bytes: limits.fragment_bytes,
        }
    }

    /// Returns the time of the next call of `on_timer`.
    pub fn deadline(&self) -> Option<Instant> {
        self.packets.first().map(|packet| packet.until)
    }

    /// Returns whether there are no incomplete packets.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// Drops packets that were not complete in time; returns their received first fragments.
    pub fn on_timer(&mut self, now: Instant, counters: &mut Counters) -> Vec<IoBuf> {
        let mut firsts = Vec::new();
        while let Some(at) = self.packets.iter().position(|packet| now >= packet.until) {
            let packet = self.remove(at);
            if !packet.spoilt {
                counters.add(Counter::DropFragmentTime, packet.parts.len() as u64);
            }
            firsts.extend(packet.first.map(|(whole, ..)| whole));
        }
        firsts
    }

    fn remove(&mut self, at: usize) -> Partial {
        let packet = self.packets.remove(at);
        self.bytes = self.bytes.saturating_sub(packet.held());
        packet
    }

    /// Adds a fragment. If it completes its packet, returns the packet, with headroom for an Ethernet header.
    pub fn add(
        &mut self,
        now: Instant,
        fragment: Fragment,
        counters: &mut Counters,
    ) -> Result<Option<IoBufMut>, Refusal> {
        let len = fragment.whole.len().saturating_sub(fragment.data_at);
        let end = fragment.offset + len;
        if len == 0 || (fragment.more && !len.is_multiple_of(8)) || end + fragment.headers_len > MAX_LEN {
            return Err(Counter::DropFragmentMalformed.into());
        }
        // A first fragment without the transport header hides the ports from filters (RFC 7112, RFC 1858).
        let least = match fragment.next {
            IpNumber::TCP => 20,
            _ => 8,
        };
        if fragment.offset == 0 && fragment.more && len < least {
            return Err(Counter::DropFragmentTiny.into());
        }
        let at = match self.packets.iter().position(|packet| packet.id == fragment.id) {
            Some(at) => at,
            None => self.begin(now, fragment.id, counters)?,
        };
        let Some(packet) = self.packets.get_mut(at) else { return Ok(None) };
        let before = packet.held();
        let taken = packet.take(fragment, len);
        self.bytes = self.bytes + packet.held() - before.min(self.bytes);
        taken?;
        if packet.is_whole() {
            return Ok(self.remove(at).assemble());
        }
        while self.bytes > self.max_bytes && !self.packets.is_empty() {
            counters.add(Counter::DropFragmentLimit, self.remove(0).parts.len() as u64);
        }
        Ok(None)
    }

    fn begin(&mut self, now: Instant, id: PacketId, counters: &mut Counters) -> Result<usize, Refusal> {
        if self.max_packets == 0 {
            return Err(Counter::DropFragmentLimit.into());
        }
        if self.packets.len() >= self.max_packets {
            counters.add(Counter::DropFragmentLimit, self.remove(0).parts.len() as u64);
        }
        let until = now + PATIENCE;
        self.packets.push(Partial { id, parts: Vec::new(), total: None, first: None, until, spoilt: false });
        Ok(self.packets.len() - 1)
    }
}

impl Partial {
    fn held(&self) -> usize {
        self.parts.iter().map(|part| part.data.storage_len()).sum()
    }

    fn take(&mut self, fragment: Fragment, len: usize) -> Result<(), Refusal> {
        if self.spoilt {
            return Err(Counter::DropFragmentOverlap.into());
        }
        let (offset, end) = (fragment.offset, fragment.offset + len);
        if self.parts.iter().any(|part| part.offset == offset && part.data.len() == len) {
            return Err(Counter::DropFragmentRepeated.into());
        }
        let position = self.parts.partition_point(|part| part.offset < offset);
        let from_before =
            position.checked_sub(1).and_then(|at| self.parts.get(at)).is_some_and(|p| p.end() > offset);
        let into_next = self.parts.get(position).is_some_and(|part| part.offset < end);
        let beyond = self.total.is_some_and(|total| end > total || (!fragment.more && end != total));
        let short = !fragment.more && self.parts.last().is_some_and(|part| part.end() > end);
        if from_before || into_next || beyond || short {
            (self.spoilt, self.first) = (true, None);
            self.parts.clear();
            return Err(Counter::DropFragmentOverlap.into());
        }
        if self.parts.len() >= MAX_PARTS {
            (self.spoilt, self.first) = (true, None);
            self.parts.clear();
            return Err(Counter::DropFragmentLimit.into());
        }
        let mut data = fragment.whole.clone();
        data.advance(fragment.data_at);
        self.parts.insert(position, Part { offset, data });
        if !fragment.more {
            self.total = Some(end);
        }
        if offset == 0 {
            self.first = Some((fragment.whole, fragment.headers_len, fragment.next_header_at, fragment.next));
        }
        Ok(())
    }

    fn is_whole(&self) -> bool {
        let mut end = 0;
        for part in &self.parts {
            if part.offset != end {
                return false;
            }
            end = part.end();
        }
        self.total == Some(end)
    }

    /// Returns the packet as it would have arrived without fragmentation.
    fn assemble(self) -> Option<IoBufMut> {
        let (first, headers_len, next_header_at, next) = self.first?;
        let len = headers_len + self.total?;
        let mut packet = IoBufMut::with_room(ethernet::HEADER_LEN, len);
        packet.append_slice(first.get(..headers_len)?)?;
        self.parts.iter().try_for_each(|part| packet.append_slice(&part.data))?;
        let bytes = packet.data_mut();
        if self.id.source.is_ipv4() {
            bytes.get_mut(2..4)?.copy_from_slice(&u16::try_from(len).ok()?.to_be_bytes());
            bytes.get_mut(6..8)?.fill(0);
            bytes.get_mut(10..12)?.fill(0);
            let mut sum = Sum::default();
            sum.add(bytes.get(..headers_len)?);
            let sum = sum.checksum().to_be_bytes();
            bytes.get_mut(10..12)?.copy_from_slice(&sum);
        } else {
            let payload = u16::try_from(len - Ipv6Header::LEN).ok()?;
            bytes.get_mut(4..6)?.copy_from_slice(&payload.to_be_bytes());
            *bytes.get_mut(next_header_at)? = next.0;
        }
        Some(packet)
    }
}

impl Part {
    fn end(&self) -> usize {
        self.offset + self.data.len()
    }
}
