//! What an acknowledgement changes: progress, the window, duplicates.

use super::{Ack, AckKind, Bare, Due, Fin, Sender};
use crate::counters::{Counter, Counters};
use crate::tcp::congestion::WindowUse;
use crate::tcp::connection::recovery::{Duplicate, Progress};
use crate::tcp::seq::Seq;
use crate::time::Instant;

impl Sender {
    /// Takes an acknowledgement in.
    pub fn on_ack(&mut self, now: Instant, ack: Ack, counters: &mut Counters) -> AckKind {
        let position = ack.ack;
        if position.after(self.max) || position.before(self.una.back(self.max_window)) {
            return AckKind::Invalid;
        }
        if position.before(self.una) {
            return AckKind::Old;
        }
        if self.probes > 0 {
            // An answer to a probe: the peer lives. While data is under way, only progress counts.
            self.timeouts = 0;
        }
        let window = u32::from(ack.window) << self.scale;
        let same_window = window == self.window;
        self.take_window(ack.seq, position, window);
        if position == self.una {
            if ack.bare == Bare::Yes && same_window && self.nxt.after(self.una) {
                self.on_duplicate(counters);
            }
            return AckKind::Old;
        }
        self.on_progress(now, position);
        AckKind::New
    }

    /// RFC 9293 3.10.7.4: only a segment newer than the last one that told the window tells it again.
    fn take_window(&mut self, seq: Seq, ack: Seq, window: u32) {
        let newer = self.window_seq.before(seq) || (self.window_seq == seq && !ack.before(self.window_ack));
        if newer {
            self.window = window;
            self.max_window = self.max_window.max(window);
            self.window_seq = seq;
            self.window_ack = ack;
        }
    }

    fn on_progress(&mut self, now: Instant, ack: Seq) {
        let acked = ack.since(self.una);
        let in_flight = self.nxt.since(self.una);
        let data = (acked as usize).min(self.queue.len());
        self.queue.acked(data);
        self.bytes_acked += data as u64;
        self.timeouts = 0;
        if acked as usize > data {
            self.fin = Fin::Acked;
        }
        self.una = ack;
        self.nxt = self.nxt.max(ack);
        if let Some((end, sent)) = self.timed
            && !ack.before(end)
        {
            self.rtt.measure(now.since(sent));
            self.timed = None;
        }
        self.persist_at = None;
        self.probe = Due::No;
        self.probes = 0;
        let progress = self.recovery.on_progress(ack, acked, self.mss);
        match progress {
            Progress::Normal => {
                let full = in_flight + self.mss > self.control.window();
                self.control.on_ack(acked, if full { WindowUse::Full } else { WindowUse::Partial });
            }
            Progress::FirstPartial | Progress::Partial => self.resend = Due::Yes,
            Progress::Recovered => {
                self.resend = Due::No;
                self.control.on_recovered(self.max.since(ack));
            }
        }
        if self.nxt == self.una {
            self.retransmit_at = None;
        } else if progress != Progress::Partial {
            self.retransmit_at = Some(now + self.rtt.timeout());
        }
    }

    fn on_duplicate(&mut self, counters: &mut Counters) {
        if self.recovery.on_duplicate(self.una, self.max, self.mss) == Duplicate::Loss {
            self.control.on_loss(self.max.since(self.una));
            self.resend = Due::Yes;
            counters.bump(Counter::TcpFastRetransmits);
        }
    }
}
