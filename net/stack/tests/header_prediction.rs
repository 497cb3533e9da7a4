//! Header prediction and the templates of outgoing headers have the same results as the general path.

use crate::frame_forms::{FrameForm, TCP};
use isola_iobuf::{Chain, IoBuf};
use isola_net_sim::{Peer, PeerConnection, Segment, host_config, host_ip};
use isola_net_stack::{Config, Counter, Duration, Event, MacAddr, RxChecksum, TcpConfig};
use proptest::prelude::*;

/// A step of the peer or the application. Positions are relative to the peer's next sequence number.
#[derive(Clone, Debug)]
enum Step {
    /// A segment: its distance from the next sequence number, its length, its flags, whether it acknowledges all sent
    /// data or repeats the last acknowledgement, its window, and the increment of its timestamp.
    Segment { ahead: i32, len: usize, flags: &'static str, acks: bool, window: u16, ticks: i32 },
    /// The application sends this many bytes.
    Send(usize),
    /// The application reads everything.
    Read,
    /// This many milliseconds pass.
    Pass(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let mostly = |fast: BoxedStrategy<i32>, other: BoxedStrategy<i32>| prop_oneof![15 => fast, 1 => other];
    let segment = (
        mostly(Just(0).boxed(), (-2000..2000).boxed()),
        prop_oneof![Just(0usize), 1..1400usize],
        prop_oneof![40 => Just(""), 40 => Just("P"), 1 => Just("F"), 1 => Just("E"), 1 => Just("S"), 1 => Just("R")],
        any::<bool>(),
        prop_oneof![12 => Just(60_000u16), 1 => Just(0), 1 => any::<u16>()],
        mostly((0..3).boxed(), (-5..1).boxed()),
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

/// A stack with one connection, and the state of its peer.
struct Side {
    peer: Peer,
    connection: PeerConnection,
    form: FrameForm,
    clock: u32,
    /// End of the last received data, and its timestamp.
    heard: (u32, u32),
    seen: Vec<String>,
    /// Number of changes of an unrelated neighbour's address on the general side.
    changes: u8,
}

impl Side {
    fn new(form: FrameForm, clocks: bool) -> Self {
        // Limits that the steps reach.
        let tcp = TcpConfig { receive_window: 8_000, send_limit: 5_000, ..TcpConfig::default() };
        let mut peer = Peer::new(Config { tcp, ..host_config(1) });
        peer.stack.listen(80, 16).expect("a free port");
        let syn = Segment::new(4000, 80, 1_000_000, None).flags("S").options(Some(1400), Some(3));
        let syn = if clocks { syn.timestamps(100, 0) } else { syn };
        let connection = peer.connect_with(syn);
        let heard = (connection.ack, 0);
        Self { peer, connection, form, clock: 100, heard, seen: Vec::new(), changes: 0 }
    }

    /// Performs a step and records all its results.
    fn take(&mut self, step: &Step, clocks: bool) {
        match *step {
            Step::Segment { ahead, len, flags, acks, window, ticks } => {
                self.clock = self.clock.wrapping_add_signed(ticks);
                let seq = self.connection.seq.wrapping_add_signed(ahead);
                let data: Vec<u8> = (0..len).map(|at| (at % 251) as u8).collect();
                if acks {
                    self.connection.ack = self.heard.0;
                }
                let segment = Segment { seq, ..self.connection.segment() };
                let segment = segment.flags(flags).window(window).payload(&data);
                let stamped = segment.clone().timestamps(self.clock, self.heard.1);
                let frame = if clocks { stamped } else { segment }.frame(host_ip(2), host_ip(1));
                self.form.deliver(&mut self.peer, frame);
                if ahead == 0 && matches!(flags, "" | "P") {
                    self.connection.seq = self.connection.seq.wrapping_add(len as u32);
                }
            }
            Step::Send(len) => {
                let mut data = Chain::from(IoBuf::copy_from_slice(&vec![7; len]));
                let sent = self.peer.stack.send_some(self.connection.conn, &mut data);
                self.seen.push(format!("{sent:?}"));
            }
            Step::Read => {
                let read =
                    self.peer.stack.read_all(self.connection.conn).map(|(data, end)| (data.to_vec(), end));
                self.seen.push(format!("{read:?}"));
            }
            Step::Pass(millis) => {
                self.peer.now += Duration::from_millis(millis);
                self.peer.stack.on_timer(self.peer.now);
            }
        }
        if self.form == FrameForm::General {
            // A change of a neighbour's address makes the stack look up all paths again, so that the next segments take
            // the general path on output as well.
            self.changes = self.changes.wrapping_add(1);
            let mac = MacAddr([2, 0, 0, 0, 9, self.changes]);
            self.peer.stack.learn(self.peer.now, host_ip(99), mac);
        }
        let events: Vec<Event> = core::iter::from_fn(|| self.peer.stack.next_event()).collect();
        let segments = self.peer.segments();
        for segment in &segments {
            let end = segment.seq.wrapping_add(segment.payload.len() as u32);
            self.heard = (end, segment.timestamps.map_or(0, |(value, _)| value));
        }
        let deadline = self.peer.stack.next_deadline();
        let stats = self.peer.stack.connection_stats(self.connection.conn);
        self.seen.push(format!("{events:?} {segments:?} {deadline:?} {stats:?}"));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn header_prediction_has_the_results_of_the_general_path(steps in steps(), clocks: bool) {
        let all = [FrameForm::General, FrameForm::Verified, FrameForm::Unverified];
        let mut sides = all.map(|form| Side::new(form, clocks));
        for step in &steps {
            sides.iter_mut().for_each(|side| side.take(step, clocks));
            let [general, verified, unverified] = &sides;
            prop_assert_eq!(verified.seen.last(), general.seen.last(), "after {:?}", step);
            prop_assert_eq!(unverified.seen.last(), general.seen.last(), "checksum not verified, after {:?}", step);
        }
    }
}

#[test]
fn a_fast_path_frame_with_any_corrupted_byte_is_dropped() {
    let mut peer = Peer::listening();
    let connection = peer.connect(4000, None, None);
    for len in [1, 64, 65] {
        let frame = connection.segment().flags("P").payload(&vec![0x5a; len]).frame(host_ip(2), host_ip(1));
        let before = peer.stack.counters().get(Counter::DropTcpChecksum);
        // Starts behind the ports, which select the connection.
        for at in TCP + 4..frame.len() {
            let mut changed = frame.clone();
            changed[at] ^= 0x10;
            peer.stack.receive(peer.now, IoBuf::from(changed), RxChecksum::Unverified);
        }
        let dropped = peer.stack.counters().get(Counter::DropTcpChecksum) - before;
        // One of the bytes is the header length; that segment is malformed before its checksum is tested.
        assert_eq!(dropped as usize, 16 + len - 1, "segment of {len} bytes");
        assert_eq!(peer.read(connection.conn), b"");
    }
}
