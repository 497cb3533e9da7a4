//! The headers of a connection's segments as a template, made once per path, beginning with the SYN-ACK, and completed
//! for each segment.
//!
//! Most header bytes are the same in all segments of a connection: Ethernet header, addresses, ports, and the checksums
//! over them. A segment copies these and sets the others. Segments with SACK blocks, and those that belong to no
//! connection, take the general path (`segment.rs`, `ip/interface`), which writes the same bytes.

use super::options::{Options, TIMESTAMPS_LEN};
use super::sack::SackBlocks;
use super::segment::{CHECKSUM_OFFSET, Flags, HEADER_LEN, Header};
use crate::base::{Flow, MacAddr, Sum};
use crate::ip::{
    ETHERNET_HEADER_LEN, IPV4_HEADER_LEN, IPV6_HEADER_LEN, ethernet_header, ipv4_header, ipv6_header,
};
use core::net::IpAddr;
use etherparse::{EtherType, IpNumber};
use isola_iobuf::{IoBufMut, PartialChecksum};

const IP: usize = ETHERNET_HEADER_LEN;
const START_V4: usize = IP + IPV4_HEADER_LEN;
const START_V6: usize = IP + IPV6_HEADER_LEN;
const LEN_V4: usize = START_V4 + HEADER_LEN;
const LEN_V6: usize = START_V6 + HEADER_LEN;

/// Headers with fields to be completed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Template {
    bytes: Bytes,
    /// Checksum of the pseudo-header without its length.
    pseudo: u32,
}

/// The headers of a segment without options and data; lengths and checksums are zero.
#[derive(Clone, Copy, Debug)]
enum Bytes {
    V4 {
        bytes: [u8; LEN_V4],
        /// Checksum of the IP header.
        sum: u32,
    },
    V6([u8; LEN_V6]),
}

impl Template {
    /// Returns the template for a flow, between two interfaces; `None` if the two addresses are of different families.
    pub fn new(flow: &Flow, from: MacAddr, to: MacAddr, hops: u8) -> Option<Self> {
        let (local, remote) = (flow.local.ip(), flow.remote.ip());
        let pseudo = u32::from(Sum::pseudo_header(local, remote, IpNumber::TCP.0, 0).folded());
        let bytes = match (local, remote) {
            (IpAddr::V4(local), IpAddr::V4(remote)) => {
                let ip = ipv4_header(local, remote, IpNumber::TCP);
                let sum = ip.as_chunks::<4>().0.iter().map(|&word| u64::from(u32::from_be_bytes(word))).sum();
                let mut bytes = [0; LEN_V4];
                bytes[..IP].copy_from_slice(&ethernet_header(from, to, EtherType::IPV4));
                bytes[IP..START_V4].copy_from_slice(&ip);
                set_ports(&mut bytes, START_V4, flow);
                Bytes::V4 { bytes, sum: u32::from(Sum::words(sum).folded()) }
            }
            (IpAddr::V6(local), IpAddr::V6(remote)) => {
                let mut bytes = [0; LEN_V6];
                bytes[..IP].copy_from_slice(&ethernet_header(from, to, EtherType::IPV6));
                bytes[IP..START_V6].copy_from_slice(&ipv6_header(local, remote, IpNumber::TCP, hops));
                set_ports(&mut bytes, START_V6, flow);
                Bytes::V6(bytes)
            }
            _ => return None,
        };
        Some(Self { bytes, pseudo })
    }

    /// Prepends the headers of a segment without SACK blocks and with `payload_len` bytes of data. Returns the
    /// remaining part of the checksum, for the device. Returns `None` if the headroom is too small or the packet too
    /// long.
    #[inline(always)]
    pub fn fill(&self, head: &mut IoBufMut, header: &Header, payload_len: usize) -> Option<PartialChecksum> {
        let options_len = header.options_len();
        let len = HEADER_LEN + options_len + payload_len;
        let start = match &self.bytes {
            Bytes::V4 { bytes, sum } => {
                let ip_len = u16::try_from(IPV4_HEADER_LEN + len).ok()?;
                let headers = head.prepend(LEN_V4 + options_len)?;
                let (fixed, behind) = headers.split_first_chunk_mut::<LEN_V4>()?;
                *fixed = *bytes;
                fixed[16..18].copy_from_slice(&ip_len.to_be_bytes());
                fixed[24..26].copy_from_slice(&(!fold(sum + u32::from(ip_len))).to_be_bytes());
                self.fill_tcp(fixed.last_chunk_mut()?, behind, header, len);
                START_V4
            }
            Bytes::V6(bytes) => {
                let ip_len = u16::try_from(len).ok()?;
                let headers = head.prepend(LEN_V6 + options_len)?;
                let (fixed, behind) = headers.split_first_chunk_mut::<LEN_V6>()?;
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
        if header.flags.has(Flags::SYN) {
            header.options.write(&SackBlocks::NONE, behind);
        } else if let (Some(timestamps), Some(bytes)) = (header.options.timestamps, behind.as_mut_array()) {
            timestamps.write(bytes);
        }
    }
}

impl Header {
    /// Returns the length of the options, in bytes. Only a SYN has other options than timestamps.
    #[inline(always)]
    fn options_len(&self) -> usize {
        if self.flags.has(Flags::SYN) {
            return self.options.len(&SackBlocks::NONE);
        }
        let Options { timestamps, .. } = self.options;
        if timestamps.is_some() { TIMESTAMPS_LEN } else { 0 }
    }
}

/// Sets the ports of the segment at offset `start`.
#[inline]
fn set_ports(bytes: &mut [u8], start: usize, flow: &Flow) {
    bytes[start..start + 2].copy_from_slice(&flow.local.port().to_be_bytes());
    bytes[start + 2..start + 4].copy_from_slice(&flow.remote.port().to_be_bytes());
}

/// Folds a sum into 16 bits of one's complement.
#[inline]
const fn fold(sum: u32) -> u16 {
    let sum = (sum >> 16) + (sum & 0xffff);
    ((sum >> 16) + sum) as u16
}
