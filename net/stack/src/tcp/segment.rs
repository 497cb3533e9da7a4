//! Segments on the wire: what is read of one that came in, and the header of one that goes out.

use super::options::Options;
use super::sack::SackBlocks;
use super::seq::Seq;
use crate::checksum::Sum;
use crate::config::RxChecksum;
use crate::counters::Counter;
use crate::ip::Mark;
use alloc::boxed::Box;
use core::net::IpAddr;
use core::ops::BitOr;
use etherparse::{IpNumber, TcpHeaderSlice};
use isola_iobuf::{Chain, IoBuf, IoBufMut};

/// Length of a header without options.
pub(crate) const HEADER_LEN: usize = 20;
/// Where the checksum lies in the header.
pub(crate) const CHECKSUM_OFFSET: u16 = 16;
/// The segment size of a peer that announces none (RFC 9293 3.7.1).
pub(crate) const DEFAULT_MSS: u16 = 536;
/// The least segment size that is believed: less would be a way to make us send headers only.
pub(crate) const MIN_MSS: u16 = 64;

/// The control bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Flags(u8);

impl Flags {
    pub const NONE: Self = Self(0);
    pub const FIN: Self = Self(0x01);
    pub const SYN: Self = Self(0x02);
    pub const RST: Self = Self(0x04);
    pub const PSH: Self = Self(0x08);
    pub const ACK: Self = Self(0x10);
    pub const ECE: Self = Self(0x40);
    pub const CWR: Self = Self(0x80);

    /// Those of them that count, as they stand in a header.
    pub const fn from_bits(bits: u8) -> Self {
        Self(bits & 0xdf)
    }

    /// As they stand in the header.
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// Whether all of `other` are set.
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

impl BitOr for Flags {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// A segment that came in.
#[derive(Clone, Debug)]
pub(crate) struct Segment {
    pub source_port: u16,
    pub destination_port: u16,
    pub seq: Seq,
    /// Meaningful only with the ACK flag.
    pub ack: Seq,
    pub flags: Flags,
    /// As it stands in the header, not scaled.
    pub window: u16,
    pub options: Options,
    /// What the sender has beyond what it acknowledges.
    pub sack: SackBlocks,
    /// What routers say, as the IP header tells.
    pub mark: Mark,
    /// The data, or the beginning of it.
    pub payload: IoBuf,
    /// What follows of a segment that a device has put together of several.
    pub rest: Option<Box<Chain>>,
}

impl Segment {
    /// Reads and checks a segment. `source` and `destination` are those of its IP packet.
    pub fn parse(
        mut bytes: IoBuf,
        source: IpAddr,
        destination: IpAddr,
        checksum: RxChecksum,
    ) -> Result<Self, Counter> {
        let header = TcpHeaderSlice::from_slice(&bytes).map_err(|_| Counter::DropTcpMalformed)?;
        if checksum == RxChecksum::Unverified {
            let mut sum = Sum::pseudo_header(source, destination, IpNumber::TCP.0, bytes.len());
            sum.add(&bytes);
            if sum.checksum() != 0 {
                return Err(Counter::DropTcpChecksum);
            }
        }
        let raw = header.slice();
        let flags = Flags::from_bits(raw.get(13).copied().unwrap_or(0));
        let exclusive = [Flags::SYN, Flags::FIN, Flags::RST].iter().filter(|&&flag| flags.has(flag)).count();
        if exclusive > 1 || header.source_port() == 0 || header.destination_port() == 0 {
            return Err(Counter::DropTcpFlags);
        }
        let (options, sack) = Options::read(header.options());
        let header_len = raw.len();
        let mut segment = Self {
            source_port: header.source_port(),
            destination_port: header.destination_port(),
            seq: Seq(header.sequence_number()),
            ack: Seq(header.acknowledgment_number()),
            flags,
            window: header.window_size(),
            options,
            sack,
            mark: Mark::Nothing,
            payload: IoBuf::from_static(&[]),
            rest: None,
        };
        bytes.advance(header_len);
        segment.payload = bytes;
        Ok(segment)
    }

