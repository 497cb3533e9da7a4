//! The sending half of a connection: its send queue, its flight, and the next data to send or retransmit.
//!
//! ```text
//!        una            nxt             max                  una + queue length
//!   ------|--------------|---------------|------------------------|--> sequence numbers
//!   acked | in flight    | zero-window   | not sent               | FIN, if requested
//!         |              | probe         |                        |
//! ```
//!
//! `nxt` is the position of the next new data. The [`Flight`](flight) holds the state of the data before it. A
//! zero-window probe advances only `max`. While data is in flight, the retransmission timer runs; if the peer sends
//! SACK, also an earlier timer for a tail loss probe or a RACK check (RFC 8985). The persist timer runs while nothing
//! is in flight and the peer's window blocks data.
//!
//! Loss detection is in [`rack`] if the peer sends SACK, otherwise by duplicate acknowledgements in `losses.rs`. Loss
//! recovery is in [`repair`], and the congestion control limits the flight. The three parts are independent of each
//! other.

mod acks;
mod clock;
mod flight;
mod losses;
mod output;
mod rack;
mod repair;
mod run;

use crate::base::Instant;
use crate::tcp::TcpConfig;
use crate::tcp::congestion::Control;
use crate::tcp::connection::NewDataOnly;
use crate::tcp::options::Sack;
use crate::tcp::rto::RttEstimator;
use crate::tcp::sack::SackBlocks;
use crate::tcp::segment::Flags;
use crate::tcp::send_queue::SendQueue;
use crate::tcp::seq::Seq;
use alloc::boxed::Box;
use flight::Flight;
use isola_iobuf::Chain;
use rack::Rack;
use repair::Repair;

/// Whether our SYN has been acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Handshake {
    Open,
    Done,
}

/// State of the sending direction's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fin {
    /// The application may send more.
    Open,
    /// A FIN follows the queued data.
    Wanted,
    /// The peer has acknowledged the FIN.
    Acked,
}

/// Whether a segment must be sent as soon as the device accepts one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SendDue {
    No,
    Yes,
}

/// The classification of an acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AckKind {
    /// It acknowledges data that was never sent, or is too old to be the peer's (RFC 5961 5).
    Invalid,
    /// It acknowledges nothing new.
    Old,
    /// It acknowledges new data, the SYN or the FIN.
    New,
}

/// The fields of a segment that concern the sending half.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ack<'a> {
    pub seq: Seq,
    pub ack: Seq,
    /// The window field of the header, not scaled.
    pub window: u16,
    /// Whether the segment has no data, SYN or FIN: only then can it be a duplicate acknowledgement.
    pub bare: BareSegment,
    /// The SACK blocks.
    pub sack: &'a SackBlocks,
    /// The time at which the segment that this one answers was sent, by its timestamp echo.
    pub echoed: Option<Instant>,
}

/// Whether a segment has no data, SYN or FIN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BareSegment {
    Yes,
    No,
}

/// An outgoing segment's part from this half: a position, and the flags that belong to the data.
#[derive(Debug)]
pub(crate) struct Piece {
    pub seq: Seq,
    pub flags: Flags,
    pub fresh: NewDataOnly,
}

/// Whether the connection may continue after a timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Retries {
    Left,
    Exhausted,
}

/// The action of the timer before the retransmission timeout (RFC 8985).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EarlyTimer {
    /// Send a tail loss probe: the tail may be lost without any later segment to reveal it.
    Probe,
    /// Run the RACK check: mark segments that are late by now as lost.
    Look,
}

/// A tail loss probe (RFC 8985 7).
#[derive(Clone, Copy, Debug)]
struct Tail {
    /// The end of the flight when the probe was sent.
    end: Seq,
    kind: TailKind,
}

/// The data of a tail loss probe: new, or a retransmission.
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
    /// Limit of the send queue, in bytes.
    pub limit: usize,
    /// Space for which the application waits, in bytes.
    wanted: Option<usize>,
    pub window: u32,
    max_window: u32,
    /// Sequence and acknowledgement number of the last segment that updated the window (WL1, WL2).
    window_seq: Seq,
    window_ack: Seq,
    pub scale: u8,
    pub mss: u32,
    /// Maximum data of a frame that the device segments, in bytes; at most `mss` if the device does not segment.
    pub burst: u32,
    pub control: Control,
    /// Whether the peer sends SACK.
    pub sack: Sack,
    flight: Flight,
    rack: Option<Box<Rack>>,
    repair: Option<Box<Repair>>,
    /// Only if the peer does not send SACK: the number of consecutive duplicate acknowledgements; the bytes assumed to
    /// have left the network by them; and the position up to which further duplicates do not indicate a new loss (RFC
    /// 6582).
    duplicates: u8,
    assumed: u32,
    /// Bytes that the last acknowledgement marked as lost in that way.
    presumed: u32,
    recover: Seq,
    /// A tail loss probe whose outcome is unknown.
    tail: Option<Tail>,
    tail_due: SendDue,
    pub rtt: RttEstimator,
    /// The time at which the SYN was sent, if it was sent only once.
    syn_sent: Option<Instant>,
    /// The end of the round trip that is being measured.
    round: Seq,
    /// The end of the data that was sent while the window was full. Only acknowledgements up to it let the window grow.
    full: Seq,
    last_sent: Instant,
    probe: SendDue,
    /// Consecutive timeouts and zero-window probes without an answer.
    timeouts: u8,
    /// Consecutive zero-window probes; determines their interval.
    probes: u8,
    timeout_at: Option<Instant>,
    /// The time and action of the timer before the retransmission timeout.
    soon: Option<(Instant, EarlyTimer)>,
    persist_at: Option<Instant>,
    pub retransmits: u64,
    pub bytes_acked: u64,
}

