//! The headers that decide whether a frame goes over a link.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const ETHERNET_LEN: usize = 14;
const TCP: u8 = 6;
const UDP: u8 = 17;

/// The ports of DHCP and DHCPv6: only the switch can refuse the datagrams of a false server, so they take the device.
const CONFIGURATION_PORTS: [u16; 4] = [67, 68, 546, 547];

/// The addresses of a TCP or UDP frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Headers {
    pub to: [u8; 6],
    pub from: [u8; 6],
    pub source: IpAddr,
}

/// Returns the addresses of a TCP or UDP frame to a single host, from its first bytes; `None` for all other frames: ARP,
/// ICMP, fragments, IPv6 extension headers, DHCP.
#[inline]
pub(crate) fn headers_of(frame: &[u8]) -> Option<Headers> {
    let (ethernet, packet) = frame.split_first_chunk::<ETHERNET_LEN>()?;
    let [t0, t1, t2, t3, t4, t5, f0, f1, f2, f3, f4, f5, kind @ ..] = *ethernet;
    let (to, from) = ([t0, t1, t2, t3, t4, t5], [f0, f1, f2, f3, f4, f5]);
    let (protocol, source, header_len): (u8, IpAddr, usize) = match kind {
        [0x08, 0x00] => {
            let header = packet.first_chunk::<20>()?;
            let is_fragment = header[6] & 0x3f != 0 || header[7] != 0;
            let source = <[u8; 4]>::try_from(header.get(12..16)?).ok()?;
            let len = usize::from(header[0] & 0xf) * 4;
            (header[9], Ipv4Addr::from(source).into(), Some(len).filter(|_| !is_fragment)?)
        }
        [0x86, 0xdd] => {
            let header = packet.first_chunk::<40>()?;
            let source = <[u8; 16]>::try_from(header.get(8..24)?).ok()?;
            (header[6], Ipv6Addr::from(source).into(), 40)
        }
        _ => return None,
    };
    let is_carried = match protocol {
        TCP => true,
        UDP => {
            let [a, b, c, d] = *packet.get(header_len..)?.first_chunk()?;
            let is_configuration = |port| CONFIGURATION_PORTS.contains(&u16::from_be_bytes(port));
            !is_configuration([a, b]) && !is_configuration([c, d])
        }
        _ => false,
    };
    let is_group = t0 & 1 != 0;
    (!is_group && is_carried).then_some(Headers { to, from, source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    fn frame(kind: [u8; 2], protocol: u8, at: usize, len: usize) -> Vec<u8> {
        let mut bytes: Vec<u8> = (0..14 + len as u8 + 4).map(|byte| byte + 100).collect();
        bytes[14] = 0x45;
        bytes[20..22].copy_from_slice(&[0x40, 0]);
        bytes[..12].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2]);
        bytes[12..14].copy_from_slice(&kind);
        bytes[14 + at] = protocol;
        bytes
    }

    #[test]
    fn only_tcp_and_udp_to_one_host_have_headers() {
        let four = |protocol| frame([8, 0], protocol, 9, 20);
        let six = |protocol| frame([0x86, 0xdd], protocol, 6, 40);
        let expected = |source: IpAddr| Headers { to: [2, 0, 0, 0, 0, 1], from: [2, 0, 0, 0, 0, 2], source };
        for protocol in 0..=255 {
            let is_carried = protocol == 6 || protocol == 17;
            let source = Ipv4Addr::new(126, 127, 128, 129).into();
            assert_eq!(headers_of(&four(protocol)), is_carried.then_some(expected(source)));
            assert_eq!(headers_of(&six(protocol)).is_some(), is_carried);
        }
        for whole in [four(6), six(17)] {
            for len in 0..whole.len() - 4 {
                assert_eq!(headers_of(&whole[..len]), None, "{len}");
            }
            let mut group = whole.clone();
            group[0] = 0x33;
            assert_eq!(headers_of(&group), None);
            let mut arp = whole;
            arp[13] = 6;
            assert_eq!(headers_of(&arp), None);
        }
    }

    #[test]
    fn configuration_and_fragments_take_the_device() {
        for (kind, at, len) in [([8, 0], 9, 20), ([0x86, 0xdd], 6, 40)] {
            let datagram = |from: u16, to: u16| {
                let mut bytes = frame(kind, 17, at, len);
                bytes[14 + len..16 + len].copy_from_slice(&from.to_be_bytes());
                bytes[16 + len..18 + len].copy_from_slice(&to.to_be_bytes());
                bytes
            };
            assert!(headers_of(&datagram(53, 1053)).is_some());
            for (from, to) in [(67, 68), (547, 546), (67, 1000), (1000, 68)] {
                assert_eq!(headers_of(&datagram(from, to)), None, "{from} to {to}");
            }
            assert_eq!(headers_of(&datagram(53, 1053)[..14 + len + 3]), None);
        }
        for (high, low) in [(0x20, 0), (0, 1), (0x1f, 0xff)] {
            let mut fragment = frame([8, 0], 6, 9, 20);
            fragment[20..22].copy_from_slice(&[high, low]);
            assert_eq!(headers_of(&fragment), None);
        }
        // With options, the ports are further behind.
        let mut long = frame([8, 0], 17, 9, 24);
        long[14] = 0x46;
        long[34..42].copy_from_slice(&[0, 67, 0, 68, 0, 67, 0, 68]);
        assert_eq!(headers_of(&long), None);
    }
}
