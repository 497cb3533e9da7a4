//! What is under way, as far as its parts have different fates.
//!
//! ```text
//!   start                                              end
//!     | Sent, twice  | Sacked | Lost | Sacked | Sent    |--> sequence numbers
//! ```
//!
//! Runs of sequence numbers without gaps, from the first unacknowledged one on. While nothing is lost a run is
//! a burst: what was sent at one moment. Runs are then added behind and taken off in front, and nothing else
//! happens. Selective acknowledgements and losses cut runs in parts; neighbours of one fate become one again.
//!
//! A connection that sends little has one run at a time, of which nothing is known: it lies in the flight itself.
//!
//! Bounds: a report that would make more runs than the limit counts as not heard, bursts beyond it become
//! one, and what is sent again makes at most as many runs as there are holes: at most twice the limit.

use super::rack::Deliveries;
use crate::tcp::sack::Block;
use crate::tcp::seq::Seq;
use crate::time::{Duration, Instant};
use alloc::collections::VecDeque;

/// Runs for which an empty flight keeps memory.
const KEPT: usize = 32;

/// What is known of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// Nothing.
    Sent,
    /// The peer has it, ahead of a gap.
    Sacked,
    /// It is to be sent again.
    Lost,
}

/// How often a run was sent. What was sent again tells no round trip (Karn).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Times {
    Once,
    Again,
}

/// Sequence numbers with one fate, up to `end`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    pub end: Seq,
    pub fate: Fate,
    pub times: Times,
    /// When it was sent last.
    pub sent_at: Instant,
}

/// All runs, and what they add up to.
#[derive(Debug)]
pub(super) struct Flight {
    start: Seq,
    /// The only run, where it was sent once and nothing else is known of it, and where no second one came behind it.
    sole: Option<Run>,
    /// All runs, where there is no sole one.
    runs: VecDeque<Run>,
    limit: usize,
    sacked: u32,
    lost: u32,
}

impl Flight {
    pub const fn new(start: Seq, limit: usize) -> Self {
        Self { start, sole: None, runs: VecDeque::new(), limit, sacked: 0, lost: 0 }
    }

    /// Begins with nothing under way.
    pub fn begin(&mut self, start: Seq) {
        self.start = start;
    }

    /// Bytes that the peer has ahead of a gap.
    #[inline]
    pub const fn sacked(&self) -> u32 {
        self.sacked
    }

    /// Bytes that are to be sent again.
    #[inline]
    pub const fn lost(&self) -> u32 {
        self.lost
    }

    /// Whether nothing is known but that all of it was sent.
    #[inline]
    pub const fn is_whole(&self) -> bool {
        self.sacked | self.lost == 0
    }

    /// New data up to `end` goes out.
    #[inline]
    pub fn sent(&mut self, end: Seq, now: Instant) {
        if self.sole.is_none() && self.runs.is_empty() {
            self.sole = Some(Run { end, fate: Fate::Sent, times: Times::Once, sent_at: now });
        } else {
            self.sent_behind(end, now);
        }
    }

    /// The same behind what is under way.
    fn sent_behind(&mut self, end: Seq, now: Instant) {
        let run = Run { end, fate: Fate::Sent, times: Times::Once, sent_at: now };
        if let Some(sole) = &mut self.sole
            && sole.sent_at == run.sent_at
        {
            sole.end = run.end;
            return;
        }
        self.spread();
        let full = self.runs.len() >= self.limit;
        if let Some(last) = self.runs.back_mut()
            && last.fate == Fate::Sent
            && (full || (last.sent_at == run.sent_at && last.times == Times::Once))
        {
            last.end = run.end;
            last.sent_at = run.sent_at;
            return;
        }
        self.runs.push_back(run);
    }

    /// Puts a sole run among the others: for whatever is more than sending and arriving.
    #[inline]
    fn spread(&mut self) {
        if let Some(sole) = self.sole.take() {
            self.runs.push_back(sole);
        }
    }

    /// All before `ack` arrived, of a flight that is whole. Returns the latest round trip that it tells.
    #[inline]
    pub fn acked_whole(&mut self, ack: Seq, now: Instant) -> Option<Duration> {
        match &self.sole {
            Some(sole) if !sole.end.after(ack) => {
                let rtt = now.since(sole.sent_at);
                self.start = ack;
                self.sole = None;
                Some(rtt)
            }
            _ => self.acked_runs(ack, now),
        }
    }

