//! TCP segments on the wire: the parsed form of a received segment, and the header of an outgoing one.

use super::options::Options;
use super::sack::SackBlocks;
use super::seq::Seq;
use crate::base::{Counter, RxChecksum, Sum};
use crate::ip::Mark;
use alloc::boxed::Box;
use core::net::IpAddr;
use core::ops::BitOr;
use etherparse::{IpNumber, TcpHeaderSlice};
use isola_iobuf::{Chain, IoBuf, IoBufMut};

/// Length of a header without options, in bytes.
pub(crate) const HEADER_LEN: usize = 20;
/// Offset of the checksum in the header.
pub(crate) const CHECKSUM_OFFSET: u16 = 16;
/// The segment size of a peer whose SYN has no MSS option (RFC 9293 3.7.1).
pub(crate) const DEFAULT_MSS: u16 = 536;
/// The smallest accepted segment size. With a smaller one, a peer could make us send little more than headers.
pub(crate) const MIN_MSS: u16 = 64;

/// The control flags of a segment.
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

    /// Returns the flags of a header's flag byte, without URG.
    pub const fn from_bits(bits: u8) -> Self {
        Self(bits & 0xdf)
    }

    /// Returns the flag byte of a header.
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// Returns whether all flags of `other` are set.
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

/// A received segment.
#[derive(Clone, Debug)]
pub(crate) struct Segment {
    pub source_port: u16,
    pub destination_port: u16,
    pub seq: Seq,
    /// Valid only with the ACK flag.
    pub ack: Seq,
    pub flags: Flags,
    /// The window field of the header, not scaled.
    pub window: u16,
    pub options: Options,
    /// SACK blocks: data that the sender received beyond `ack`.
    pub sack: SackBlocks,
    /// The congestion mark of the IP header.
    pub mark: Mark,
    /// The data, or its first part.
    pub payload: IoBuf,
    /// The remaining data of a segment that a device has merged from several.
    pub rest: Option<Box<Chain>>,
}

impl Segment {
    /// Parses and validates a segment. `source` and `destination` are the addresses of its IP packet.
    ///
    /// # Errors
    ///
    /// The counter of the reason for which the segment must be dropped: malformed, wrong checksum, or an invalid
    /// combination of flags or ports.
    pub fn parse(
        mut bytes: IoBuf,
        source: IpAddr,
        destination: IpAddr,
        checksum: RxChecksum,
    ) -> Result<Self, Counter> {
        let (header, flags) = validate(&bytes, source, destination, checksum)?;
        let (options, sack) = Options::read(header.options());
        let header_len = header.slice().len();
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

    /// Returns the length in sequence numbers: the payload, plus one for SYN or FIN.
    pub fn len(&self) -> u32 {
        let control = self.flags.has(Flags::SYN) || self.flags.has(Flags::FIN);
        self.data_len() + u32::from(control)
    }

    /// Returns the length of the data, in bytes.
    #[inline]
    pub fn data_len(&self) -> u32 {
        let rest = self.rest.as_ref().map_or(0, |rest| rest.len());
        (self.payload.len() + rest) as u32
    }

    /// Returns the sequence number behind the segment.
    pub fn end(&self) -> Seq {
        self.seq + self.len()
    }
}

/// Validates the header of a segment and returns it with its flags.
///
/// # Errors
///
/// See [`Segment::parse`].
pub(crate) fn validate(
    bytes: &IoBuf,
    source: IpAddr,
    destination: IpAddr,
    checksum: RxChecksum,
) -> Result<(TcpHeaderSlice<'_>, Flags), Counter> {
    let header = TcpHeaderSlice::from_slice(bytes).map_err(|_| Counter::DropTcpMalformed)?;
    if checksum == RxChecksum::Unverified {
        let mut sum = Sum::pseudo_header(source, destination, IpNumber::TCP.0, bytes.len());
        sum.add(bytes);
        if sum.checksum() != 0 {
            return Err(Counter::DropTcpChecksum);
        }
    }
    let flags = Flags::from_bits(header.slice().get(13).copied().unwrap_or(0));
    let exclusive = [Flags::SYN, Flags::FIN, Flags::RST].iter().filter(|&&flag| flags.has(flag)).count();
    if exclusive > 1 || header.source_port() == 0 || header.destination_port() == 0 {
        return Err(Counter::DropTcpFlags);
    }
    Ok((header, flags))
}

/// The header of an outgoing segment.
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
    /// Prepends the header with these SACK blocks, its checksum field zero. Returns `None` if the headroom is too
    /// small.
    pub fn prepend(&self, head: &mut IoBufMut, sack: &SackBlocks) -> Option<()> {
        let len = self.options.len(sack);
        let (bytes, behind) = head.prepend(HEADER_LEN + len)?.split_first_chunk_mut::<HEADER_LEN>()?;
        self.write(bytes, len);
        self.options.write(sack, behind);
        Some(())
    }

    /// Writes the fields before the options, which have `options_len` bytes, with the checksum field zero.
    #[inline]
    pub fn write(&self, bytes: &mut [u8; HEADER_LEN], options_len: usize) {
        bytes[0..2].copy_from_slice(&self.source_port.to_be_bytes());
        bytes[2..4].copy_from_slice(&self.destination_port.to_be_bytes());
        bytes[4..8].copy_from_slice(&self.seq.0.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.ack.0.to_be_bytes());
        bytes[12] = ((HEADER_LEN + options_len) as u8) << 2;
        bytes[13] = self.flags.0;
        bytes[14..16].copy_from_slice(&self.window.to_be_bytes());
        bytes[16..20].fill(0);
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
    fn a_written_header_parses_back() {
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
    fn invalid_flags_and_port_zero_are_rejected() {
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
    fn a_window_scale_beyond_14_is_read_as_14() {
        let ip = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
        let mut head = IoBufMut::with_room(60, 0);
        let options = Options { mss: None, window_scale: Some(200), ..Options::default() };
        Header { options, ..header() }.prepend(&mut head, &SackBlocks::NONE).unwrap();
        let segment = Segment::parse(head.freeze(), ip, ip, RxChecksum::Verified).unwrap();
        assert_eq!(segment.options.window_scale, Some(14));
    }
}
