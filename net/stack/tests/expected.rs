//! The short way of segments that are expected, and the general way: what comes of both is the same.

use isola_iobuf::{Chain, IoBuf};
use isola_net_sim::{Peer, Segment, Talk, host_config, host_ip};
use isola_net_stack::{Config, Duration, Event, RxChecksum, TcpConfig};
use proptest::prelude::*;

/// What a peer, or the application, does next. Positions are told from where the peer stands.
#[derive(Clone, Debug)]
enum Step {
    /// A segment: how far from the next byte it begins, its length, its flags, whether it acknowledges all
    /// that was sent or repeats what it said last, its window, and how far its clock is from the last one's.
    Segment { ahead: i32, len: usize, flags: &'static str, acks: bool, window: u16, ticks: i32 },
    /// The application sends.
    Send(usize),
    /// The application reads.
    Read,
    /// Time passes, in milliseconds.
    Pass(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let usually = |usual: BoxedStrategy<i32>, other: BoxedStrategy<i32>| prop_oneof![15 => usual, 1 => other];
    let segment = (
        usually(Just(0).boxed(), (-2000..2000).boxed()),
        prop_oneof![Just(0usize), 1..1400usize],
        prop_oneof![40 => Just(""), 40 => Just("P"), 1 => Just("F"), 1 => Just("E"), 1 => Just("S"), 1 => Just("R")],
        any::<bool>(),
        prop_oneof![12 => Just(60_000u16), 1 => Just(0), 1 => any::<u16>()],
        usually((0..3).boxed(), (-5..1).boxed()),
    )
        .prop_map(|(ahead, len, flags, acks, window, ticks)| {
            let len = if flags == "S" || flags == "R" { 0 } else { len };
            Step::Segment { ahead, len, flags, acks, window, ticks }
        });
    let step = prop_oneof![
        6 => segment,
        2 => (1..4000usize).prop_map(Step::Send),
        2 => Just(Step::Read),
        1 => (1..3000u64).prop_map(Step::Pass),
    ];
    prop::collection::vec(step, 1..100)
}

/// A stack with one connection, and where its peer stands.
struct Side {
    peer: Peer,
    talk: Talk,
    checksum: RxChecksum,
    clock: u32,
    /// Where what it sent last ends, and the timestamp of that.
    heard: (u32, u32),
    seen: Vec<String>,
}

impl Side {
    fn new(checksum: RxChecksum, clocks: bool) -> Self {
        // Limits that are reached.
        let tcp = TcpConfig { receive_window: 8_000, send_limit: 5_000, ..TcpConfig::default() };
        let mut peer = Peer::new(Config { tcp, ..host_config(1) });
        peer.stack.listen(80, 16).expect("a free port");
        let syn = Segment::new(4000, 80, 1_000_000, None).flags("S").options(Some(1400), Some(3));
        let syn = if clocks { syn.timestamps(100, 0) } else { syn };
        let talk = peer.connect_with(syn);
        let heard = (talk.ack, 0);
        Self { peer, talk, checksum, clock: 100, heard, seen: Vec::new() }
    }

    /// Does a step and writes down all that comes of it.
    fn take(&mut self, step: &Step, clocks: bool) {
        match *step {
            Step::Segment { ahead, len, flags, acks, window, ticks } => {
                self.clock = self.clock.wrapping_add_signed(ticks);
                let seq = self.talk.seq.wrapping_add_signed(ahead);
                let data: Vec<u8> = (0..len).map(|at| (at % 251) as u8).collect();
                if acks {
                    self.talk.ack = self.heard.0;
                }
                let segment = Segment { seq, ..self.talk.segment() };
                let segment = segment.flags(flags).window(window).payload(&data);
                let stamped = segment.clone().timestamps(self.clock, self.heard.1);
                let frame = if clocks { stamped } else { segment }.frame(host_ip(2), host_ip(1));
                self.peer.stack.receive(self.peer.now, IoBuf::from(frame), self.checksum);
                if ahead == 0 && matches!(flags, "" | "P") {
                    self.talk.seq = self.talk.seq.wrapping_add(len as u32);
                }
            }
            Step::Send(len) => {
                let mut data = Chain::from(IoBuf::copy_from_slice(&vec![7; len]));
                let sent = self.peer.stack.send_some(self.talk.conn, &mut data);
                self.seen.push(format!("{sent:?}"));
            }
            Step::Read => {
                let read = self.peer.stack.read_all(self.talk.conn).map(|(data, end)| (data.to_vec(), end));
                self.seen.push(format!("{read:?}"));
            }
            Step::Pass(millis) => {
                self.peer.now += Duration::from_millis(millis);
                self.peer.stack.on_timer(self.peer.now);
            }
        }
        let events: Vec<Event> = core::iter::from_fn(|| self.peer.stack.next_event()).collect();
        let segments = self.peer.segments();
        for segment in &segments {
            let end = segment.seq.wrapping_add(segment.payload.len() as u32);
            self.heard = (end, segment.timestamps.map_or(0, |(value, _)| value));
        }
        let deadline = self.peer.stack.next_deadline();
        let stats = self.peer.stack.connection_stats(self.talk.conn);
        self.seen.push(format!("{events:?} {segments:?} {deadline:?} {stats:?}"));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn the_short_way_does_what_the_general_way_does(steps in steps(), clocks: bool) {
        let mut sides = [RxChecksum::Verified, RxChecksum::Unverified].map(|checksum| Side::new(checksum, clocks));
        for step in &steps {
            sides.iter_mut().for_each(|side| side.take(step, clocks));
            let [short, general] = &sides;
            prop_assert_eq!(short.seen.last(), general.seen.last(), "after {:?}", step);
        }
    }
}
