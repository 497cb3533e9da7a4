//! The Toeplitz hash of receive-side scaling, as Microsoft's RSS specification defines it: every set bit adds a part of
//! the key, shifted by the bit's position. Devices compute the same hash.
//!
//! The computation looks up eight bits at once. The hash is linear, and so only suitable for spreading: hash tables
//! that must resist collisions use other hashes.

use crate::base::Flow;
use alloc::boxed::Box;
use core::net::IpAddr;

/// Length of a key, in bytes: enough for two IPv6 addresses and two ports.
pub const KEY_LEN: usize = 40;

/// The hashed bytes of an IPv6 flow; there is a table for each.
const LONGEST: usize = 36;

/// The position of a port's last bit in the hashed bytes: of the remote and the local port over IPv4, then over IPv6.
const LAST_BITS_OF_PORTS: [usize; 4] = [79, 95, 271, 287];

/// The number of lowest hash bits that distinguish neighbouring ports.
const EVEN_BITS: usize = 7;

/// Returns the key with some bits changed, so that consecutive ports spread evenly: of 2^n ports that start at a
/// multiple of 2^n, no two have the same lowest n bits of the hash, for n up to 7. One in 32 random keys would give 32
/// consecutive ports the same lowest bit.
///
/// The effect of a port's lowest bits on the hash's lowest bits is a matrix with constant antidiagonals, each a bit of
/// the key. The leading submatrices are made invertible, the smallest first, by the bit of the antidiagonal that ends
/// in their corner.
pub(crate) fn evened(mut key: [u8; KEY_LEN]) -> [u8; KEY_LEN] {
    for last in LAST_BITS_OF_PORTS {
        let bit_index = |diagonal: usize| last + 31 - diagonal;
        for size in 1..=EVEN_BITS {
            let bit = |diagonal| key[bit_index(diagonal) / 8] >> (7 - bit_index(diagonal) % 8) & 1;
            if !is_invertible(size, bit) {
                let corner = bit_index(2 * (size - 1));
                key[corner / 8] ^= 0x80 >> (corner % 8);
            }
        }
    }
    key
}

/// Returns whether the matrix of bits with these antidiagonals is invertible, by elimination.
fn is_invertible(size: usize, diagonal: impl Fn(usize) -> u8) -> bool {
    let row = |number: usize| (0..size).fold(0u8, |row, column| row | diagonal(number + column) << column);
    let mut rows: [u8; EVEN_BITS] =
        core::array::from_fn(|number| if number < size { row(number) } else { 0 });
    (0..size).all(|column| {
        let is_set = |row: u8| row >> column & 1 != 0;
        let Some(pivot) = (column..size).find(|&number| is_set(rows[number])) else { return false };
        rows.swap(column, pivot);
        let (done, below) = rows.split_at_mut(column + 1);
        below.iter_mut().filter(|row| is_set(**row)).for_each(|row| *row ^= done[column]);
        true
    })
}

/// The hash with a key, as a table for each byte.
pub(crate) struct Toeplitz {
    tables: Box<[[u32; 256]]>,
}

impl Toeplitz {
    /// Returns the hash with this key.
    pub fn new(key: &[u8; KEY_LEN]) -> Self {
        let table = |at: usize| {
            // The key's bits from this byte on, with zeros after its end.
            let part =
                (0..8).fold(0, |part: u64, next| part << 8 | u64::from(*key.get(at + next).unwrap_or(&0)));
            let mut table = [0; 256];
            for (byte, entry) in (0u8..=255).zip(&mut table) {
                let bits = (0..8).filter(|bit| byte << bit & 0x80 != 0);
                *entry = bits.fold(0, |sum, bit| sum ^ (part << bit >> 32) as u32);
            }
            table
        };
        Self { tables: (0..LONGEST).map(table).collect() }
    }

    /// Returns the hash that is always zero.
    pub fn none() -> Self {
        Self { tables: Box::default() }
    }

