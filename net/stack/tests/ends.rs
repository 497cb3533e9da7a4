//! The fast path of handshakes and closes has the same results as the general path.

use crate::frame_forms::{FrameForm, TCP};
use isola_iobuf::{Chain, IoBuf};
use isola_net_sim::{Peer, Segment, host_config, host_ip};
use isola_net_stack::{Config, ConnId, Counter, Duration, Event, RxChecksum, TcpConfig};
use proptest::prelude::*;

/// A step of the peer or the application. Positions are relative to the peer's next sequence number.
#[derive(Clone, Debug)]
enum Step {
    /// A SYN, from a new port or the last one, with the most common options, others, or none.
    Syn {
        again: bool,
        options: u8,
    },
    /// A segment: its distance from the next sequence number, its length, its flags, whether it acknowledges all sent
    /// data or repeats the last acknowledgement, and the increment of its timestamp.
    Segment {
        ahead: i32,
        len: usize,
        flags: &'static str,
        acks: bool,
        ticks: i32,
    },
    /// The application sends, reads, shuts down, or closes.
    Send(usize),
    Read,
    Shutdown,
    Close,
    /// This many milliseconds pass.
    Pass(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let mostly = |fast: BoxedStrategy<i32>, other: BoxedStrategy<i32>| prop_oneof![8 => fast, 1 => other];
    let segment = (
        mostly(Just(0).boxed(), (-3..3).boxed()),
        prop_oneof![4 => Just(0usize), 1 => 1..100usize],
        prop_oneof![30 => Just(""), 20 => Just("F"), 5 => Just("FP"), 1 => Just("R"), 1 => Just("FE")],
        prop_oneof![8 => Just(true), 1 => Just(false)],
        mostly((0..3).boxed(), (-5..1).boxed()),
    )
        .prop_map(|(ahead, len, flags, acks, ticks)| Step::Segment { ahead, len, flags, acks, ticks });
    prop_oneof![
        1 => (any::<bool>(), 0..4u8).prop_map(|(again, options)| Step::Syn { again, options }),
        20 => segment,
        2 => (1..4000usize).prop_map(Step::Send),
        1 => Just(Step::Read),
        1 => Just(Step::Shutdown),
        1 => Just(Step::Close),
        1 => (1..3000u64).prop_map(Step::Pass),
        1 => (59_000..61_000u64).prop_map(Step::Pass),
    ]
}

/// A listening stack, and the state of its peer.
struct Side {
    peer: Peer,
    form: FrameForm,
    port: u16,
    conn: Option<ConnId>,
    seq: u32,
    clocks: bool,
    clock: u32,
    /// The peer's acknowledgement, the end of the last received data, and the timestamp of that.
    ack: u32,
    heard: (u32, u32),
    seen: Vec<String>,
}

impl Side {
    fn new(form: FrameForm) -> Self {
        // A window that fills soon.
        let tcp = TcpConfig { receive_window: 300, ..TcpConfig::default() };
        let mut peer = Peer::new(Config { tcp, ..host_config(1) });
        peer.stack.listen(80, 4).expect("a free port");
        let mut side = Self {
            peer,
            form,
            port: 4000,
            conn: None,
            seq: 1_000_000,
            clocks: true,
            clock: 100,
            ack: 0,
            heard: (0, 0),
            seen: Vec::new(),
        };
        side.take(&Step::Syn { again: false, options: 0 });
        side
    }

