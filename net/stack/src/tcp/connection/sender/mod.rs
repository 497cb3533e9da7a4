//! The sending half: what was sent and acknowledged, what may be sent now, and what to send again.
//!
//! ```text
//!        una            nxt             max                  una + queue length
//!   ------|--------------|---------------|------------------------|--> sequence numbers
//!   acked | in flight    | zero-window   | not sent               | FIN, where wanted
//!         |              | probe         |                        |
//! ```
//!
//! `nxt` is where new data goes on; what lies before it has its fate in the [`Flight`](flight). A zero-window
//! probe moves `max` only. The retransmission timer runs while something is under way, and before it, where
//! the peer reports what it has, a probe of the tail or a look at what is late (RFC 8985). The persist timer
//! runs while nothing is under way and the peer's window keeps data back.
//!
//! Finding a loss is [`rack`]'s where the peer reports, and that of duplicates counted where not (`acks.rs`).
//! Getting over it is [`repair`]'s. How much may be under way is the congestion control's: none of the three
//! knows of the others.

mod acks;
mod clock;
mod flight;
mod losses;
mod output;
mod rack;
mod repair;

use crate::tcp::TcpConfig;
use crate::tcp::congestion::Control;
use crate::tcp::connection::Fresh;
use crate::tcp::options::Sack;
use crate::tcp::rto::RttEstimator;
use crate::tcp::sack::SackBlocks;
use crate::tcp::segment::Flags;
use crate::tcp::send_queue::SendQueue;
use crate::tcp::seq::Seq;
use crate::time::Instant;
use alloc::boxed::Box;
use flight::Flight;
use isola_iobuf::Chain;
use rack::Rack;
use repair::Repair;

/// Whether the SYN is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Handshake {
    Open,
    Done,
}

/// How far the end of this direction is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fin {
    /// The application may send more.
    Open,
    /// A FIN follows what is queued.
    Wanted,
    /// The peer has acknowledged it.
    Acked,
}

/// Something to be done as soon as the device takes a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Due {
    No,
    Yes,
}

/// What an acknowledgement turned out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AckKind {
    /// Of what was never sent, or too old to be the peer's (RFC 5961 5).
    Invalid,
    /// Nothing new.
    Old,
    /// New data, or the SYN, or the FIN.
    New,
}

/// The fields of a segment that acknowledge.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ack<'a> {
    pub seq: Seq,
    pub ack: Seq,
    /// As it stands in the header.
    pub window: u16,
    /// Whether the segment carries nothing else: only then can it be a duplicate.
    pub bare: Bare,
    /// What the peer has ahead of a gap.
    pub sack: &'a SackBlocks,
    /// When the segment went out that this one answers, as its timestamp tells.
    pub echoed: Option<Instant>,
}

/// Whether a segment carries nothing but its acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bare {
    Yes,
    No,
}

/// What to send: a position, and the control bits that belong to the data.
#[derive(Debug)]
pub(crate) struct Piece {
    pub seq: Seq,
    pub flags: Flags,
    pub fresh: Fresh,
}

/// Whether the connection can go on after a timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    Left,
    Gone,
}

/// What is done before a timeout (RFC 8985).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Soon {
    /// The tail is probed: perhaps it got lost, and nothing behind it tells.
    Probe,
    /// What is late now is lost.
    Look,
}

/// A probe of the tail (RFC 8985 7).
#[derive(Clone, Copy, Debug)]
struct Tail {
    /// What had been sent then.
    end: Seq,
    kind: TailKind,
}

/// What a probe of the tail carried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TailKind {
    New,
    Again,
}

/// The sending half of a connection.
#[derive(Debug)]
pub(crate) struct Sender {
    pub una: Seq,
    nxt: Seq,
    max: Seq,
    handshake: Handshake,
    pub fin: Fin,
    queue: SendQueue,
    /// Bytes that the queue may hold.
    pub limit: usize,
    /// Bytes that the application was refused and waits for.
    wanted: Option<usize>,
    pub window: u32,
    max_window: u32,
    /// Sequence and acknowledgement number of the segment that last told the window (WL1, WL2).
    window_seq: Seq,
    window_ack: Seq,
    pub scale: u8,
    pub mss: u32,
    /// Bytes that one frame may carry where the device cuts it; nothing above a segment's where it does not.
    pub burst: u32,
    pub control: Control,
    /// Whether the peer reports what it has.
    pub sack: Sack,
    flight: Flight,
    rack: Option<Box<Rack>>,
    repair: Option<Box<Repair>>,
    /// Where the peer does not report: duplicate acknowledgements in a row, the bytes that left the network by
    /// them, and the position beyond which they mean a loss again (RFC 6582).
    duplicates: u8,
    assumed: u32,
    /// Bytes that the last acknowledgement made count as lost by that.
    presumed: u32,
    recover: Seq,
    /// A probe of the tail whose outcome is not known.
    tail: Option<Tail>,
    tail_due: Due,
    pub rtt: RttEstimator,
    /// When the SYN went out, where it went out once only.
    syn_sent: Option<Instant>,
    /// Where the round trip ends that is being measured.
    round: Seq,
    /// Up to here all that was sent had filled the window: only its acknowledgement lets the window grow.
    full: Seq,
    last_sent: Instant,
    probe: Due,
    /// Timeouts and probes in a row without an answer.
    timeouts: u8,
    /// Probes in a row: how far their interval has grown.
    probes: u8,
    timeout_at: Option<Instant>,
    /// Something that may have to be done before the timeout.
    soon: Option<(Instant, Soon)>,
    persist_at: Option<Instant>,
    pub retransmits: u64,
    pub bytes_acked: u64,
}

