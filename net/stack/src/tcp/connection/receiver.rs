//! The receiving half: what came in, what the peer may send, and when to acknowledge.
//!
//! The window is the application's: what it allows ahead (`capacity`) less what it has not read. Its right
//! edge never moves back, and moves forward only by steps worth a segment (RFC 9293 3.8.6.2.2).

use crate::counters::{Counter, Counters};
use crate::tcp::options::Sack;
use crate::tcp::reassembly::{Bounds, Insertion, Reassembly};
use crate::tcp::receive_queue::{ReceiveQueue, pinned_limit};
use crate::tcp::sack::{BLOCKS_WITH_TIMESTAMPS, Block, Reports, SackBlocks};
use crate::tcp::seq::Seq;
use crate::time::{Duration, Instant};
use isola_iobuf::{Chain, IoBuf};

/// Segments acknowledged at once at the beginning, so that the peer's slow start is not slowed further.
const QUICK_ACKS: u8 = 16;
/// Segments that one acknowledgement may cover (RFC 5681 4.2).
const ACK_EVERY: u8 = 2;

/// Whether an acknowledgement is owed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owed {
    Nothing,
    /// At the latest at this time; gladly together with data.
    By(Instant),
    Now,
}

/// Where a segment stands against the receive window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fit {
    /// Some of it is new and within the window, or it is empty and at a place within it.
    Inside,
    /// Data for a window that is shut: its acknowledgement counts, its data does not.
    Shut,
    /// All old, or beyond the window.
    Outside,
}

/// What a payload brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arrival {
    pub data: DataCame,
    pub end: EndCame,
}

/// Whether there is something new to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DataCame {
    Yes,
    No,
}

/// Whether the peer's stream has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndCame {
    /// Nothing follows.
    Yes,
    /// More may come.
    No,
}

/// The receiving half of a connection.
#[derive(Debug)]
pub(crate) struct Receiver {
    /// The next byte expected.
    pub nxt: Seq,
    /// The right edge of the window as it was last told.
    edge: Seq,
    /// What was acknowledged last (Last.ACK.sent of RFC 7323).
    pub acked: Seq,
    pub scale: u8,
    /// Whether the peer takes reports of what came in beyond a gap, and how many blocks of them fit into a segment.
    pub sack: Sack,
    pub report_room: u8,
    capacity: u32,
    /// The segment size that was announced.
    mss: u32,
    /// Steps of the window's edge that are worth telling: in a segment that goes out anyway, and of themselves.
    step: u32,
    long_step: u32,
    pub inbox: ReceiveQueue,
    reassembly: Reassembly,
    reports: Reports,
    pieces: usize,
    /// Where the stream ends, where the peer has told.
    fin: Option<Seq>,
    ended: EndCame,
    owed: Owed,
    /// Segments that came in since the last acknowledgement.
    unacked: u8,
    quick: u8,
    pub bytes: u64,
}

impl Receiver {
    /// A receiver before the first segment. `scale` is ours, for windows in segments without SYN.
    pub fn new(capacity: u32, mss: u32, pieces: usize) -> Self {
        let mut receiver = Self {
            nxt: Seq(0),
            edge: Seq(0),
            acked: Seq(0),
            scale: 0,
            sack: Sack::Refused,
            report_room: BLOCKS_WITH_TIMESTAMPS,
            capacity,
            mss,
            step: 1,
            long_step: 1,
            inbox: ReceiveQueue::default(),
            reassembly: Reassembly::default(),
            reports: Reports::default(),
            pieces,
            fin: None,
            ended: EndCame::No,
            owed: Owed::Nothing,
            unacked: 0,
            quick: QUICK_ACKS,
            bytes: 0,
        };
        receiver.find_steps();
        receiver
    }

    /// No silly windows (RFC 9293 3.8.6.2.2): a segment, or much of the window.
    fn find_steps(&mut self) {
        self.step = self.mss.min(self.capacity / 2).max(1);
        self.long_step = (2 * self.mss).min(self.capacity / 2).max(1);
    }

    /// The peer's SYN was at `initial`; it is told the window `told` or was told it before.
    pub fn synchronize(&mut self, initial: Seq, told: u32) {
        self.nxt = initial + 1;
        self.edge = self.nxt + told;
        self.acked = self.nxt;
    }

    /// The window that goes into a SYN, where no scale applies.
    pub fn initial_window(&self) -> u16 {
        self.capacity.min(65_535) as u16
    }

    /// Lets the peer send `capacity` bytes ahead of the application from now on.
    pub fn set_capacity(&mut self, capacity: u32) {
        self.capacity = capacity;
        self.find_steps();
        self.ack_if_opened(self.inbox.len());
    }

