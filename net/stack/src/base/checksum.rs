//! The Internet checksum (RFC 1071): one's complement sum of 16-bit words.
//!
//! [`Sum`] adds pieces of any length and parity, as the bytes of a packet are in several buffers.

use core::net::IpAddr;
use isola_iobuf::Chain;

/// A running sum over the bytes added so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sum {
    /// The sum of 32-bit words in network order, folded at the end: it overflows after 2^32 words.
    total: u64,
    /// Whether an odd number of bytes was added, so that the next byte is the low half of a word.
    odd: Parity,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Parity {
    #[default]
    Even,
    Odd,
}

impl Sum {
    /// Returns the sum of a pseudo-header (RFC 9293 3.1, RFC 768): addresses, protocol and length of the rest.
    pub fn pseudo_header(source: IpAddr, destination: IpAddr, protocol: u8, len: usize) -> Self {
        let mut sum = Self::default();
        for ip in [source, destination] {
            match ip {
                IpAddr::V4(ip) => sum.total += u64::from(ip.to_bits()),
                IpAddr::V6(ip) => sum.add(&ip.octets()),
            }
        }
        sum.total += u64::from(protocol) + len as u64;
        sum
    }

    /// Returns a sum of words.
    pub fn words(total: u64) -> Self {
        Self { total, odd: Parity::Even }
    }

    /// Adds `bytes` after the previous ones.
    pub fn add(&mut self, mut bytes: &[u8]) {
        if self.odd == Parity::Odd {
            let Some((&first, rest)) = bytes.split_first() else { return };
            self.total += u64::from(first);
            self.odd = Parity::Even;
            bytes = rest;
        }
        let (words, tail) = bytes.as_chunks::<4>();
        // In the processor's byte order: the sum of swapped words is the swapped sum (RFC 1071 2 B).
        let sum = words.iter().map(|&word| u64::from(u32::from_ne_bytes(word))).sum::<u64>();
        self.total += u64::from(u16::from_be(fold(sum)));
        match *tail {
            [] => {}
            [a] => self.total += u64::from(a) << 8,
            [a, b] => self.total += u64::from(u16::from_be_bytes([a, b])),
            [a, b, c, ..] => {
                self.total += u64::from(u16::from_be_bytes([a, b])) + (u64::from(c) << 8);
            }
        }
        if tail.len() % 2 == 1 {
            self.odd = Parity::Odd;
        }
    }

    /// Adds every part of a chain.
    pub fn add_chain(&mut self, chain: &Chain) {
        chain.parts().for_each(|part| self.add(part));
    }

    /// Returns the sum folded to 16 bits, not complemented: the initial checksum field of a packet whose device
    /// completes the checksum.
    pub fn folded(self) -> u16 {
        fold(self.total)
    }

    /// Returns the checksum: the complement of the folded sum. It is zero over bytes that contain their own checksum.
    pub fn checksum(self) -> u16 {
        !self.folded()
    }
}

/// Folds a sum of words to 16 bits in one's complement.
#[inline]
fn fold(sum: u64) -> u16 {
    // The lines leave 33, 18, 17 and 16 bits.
    let sum = (sum >> 32) + (sum & 0xffff_ffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    ((sum >> 16) + (sum & 0xffff)) as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use core::net::Ipv4Addr;
    use isola_iobuf::IoBuf;
    use isola_proves::proves;

    #[proves("RFC 1071 3", "the example's sum comes out")]
    #[test]
    fn the_sum_of_the_rfc_1071_example_is_correct() {
        let mut sum = Sum::default();
        sum.add(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]);
        assert_eq!(sum.folded(), 0xddf2);
    }

    #[test]
    fn the_sum_does_not_depend_on_the_division_into_pieces() {
        let bytes: Vec<u8> = (0..57u32).map(|i| (i * 151 + 7) as u8).collect();
        let mut whole = Sum::default();
        whole.add(&bytes);
        for first in 0..bytes.len() {
            for second in first..bytes.len() {
                let mut chain = Chain::new();
                for part in [&bytes[..first], &bytes[first..second], &bytes[second..]] {
                    chain.push_back(IoBuf::copy_from_slice(part));
                }
                let mut cut = Sum::default();
                cut.add_chain(&chain);
                assert_eq!(cut.checksum(), whole.checksum(), "cut at {first} and {second}");
            }
        }
    }

    #[proves("RFC 9293 3.1", "the checksum covers a pseudo-header")]
    #[test]
    fn a_pseudo_header_agrees_with_the_wire_crate() {
        let udp = etherparse::UdpHeader { source_port: 1, destination_port: 2, length: 11, checksum: 0 };
        let (a, b) = ([10, 0, 0, 1], [192, 168, 7, 9]);
        let expected = udp.calc_checksum_ipv4_raw(a, b, b"xyz").unwrap();
        let mut sum = Sum::pseudo_header(Ipv4Addr::from(a).into(), Ipv4Addr::from(b).into(), 17, 11);
        sum.add(&udp.to_bytes());
        sum.add(b"xyz");
        assert_eq!(sum.checksum(), expected);
    }
}