impl Sender {
    /// A sender whose SYN is not sent yet.
    pub fn new(initial: Seq, mss: u32, config: &TcpConfig, now: Instant) -> Self {
        Self {
            una: initial,
            nxt: initial,
            max: initial,
            handshake: Handshake::Open,
            fin: Fin::Open,
            queue: SendQueue::default(),
            limit: config.send_limit,
            wanted: None,
            window: 0,
            max_window: 0,
            window_seq: initial,
            window_ack: initial,
            scale: 0,
            mss,
            burst: 0,
            control: Control::new(config.congestion, mss),
            sack: Sack::Refused,
            flight: Flight::new(initial, config.sent_runs.max(8)),
            rack: None,
            repair: None,
            duplicates: 0,
            assumed: 0,
            presumed: 0,
            recover: initial,
            tail: None,
            tail_due: Due::No,
            rtt: RttEstimator::new(config),
            syn_sent: None,
            round: initial,
            full: initial,
            last_sent: now,
            probe: Due::No,
            timeouts: 0,
            probes: 0,
            timeout_at: None,
            soon: None,
            persist_at: None,
            retransmits: 0,
            bytes_acked: 0,
        }
    }

    /// The SYN was acknowledged by the segment at `window_seq`, which told the window `window`, scaled
    /// already.
    pub fn establish(&mut self, now: Instant, window_seq: Seq, window: u32) {
        match self.syn_sent.take() {
            Some(sent) => self.rtt.measure(now.since(sent)),
            None if self.timeouts > 0 => self.rtt.after_lost_syn(),
            None => {}
        }
        self.handshake = Handshake::Done;
        self.una += 1;
        self.nxt = self.una;
        self.max = self.una;
        self.round = self.una;
        self.full = self.una;
        self.flight.begin(self.una);
        self.window = window;
        self.max_window = window;
        self.window_seq = window_seq;
        self.window_ack = self.una;
        self.timeout_at = None;
        self.timeouts = 0;
    }

    /// The handshake told what segments carry at most: congestion control starts with it.
    pub fn set_initial_mss(&mut self, mss: u32) {
        self.mss = mss;
        self.control.start(mss);
    }

    /// Whether the SYN was not sent before.
    pub fn is_first_syn(&self) -> bool {
        self.timeouts == 0
    }

    /// What was sent, and is not acknowledged: from here to there.
    pub fn under_way(&self) -> (Seq, Seq) {
        (self.una, self.nxt)
    }

    /// Routers are about to lose what is sent: the window shrinks as for a loss (RFC 3168 6.1.2).
    pub fn slow_down(&mut self, now: Instant) {
        if self.repair.is_none() {
            self.control.on_loss(now, self.nxt.since(self.una));
            self.control.on_recovered();
            self.forget_doubts();
        }
    }

    /// The SYN goes out once more, as an answer to one that crossed it.
    pub fn answer_syn(&mut self) {
        self.nxt = self.una;
        self.timeout_at = None;
    }

    /// A link on the way takes no more than `mss` bytes: what is under way is cut anew.
    pub fn shrink_mss(&mut self, mss: u32) {
        self.mss = mss;
        self.control.set_mss(mss);
        self.flight.lose_all();
        self.timeout_at = None;
        self.soon = None;
    }

    /// Timeouts in a row.
    pub fn timeouts(&self) -> u8 {
        self.timeouts
    }

    /// Bytes that were taken for sending and are not acknowledged.
    pub fn queued(&self) -> usize {
        self.queue.len()
    }

    /// Bytes under way: sent, and neither acknowledged nor lost, as far as is known.
    pub fn in_flight(&self) -> u32 {
        self.pipe()
    }

    /// Bytes that `push` takes now.
    pub fn space(&self) -> usize {
        self.limit.saturating_sub(self.queue.len())
    }

    /// Queues bytes, all of the chain's; the caller has checked that they fit.
    #[inline]
    pub fn push(&mut self, chain: &mut Chain) {
        self.queue.push(chain);
    }

    /// Notes that the application waits for `len` bytes of space.
    pub fn want_space(&mut self, len: usize) {
        self.wanted = Some(len);
    }

    /// Whether what the application waited for fits now: true once.
    pub fn space_came(&mut self) -> SpaceCame {
        match self.wanted {
            Some(wanted) if wanted.min(self.limit) <= self.space() => {
                self.wanted = None;
                SpaceCame::Yes
            }
            _ => SpaceCame::No,
        }
    }

    /// The position of the FIN.
    fn end(&self) -> Seq {
        self.una + self.queue.len() as u32
    }

    /// The position with which a segment without data goes out: one that the peer can accept.
    pub fn idle_seq(&self) -> Seq {
        let edge = self.una + self.window;
        if self.max.after(edge) { edge } else { self.max }
    }

    /// Whether `seq` is of something that is under way.
    pub fn is_in_flight(&self, seq: Seq) -> bool {
        !seq.before(self.una) && seq.before(self.max)
    }

    /// Whether the SYN was sent and `ack` acknowledges it.
    pub fn acks_syn(&self, ack: Seq) -> bool {
        self.max.after(self.una) && ack == self.max
    }

    /// Zero-window probes in a row without progress.
    pub fn probes(&self) -> u8 {
        self.probes
    }
}

/// Whether space that the application waited for came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SpaceCame {
    Yes,
    No,
}
