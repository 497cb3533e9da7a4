//! Settings that several protocols share: the device's offloads, the limits, and the secret.

use core::fmt;

/// The default hop limit of outgoing packets.
pub(crate) const HOP_LIMIT: u8 = 64;

/// The smallest MTU of an interface: the packet length that every host must accept (RFC 791).
pub const MIN_MTU: usize = 576;

/// The largest MTU of an interface: the limit of IPv4's length field.
pub const MAX_MTU: usize = 65_535;

/// The component that computes the TCP and UDP checksums of outgoing frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TxChecksum {
    /// The stack.
    Software,
    /// The device, at the position in [`PartialChecksum`](crate::PartialChecksum).
    Device,
}

/// The IP families for which the device segments TCP. It must complete checksums as well.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TxSegments {
    /// Over IPv4.
    pub ipv4: bool,
    /// Over IPv6.
    pub ipv6: bool,
}

/// Whether an incoming frame's TCP or UDP checksum was verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RxChecksum {
    /// No: the stack verifies it.
    Unverified,
    /// The device has verified it, or the frame was never on a wire (virtio `DATA_VALID`, `NEEDS_CSUM`).
    Verified,
}

/// Limits of all protocols but TCP (see [`TcpConfig`](crate::TcpConfig)).
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Stored neighbours.
    pub neighbours: usize,
    /// Packets that wait for one neighbour's hardware address.
    pub neighbour_queue: usize,
    /// Frames that wait for `poll_transmit`, without TCP data.
    pub transmit_queue: usize,
    /// UDP sockets.
    pub udp_sockets: usize,
    /// Datagrams that wait in one UDP socket.
    pub udp_datagrams: usize,
    /// Memory of the datagrams that wait in one UDP socket, in bytes.
    pub udp_bytes: usize,
    /// Incomplete packets in reassembly.
    pub fragmented_packets: usize,
    /// Memory of waiting fragments, in bytes; beyond it the oldest packet is dropped.
    pub fragment_bytes: usize,
    /// ICMP messages per second: echo replies, sent errors, and received errors about datagrams each.
    pub icmp_per_second: u32,
    /// Resets per second for segments without a connection.
    pub resets_per_second: u32,
    /// Challenge acknowledgements (RFC 5961) per second.
    pub challenges_per_second: u32,
    /// Waiting events that belong to no connection or socket; the oldest is dropped.
    pub events: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            neighbours: 512,
            neighbour_queue: 16,
            transmit_queue: 1024,
            udp_sockets: 1024,
            udp_datagrams: 256,
            udp_bytes: 1 << 20,
            fragmented_packets: 64,
            fragment_bytes: 512 << 10,
            icmp_per_second: 1000,
            resets_per_second: 1000,
            challenges_per_second: 1000,
            events: 64,
        }
    }
}

/// Random secret bytes, new at each boot: the keys of all hashes and the seed of all choices that must be unpredictable
/// (sequence numbers, ports, transaction ids, the hashes of tables).
#[derive(Clone, Copy)]
pub struct Secret(pub [u8; 32]);

impl Secret {
    /// Returns the keys for a use, which `purpose` identifies: 1 sequence numbers, 2 ports of connections, 3 flow tables,
    /// 4 DHCP (the first key) and ports of UDP (the second), 5 IPv6 addresses, 6 DHCPv6, 7 SYN cookies. No two uses
    /// share a key: a seed whose numbers leave the machine would reveal the key of another.
    pub(crate) fn keys(&self, purpose: u64) -> (u64, u64) {
        let mut words = [0u64; 4];
        for (word, bytes) in words.iter_mut().zip(self.0.as_chunks::<8>().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        let [a, b, c, d] = words;
        let hasher = siphasher::sip::SipHasher24::new_with_keys(a, b);
        let first = hasher.hash(&[c, purpose].map(u64::to_le_bytes).concat());
        let second = hasher.hash(&[d, !purpose].map(u64::to_le_bytes).concat());
        (first, second)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}
