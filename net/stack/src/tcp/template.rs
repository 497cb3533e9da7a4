//! The headers of a connection's segments, made once for a way and filled in for each segment.
//!
//! Most of it stays the same from one segment to the next: Ethernet, addresses, ports, and the sums over them. A usual
//! segment copies that and sets the rest. Any other goes the general way (`segment.rs`, `interface.rs`), by which the
//! template is made too: the bytes are the same.

use super::options::{Options, TIMESTAMPS_LEN};
use super::segment::{CHECKSUM_OFFSET, Flags, HEADER_LEN, Header};
use crate::address::Flow;
use crate::checksum::Sum;
use crate::{ethernet, ipv4, ipv6};
use etherparse::IpNumber;
use isola_iobuf::{IoBufMut, PartialChecksum};

const START_V4: usize = ethernet::HEADER_LEN + ipv4::HEADER_LEN;
const START_V6: usize = ethernet::HEADER_LEN + ipv6::HEADER_LEN;
const LEN_V4: usize = START_V4 + HEADER_LEN;
const LEN_V6: usize = START_V6 + HEADER_LEN;

/// Headers that wait to be filled in.
#[derive(Debug)]
pub(crate) struct Template {
    bytes: Bytes,
    /// Sum of the pseudo-header without its length.
    pseudo: u32,
}

/// The headers of a segment without options and data, lengths and sums zero.
#[derive(Debug)]
enum Bytes {
    V4 {
        bytes: [u8; LEN_V4],
        /// Their sum over the IP header.
        sum: u32,
    },
    V6([u8; LEN_V6]),
}

impl Template {
    /// Made from the headers of an empty segment without options; `None` where they are of another kind.
    pub fn of(headers: &[u8], flow: &Flow) -> Option<Self> {
        let ends = (flow.local.ip(), flow.remote.ip());
        let pseudo = u32::from(Sum::pseudo_header(ends.0, ends.1, IpNumber::TCP.0, 0).folded());
        if let Some(&(mut bytes)) = headers.as_array::<LEN_V4>() {
            let ip = &mut bytes[ethernet::HEADER_LEN..START_V4];
            ip[2..4].fill(0);
            ip[10..12].fill(0);
            let mut sum = Sum::default();
            sum.add(ip);
            return Some(Self { bytes: Bytes::V4 { bytes, sum: u32::from(sum.folded()) }, pseudo });
        }
        headers.as_array::<LEN_V6>().map(|&bytes| Self { bytes: Bytes::V6(bytes), pseudo })
    }

    /// Puts the headers of a usual segment (it reports nothing) with `payload_len` bytes of data in front; says what is left of the checksum for
    /// the device. `None` for any other segment, and where there is no room.
    #[inline(always)]
    pub fn fill(&self, head: &mut IoBufMut, header: &Header, payload_len: usize) -> Option<PartialChecksum> {
        let options_len = header.usual_options_len()?;
        let len = HEADER_LEN + options_len + payload_len;
        let start = match &self.bytes {
            Bytes::V4 { bytes, sum } => {
                let ip_len = u16::try_from(ipv4::HEADER_LEN + len).ok()?;
                let place = head.prepend(LEN_V4 + options_len)?;
                let (fixed, behind) = place.split_first_chunk_mut::<LEN_V4>()?;
                *fixed = *bytes;
                fixed[16..18].copy_from_slice(&ip_len.to_be_bytes());
                fixed[24..26].copy_from_slice(&(!fold(sum + u32::from(ip_len))).to_be_bytes());
                self.fill_tcp(fixed.last_chunk_mut()?, behind, header, len);
                START_V4
            }
            Bytes::V6(bytes) => {
                let ip_len = u16::try_from(len).ok()?;
                let place = head.prepend(LEN_V6 + options_len)?;
                let (fixed, behind) = place.split_first_chunk_mut::<LEN_V6>()?;
                *fixed = *bytes;
                fixed[18..20].copy_from_slice(&ip_len.to_be_bytes());
                self.fill_tcp(fixed.last_chunk_mut()?, behind, header, len);
                START_V6
            }
        };
        Some(PartialChecksum { start: start as u16, offset: CHECKSUM_OFFSET })
    }

    #[inline(always)]
    fn fill_tcp(&self, fields: &mut [u8; HEADER_LEN], behind: &mut [u8], header: &Header, len: usize) {
        fields[4..8].copy_from_slice(&header.seq.0.to_be_bytes());
        fields[8..12].copy_from_slice(&header.ack.0.to_be_bytes());
        fields[12] = ((HEADER_LEN + behind.len()) as u8) << 2;
        fields[13] = header.flags.bits();
        fields[14..16].copy_from_slice(&header.window.to_be_bytes());
        fields[16..18].copy_from_slice(&fold(self.pseudo + len as u32).to_be_bytes());
        if let (Some(timestamps), Some(bytes)) = (header.options.timestamps, behind.as_mut_array()) {
            timestamps.write(bytes);
        }
    }
}

impl Header {
    /// Length of the options, where there are none but timestamps.
    #[inline(always)]
    fn usual_options_len(&self) -> Option<usize> {
        let usual = !self.flags.has(Flags::SYN);
        let Options { timestamps, .. } = self.options;
        usual.then_some(if timestamps.is_some() { TIMESTAMPS_LEN } else { 0 })
    }
}

/// A sum of at most 17 bits in one's complement.
#[inline]
const fn fold(sum: u32) -> u16 {
    let sum = (sum >> 16) + (sum & 0xffff);
    ((sum >> 16) + sum) as u16
}