impl Sender {
    /// Returns a sender that has not sent its SYN yet.
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
            tail_due: SendDue::No,
            rtt: RttEstimator::new(config),
            syn_sent: None,
            round: initial,
            full: initial,
            last_sent: now,
            probe: SendDue::No,
            timeouts: 0,
            probes: 0,
            timeout_at: None,
            soon: None,
            persist_at: None,
            retransmits: 0,
            bytes_acked: 0,
        }
    }

    /// Completes the handshake, by the segment at `window_seq` that acknowledged the SYN. `window` is its window,
    /// scaled.
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

    /// Sets the segment size that the handshake determined, and starts congestion control.
    pub fn set_initial_mss(&mut self, mss: u32) {
        self.mss = mss;
        self.control.start(mss);
    }

    /// Returns whether the SYN has not been sent before.
    pub fn is_first_syn(&self) -> bool {
        self.timeouts == 0
    }

    /// Returns the start and the end of the data in flight.
    pub fn under_way(&self) -> (Seq, Seq) {
        (self.una, self.nxt)
    }

    /// Reduces the window as for a loss, after a congestion mark (RFC 3168 6.1.2).
    pub fn slow_down(&mut self, now: Instant) {
        if self.repair.is_none() {
            self.control.on_loss(now, self.nxt.since(self.una));
            self.control.on_recovered();
            self.forget_doubts();
        }
    }

    /// Requests that the SYN be sent again, as the SYN-ACK of a simultaneous open.
    pub fn answer_syn(&mut self) {
        self.nxt = self.una;
        self.timeout_at = None;
    }

    /// Reduces the segment size to `mss` bytes after a smaller path MTU was detected. The data in flight counts as
    /// lost.
    pub fn shrink_mss(&mut self, mss: u32) {
        self.mss = mss;
        self.control.set_mss(mss);
        self.flight.lose_all();
        self.timeout_at = None;
        self.soon = None;
    }

    /// Returns the number of consecutive timeouts.
    pub fn timeouts(&self) -> u8 {
        self.timeouts
    }

    /// Returns the number of bytes accepted for sending and not acknowledged.
    pub fn queued(&self) -> usize {
        self.queue.len()
    }

    /// Returns the number of bytes in flight: sent, and neither acknowledged nor deemed lost.
    pub fn in_flight(&self) -> u32 {
        self.pipe()
    }

    /// Returns the number of bytes for which the queue has space.
    pub fn space(&self) -> usize {
        self.limit.saturating_sub(self.queue.len())
    }

    /// Queues all bytes of the chain; the caller has checked that they fit.
    #[inline]
    pub fn push(&mut self, chain: &mut Chain) {
        self.queue.push(chain);
    }

    /// Records that the application waits for `len` bytes of space.
    pub fn want_space(&mut self, len: usize) {
        self.wanted = Some(len);
    }

    /// Returns whether the space for which the application waits is available. Returns `Yes` once for each request.
    pub fn space_came(&mut self) -> WantedSpace {
        match self.wanted {
            Some(wanted) if wanted.min(self.limit) <= self.space() => {
                self.wanted = None;
                WantedSpace::Yes
            }
            _ => WantedSpace::No,
        }
    }

    /// Returns the sequence number of the FIN.
    fn end(&self) -> Seq {
        self.una + self.queue.len() as u32
    }

    /// Returns a sequence number for a segment without data that the peer can accept.
    pub fn idle_seq(&self) -> Seq {
        let edge = self.una + self.window;
        if self.max.after(edge) { edge } else { self.max }
    }

    /// Returns whether `seq` is sent and not acknowledged, zero-window probes included.
    pub fn is_in_flight(&self, seq: Seq) -> bool {
        !seq.before(self.una) && seq.before(self.max)
    }

    /// Returns whether the SYN has been sent and `ack` acknowledges it.
    pub fn acks_syn(&self, ack: Seq) -> bool {
        self.max.after(self.una) && ack == self.max
    }

    /// Returns the number of consecutive zero-window probes without progress.
    pub fn probes(&self) -> u8 {
        self.probes
    }
}

/// Whether the space for which the application waits is available.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WantedSpace {
    Yes,
    No,
}