    fn acked_runs(&mut self, ack: Seq, now: Instant) -> Option<Duration> {
        self.spread();
        let mut from = self.start;
        self.start = ack;
        let mut rtt = None;
        while let Some(first) = self.runs.front()
            && from.before(ack)
        {
            if first.times == Times::Once {
                rtt = Some(now.since(first.sent_at));
            }
            if first.end.after(ack) {
                return rtt;
            }
            from = first.end;
            self.runs.pop_front();
        }
        self.forget();
        rtt
    }

    /// All before `ack` arrived.
    pub fn acked(&mut self, ack: Seq, news: &mut Deliveries<'_>) {
        self.spread();
        while let Some(&first) = self.runs.front() {
            let end = if first.end.after(ack) { ack } else { first.end };
            if !end.after(self.start) {
                break;
            }
            self.leave(first.fate, end.since(self.start));
            if first.fate != Fate::Sacked {
                news.take(self.start, end, &first);
            }
            self.start = end;
            if first.end.after(ack) {
                return;
            }
            self.runs.pop_front();
        }
        self.start = ack;
        self.forget();
    }

    /// Gives the memory of a large flight back that is over.
    fn forget(&mut self) {
        if self.runs.is_empty() && self.runs.capacity() > KEPT {
            self.runs = VecDeque::new();
        }
    }

    fn leave(&mut self, fate: Fate, len: u32) {
        match fate {
            Fate::Sent => {}
            Fate::Sacked => self.sacked -= len,
            Fate::Lost => self.lost -= len,
        }
    }

    fn join(&mut self, fate: Fate, len: u32) {
        match fate {
            Fate::Sent => {}
            Fate::Sacked => self.sacked += len,
            Fate::Lost => self.lost += len,
        }
    }

    /// The peer has a block, which lies within the flight.
    pub fn sack(&mut self, block: Block, news: &mut Deliveries<'_>) {
        self.spread();
        let mut index = self.runs.partition_point(|run| !run.end.after(block.start));
        let mut from =
            index.checked_sub(1).and_then(|before| self.runs.get(before)).map_or(self.start, |r| r.end);
        while let Some(&run) = self.runs.get(index)
            && from.before(block.end)
        {
            if run.fate != Fate::Sacked {
                let start = from.max(block.start);
                let end = if run.end.after(block.end) { block.end } else { run.end };
                let Some(place) = self.cut(index, (from, start, end)) else { break };
                index = place;
                self.turn(index, start, Fate::Sacked);
                news.take(start, end, &run);
                from = end;
            } else {
                from = run.end;
            }
            index += 1;
        }
        self.unite();
    }

    /// Cuts the run at `index`, which begins at `from`, so that `start` to `end` is a run: returns its place,
    /// or nothing where that would make too many.
    fn cut(&mut self, index: usize, (from, start, end): (Seq, Seq, Seq)) -> Option<usize> {
        let run = *self.runs.get(index)?;
        let pieces = usize::from(from.before(start)) + usize::from(end.before(run.end));
        if pieces > 0 && self.runs.len() + pieces > self.limit {
            return None;
        }
        let mut place = index;
        if from.before(start) {
            self.runs.insert(place, Run { end: start, ..run });
            place += 1;
        }
        if end.before(run.end) {
            self.runs.insert(place, Run { end, ..run });
        }
        Some(place)
    }

    /// The run at `index`, which begins at `start`, has another fate now.
    fn turn(&mut self, index: usize, start: Seq, fate: Fate) {
        let Some(run) = self.runs.get_mut(index) else { return };
        let (old, len) = (run.fate, run.end.since(start));
        run.fate = fate;
        self.leave(old, len);
        self.join(fate, len);
    }

    /// Makes one run of neighbours whose times mean nothing any more.
    fn unite(&mut self) {
        let mut last = 0;
        for index in 1..self.runs.len() {
            let (before, run) = (self.runs[last], self.runs[index]);
            if before.fate == run.fate && run.fate != Fate::Sent {
                let times = if before.times == run.times { run.times } else { Times::Again };
                self.runs[last] = Run { times, ..run };
            } else {
                last += 1;
                self.runs[last] = run;
            }
        }
        self.runs.truncate(last + 1);
    }

