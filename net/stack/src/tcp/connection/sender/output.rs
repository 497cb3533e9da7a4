//! The next segment to send: new data, a retransmission, or a probe.

use super::repair::Cause;
use super::{Fin, Handshake, Piece, SendDue, Sender, Tail, TailKind};
use crate::base::Instant;
use crate::tcp::connection::{LongSegment, NewDataOnly};
use crate::tcp::segment::Flags;
use crate::tcp::seq::Seq;
use isola_iobuf::{Chain, IoBuf};

impl Sender {
    /// Returns the number of bytes of new data that one frame may have now.
    #[inline]
    pub(super) fn sendable(&self) -> usize {
        let unsent = self.queue.unsent();
        if unsent == 0 {
            return 0;
        }
        let pipe = self.pipe();
        let mut room = self.allowed().saturating_sub(pipe);
        if self.tail_due == SendDue::Yes {
            // A tail loss probe ignores the congestion window.
            room = room.max(self.mss);
        }
        let open = (self.una + self.window).beyond(self.nxt);
        let mss = self.mss as usize;
        let most = if unsent > mss { self.burst.max(self.mss) } else { self.mss };
        let mut len = unsent.min(room.min(open).min(most) as usize);
        if len > mss && len < unsent {
            // Only whole segments, which the device cuts.
            len -= len % mss;
        }
        // Avoid silly windows (RFC 9293 3.8.6.2.1): send a full segment, all available data, or a large part of the
        // window.
        let worth = len >= mss || len == unsent || len >= (self.max_window / 2) as usize;
        if worth { len } else { 0 }
    }

    /// Returns the data to retransmit now: its start, its maximum length, and the end of its run.
    fn resendable(&self) -> Option<(Seq, u32, Seq)> {
        if self.flight.lost() == 0 {
            return None;
        }
        let (start, end) = self.flight.first_lost()?;
        let edge = self.una + self.window;
        if !start.before(edge) {
            // The peer has shrunk its window; zero-window probes follow (RFC 9293 3.8.6).
            return None;
        }
        let len = end.since(start).min(self.mss).min(edge.since(start));
        let pipe = self.pipe();
        let fits = pipe == 0 || self.allowed().saturating_sub(pipe) >= len;
        fits.then_some((start, len, end))
    }

    /// Returns whether the FIN is next, and the peer's window has room for it at `position`.
    fn fin_fits(&self, position: Seq) -> bool {
        self.fin == Fin::Wanted && position == self.end() && position.before(self.una + self.window)
    }

    /// Returns whether `next` has something to send.
    pub fn has_output(&self) -> bool {
        if self.handshake == Handshake::Open {
            return self.nxt == self.una;
        }
        self.resendable().is_some()
            || self.probe == SendDue::Yes
            || self.sendable() > 0
            || (self.queue.unsent() == 0 && self.fin_fits(self.nxt))
    }

    /// Returns whether there is certainly nothing left to send. It may return false for a connection that has nothing
    /// either.
    #[inline]
    pub fn has_sent_all(&self) -> bool {
        self.queue.unsent() == 0
            && self.flight.lost() == 0
            && self.fin == Fin::Open
            && self.probe == SendDue::No
    }

    /// Returns the next segment's part from this half if it is new data in one view and one segment. The caller has
    /// checked [`Self::is_fast`]. Otherwise returns `None` without any change; the caller then calls [`Self::next`].
    #[inline(always)]
    pub fn next_fast(&mut self, now: Instant) -> Option<(IoBuf, Piece)> {
        let (unsent, mss) = (self.queue.unsent(), self.mss as usize);
        let len = unsent.min(mss);
        let open = (self.una + self.window).beyond(self.nxt);
        let room = open.min(self.control.window().saturating_sub(self.nxt.since(self.una)));
        // Several segments may be one frame, which the device cuts.
        if len > room as usize || (unsent > mss && self.burst > self.mss) {
            return None;
        }
        let view = self.queue.take_view(len)?;
        Some((view, self.next_data(now, len, NewDataNext::Yes)))
    }

    /// Returns whether only new data can be next: the direction is open, and there is no loss, recovery or probe.
    #[inline(always)]
    pub fn is_fast(&self) -> bool {
        let open = self.handshake == Handshake::Done && self.fin == Fin::Open;
        open && self.probe == SendDue::No && self.tail_due == SendDue::No && self.is_calm()
    }

    /// Returns whether there is data that has not been sent.
    #[inline(always)]
    pub fn has_unsent(&self) -> bool {
        self.queue.unsent() > 0
    }

    /// Returns the next segment's part from this half, and puts its data into `payload`. `reserved` bytes of a full
    /// segment are used by options.
    #[inline(always)]
    pub fn next(
        &mut self,
        now: Instant,
        reserved: usize,
        long: LongSegment,
        payload: &mut Chain,
    ) -> Option<Piece> {
        if self.handshake == Handshake::Open {
            return self.next_syn(now);
        }
        let full = (self.mss as usize).saturating_sub(reserved).max(1);
        if let Some((start, len, end)) = self.resendable() {
            self.probe = SendDue::No;
            *payload = self.queue.range(start.since(self.una) as usize, full.min(len as usize));
            return Some(self.again(now, start, payload, end));
        }
        let len = self.sendable();
        if len > 0 {
            self.probe = SendDue::No;
            let len = if reserved > 0 || long == LongSegment::No { len.min(full) } else { len };
            self.queue.take_into(len, payload);
            return Some(self.next_data(now, payload.len(), NewDataNext::No));
        }
        if self.queue.unsent() == 0 && self.fin_fits(self.nxt) {
            self.probe = SendDue::No;
            return Some(self.next_data(now, 0, NewDataNext::No));
        }
        if self.probe == SendDue::Yes {
            self.probe = SendDue::No;
            return self.next_probe(full, payload);
        }
        None
    }

