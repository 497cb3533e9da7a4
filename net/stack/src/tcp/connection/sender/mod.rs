//! The sending half: what was sent and acknowledged, what may be sent now, and what to send again.
//!
//! ```text
//!        una            nxt             max                  una + queue length
//!   ------|--------------|---------------|------------------------|--> sequence numbers
//!   acked | in flight    | sent before a | not sent               | FIN, where wanted
//!         |              | timeout       |                        |
//! ```
//!
//! `nxt` is where sending goes on: after a timeout it is back at `una`. A zero-window probe moves `max` only.
//! The retransmission timer runs exactly while `nxt` is beyond `una`; the persist timer exactly while nothing
//! is in flight and the peer's window keeps data back.

mod acks;
mod clock;
mod output;

use super::recovery::Recovery;
use crate::tcp::TcpConfig;
use crate::tcp::congestion::CongestionControl;
use crate::tcp::rto::RttEstimator;
use crate::tcp::segment::Flags;
use crate::tcp::send_queue::SendQueue;
use crate::tcp::seq::Seq;
use crate::time::Instant;
use alloc::boxed::Box;
use isola_iobuf::Chain;

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
pub(crate) struct Ack {
    pub seq: Seq,
    pub ack: Seq,
    /// As it stands in the header.
    pub window: u16,
    /// Whether the segment carries nothing else: only then can it be a duplicate.
    pub bare: Bare,
}

/// Whether a segment carries nothing but its acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bare {
    Yes,
    No,
}

/// What to send: a position, the control bits that belong to the data, and the data.
#[derive(Debug)]
pub(crate) struct Piece {
    pub seq: Seq,
    pub flags: Flags,
    pub payload: Chain,
}

/// Whether the connection can go on after a timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    Left,
    Gone,
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
    pub control: Box<dyn CongestionControl>,
    recovery: Recovery,
    pub rtt: RttEstimator,
    /// The one segment whose round trip is being measured: its end and when it went out.
    timed: Option<(Seq, Instant)>,
    last_sent: Instant,
    resend: Due,
    probe: Due,
    /// Timeouts and probes in a row without an answer.
    timeouts: u8,
    /// Probes in a row: how far their interval has grown.
    probes: u8,
    retransmit_at: Option<Instant>,
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
            control: config.congestion.start(mss),
            recovery: Recovery::new(initial),
            rtt: RttEstimator::new(config),
            timed: None,
            last_sent: now,
            resend: Due::No,
            probe: Due::No,
            timeouts: 0,
            probes: 0,
            retransmit_at: None,
            persist_at: None,
            retransmits: 0,
            bytes_acked: 0,
        }
    }

    /// The SYN was acknowledged by the segment at `window_seq`, which told the window `window`, scaled
    /// already.
    pub fn establish(&mut self, now: Instant, window_seq: Seq, window: u32) {
        match self.timed.take() {
            Some((_, sent)) => self.rtt.measure(now.since(sent)),
            None if self.timeouts > 0 => self.rtt.after_lost_syn(),
            None => {}
        }
        self.handshake = Handshake::Done;
        self.una += 1;
        self.nxt = self.una;
        self.max = self.una;
        self.window = window;
        self.max_window = window;
        self.window_seq = window_seq;
        self.window_ack = self.una;
        self.retransmit_at = None;
        self.timeouts = 0;
    }

    /// The handshake told what segments carry at most: congestion control starts with it.
    pub fn set_initial_mss(&mut self, mss: u32) {
        self.mss = mss;
        self.control.start(mss);
    }

    /// The SYN goes out once more, as an answer to one that crossed it.
    pub fn answer_syn(&mut self) {
        self.nxt = self.una;
        self.retransmit_at = None;
    }

    /// A link on the way takes no more than `mss` bytes: what is under way is cut anew.
    pub fn shrink_mss(&mut self, mss: u32) {
        self.mss = mss;
        self.control.set_mss(mss);
        self.nxt = self.una;
        self.queue.rewind();
        self.timed = None;
        self.retransmit_at = None;
    }

    /// Bytes that were taken for sending and are not acknowledged.
    pub fn queued(&self) -> usize {
        self.queue.len()
    }

    /// Bytes that `push` takes now.
    pub fn space(&self) -> usize {
        self.limit.saturating_sub(self.queue.len())
    }

    /// Queues bytes, all of the chain's; the caller has checked that they fit.
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