    /// Where a segment of `len` sequence numbers at `seq` stands.
    pub fn fit(&self, seq: Seq, len: u32) -> Fit {
        let end = seq + len;
        if len == 0 {
            // A place at the edge itself is where a peer that has filled the window stands.
            let inside = !seq.before(self.nxt) && !seq.after(self.edge);
            return if inside { Fit::Inside } else { Fit::Outside };
        }
        if seq == self.nxt && self.edge == self.nxt {
            return Fit::Shut;
        }
        if seq.before(self.edge) && end.after(self.nxt) { Fit::Inside } else { Fit::Outside }
    }

    /// Whether `len` bytes at `seq` are the next ones, all within the window, with nothing waiting behind them.
    #[inline]
    pub fn expects(&self, seq: Seq, len: u32) -> bool {
        seq == self.nxt
            && len <= self.edge.since(seq)
            && self.reassembly.is_empty()
            && self.fin.is_none()
            && self.ended == EndCame::No
    }

    /// Whether a segment at `seq` that carries nothing stands where the next byte would, and within the window.
    pub fn is_next(&self, seq: Seq) -> bool {
        seq == self.nxt && !seq.after(self.edge)
    }

    /// The stream ends at the next byte, as [`Self::expects`] spoke of.
    pub fn end(&mut self) {
        self.fin = Some(self.nxt);
        self.nxt += 1;
        self.ended = EndCame::Yes;
        self.owed = Owed::Now;
        self.reports.clear();
    }

    /// Takes in what [`Self::expects`] spoke of.
    #[inline(always)]
    pub fn take_expected(&mut self, now: Instant, data: IoBuf, delay: Duration, counters: &mut Counters) {
        self.deliver(data, counters);
        self.owe(now, delay);
    }

    /// The same of several segments that a device has put together.
    pub fn take_expected_long(&mut self, data: Chain, counters: &mut Counters) {
        self.nxt += data.len() as u32;
        self.bytes += data.len() as u64;
        self.inbox.append(data, pinned_limit(self.capacity), counters);
        self.quick = self.quick.saturating_sub(ACK_EVERY);
        self.owed = Owed::Now;
    }

    /// Takes a payload in whose segment fits inside; `fin` says whether it ends the stream.
    pub fn accept(
        &mut self,
        now: Instant,
        (seq, mut payload): (Seq, IoBuf),
        fin: EndCame,
        delay: Duration,
        counters: &mut Counters,
    ) -> Arrival {
        let mut arrival = Arrival { data: DataCame::No, end: EndCame::No };
        if self.ended == EndCame::Yes {
            self.owed = Owed::Now;
            return arrival;
        }
        if fin == EndCame::Yes {
            let end = seq + payload.len() as u32;
            if self.fin.is_none() && !end.before(self.nxt) && !end.after(self.edge) {
                self.fin = Some(end);
            }
            self.owed = Owed::Now;
        }
        let len = payload.len() as u32;
        let limit = self.fin.map_or(self.edge, |fin| if fin.before(self.edge) { fin } else { self.edge });
        if (seq + len).after(limit) {
            let beyond = (seq + len).since(limit).min(len);
            payload.truncate((len - beyond) as usize);
        }
        let mut start = seq;
        if seq.before(self.nxt) {
            self.note_old(seq, payload.len() as u32);
            payload.advance(self.nxt.since(seq) as usize);
            start = self.nxt;
        }
        if payload.is_empty() {
            if len > 0 {
                self.owed = Owed::Now;
            }
        } else if start == self.nxt {
            arrival.data = DataCame::Yes;
            self.take_in_order(now, payload, delay, counters);
        } else {
            counters.bump(Counter::TcpOutOfOrder);
            self.keep(start, payload, counters);
            self.owed = Owed::Now;
        }
        if self.fin == Some(self.nxt) {
            self.nxt += 1;
            self.ended = EndCame::Yes;
            self.owed = Owed::Now;
            self.reassembly.clear();
            self.reports.clear();
            arrival.end = EndCame::Yes;
        }
        arrival
    }

    /// Keeps data that is ahead of a gap. Until the gap is filled, and for a while after, the peer learns at once of
    /// whatever comes in.
    fn keep(&mut self, start: Seq, payload: IoBuf, counters: &mut Counters) {
        let block = Block { start, end: start + payload.len() as u32 };
        let pinned = pinned_limit(self.capacity).saturating_sub(self.inbox.pinned());
        let bounds = Bounds { pieces: self.pieces, pinned };
        let insertion = self.reassembly.insert(start, payload, bounds, counters);
        self.quick = QUICK_ACKS;
        match (self.sack, insertion) {
            (Sack::Refused, _) | (_, Insertion::Dropped) => {}
            (Sack::Permitted, Insertion::Kept) => self.reports.kept(block),
            (Sack::Permitted, Insertion::Known) => {
                // The run that it belongs to is told of as well (RFC 2883 4.2).
                self.reports.kept(block);
                self.reports.came_twice(block);
            }
        }
    }

