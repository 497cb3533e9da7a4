//! Header prediction (Jacobson, 1990): the processing of a segment that is next in sequence and has only data, an
//! acknowledgement, or both, on a connection without exceptions. Nearly all segments are of this kind. The checks that
//! the general path (`segments.rs`) makes one after the other are combined here.
//!
//! The effects are those of the general path, by the same functions, with the branches known in advance.

use super::signals::Signal;
use super::{Connection, EcnAgreement, HeldByApp, State};
use crate::base::{Counters, Duration, Instant};
use crate::tcp::options::Timestamps;
use crate::tcp::seq::Seq;
use crate::tcp::timestamps::Age;
use alloc::boxed::Box;
use isola_iobuf::{Chain, IoBuf};

/// The fields of a segment with no flags but ACK and PSH, and no options but timestamps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlainSegment {
    pub seq: Seq,
    pub ack: Seq,
    pub window: u16,
    pub timestamps: Option<Timestamps>,
    /// Length of the data, in bytes.
    pub len: u32,
}

impl Connection {
    /// Returns whether the segment is the expected one, so that [`Self::on_expected`] may process it.
    #[inline(always)]
    pub fn expects(&self, now: Instant, plain: &PlainSegment) -> bool {
        let calm = self.state == State::Established
            && self.held_by_app == HeldByApp::Yes
            && self.marks.agreed == EcnAgreement::No
            && self.receiver.expects(plain.seq, plain.len)
            && self.sender.expects(plain.ack, plain.len);
        let in_time = match (&self.stamps, plain.timestamps) {
            (Some(stamps), Some(theirs)) => stamps.judge(now, theirs.value) == Age::Fresh,
            (None, None) => true,
            _ => false,
        };
        calm && in_time
    }

    /// Processes the expected segment. `data` is the first part of its data, and `rest` the others, if any.
    #[inline(always)]
    pub fn on_expected(
        &mut self,
        now: Instant,
        plain: &PlainSegment,
        data: IoBuf,
        rest: Option<Box<Chain>>,
        delay: Duration,
        counters: &mut Counters,
    ) {
        self.segments_in += 1;
        if let (Some(stamps), Some(theirs)) = (&mut self.stamps, plain.timestamps)
            && !plain.seq.after(self.receiver.acked)
        {
            stamps.hear(now, theirs.value);
        }
        self.silent_since = now;
        self.keep_alive_probes = 0;
        if self.sender.on_expected_ack(now, plain) {
            self.signal_space();
        }
        match rest {
            None if data.is_empty() => return,
            None => self.receiver.take_expected(now, data, delay, counters),
            Some(mut rest) => {
                rest.push_front(data);
                self.receiver.take_expected_long(*rest, counters);
            }
        }
        self.signals.raise(Signal::Readable);
    }
}
