//! Messages about the link: neighbour resolution and its answers, by ARP and ICMPv6.

use crate::base::{Counters, MacAddr, Sum, group_mac, solicited_node};
use crate::ip::arp::{ArpPacket, PACKET_LEN};
use crate::ip::interface::Interface;
use crate::ip::neighbour::ResolutionRequest;
use crate::ip::{ethernet, ipv6, mld, ndp};
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv6Addr};
use etherparse::{ArpOperation, EtherType, IpNumber};
use isola_iobuf::{Chain, Frame, IoBuf};

/// A message about the link: it goes to neighbours only, without routing.
pub(crate) struct LinkMessage {
    pub source: Ipv6Addr,
    pub destination: Ipv6Addr,
    pub mac: MacAddr,
    pub kind: LinkMessageKind,
    /// The ICMPv6 message, its checksum zero.
    pub bytes: Vec<u8>,
}

/// The subject of an ICMPv6 message about the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkMessageKind {
    Neighbours,
    Listeners,
}

impl Interface {
    /// Sends a request to resolve an address: an ARP request or a neighbour solicitation.
    pub fn ask(&mut self, ask: ResolutionRequest, counters: &mut Counters) {
        match ask.ip {
            IpAddr::V4(target_ip) => {
                let Some(own) = self.ipv4 else { return };
                let request = ArpPacket {
                    operation: ArpOperation::REQUEST,
                    sender_mac: self.mac,
                    sender_ip: own.address,
                    target_mac: MacAddr([0; 6]),
                    target_ip,
                };
                self.send_arp(request, ask.to.unwrap_or(MacAddr::BROADCAST), counters);
            }
            IpAddr::V6(target) => {
                let Some(source) = self.ipv6.source_for(target) else { return };
                let group = solicited_node(target);
                let (destination, mac) = ask.to.map_or((group, group_mac(group)), |mac| (target, mac));
                let bytes = ndp::solicitation(target, Some(self.mac));
                let kind = LinkMessageKind::Neighbours;
                self.send_link_message(LinkMessage { source, destination, mac, kind, bytes }, counters);
            }
        }
    }

    /// Sends an ICMPv6 message about the link.
    pub fn send_link_message(&mut self, message: LinkMessage, counters: &mut Counters) {
        let LinkMessage { source, destination, mac, kind, mut bytes } = message;
        let mut sum =
            Sum::pseudo_header(source.into(), destination.into(), IpNumber::IPV6_ICMP.0, bytes.len());
        sum.add(&bytes);
        if let Some(field) = bytes.get_mut(2..4) {
            field.copy_from_slice(&sum.checksum().to_be_bytes());
        }
        let mut head = self.pool.take();
        let (next, hops) = match kind {
            LinkMessageKind::Neighbours => (IpNumber::IPV6_ICMP, ndp::HOPS),
            LinkMessageKind::Listeners => {
                let Some(alert) = head.prepend(mld::ROUTER_ALERT.len()) else { return };
                alert.copy_from_slice(&mld::ROUTER_ALERT);
                (IpNumber::IPV6_HEADER_HOP_BY_HOP, mld::HOPS)
            }
        };
        let made = ipv6::prepend(&mut head, bytes.len(), source, destination, next, hops)
            .and_then(|()| ethernet::prepend(&mut head, self.mac, mac, EtherType::IPV6));
        if made.is_some() {
            self.push(
                Frame { head, payload: Chain::from(IoBuf::from(bytes)), checksum: None, segment_len: None },
                counters,
            );
        }
    }

    /// Sends an ARP packet to `mac`.
    pub fn send_arp(&mut self, packet: ArpPacket, mac: MacAddr, counters: &mut Counters) {
        let mut head = self.pool.take();
        if let Some(bytes) = head.prepend(PACKET_LEN)
            && bytes.len() == PACKET_LEN
        {
            bytes.copy_from_slice(&packet.bytes());
        }
        if ethernet::prepend(&mut head, self.mac, mac, EtherType::ARP).is_some() {
            self.push(Frame { head, payload: Chain::new(), checksum: None, segment_len: None }, counters);
        }
    }
}
