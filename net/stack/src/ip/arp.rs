//! ARP packets (RFC 826): the mapping from IPv4 to Ethernet addresses. [`neighbour`](super::neighbour) stores it.

use crate::base::MacAddr;
use core::net::Ipv4Addr;
use etherparse::{ArpHardwareId, ArpOperation, ArpPacketSlice, EtherType};

/// Length of an ARP packet for IPv4 on Ethernet.
pub(crate) const PACKET_LEN: usize = 28;

/// A request or a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ArpPacket {
    pub operation: ArpOperation,
    pub sender_mac: MacAddr,
    pub sender_ip: Ipv4Addr,
    pub target_mac: MacAddr,
    pub target_ip: Ipv4Addr,
}

impl ArpPacket {
    /// Parses a packet; returns `None` if it is malformed or not about IPv4 on Ethernet.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let packet = ArpPacketSlice::from_slice(bytes).ok()?;
        if packet.hw_addr_type() != ArpHardwareId::ETHERNET || packet.proto_addr_type() != EtherType::IPV4 {
            return None;
        }
        Some(Self {
            operation: packet.operation(),
            sender_mac: MacAddr(packet.sender_hw_addr().try_into().ok()?),
            sender_ip: <[u8; 4]>::try_from(packet.sender_protocol_addr()).ok()?.into(),
            target_mac: MacAddr(packet.target_hw_addr().try_into().ok()?),
            target_ip: <[u8; 4]>::try_from(packet.target_protocol_addr()).ok()?.into(),
        })
    }

    /// Returns the packet's bytes.
    pub fn bytes(&self) -> [u8; PACKET_LEN] {
        let mut bytes = [0; PACKET_LEN];
        bytes[0..8].copy_from_slice(&[0, 1, 8, 0, 6, 4, 0, self.operation.0 as u8]);
        bytes[8..14].copy_from_slice(&self.sender_mac.0);
        bytes[14..18].copy_from_slice(&self.sender_ip.octets());
        bytes[18..24].copy_from_slice(&self.target_mac.0);
        bytes[24..28].copy_from_slice(&self.target_ip.octets());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 9);
    const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 9]);

    #[test]
    fn a_written_packet_parses_to_the_same_packet() {
        let packet = ArpPacket {
            operation: ArpOperation::REPLY,
            sender_mac: MAC,
            sender_ip: PEER,
            target_mac: MacAddr([2, 0, 0, 0, 0, 1]),
            target_ip: Ipv4Addr::new(10, 0, 0, 1),
        };
        assert_eq!(ArpPacket::parse(&packet.bytes()), Some(packet));
        for len in 0..PACKET_LEN {
            assert_eq!(ArpPacket::parse(&packet.bytes()[..len]), None);
        }
        let mut bytes = packet.bytes();
        bytes[4] = 8;
        assert_eq!(ArpPacket::parse(&bytes), None);
    }
}