    /// A segment of `len` bytes at `seq` came in; those before the next byte expected came twice.
    pub fn note_old(&mut self, seq: Seq, len: u32) {
        let end = if (seq + len).before(self.nxt) { seq + len } else { self.nxt };
        if self.sack == Sack::Permitted && seq.before(end) {
            self.reports.came_twice(Block { start: seq, end });
        }
    }

    /// Bytes to leave in a segment for what is to be reported.
    #[inline]
    pub fn reports_len(&self) -> usize {
        if self.reports.is_empty() { 0 } else { 4 + 8 * usize::from(self.report_room) }
    }

    /// What a segment reports that goes out now.
    #[inline]
    pub fn take_reports(&mut self) -> SackBlocks {
        self.reports.take(self.nxt, self.report_room.into())
    }

    fn take_in_order(&mut self, now: Instant, payload: IoBuf, delay: Duration, counters: &mut Counters) {
        self.deliver(payload, counters);
        if self.reassembly.is_empty() {
            self.owe(now, delay);
            return;
        }
        while let Some(data) = self.reassembly.take(self.nxt) {
            self.deliver(data, counters);
        }
        // The peer learns at once that a gap is filled (RFC 5681 4.2).
        self.owed = Owed::Now;
    }

    #[inline]
    fn deliver(&mut self, mut payload: IoBuf, counters: &mut Counters) {
        if let Some(fin) = self.fin {
            payload.truncate(fin.since(self.nxt) as usize);
        }
        self.nxt += payload.len() as u32;
        self.bytes += payload.len() as u64;
        let limit = pinned_limit(self.capacity).saturating_sub(self.reassembly.pinned());
        self.inbox.push(payload, limit, counters);
    }

    fn owe(&mut self, now: Instant, delay: Duration) {
        self.unacked = self.unacked.saturating_add(1);
        if self.quick > 0 {
            self.quick -= 1;
            self.owed = Owed::Now;
        } else if self.unacked >= ACK_EVERY {
            self.owed = Owed::Now;
        } else if self.owed == Owed::Nothing {
            self.owed = Owed::By(now + delay);
        }
    }

    /// Whether the peer has ended its stream and all before the end has arrived.
    pub fn has_ended(&self) -> EndCame {
        self.ended
    }

    /// Takes the next piece for the application.
    pub fn read(&mut self) -> Option<IoBuf> {
        let piece = self.inbox.pop()?;
        self.ack_if_opened(self.inbox.len());
        Some(piece)
    }

    /// Bytes that the peer may send, as it was last told.
    pub fn window(&self) -> u32 {
        self.edge.beyond(self.nxt)
    }

    /// The right edge that is allowed while the application has not read so many bytes.
    #[inline]
    fn allowed_edge(&self, unread: usize) -> Seq {
        self.nxt + self.capacity.saturating_sub(unread as u32)
    }

    /// Tells the peer of a window that has opened by much (RFC 9293 3.8.6.2.2), without waiting for data to
    /// acknowledge, where `unread` bytes are left to be read.
    #[inline]
    pub fn ack_if_opened(&mut self, unread: usize) {
        if self.ended == EndCame::No && self.allowed_edge(unread).beyond(self.edge) >= self.long_step {
            self.owed = Owed::Now;
        }
    }

    /// The window for a segment that goes out now, with which everything owed is acknowledged.
    #[inline(always)]
    pub fn tell_window(&mut self) -> u16 {
        let allowed = self.allowed_edge(self.inbox.len());
        if allowed.beyond(self.edge) >= self.step {
            self.edge = allowed;
        }
        self.owed = Owed::Nothing;
        self.unacked = 0;
        self.acked = self.nxt;
        (self.window() >> self.scale).min(65_535) as u16
    }

    /// Owes an acknowledgement at once.
    pub fn ack_now(&mut self) {
        self.owed = Owed::Now;
    }

    /// Whether an acknowledgement is owed at once.
    pub fn must_ack(&self) -> bool {
        self.owed == Owed::Now
    }

    /// When a delayed acknowledgement must go out.
    pub fn deadline(&self) -> Option<Instant> {
        match self.owed {
            Owed::By(at) => Some(at),
            Owed::Nothing | Owed::Now => None,
        }
    }

    /// Owes a delayed acknowledgement now, where its time has come.
    pub fn on_timer(&mut self, now: Instant) {
        if self.deadline().is_some_and(|at| now >= at) {
            self.owed = Owed::Now;
        }
    }

    /// Drops all that was not read.
    pub fn clear(&mut self) {
        self.inbox.clear();
        self.reassembly.clear();
        self.reports.clear();
    }
}
