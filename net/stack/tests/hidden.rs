//! Fragmented IPv6 packets with contents that must be rejected.

use crate::link6::*;
use etherparse::IpNumber;
use isola_net_sim::{Peer, host_config6, host_ip6, share};
use isola_net_stack::{Config, Counter};
use isola_proves::proves;

/// Returns a frame with a fragment of a packet with next header `next`, at `offset` bytes.
fn part(next: u8, id: u8, (offset, more): (u16, bool), data: &[u8]) -> Vec<u8> {
    let [high, low] = (offset | u16::from(more)).to_be_bytes();
    let bytes = [&[next, 0, high, low, 0, 0, 0, id], data].concat();
    ip6(host_ip6(2), host_ip6(1), 255, IpNumber::IPV6_FRAGMENTATION_HEADER, &bytes)
}

/// Splits `whole` into two fragments.
fn parts(next: u8, id: u8, whole: &[u8]) -> [Vec<u8>; 2] {
    [part(next, id, (0, true), &whole[..8]), part(next, id, (8, false), &whole[8..])]
}

/// Returns a stack that is alone, and one that is the first of several.
fn peers() -> [Peer; 2] {
    [1, 4].map(|count| ready(Config { core: share(0, count), ..host_config6(1) }))
}

/// Sends a frame, and sends the reassembled frames that the stack returns for steering.
fn send(peer: &mut Peer, frame: Vec<u8>) {
    peer.send_frame(frame);
    for _ in 0..100 {
        let Some(whole) = peer.stack.take_reassembled() else { return };
        peer.send_frame(whole.to_vec());
    }
    panic!("reassembled frames without end");
}

fn count(peer: &Peer, counter: Counter) -> u64 {
    peer.stack.counters().get(counter)
}

#[test]
fn nested_fragments_are_rejected() {
    for mut peer in peers() {
        // The last fragment of each packet is inside the next packet: nested reassembly would process all of them for
        // one frame.
        let mut last = part(17, 0, (8, false), &[0; 16])[54..].to_vec();
        send(&mut peer, part(17, 0, (0, true), &[0; 8]));
        for id in 1..60 {
            let [first, second] = parts(44, id, &last);
            send(&mut peer, first);
            last = second[54..].to_vec();
        }
        let frame = ip6(host_ip6(2), host_ip6(1), 255, IpNumber::IPV6_FRAGMENTATION_HEADER, &last);
        send(&mut peer, frame);
        assert_eq!(count(&peer, Counter::Reassembled), 1);
        assert_eq!(count(&peer, Counter::DropFragmentMalformed), 1);
    }
}

#[proves("RFC 6980 5", "neighbour discovery messages with a fragment header are ignored.")]
#[test]
fn fragmented_neighbour_discovery_messages_are_ignored() {
    for mut peer in peers() {
        let advert = icmp6(host_ip6(2), host_ip6(1), 255, &advertisement(host_ip6(2), 0x60, 9));
        let asked = icmp6(host_ip6(2), host_ip6(1), 255, &solicitation(host_ip6(1), Some(9)));
        for (id, message) in (1..).zip([&advert[54..], &asked[54..]]) {
            send(&mut peer, part(58, 0, (0, false), message));
            assert_eq!(count(&peer, Counter::DropNdpInvalid), 2 * u64::from(id) - 1);
            for part in parts(58, id, message) {
                send(&mut peer, part);
            }
            assert_eq!(count(&peer, Counter::DropNdpInvalid), 2 * u64::from(id));
        }
        assert_eq!((peer.frames().len(), peer.events().len()), (0, 0));
        send(&mut peer, advert);
        assert_eq!(count(&peer, Counter::DropNdpInvalid), 4, "an unfragmented message is accepted");
    }
}
