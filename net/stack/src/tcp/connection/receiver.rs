//! The receiving half of a connection: received data, the receive window, and acknowledgements.
//!
//! The window is `capacity`, which the application sets, minus the unread data. Its right edge never moves back, and
//! advances only in steps of at least a segment, or half of `capacity` if that is less (RFC 9293 3.8.6.2.2).

use crate::base::{Counter, Counters, Duration, Instant};
use crate::tcp::options::Sack;
use crate::tcp::reassembly::{Bounds, Insertion, Reassembly};
use crate::tcp::receive_queue::{ReceiveQueue, pinned_limit};
use crate::tcp::sack::{BLOCKS_WITH_TIMESTAMPS, Block, Reports, SackBlocks};
use crate::tcp::seq::Seq;
use isola_iobuf::{Chain, IoBuf};

/// Number of segments that are acknowledged at once, so that the peer's slow start is not delayed: at the beginning, and
/// after data beyond a gap.
const QUICK_ACKS: u8 = 16;
/// Number of segments that one acknowledgement may cover (RFC 5681 4.2).
const ACK_EVERY: u8 = 2;

/// Whether an acknowledgement is owed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OwedAck {
    Nothing,
    /// At the latest at this time, or earlier with outgoing data.
    By(Instant),
    Now,
}

/// Position of a segment relative to the receive window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fit {
    /// The segment has new data in the window, or it is empty and positioned in the window.
    Inside,
    /// The window is closed and the segment has data or FIN: only its acknowledgement is processed.
    Shut,
    /// The segment is entirely before or beyond the window.
    Outside,
}

/// The effect of a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arrival {
    pub data: NewData,
    pub end: StreamEnd,
}

/// Whether new data can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NewData {
    Yes,
    No,
}

/// Whether the peer's stream has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamEnd {
    /// The stream has ended.
    Yes,
    /// More data may arrive.
    No,
}

/// The receiving half of a connection.
#[derive(Debug)]
pub(crate) struct Receiver {
    /// The next expected sequence number (RCV.NXT).
    pub nxt: Seq,
    /// The announced right edge of the window.
    edge: Seq,
    /// The last acknowledgement number sent (Last.ACK.sent of RFC 7323).
    pub acked: Seq,
    pub scale: u8,
    /// Whether the peer accepts SACK blocks, and how many of them fit into a segment.
    pub sack: Sack,
    pub report_room: u8,
    capacity: u32,
    /// The announced segment size.
    mss: u32,
    /// Minimum steps of the window's right edge: to be announced in a segment that is sent anyway, and to cause a
    /// segment.
    step: u32,
    long_step: u32,
    pub inbox: ReceiveQueue,
    reassembly: Reassembly,
    reports: Reports,
    pieces: usize,
    /// Position of the peer's FIN, once received.
    fin: Option<Seq>,
    ended: StreamEnd,
    owed: OwedAck,
    /// Segments received since the last acknowledgement.
    unacked: u8,
    quick: u8,
    pub bytes: u64,
}