    /// Performs a step and records all its results.
    fn take(&mut self, step: &Step) {
        match *step {
            Step::Syn { again, options } => {
                self.port += u16::from(!again);
                self.clocks = options < 2;
                let syn = Segment::new(self.port, 80, self.seq, None).flags("S");
                let syn = match options {
                    0 => syn.options(Some(1400), Some(3)).sack_permitted().timestamps(self.clock, 0),
                    1 => syn.options(Some(1400), None).timestamps(self.clock, 0),
                    2 => syn.options(Some(700), Some(200)),
                    _ => syn,
                };
                self.receive(&syn);
                self.seq = self.seq.wrapping_add(1);
            }
            Step::Segment { ahead, len, flags, acks, ticks } => {
                self.clock = self.clock.wrapping_add_signed(ticks);
                if acks {
                    self.ack = self.heard.0;
                }
                let data = vec![7; if flags == "R" { 0 } else { len }];
                let seq = self.seq.wrapping_add_signed(ahead);
                let segment = Segment::new(self.port, 80, seq, Some(self.ack)).flags(flags).payload(&data);
                let stamped = segment.clone().timestamps(self.clock, self.heard.1);
                self.receive(if self.clocks { &stamped } else { &segment });
                if ahead == 0 {
                    let end = data.len() as u32 + u32::from(flags.contains('F'));
                    self.seq = self.seq.wrapping_add(end);
                }
            }
            Step::Send(len) => {
                let mut data = Chain::from(IoBuf::copy_from_slice(&vec![7; len]));
                let sent = self.conn.map(|conn| self.peer.stack.send_some(conn, &mut data));
                self.seen.push(format!("{sent:?}"));
            }
            Step::Read => {
                let read = self.conn.and_then(|conn| self.peer.stack.read_all(conn));
                self.seen.push(format!("{:?}", read.map(|(data, end)| (data.to_vec(), end))));
            }
            Step::Shutdown => self.conn.into_iter().for_each(|conn| self.peer.stack.shutdown(conn)),
            Step::Close => {
                self.conn.take().into_iter().for_each(|conn| self.peer.stack.close(self.peer.now, conn));
            }
            Step::Pass(millis) => {
                self.peer.now += Duration::from_millis(millis);
                self.peer.stack.on_timer(self.peer.now);
            }
        }
        let stats = self.conn.map(|conn| self.peer.stack.connection_stats(conn));
        let events: Vec<Event> = core::iter::from_fn(|| self.peer.stack.next_event()).collect();
        for event in &events {
            if let Event::Accepted { conn, .. } = *event {
                self.conn = Some(conn);
            }
        }
        let segments = self.peer.segments();
        for segment in &segments {
            let control = segment.flags.contains('S') || segment.flags.contains('F');
            let end = segment.seq.wrapping_add(segment.payload.len() as u32 + u32::from(control));
            self.heard = (end, segment.timestamps.map_or(0, |(value, _)| value));
        }
        let deadline = self.peer.stack.next_deadline();
        let occupancy = self.peer.stack.occupancy();
        let dropped: Vec<u64> = Counter::ALL
            .iter()
            .filter(|&&counter| counter != Counter::BytesIn)
            .map(|&counter| self.peer.stack.counters().get(counter))
            .collect();
        self.seen.push(format!("{events:?} {segments:?} {deadline:?} {stats:?} {occupancy:?} {dropped:?}"));
    }

    fn receive(&mut self, segment: &Segment) {
        let frame = segment.frame(host_ip(2), host_ip(1));
        self.form.deliver(&mut self.peer, frame);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn the_fast_path_of_handshakes_and_closes_has_the_results_of_the_general_path(
        steps in prop::collection::vec(step(), 1..60),
    ) {
        let mut sides = [FrameForm::General, FrameForm::Verified, FrameForm::Unverified].map(Side::new);
        for step in &steps {
            sides.iter_mut().for_each(|side| side.take(step));
            let [general, verified, unverified] = &sides;
            prop_assert_eq!(verified.seen.last(), general.seen.last(), "after {:?}", step);
            prop_assert_eq!(unverified.seen.last(), general.seen.last(), "checksum not verified, after {:?}", step);
        }
    }
}

#[test]
fn a_syn_or_fin_with_any_corrupted_byte_is_dropped() {
    let mut peer = Peer::listening();
    let connection = peer.connect(4000, None, None);
    let syn = Segment::new(4001, 80, 1, None).flags("S").options(Some(1400), Some(3));
    let syn = syn.sack_permitted().timestamps(100, 0);
    for segment in [syn, connection.segment().flags("F")] {
        let frame = segment.frame(host_ip(2), host_ip(1));
        for at in TCP..frame.len() {
            let mut changed = frame.clone();
            changed[at] ^= 0x10;
            peer.stack.receive(peer.now, IoBuf::from(changed), RxChecksum::Unverified);
        }
        peer.silent();
        assert_eq!(peer.events(), []);
        assert_eq!(peer.stack.occupancy().half_open, 0);
    }
}
