//! Packets as hosts send them, with checksums computed as a whole, and a reader that verifies them.

use std::net::Ipv4Addr;

pub type Mac = [u8; 6];

pub const SYN: u8 = 0x02;
pub const ACK: u8 = 0x10;
pub const SYN_ACK: u8 = SYN | ACK;
pub const FIN_ACK: u8 = 0x01 | ACK;
pub const RST: u8 = 0x04;
pub const ECHO: u8 = 8;
pub const ECHO_REPLY: u8 = 0;

pub fn sum(bytes: &[u8]) -> u16 {
    let mut sum = 0u32;
    for word in bytes.chunks(2) {
        sum += u32::from(u16::from_be_bytes([word[0], word.get(1).copied().unwrap_or(0)]));
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

pub fn frame(to: Mac, from: Mac, packet: &[u8]) -> Vec<u8> {
    [&to[..], &from, &[8, 0], packet].concat()
}

pub fn arp(to: Mac, from: Mac, kind: u8, sender: (Mac, Ipv4Addr), target: Ipv4Addr) -> Vec<u8> {
    let head = [&to[..], &from, &[8, 6, 0, 1, 8, 0, 6, 4, 0, kind]].concat();
    [&head[..], &sender.0, &sender.1.octets(), &[0; 6], &target.octets()].concat()
}

pub fn ip(from: Ipv4Addr, to: Ipv4Addr, protocol: u8, data: &[u8]) -> Vec<u8> {
    let [high, low] = (20 + data.len() as u16).to_be_bytes();
    let mut header =
        [&[0x45, 0, high, low, 0x12, 0x34, 0x40, 0, 64, protocol, 0, 0], &from.octets()[..]].concat();
    header.extend_from_slice(&to.octets());
    let checksum = sum(&header);
    header[10..12].copy_from_slice(&checksum.to_be_bytes());
    [header, data.to_vec()].concat()
}

fn with_pseudo_header(from: Ipv4Addr, to: Ipv4Addr, protocol: u8, data: &[u8]) -> u16 {
    let len = (data.len() as u16).to_be_bytes();
    sum(&[&from.octets()[..], &to.octets(), &[0, protocol], &len, data].concat())
}

pub type Socket = (Ipv4Addr, u16);

pub fn tcp(from: Socket, to: Socket, flags: u8, data: &[u8]) -> Vec<u8> {
    let mut segment = [&from.1.to_be_bytes()[..], &to.1.to_be_bytes(), &[0, 0, 1, 2, 3, 4, 5, 6]].concat();
    segment.extend_from_slice(&[0x50, flags, 0xff, 0xff, 0, 0, 0, 0]);
    segment.extend_from_slice(data);
    let checksum = with_pseudo_header(from.0, to.0, 6, &segment);
    segment[16..18].copy_from_slice(&checksum.to_be_bytes());
    ip(from.0, to.0, 6, &segment)
}

pub fn udp(from: Socket, to: Socket, data: &[u8]) -> Vec<u8> {
    let len = (8 + data.len() as u16).to_be_bytes();
    let mut datagram = [&from.1.to_be_bytes()[..], &to.1.to_be_bytes(), &len, &[0, 0], data].concat();
    let checksum = with_pseudo_header(from.0, to.0, 17, &datagram);
    let checksum = if checksum == 0 { 0xffff } else { checksum };
    datagram[6..8].copy_from_slice(&checksum.to_be_bytes());
    ip(from.0, to.0, 17, &datagram)
}

pub fn icmp(from: Ipv4Addr, to: Ipv4Addr, kind: u8, rest: &[u8]) -> Vec<u8> {
    let mut message = [&[kind, 0, 0, 0], rest].concat();
    let checksum = sum(&message);
    message[2..4].copy_from_slice(&checksum.to_be_bytes());
    ip(from, to, 1, &message)
}

pub fn echo(from: Ipv4Addr, to: Ipv4Addr, kind: u8, identifier: u16) -> Vec<u8> {
    icmp(from, to, kind, &[&identifier.to_be_bytes()[..], &[0, 7], b"payload"].concat())
}

/// An ICMP error about a packet, of which it has the first `len` bytes.
pub fn error(from: Ipv4Addr, to: Ipv4Addr, about: &[u8], len: usize) -> Vec<u8> {
    icmp(from, to, 3, &[&[0; 4], &about[..len.min(about.len())]].concat())
}

/// The ends of a packet: addresses, and ports or the identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends {
    pub from: Socket,
    pub to: Socket,
}

pub fn port(packet: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([packet[at], packet[at + 1]])
}

pub fn address(packet: &[u8], at: usize) -> Ipv4Addr {
    <[u8; 4]>::try_from(&packet[at..at + 4]).unwrap().into()
}

/// Reads a packet, of which `is_whole` says that no byte is missing, and verifies its checksums.
pub fn read(packet: &[u8], is_whole: bool) -> Ends {
    assert_eq!(sum(&packet[..20]), 0, "the header's checksum: {packet:?}");
    let (from, to, data) = (address(packet, 12), address(packet, 16), &packet[20..]);
    match packet[9] {
        1 => {
            assert!(!is_whole || sum(data) == 0, "the message's checksum: {packet:?}");
            Ends { from: (from, port(data, 4)), to: (to, port(data, 4)) }
        }
        protocol => {
            let has_sum = protocol == 6 || data[6..8] != [0, 0];
            if is_whole && has_sum {
                assert_eq!(with_pseudo_header(from, to, protocol, data), 0, "the checksum: {packet:?}");
            }
            Ends { from: (from, port(data, 0)), to: (to, port(data, 2)) }
        }
    }
}