    /// Length in sequence numbers: the payload, and one for SYN or FIN each.
    pub fn len(&self) -> u32 {
        let control = self.flags.has(Flags::SYN) || self.flags.has(Flags::FIN);
        self.data_len() + u32::from(control)
    }

    /// Length of the data, in bytes.
    #[inline]
    pub fn data_len(&self) -> u32 {
        let rest = self.rest.as_ref().map_or(0, |rest| rest.len());
        (self.payload.len() + rest) as u32
    }

    /// The position behind the segment.
    pub fn end(&self) -> Seq {
        self.seq + self.len()
    }
}

/// The header of a segment that goes out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Header {
    pub source_port: u16,
    pub destination_port: u16,
    pub seq: Seq,
    pub ack: Seq,
    pub flags: Flags,
    pub window: u16,
    pub options: Options,
}

impl Header {
    /// Puts the header in front, its checksum field zero, and these blocks into it. `None` where there is no
    /// room.
    pub fn prepend(&self, head: &mut IoBufMut, sack: &SackBlocks) -> Option<()> {
        let len = self.options.len(sack);
        let (bytes, behind) = head.prepend(HEADER_LEN + len)?.split_first_chunk_mut::<HEADER_LEN>()?;
        bytes[0..2].copy_from_slice(&self.source_port.to_be_bytes());
        bytes[2..4].copy_from_slice(&self.destination_port.to_be_bytes());
        bytes[4..8].copy_from_slice(&self.seq.0.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.ack.0.to_be_bytes());
        bytes[12] = ((HEADER_LEN + len) as u8) << 2;
        bytes[13] = self.flags.0;
        bytes[14..16].copy_from_slice(&self.window.to_be_bytes());
        bytes[16..20].fill(0);
        self.options.write(sack, behind);
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::Ipv4Addr;
    use isola_proves::proves;

    fn header() -> Header {
        Header {
            source_port: 80,
            destination_port: 4000,
            seq: Seq(1),
            ack: Seq(2),
            flags: Flags::SYN | Flags::ACK,
            window: 777,
            options: Options { mss: Some(1460), window_scale: Some(7), ..Options::default() },
        }
    }

    #[test]
    fn what_is_sent_is_what_is_read() {
        let mut head = IoBufMut::with_room(60, 0);
        header().prepend(&mut head, &SackBlocks::NONE).unwrap();
        let ip = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
        let segment = Segment::parse(head.freeze(), ip, ip, RxChecksum::Verified).unwrap();
        assert_eq!((segment.seq, segment.ack, segment.window), (Seq(1), Seq(2), 777));
        assert_eq!(segment.options, header().options);
        assert_eq!(segment.flags, Flags::SYN | Flags::ACK);
        assert_eq!(segment.len(), 1);
    }

    #[test]
    fn impossible_combinations_are_refused() {
        let ip = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
        let parse = |header: Header| {
            let mut head = IoBufMut::with_room(60, 0);
            header.prepend(&mut head, &SackBlocks::NONE).unwrap();
            Segment::parse(head.freeze(), ip, ip, RxChecksum::Verified).map(|_| ())
        };
        assert_eq!(parse(header()), Ok(()));
        for flags in [Flags::SYN | Flags::FIN, Flags::SYN | Flags::RST, Flags::RST | Flags::FIN] {
            assert_eq!(parse(Header { flags, ..header() }), Err(Counter::DropTcpFlags));
        }
        assert_eq!(parse(Header { source_port: 0, ..header() }), Err(Counter::DropTcpFlags));
    }

    #[proves("RFC 7323 2.3", "a shift beyond 14 is 14")]
    #[test]
    fn a_scale_beyond_the_limit_is_the_limit() {
        let ip = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
        let mut head = IoBufMut::with_room(60, 0);
        let options = Options { mss: None, window_scale: Some(200), ..Options::default() };
        Header { options, ..header() }.prepend(&mut head, &SackBlocks::NONE).unwrap();
        let segment = Segment::parse(head.freeze(), ip, ip, RxChecksum::Verified).unwrap();
        assert_eq!(segment.options.window_scale, Some(14));
    }
}
