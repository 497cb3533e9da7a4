//! The same segments at a stack of a program that does not use TCP yet, and of one that does but does not listen.

use isola_net_sim::{Peer, Segment, host_ip};
use isola_net_stack::{Counter, use_tcp};

/// Returns the answers to segments of many kinds, and the counters behind them.
fn answers() -> (Vec<Vec<u8>>, Vec<u64>) {
    let mut peer = Peer::fast();
    let mut frames = Vec::new();
    for flags in ["", "S", "F", "R", "P", "SF", "SR", "FR", "SP"] {
        for ack in [None, Some(4_000_000_000)] {
            for payload in [&b""[..], b"some data"] {
                let plain = Segment::new(4000, 80, u32::MAX - 3, ack).flags(flags).payload(payload);
                let timed = plain.clone().timestamps(7, 9).options(Some(1400), Some(3));
                for segment in [plain, timed] {
                    peer.send(segment.clone());
                    frames.extend(peer.data_frames());
                    let mut cut = segment.frame(host_ip(2), host_ip(1));
                    cut[14 + 20 + 12] |= 0xf0;
                    peer.send_frame(cut);
                    frames.extend(peer.data_frames());
                }
            }
        }
    }
    assert!(peer.events().is_empty());
    let counters = Counter::ALL.iter().map(|counter| peer.stack.counters().get(*counter)).collect();
    (frames, counters)
}

#[test]
fn segments_are_refused_alike_whether_or_not_the_program_uses_tcp() {
    let before = answers();
    use_tcp();
    let after = answers();
    assert!(before.0.len() > 20, "{} answers", before.0.len());
    assert_eq!(before, after);
}
