//! What hides in parts of IPv6 packets, and is refused.

mod link6;

use etherparse::IpNumber;
use isola_net_sim::{Peer, host_config6, host_ip6, share};
use isola_net_stack::{Config, Counter};
use isola_proves::proves;
use link6::*;

/// A frame with a part of what `next` says, `offset` bytes into it.
fn part(next: u8, id: u8, (offset, more): (u16, bool), data: &[u8]) -> Vec<u8> {
    let [high, low] = (offset | u16::from(more)).to_be_bytes();
    let bytes = [&[next, 0, high, low, 0, 0, 0, id], data].concat();
    ip6(host_ip6(2), host_ip6(1), 255, IpNumber::IPV6_FRAGMENTATION_HEADER, &bytes)
}

/// `whole` in two parts.
fn parts(next: u8, id: u8, whole: &[u8]) -> [Vec<u8>; 2] {
    [part(next, id, (0, true), &whole[..8]), part(next, id, (8, false), &whole[8..])]
}

/// Stacks that are alone and that are the first of several.
fn peers() -> [Peer; 2] {
    [1, 4].map(|count| ready(Config { core: share(0, count), ..host_config6(1) }))
}

/// Sends a frame, and what is to be steered then again.
fn send(peer: &mut Peer, frame: Vec<u8>) {
    peer.send_frame(frame);
    for _ in 0..100 {
        let Some(whole) = peer.stack.take_reassembled() else { return };
        peer.send_frame(whole.to_vec());
    }
    panic!("steered without an end");
}

fn count(peer: &Peer, counter: Counter) -> u64 {
    peer.stack.counters().get(counter)
}

#[test]
fn parts_within_parts_are_refused() {
    for mut peer in peers() {
        // The last part of each packet is in the next one: if they nested, one frame would unfold them all.
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

#[proves(
    "RFC 6980 5",
    "messages about neighbours and routers are ignored where they have a fragment header."
)]
#[test]
fn what_neighbours_are_told_in_parts_is_not_believed() {
    for mut peer in peers() {
        let told = icmp6(host_ip6(2), host_ip6(1), 255, &advertisement(host_ip6(2), 0x60, 9));
        let asked = icmp6(host_ip6(2), host_ip6(1), 255, &solicitation(host_ip6(1), Some(9)));
        for (id, message) in (1..).zip([&told[54..], &asked[54..]]) {
            send(&mut peer, part(58, 0, (0, false), message));
            assert_eq!(count(&peer, Counter::DropNdpInvalid), 2 * u64::from(id) - 1);
            for part in parts(58, id, message) {
                send(&mut peer, part);
            }
            assert_eq!(count(&peer, Counter::DropNdpInvalid), 2 * u64::from(id));
        }
        assert_eq!((peer.frames().len(), peer.events().len()), (0, 0));
        send(&mut peer, told);
        assert_eq!(count(&peer, Counter::DropNdpInvalid), 4, "in one piece it is believed");
    }
}