    fn next_syn(&mut self, now: Instant) -> Option<Piece> {
        if self.nxt != self.una {
            return None;
        }
        self.nxt = self.una + 1;
        self.syn_sent = (self.max == self.una).then_some(now);
        self.max = self.nxt;
        self.timeout_at = Some(now + self.rtt.timeout());
        Some(Piece { seq: self.una, flags: Flags::SYN, fresh: NewDataOnly::No })
    }

    /// Retransmits the bytes at `start`, of a run that ends at `run_end`, with the FIN if it follows.
    #[cold]
    fn again(&mut self, now: Instant, start: Seq, payload: &Chain, run_end: Seq) -> Piece {
        let offset = start.since(self.una) as usize;
        let mut flags = push_flag(payload.len(), self.queue.len().saturating_sub(offset));
        let mut end = start + payload.len() as u32;
        if self.fin == Fin::Wanted && end == self.end() && run_end.after(end) {
            flags = flags | Flags::FIN;
            end += 1;
        }
        // A run always has bytes or the FIN. If it had none, the run is skipped rather than retried for ever.
        let end = if end == start { run_end } else { end };
        self.flight.sent_again(end, now);
        if self.pipe() + self.mss > self.control.window() {
            self.full = end;
        }
        self.retransmits += 1;
        self.last_sent = now;
        if start == self.una || self.timeout_at.is_none() {
            self.timeout_at = Some(now + self.rtt.timeout());
        }
        let sent = end.since(start);
        if let Some(repair) = &mut self.repair {
            repair.on_sent_again(now, sent);
            if let Some(rack) = self.rack.as_mut().filter(|_| repair.cause == Cause::Loss) {
                rack.unneeded.sent = rack.unneeded.sent.saturating_add(sent);
            }
        }
        Piece { seq: start, flags, fresh: NewDataOnly::No }
    }

    /// Sends `len` bytes of new data, which the caller has taken off the queue, with the FIN if it follows and fits.
    /// `calm` is whether [`Self::is_fast`] holds, which saves checks.
    #[inline(always)]
    fn next_data(&mut self, now: Instant, len: usize, calm: NewDataNext) -> Piece {
        if self.max == self.una && now.since(self.last_sent) > self.rtt.timeout() {
            self.control.on_idle();
        }
        let seq = self.nxt;
        let mut flags = push_flag(len, len + self.queue.unsent());
        self.nxt = seq + len as u32;
        if calm == NewDataNext::No && self.queue.unsent() == 0 && self.fin_fits(self.nxt) {
            flags = flags | Flags::FIN;
            self.nxt += 1;
        }
        self.flight.sent(self.nxt, now);
        self.max = self.max.max(self.nxt);
        let pipe = match calm {
            NewDataNext::Yes => self.nxt.since(self.una),
            NewDataNext::No => self.pipe(),
        };
        if pipe + self.mss > self.control.window() {
            self.full = self.nxt;
        }
        self.last_sent = now;
        self.persist_at = None;
        if self.timeout_at.is_none() {
            self.timeout_at = Some(now + self.rtt.timeout());
        }
        if self.soon.is_none() {
            self.soon = if calm == NewDataNext::Yes { self.probe_when_calm(now) } else { self.probe_at(now) };
        }
        if calm == NewDataNext::No && (self.repair.is_some() || self.tail_due == SendDue::Yes) {
            self.note_sent(self.nxt.since(seq));
        }
        let fresh = if len == 0 { NewDataOnly::No } else { NewDataOnly::Yes };
        Piece { seq, flags, fresh }
    }

    /// Updates the recovery or the tail loss probe after new data was sent.
    #[cold]
    fn note_sent(&mut self, len: u32) {
        if let Some(repair) = &mut self.repair {
            repair.rate.on_sent(len);
        }
        if self.tail_due == SendDue::Yes {
            self.tail_due = SendDue::No;
            self.tail = Some(Tail { end: self.nxt, kind: TailKind::New });
        }
    }

    /// Builds a zero-window probe (RFC 9293 3.8.6.1): the data in the window, at most `full` bytes, or one byte beyond
    /// a window of zero, or the FIN.
    fn next_probe(&mut self, full: usize, payload: &mut Chain) -> Option<Piece> {
        let room = self.window as usize;
        *payload = self.queue.front(room.clamp(1, full));
        let mut flags = push_flag(payload.len(), self.queue.len());
        let mut end = self.una + payload.len() as u32;
        if payload.is_empty() {
            if self.fin != Fin::Wanted {
                return None;
            }
            flags = flags | Flags::FIN;
            end += 1;
        }
        self.max = self.max.max(end);
        Some(Piece { seq: self.una, flags, fresh: NewDataOnly::No })
    }
}

/// Whether it is known that only new data can be next.
#[derive(Clone, Copy, PartialEq, Eq)]
enum NewDataNext {
    Yes,
    No,
}

/// Returns PSH if the payload is the last of the available data.
fn push_flag(len: usize, available: usize) -> Flags {
    if len > 0 && len == available { Flags::PSH } else { Flags::NONE }
}
