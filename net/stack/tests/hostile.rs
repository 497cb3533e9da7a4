//! Arbitrary input from the network causes no panic and no unbounded growth.

use isola_iobuf::IoBuf;
use isola_net_sim::{Peer, PeerConnection, Segment, host_config, host_ip};
use isola_net_stack::{Duration, Event, RxChecksum};
use proptest::prelude::*;

fn busy() -> (Peer, PeerConnection) {
    let mut config = host_config(1);
    config.tcp.max_half_open = 16;
    config.tcp.max_time_wait = 16;
    let mut peer = Peer::new(config);
    peer.stack.listen(80, 4).unwrap();
    peer.stack.udp_bind(53).unwrap();
    let syn =
        Segment::new(4000, 80, 1_000_000, None).flags("S").options(Some(1460), Some(7)).sack_permitted();
    let connection = peer.connect_with(syn);
    peer.write(connection.conn, &[7; 5000]);
    peer.segments();
    (peer, connection)
}

/// Handles all events like a careless application, and checks the bounds.
fn live(peer: &mut Peer, read: bool) {
    for event in peer.events() {
        match event {
            Event::Readable(conn) if read => while peer.stack.read(conn).is_some() {},
            Event::Datagram(socket) => while peer.stack.udp_receive(socket).is_some() {},
            Event::PeerClosed(conn) => peer.stack.close(peer.now, conn),
            _ => {}
        }
    }
    peer.frames();
    let occupancy = peer.stack.occupancy();
    assert!(occupancy.half_open <= 16 && occupancy.time_wait <= 16);
}

/// Returns a segment with numbers near those of the connection, where most of the dangerous cases are. Its SACK blocks
/// are anywhere in the sequence space.
fn segment() -> impl Strategy<Value = (Segment, i64, i64, Vec<(i64, i64)>)> {
    let flags = prop::sample::select(vec!["", "", "", "P", "F", "FP", "S", "R", "SP"]);
    let near = prop_oneof![4 => -5i64..20, 2 => -3000i64..70_000, 1 => any::<i32>().prop_map(i64::from)];
    let payload = prop_oneof![3 => 0usize..4, 2 => 0usize..1460];
    let acks = prop_oneof![9 => Just(true), 1 => Just(false)];
    let port = prop_oneof![9 => Just(4000u16), 1 => 4001u16..4010];
    let quarters = prop::sample::select(vec![-1i64 << 30, (-1 << 30) - 1, -1 << 31, 1 << 30, (1 << 30) + 1]);
    let edge = prop_oneof![3 => near.clone(), 1 => quarters, 1 => Just(0i64), 1 => Just(5000i64)];
    let blocks = prop::collection::vec((edge.clone(), edge), 0..4);
    (flags, near.clone(), near, payload, acks, any::<u16>(), port, blocks).prop_map(
        |(flags, seq, ack, len, acks, window, port, blocks)| {
            let ack_field = acks.then_some(0);
            let segment =
                Segment::new(port, 80, 0, ack_field).flags(flags).window(window).payload(&vec![0x55; len]);
            (segment, seq, ack, blocks)
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn arbitrary_frames_cause_no_panic(
        frames in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 1..20),
    ) {
        let (mut peer, _) = busy();
        for frame in frames {
            peer.send_frame(frame);
            live(&mut peer, true);
        }
    }

    #[test]
    fn arbitrary_changes_to_a_valid_frame_cause_no_panic(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in prop::option::of(any::<prop::sample::Index>()),
        options in prop::collection::vec(any::<u8>(), 0..40),
    ) {
        let (mut peer, connection) = busy();
        let mut frame = connection.segment().payload(b"some data").frame(host_ip(2), host_ip(1));
        frame.splice(54..54, options);
        for (at, value) in changes {
            let at = at.index(frame.len());
            frame[at] = value;
        }
        if let Some(cut) = cut {
            frame.truncate(cut.index(frame.len()));
        }
        // Marked as verified, so that the changes reach the layers behind the checksum.
        peer.stack.receive(peer.now, IoBuf::from(frame), RxChecksum::Verified);
        live(&mut peer, true);
    }

    #[test]
    fn arbitrary_sequences_of_segments_cause_no_panic_and_leave_bounded_state(
        steps in prop::collection::vec((segment(), 0u64..400, any::<bool>()), 1..60),
    ) {
        let (mut peer, connection) = busy();
        for ((mut segment, seq, ack, blocks), millis, read) in steps {
            let place = |at: i64| connection.ack.wrapping_add(at as u32);
            segment.sack = blocks.iter().map(|&(start, end)| (place(start), place(end))).collect();
            segment.seq = connection.seq.wrapping_add(seq as u32);
            segment.ack = segment.ack.map(|_| connection.ack.wrapping_add(ack as u32));
            peer.send(segment);
            live(&mut peer, read);
            peer.pass(Duration::from_millis(millis));
        }
        // After the longest timers, only state that waits for the peer or the application is left.
        for _ in 0..60 {
            peer.pass(Duration::from_secs(60));
            live(&mut peer, true);
        }
        prop_assert_eq!(peer.stack.occupancy().half_open, 0);
        prop_assert_eq!(peer.stack.occupancy().time_wait, 0);
    }

    #[test]
    fn a_blind_attacker_does_not_disturb_a_stream(
        attacks in prop::collection::vec((any::<u32>(), any::<u32>(), prop::sample::select(vec!["", "S", "R", "F"])), 1..50),
    ) {
        let (mut peer, mut connection) = busy();
        for (seq, ack, flags) in attacks {
            // The attacker is blind: it does not have the exact numbers. Another test covers an attacker within the
            // window.
            if seq.wrapping_sub(connection.seq) < 300_000 {
                continue;
            }
            peer.send(Segment::new(4000, 80, seq, Some(ack)).flags(flags).payload(b"evil"));
            peer.segments();
            peer.send_data(&mut connection, b"good");
            prop_assert_eq!(peer.read(connection.conn), b"good");
        }
        prop_assert_eq!(peer.stack.occupancy().connections, 1);
    }
}

#[test]
fn every_dropped_frame_is_counted() {
    let (mut peer, _) = busy();
    let before: u64 = drops(&peer);
    for len in 0..100 {
        peer.send_frame(vec![0xab; len]);
    }
    assert_eq!(drops(&peer) - before, 100);
}

fn drops(peer: &Peer) -> u64 {
    peer.stack
        .counters()
        .iter()
        .filter(|(counter, _)| counter.name().starts_with("drop_"))
        .map(|(_, value)| value)
        .sum()
}
