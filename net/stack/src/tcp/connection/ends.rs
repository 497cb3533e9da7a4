//! The fast path for segments without data, mostly those around the handshake and the close: an acknowledgement, or a
//! FIN that is next in sequence, on a connection without exceptions. The checks that the general path (`segments.rs`)
//! makes one after the other are combined here, as `header_prediction.rs` does for segments with data.

use super::receiver::StreamEnd;
use super::sender::Fin;
use super::signals::Signal;
use super::{Connection, EcnAgreement, Env, State};
use crate::base::Instant;
use crate::tcp::segment::{Flags, Segment};
use crate::tcp::timestamps::Age;

/// Whether a segment was processed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FastPathResult {
    Done,
    /// The segment needs the general path; nothing has changed.
    Declined,
}

impl Connection {
    /// Processes a segment if it has no data and is the expected one.
    pub fn take_end(&mut self, segment: &Segment, env: &mut Env<'_>) -> FastPathResult {
        let fin = match segment.flags.bits() & !Flags::PSH.bits() {
            flags if flags == Flags::ACK.bits() => StreamEnd::No,
            flags if flags == (Flags::ACK | Flags::FIN).bits() => StreamEnd::Yes,
            _ => return FastPathResult::Declined,
        };
        if !segment.payload.is_empty() || segment.rest.is_some() || !self.expects_end(env.now, segment, fin) {
            return FastPathResult::Declined;
        }
        self.segments_in += 1;
        if let (Some(stamps), Some(theirs)) = (&mut self.stamps, segment.options.timestamps)
            && !segment.seq.after(self.receiver.acked)
        {
            stamps.hear(env.now, theirs.value);
        }
        self.silent_since = env.now;
        self.keep_alive_probes = 0;
        if self.sender.on_calm_ack(env.now, segment.seq, segment.ack, segment.window) {
            self.signal_space();
            if self.sender.fin == Fin::Acked {
                self.on_fin_acked(env);
            }
        }
        if fin == StreamEnd::Yes {
            self.receiver.end();
            self.signals.raise(Signal::PeerClosed);
            self.on_fin();
        }
        self.signal_end(self.receiver.inbox.len());
        FastPathResult::Done
    }

    /// Returns whether a segment without data is the expected one. `fin` is whether it ends the peer's stream.
    fn expects_end(&self, now: Instant, segment: &Segment, fin: StreamEnd) -> bool {
        let next = match (self.state, fin) {
            (State::Established | State::FinWait1 | State::FinWait2, StreamEnd::Yes) => {
                self.receiver.expects(segment.seq, 1)
            }
            (State::Established | State::FinWait1 | State::FinWait2, StreamEnd::No) => {
                self.receiver.expects(segment.seq, 0)
            }
            (State::CloseWait | State::Closing | State::LastAck, StreamEnd::No) => {
                self.receiver.is_next(segment.seq)
            }
            _ => false,
        };
        let in_time = match (&self.stamps, segment.options.timestamps) {
            (Some(stamps), Some(theirs)) => stamps.judge(now, theirs.value) == Age::Fresh,
            (None, _) => true,
            _ => false,
        };
        next && in_time
            && self.marks.agreed == EcnAgreement::No
            && segment.sack.is_empty()
            && self.sender.expects_end(segment.ack, fin)
    }
}