impl Receiver {
    /// Returns a receiver that has received nothing. Its window scale is 0 until the handshake.
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
            ended: StreamEnd::No,
            owed: OwedAck::Nothing,
            unacked: 0,
            quick: QUICK_ACKS,
            bytes: 0,
        };
        receiver.find_steps();
        receiver
    }

    /// Computes the steps that avoid silly windows (RFC 9293 3.8.6.2.2): a segment, or half of `capacity`.
    fn find_steps(&mut self) {
        self.step = self.mss.min(self.capacity / 2).max(1);
        self.long_step = (2 * self.mss).min(self.capacity / 2).max(1);
    }

    /// Starts at the peer's SYN, with sequence number `initial`. `announced` is the window that our SYN announces.
    pub fn synchronize(&mut self, initial: Seq, announced: u32) {
        self.nxt = initial + 1;
        self.edge = self.nxt + announced;
        self.acked = self.nxt;
    }

    /// Returns the window field of a SYN, which is not scaled.
    pub fn initial_window(&self) -> u16 {
        self.capacity.min(65_535) as u16
    }

    /// Sets the maximum window, in bytes.
    pub fn set_capacity(&mut self, capacity: u32) {
        self.capacity = capacity;
        self.find_steps();
        self.ack_if_opened(self.inbox.len());
    }

    /// Returns the position of a segment of `len` sequence numbers at `seq`.
    pub fn fit(&self, seq: Seq, len: u32) -> Fit {
        let end = seq + len;
        if len == 0 {
            // A peer that has filled the window sends empty segments at its right edge.
            let inside = !seq.before(self.nxt) && !seq.after(self.edge);
            return if inside { Fit::Inside } else { Fit::Outside };
        }
        if seq == self.nxt && self.edge == self.nxt {
            return Fit::Shut;
        }
        if seq.before(self.edge) && end.after(self.nxt) { Fit::Inside } else { Fit::Outside }
    }

    /// Returns whether `len` bytes at `seq` are the next ones, in the window, and nothing is stored beyond them.
    #[inline]
    pub fn expects(&self, seq: Seq, len: u32) -> bool {
        seq == self.nxt
            && len <= self.edge.since(seq)
            && self.reassembly.is_empty()
            && self.fin.is_none()
            && self.ended == StreamEnd::No
    }

    /// Returns whether an empty segment at `seq` has the next expected sequence number, in the window.
    pub fn is_next(&self, seq: Seq) -> bool {
        seq == self.nxt && !seq.after(self.edge)
    }

    /// Processes a FIN at the next sequence number; [`Self::expects`] has accepted it.
    pub fn end(&mut self) {
        self.fin = Some(self.nxt);
        self.nxt += 1;
        self.ended = StreamEnd::Yes;
        self.owed = OwedAck::Now;
        self.reports.clear();
    }

    /// Accepts data for which [`Self::expects`] is true.
    #[inline(always)]
    pub fn take_expected(&mut self, now: Instant, data: IoBuf, delay: Duration, counters: &mut Counters) {
        self.deliver(data, counters);
        self.owe(now, delay);
    }

    /// Accepts the data of a merged segment for which [`Self::expects`] is true.
    pub fn take_expected_long(&mut self, data: Chain, counters: &mut Counters) {
        self.nxt += data.len() as u32;
        self.bytes += data.len() as u64;
        self.inbox.append(data, pinned_limit(self.capacity), counters);
        self.quick = self.quick.saturating_sub(ACK_EVERY);
        self.owed = OwedAck::Now;
    }

    /// Accepts a payload whose segment is at least partly in the window. `fin` is whether it ends the stream.
    pub fn accept(
        &mut self,
        now: Instant,
        (seq, mut payload): (Seq, IoBuf),
        fin: StreamEnd,
        delay: Duration,
        counters: &mut Counters,
    ) -> Arrival {
        let mut arrival = Arrival { data: NewData::No, end: StreamEnd::No };
        if self.ended == StreamEnd::Yes {
            self.owed = OwedAck::Now;
            return arrival;
        }
        if fin == StreamEnd::Yes {
            let end = seq + payload.len() as u32;
            if self.fin.is_none() && !end.before(self.nxt) && !end.after(self.edge) {
                self.fin = Some(end);
            }
            self.owed = OwedAck::Now;
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
                self.owed = OwedAck::Now;
            }
        } else if start == self.nxt {
            arrival.data = NewData::Yes;
            self.take_in_order(now, payload, delay, counters);
        } else {
            counters.bump(Counter::TcpOutOfOrder);
            self.keep(start, payload, counters);
            self.owed = OwedAck::Now;
        }
        if self.fin == Some(self.nxt) {
            self.nxt += 1;
            self.ended = StreamEnd::Yes;
            self.owed = OwedAck::Now;
            self.reassembly.clear();
            self.reports.clear();
            arrival.end = StreamEnd::Yes;
        }
        arrival
    }

    /// Stores data beyond a gap. Until the gap is filled, and for some segments after, each segment is acknowledged at
    /// once.
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
                // The run that contains the duplicate is reported too (RFC 2883 4.2).
                self.reports.kept(block);
                self.reports.came_twice(block);
            }
        }
    }

    /// Records the part of a segment of `len` bytes at `seq` that had been received before, as a duplicate.
    pub fn note_old(&mut self, seq: Seq, len: u32) {
        let end = if (seq + len).before(self.nxt) { seq + len } else { self.nxt };
        if self.sack == Sack::Permitted && seq.before(end) {
            self.reports.came_twice(Block { start: seq, end });
        }
    }

    /// Returns the number of bytes to reserve in a segment for SACK blocks.
    #[inline]
    pub fn reports_len(&self) -> usize {
        if self.reports.is_empty() { 0 } else { 4 + 8 * usize::from(self.report_room) }
    }

    /// Returns the SACK blocks for a segment sent now.
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
        // The peer must learn at once that the gap is filled (RFC 5681 4.2).
        self.owed = OwedAck::Now;
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
            self.owed = OwedAck::Now;
        } else if self.unacked >= ACK_EVERY {
            self.owed = OwedAck::Now;
        } else if self.owed == OwedAck::Nothing {
            self.owed = OwedAck::By(now + delay);
        }
    }

    /// Returns whether the peer's stream has ended and all of it has been received.
    pub fn has_ended(&self) -> StreamEnd {
        self.ended
    }

    /// Returns the next piece of data for the application, of at most `most` bytes.
    pub fn read(&mut self, most: usize) -> Option<IoBuf> {
        let piece = self.inbox.pop(most)?;
        self.ack_if_opened(self.inbox.len());
        Some(piece)
    }

    /// Returns the announced window, in bytes.
    pub fn window(&self) -> u32 {
        self.edge.beyond(self.nxt)
    }

    /// Returns the right edge of the window if the application has this many unread bytes.
    #[inline]
    fn allowed_edge(&self, unread: usize) -> Seq {
        self.nxt + self.capacity.saturating_sub(unread as u32)
    }

    /// Owes an acknowledgement at once if, with `unread` unread bytes, the window has opened by a large step (RFC 9293
    /// 3.8.6.2.2).
    #[inline]
    pub fn ack_if_opened(&mut self, unread: usize) {
        if self.ended == StreamEnd::No && self.allowed_edge(unread).beyond(self.edge) >= self.long_step {
            self.owed = OwedAck::Now;
        }
    }

    /// Returns the window field for a segment sent now. The segment acknowledges all received data.
    #[inline(always)]
    pub fn tell_window(&mut self) -> u16 {
        let allowed = self.allowed_edge(self.inbox.len());
        if allowed.beyond(self.edge) >= self.step {
            self.edge = allowed;
        }
        self.owed = OwedAck::Nothing;
        self.unacked = 0;
        self.acked = self.nxt;
        (self.window() >> self.scale).min(65_535) as u16
    }

    /// Owes an acknowledgement at once.
    pub fn ack_now(&mut self) {
        self.owed = OwedAck::Now;
    }

    /// Returns whether an acknowledgement is owed at once.
    pub fn must_ack(&self) -> bool {
        self.owed == OwedAck::Now
    }

    /// Returns the time at which a delayed acknowledgement must be sent.
    pub fn deadline(&self) -> Option<Instant> {
        match self.owed {
            OwedAck::By(at) => Some(at),
            OwedAck::Nothing | OwedAck::Now => None,
        }
    }

    /// Owes an acknowledgement at once if a delayed one is due.
    pub fn on_timer(&mut self, now: Instant) {
        if self.deadline().is_some_and(|at| now >= at) {
            self.owed = OwedAck::Now;
        }
    }

    /// Drops all stored and unread data.
    pub fn clear(&mut self) {
        self.inbox.clear();
        self.reassembly.clear();
        self.reports.clear();
    }
}