    /// Returns the hash of a flow's incoming frames: source, destination, and their ports.
    #[inline]
    pub fn hash(&self, flow: &Flow) -> u32 {
        let (from, to) = (flow.remote, flow.local);
        let mut bytes = [0; LONGEST];
        let len = match (from.ip(), to.ip()) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                bytes[..4].copy_from_slice(&source.octets());
                bytes[4..8].copy_from_slice(&destination.octets());
                8
            }
            (source, destination) => {
                bytes[..16].copy_from_slice(&octets6(source));
                bytes[16..32].copy_from_slice(&octets6(destination));
                32
            }
        };
        bytes[len..len + 2].copy_from_slice(&from.port().to_be_bytes());
        bytes[len + 2..len + 4].copy_from_slice(&to.port().to_be_bytes());
        self.hash_bytes(&bytes[..len + 4])
    }

    /// Returns the hash of these bytes: of a flow's source, destination and ports.
    #[inline]
    pub fn hash_bytes(&self, bytes: &[u8]) -> u32 {
        self.tables.iter().zip(bytes).fold(0, |sum, (table, byte)| sum ^ table[usize::from(*byte)])
    }
}

fn octets6(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;
    use core::net::SocketAddr;
    use proptest::prelude::*;

    /// The key and the hashes of Microsoft's "Verifying the RSS Hash Calculation".
    const KEY: [u8; KEY_LEN] = [
        0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0,
        0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42,
        0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
    ];

    #[test]
    fn known_flows_have_the_specified_hashes() {
        let known = [
            ("66.9.149.187:2794", "161.142.100.80:1766", 0x51cc_c178),
            ("199.92.111.2:14230", "65.69.140.83:4739", 0xc626_b0ea),
            ("24.19.198.95:12898", "12.22.207.184:38024", 0x5c2b_394a),
            ("38.27.205.30:48228", "209.142.163.6:2217", 0xafc7_327f),
            ("153.39.163.191:44251", "202.188.127.2:1303", 0x10e8_28a2),
            ("[3ffe:2501:200:1fff::7]:2794", "[3ffe:2501:200:3::1]:1766", 0x4020_7d3d),
            ("[3ffe:501:8::260:97ff:fe40:efab]:14230", "[ff02::1]:4739", 0xdde5_1bbf),
            ("[3ffe:1900:4545:3:200:f8ff:fe21:67cf]:44251", "[fe80::200:f8ff:fe21:67cf]:38024", 0x02d1_feef),
        ];
        let hash = Toeplitz::new(&KEY);
        for (source, destination, sum) in known {
            let (remote, local): (SocketAddr, SocketAddr) =
                (source.parse().unwrap(), destination.parse().unwrap());
            assert_eq!(hash.hash(&Flow { local, remote }), sum, "{source}");
        }
    }

    proptest! {
        #[test]
        fn neighbouring_ports_spread_evenly_with_any_key(
            key in proptest::array::uniform32(any::<u8>()),
            bits in 1u16..8,
            block: u16,
            v6: bool,
        ) {
            let key: [u8; KEY_LEN] = core::array::from_fn(|byte| key[byte % 32] ^ (byte / 32) as u8);
            let hash = Toeplitz::new(&evened(key));
            let [one, other]: [IpAddr; 2] = match v6 {
                true => ["fe80::1".parse().unwrap(), "fe80::2".parse().unwrap()],
                false => ["10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap()],
            };
            let first = block << bits;
            let (mut remote, mut local) = (BTreeSet::new(), BTreeSet::new());
            for port in first..=first + ((1 << bits) - 1) {
                let lowest = |flow: Flow| hash.hash(&flow) & ((1 << bits) - 1);
                remote.insert(lowest(Flow::new(one, 80, other, port)));
                local.insert(lowest(Flow::new(one, port, other, 80)));
            }
            prop_assert_eq!((remote.len(), local.len()), (1 << bits, 1 << bits));
        }
    }
}