    /// Finds what must be lost, as something sent later has arrived (RFC 8985 6.2): `is_due` says of a run
    /// since when. Returns when the rest of them is to be looked at.
    pub fn find_lost(&mut self, now: Instant, is_due: impl Fn(&Run) -> Option<Instant>) -> Option<Instant> {
        self.spread();
        let (mut from, mut look_at, mut found) = (self.start, None, 0);
        for run in &mut self.runs {
            if run.fate == Fate::Sent
                && let Some(due) = is_due(run)
            {
                if due <= now {
                    run.fate = Fate::Lost;
                    found += run.end.since(from);
                } else {
                    look_at = look_at.max(Some(due));
                }
            }
            from = run.end;
        }
        if found > 0 {
            self.lost += found;
            self.unite();
        }
        look_at
    }

    /// The first `len` bytes are lost, where nothing else is known of them.
    pub fn lose_first(&mut self, len: u32) {
        self.spread();
        let Some(&first) = self.runs.front() else { return };
        if first.fate != Fate::Sent {
            return;
        }
        let end = if first.end.since(self.start) > len { self.start + len } else { first.end };
        if let Some(place) = self.cut(0, (self.start, self.start, end)) {
            self.turn(place, self.start, Fate::Lost);
        } else {
            self.turn(0, self.start, Fate::Lost);
        }
        self.unite();
    }

    /// The last `len` bytes are to be sent again, where nothing else is known of them.
    pub fn lose_last(&mut self, len: u32) {
        self.spread();
        let Some(&last) = self.runs.back() else { return };
        if last.fate != Fate::Sent {
            return;
        }
        let index = self.runs.len() - 1;
        let from =
            index.checked_sub(1).and_then(|before| self.runs.get(before)).map_or(self.start, |r| r.end);
        let start = if last.end.since(from) > len { last.end.back(len) } else { from };
        if let Some(place) = self.cut(index, (from, start, last.end)) {
            self.turn(place, start, Fate::Lost);
        }
    }

    /// Everything is to be sent again, whatever the peer said of it: it may have let go of it (RFC 2018 8).
    pub fn lose_all(&mut self) {
        self.spread();
        let Some(&last) = self.runs.back() else { return };
        self.runs.clear();
        self.sacked = 0;
        self.lost = last.end.since(self.start);
        self.runs.push_back(Run { fate: Fate::Lost, times: Times::Again, ..last });
    }

    /// What counted as lost is under way after all.
    pub fn find_all(&mut self) {
        self.runs.iter_mut().filter(|run| run.fate == Fate::Lost).for_each(|run| run.fate = Fate::Sent);
        self.lost = 0;
    }

    /// The first run that is to be sent again: its start and end.
    pub fn first_lost(&self) -> Option<(Seq, Seq)> {
        let mut start = self.start;
        for run in &self.runs {
            if run.fate == Fate::Lost {
                return Some((start, run.end));
            }
            start = run.end;
        }
        None
    }

    /// The bytes from the start of the first lost run up to `end` go out again.
    pub fn sent_again(&mut self, end: Seq, now: Instant) {
        let Some(index) = self.runs.iter().position(|run| run.fate == Fate::Lost) else { return };
        let full = self.runs.len() >= self.limit;
        let before = index.checked_sub(1).and_then(|before| self.runs.get_mut(before));
        let start = before.as_ref().map_or(self.start, |run| run.end);
        let len = end.since(start);
        let joins = before.is_some_and(|run| {
            let same = run.fate == Fate::Sent && (full || (run.sent_at == now && run.times == Times::Again));
            if same {
                *run = Run { end, fate: Fate::Sent, times: Times::Again, sent_at: now };
            }
            same
        });
        self.lost -= len;
        let whole = self.runs.get(index).is_some_and(|run| run.end == end);
        let again = Run { end, fate: Fate::Sent, times: Times::Again, sent_at: now };
        match (joins, whole) {
            (true, true) => drop(self.runs.remove(index)),
            (true, false) => {}
            (false, true) => self.runs[index] = again,
            (false, false) => self.runs.insert(index, again),
        }
    }
}

#[cfg(test)]
mod tests;
