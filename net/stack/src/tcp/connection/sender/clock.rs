//! The sender's two timers: retransmission and persist. At most one of them runs.

use super::{Due, Fin, Handshake, Patience, Sender};
use crate::counters::{Counter, Counters};
use crate::tcp::congestion::Timeout;
use crate::tcp::connection::clock::earlier;
use crate::time::Instant;

impl Sender {
    /// Starts the persist timer where it must run, and stops it where it must not.
    pub fn arm(&mut self, now: Instant) {
        if self.nxt != self.una {
            // The retransmission timer runs.
            self.persist_at = None;
            self.probes = 0;
            return;
        }
        let pending = self.queue.unsent() > 0 || (self.fin == Fin::Wanted && self.nxt == self.end());
        let stuck = pending && self.handshake == Handshake::Done && !self.has_output();
        if !stuck {
            self.persist_at = None;
            if self.probe == Due::No {
                self.probes = 0;
            }
        } else if self.persist_at.is_none() {
            let interval = self.rtt.timeout().times(1 << self.probes.min(16));
            self.persist_at = Some(now + interval.min(self.rtt.max_timeout()));
        }
    }

    /// The next moment at which `on_timer` has something to do.
    pub fn deadline(&self) -> Option<Instant> {
        earlier(self.retransmit_at, self.persist_at)
    }

    /// Acts on the timers that ran out; `retries` is how many timeouts in a row are borne.
    pub fn on_timer(&mut self, now: Instant, retries: u8, counters: &mut Counters) -> Patience {
        if self.persist_at.is_some_and(|at| now >= at) {
            self.persist_at = None;
            self.probe = Due::Yes;
            self.probes = self.probes.saturating_add(1);
            self.timeouts = self.timeouts.saturating_add(1);
            counters.bump(Counter::TcpProbes);
        }
        if self.retransmit_at.is_some_and(|at| now >= at) {
            self.retransmit_at = None;
            self.on_timeout(counters);
        }
        if self.timeouts > retries { Patience::Gone } else { Patience::Left }
    }

    fn on_timeout(&mut self, counters: &mut Counters) {
        counters.bump(Counter::TcpTimeouts);
        let timeout = if self.timeouts == 0 { Timeout::First } else { Timeout::Repeated };
        self.timeouts = self.timeouts.saturating_add(1);
        self.rtt.back_off();
        self.resend = Due::No;
        self.nxt = self.una;
        if self.handshake == Handshake::Done {
            self.queue.rewind();
            self.control.on_timeout(self.max.since(self.una), timeout);
            self.recovery.on_timeout(self.max);
        }
    }
}
