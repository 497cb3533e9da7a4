//! The timers of a connection.

use super::sender::Retries;
use super::{Connection, Env, HeldByApp, Membership, State};
use crate::base::{FailReason, Instant};

/// The remaining work after a timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expiry {
    /// None.
    GoOn,
    /// The connection must be ended for this reason, and a synchronised peer reset.
    GiveUp(FailReason),
}

impl Connection {
    /// Returns the next time at which [`Self::on_timer`] has work; `None` if no timer runs.
    #[inline]
    pub fn deadline(&mut self, now: Instant) -> Option<Instant> {
        if self.is_over() {
            return None;
        }
        self.sender.arm(now);
        let sender = self.sender.deadline();
        let others = [self.receiver.deadline(), self.fin_wait_until, self.keep_alive_at(sender)];
        let first = others.into_iter().fold(sender, |first, at| first.min(at.unwrap_or(Instant::NEVER)));
        (first != Instant::NEVER).then_some(first)
    }

    /// Returns the deadline of a connection with data in flight that the application holds and that owes no
    /// acknowledgement.
    #[inline(always)]
    pub fn deadline_under_way(&mut self, now: Instant) -> Instant {
        self.sender.arm(now);
        self.sender.deadline()
    }

    /// Acts on the expired timers.
    pub fn on_timer(&mut self, env: &mut Env<'_>) -> Expiry {
        if self.is_over() {
            return Expiry::GoOn;
        }
        let retries = match self.state {
            State::SynSent | State::SynReceived => env.config.max_syn_retransmits,
            _ => env.config.max_retransmits,
        };
        self.receiver.on_timer(env.now);
        if self.sender.on_timer(env.now, retries, env.counters) == Retries::Exhausted {
            return Expiry::GiveUp(FailReason::TimedOut);
        }
        // A peer that answers probes but never opens its window would otherwise keep a closed connection for ever.
        if self.held_by_app == HeldByApp::No && self.sender.probes() > env.config.max_retransmits {
            return Expiry::GiveUp(FailReason::TimedOut);
        }
        if self.fin_wait_until.is_some_and(|at| env.now >= at) {
            return Expiry::GiveUp(FailReason::TimedOut);
        }
        if self.keep_alive_at(self.sender.deadline()).is_some_and(|at| env.now >= at) {
            return self.probe_silence(env.now);
        }
        Expiry::GoOn
    }

    /// Returns the time of the next keep-alive probe; `None` while a timer of the sending half runs, which then detects a
    /// dead peer, and without keep-alive. `sender` is the deadline of the sending half.
    fn keep_alive_at(&self, sender: Instant) -> Option<Instant> {
        let settings = self.keep_alive?;
        let open = matches!(self.state, State::Established | State::CloseWait | State::FinWait2);
        let waits = open && sender == Instant::NEVER;
        let silence = if self.keep_alive_probes == 0 { settings.idle } else { settings.interval };
        waits.then(|| self.silent_since + silence)
    }

    /// Requests a keep-alive probe, or ends the connection after the last one. The interval for an answer begins now,
    /// even if the timer was late.
    fn probe_silence(&mut self, now: Instant) -> Expiry {
        let allowed = self.keep_alive.map_or(0, |settings| settings.probes);
        if self.keep_alive_probes >= allowed {
            return Expiry::GiveUp(FailReason::TimedOut);
        }
        self.keep_alive_probes += 1;
        self.silent_since = now;
        self.keep_alive_due = Membership::In;
        Expiry::GoOn
    }
}
