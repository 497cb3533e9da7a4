//! The hash of receive-side scaling (Toeplitz, as Microsoft's specification of RSS has it): every bit that is set adds a part
//! of the key, shifted by the bit's place. It is what devices compute, so that they and the stack agree.
//!
//! Eight bits are looked up at once. It is linear, so that it serves for spreading alone: tables that must not fill in one
//! place have hashes of their own.

use crate::address::Flow;
use alloc::boxed::Box;
use core::net::IpAddr;

/// Length of a key, in bytes: enough for two IPv6 addresses and two ports.
pub const KEY_LEN: usize = 40;

/// Bytes that are hashed of an IPv6 flow; there is a table for each.
const LONGEST: usize = 36;

/// The hash with a key, as a table for each byte.
pub(crate) struct Toeplitz {
    tables: Box<[[u32; 256]]>,
}

impl Toeplitz {
    /// The hash with this key.
    pub fn new(key: &[u8; KEY_LEN]) -> Self {
        let table = |at: usize| {
            // The key's bits from this byte on; behind its end there are none.
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

    /// The hash that is always zero.
    pub fn none() -> Self {
        Self { tables: Box::default() }
    }

    /// The hash of the frames that come in of a flow: source, destination, and their ports.
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
        let looked_up = self.tables.iter().zip(&bytes[..len + 4]);
        looked_up.fold(0, |sum, (table, byte)| sum ^ table[usize::from(*byte)])
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
    use core::net::SocketAddr;

    /// The key and the sums of Microsoft's "Verifying the RSS Hash Calculation".
    const KEY: [u8; KEY_LEN] = [
        0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0,
        0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42,
        0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
    ];

    #[test]
    fn known_flows_have_the_hashes_that_devices_give_them() {
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
}
