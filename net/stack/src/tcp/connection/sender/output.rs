//! What may be sent now, and making it: new data, a lost segment again, a probe.

use super::{Due, Fin, Handshake, Piece, Sender};
use crate::tcp::segment::Flags;
use crate::tcp::seq::Seq;
use crate::time::Instant;
use isola_iobuf::Chain;

impl Sender {
    /// Bytes of new data that may be sent in one segment now.
    fn sendable(&self) -> usize {
        let unsent = self.queue.unsent();
        if unsent == 0 {
            return 0;
        }
        let allowed = self.control.window().saturating_add(self.recovery.allowance(self.mss));
        let edge = self.una + allowed.min(self.window);
        let room = if edge.after(self.nxt) { edge.since(self.nxt) as usize } else { 0 };
        let len = unsent.min(room).min(self.mss as usize);
        // No silly windows (RFC 9293 3.8.6.2.1): a full segment, or all there is, or much of the window.
        let worth = len == self.mss as usize || len == unsent || len >= (self.max_window / 2) as usize;
        if worth { len } else { 0 }
    }

    /// Whether the FIN is next, and the peer has room for it at `position`.
    fn fin_fits(&self, position: Seq) -> bool {
        self.fin == Fin::Wanted && position == self.end() && position.before(self.una + self.window)
    }

    /// Whether `next` has something to send.
    pub fn has_output(&self) -> bool {
        if self.handshake == Handshake::Open {
            return self.nxt == self.una;
        }
        (self.resend == Due::Yes && self.nxt.after(self.una))
            || self.probe == Due::Yes
            || self.sendable() > 0
            || (self.queue.unsent() == 0 && self.fin_fits(self.nxt))
    }

    /// Makes the next segment's part of this half; `reserved` bytes of a full segment are taken already.
    pub fn next(&mut self, now: Instant, reserved: usize) -> Option<Piece> {
        if self.handshake == Handshake::Open {
            return self.next_syn(now);
        }
        if self.resend == Due::Yes {
            self.resend = Due::No;
            if self.nxt.after(self.una) {
                return Some(self.again(now, reserved));
            }
        }
        let len = self.sendable().min((self.mss as usize).saturating_sub(reserved).max(1));
        if self.sendable() > 0 {
            self.probe = Due::No;
            return Some(self.next_data(now, len));
        }
        if self.queue.unsent() == 0 && self.fin_fits(self.nxt) {
            self.probe = Due::No;
            return Some(self.next_data(now, 0));
        }
        if self.probe == Due::Yes {
            self.probe = Due::No;
            return self.next_probe();
        }
        None
    }

    fn next_syn(&mut self, now: Instant) -> Option<Piece> {
        if self.nxt != self.una {
            return None;
        }
        self.nxt = self.una + 1;
        self.timed = (self.max == self.una).then_some((self.nxt, now));
        self.max = self.nxt;
        self.retransmit_at = Some(now + self.rtt.timeout());
        Some(Piece { seq: self.una, flags: Flags::SYN, payload: Chain::new() })
    }

    /// The first segment in flight once more.
    fn again(&mut self, now: Instant, reserved: usize) -> Piece {
        let in_flight = self.nxt.since(self.una) as usize;
        let full = (self.mss as usize).saturating_sub(reserved).max(1);
        let payload = self.queue.front(full.min(in_flight));
        let end = self.una + payload.len() as u32;
        let mut flags = push_flag(&payload, self.queue.len());
        if self.fin == Fin::Wanted && end == self.end() && self.nxt.after(end) {
            flags = flags | Flags::FIN;
        }
        self.sent_again(now);
        Piece { seq: self.una, flags, payload }
    }

    fn sent_again(&mut self, now: Instant) {
        self.retransmits += 1;
        self.timed = None;
        self.last_sent = now;
        self.retransmit_at = Some(now + self.rtt.timeout());
    }

    /// New data, or data that is new since a timeout, with the FIN where it follows and fits.
    fn next_data(&mut self, now: Instant, len: usize) -> Piece {
        if self.max == self.una && now.since(self.last_sent) > self.rtt.timeout() {
            self.control.on_idle();
        }
        let seq = self.nxt;
        let payload = self.queue.take(len);
        let mut flags = push_flag(&payload, payload.len() + self.queue.unsent());
        self.nxt = seq + payload.len() as u32;
        if self.queue.unsent() == 0 && self.fin_fits(self.nxt) {
            flags = flags | Flags::FIN;
            self.nxt += 1;
        }
        if seq.before(self.max) {
            self.sent_again(now);
        } else if self.timed.is_none() {
            self.timed = Some((self.nxt, now));
        }
        self.max = self.max.max(self.nxt);
        self.last_sent = now;
        self.persist_at = None;
        if self.retransmit_at.is_none() {
            self.retransmit_at = Some(now + self.rtt.timeout());
        }
        Piece { seq, flags, payload }
    }

    /// A zero-window probe (RFC 9293 3.8.6.1): one byte beyond the window, or the FIN.
    fn next_probe(&mut self) -> Option<Piece> {
        let room = self.window as usize;
        let payload = self.queue.front(room.clamp(1, self.mss as usize));
        let mut flags = push_flag(&payload, self.queue.len());
        let mut end = self.una + payload.len() as u32;
        if payload.is_empty() {
            if self.fin != Fin::Wanted {
                return None;
            }
            flags = flags | Flags::FIN;
            end += 1;
        }
        self.max = self.max.max(end);
        Some(Piece { seq: self.una, flags, payload })
    }
}

/// PSH where the payload is the end of what there is to send.
fn push_flag(payload: &Chain, available: usize) -> Flags {
    if !payload.is_empty() && payload.len() == available { Flags::PSH } else { Flags::NONE }
}
