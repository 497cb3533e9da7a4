//! The data in flight, as runs of sequence numbers with the same state.
//!
//! ```text
//!   start                                              end
//!     | Sent, again  | Sacked | Lost | Sacked | Sent    |--> sequence numbers
//! ```
//!
//! The runs are contiguous and start at the first unacknowledged sequence number. Without losses, a run is a burst:
//! data sent at the same time. Runs are then only appended at the end and removed from the front. SACK blocks and
//! losses split runs; adjacent runs with the same state merge again.
//!
//! A connection that sends little has one run at a time, in the initial state; it is stored inline.
//!
//! Bounds: a SACK block that would exceed the limit of runs is ignored, further bursts beyond the limit join the last
//! run, and retransmissions add at most one run per hole. So there are at most twice as many runs as the limit.

use super::rack::Deliveries;
use super::run::{Run, RunState, Times};
use crate::base::{Duration, Instant};
use crate::tcp::sack::Block;
use crate::tcp::seq::Seq;
use alloc::collections::VecDeque;

/// Capacity up to which an empty flight keeps its memory, in runs.
const KEPT: usize = 32;

/// All runs, and their totals.
#[derive(Debug)]
pub(super) struct Flight {
    start: Seq,
    /// The only run, if it was sent once, is neither SACKed nor lost, and no second run was appended.
    sole: Option<Run>,
    /// All runs, if there is no sole run.
    runs: VecDeque<Run>,
    limit: usize,
    sacked: u32,
    lost: u32,
}

impl Flight {
    pub const fn new(start: Seq, limit: usize) -> Self {
        Self { start, sole: None, runs: VecDeque::new(), limit, sacked: 0, lost: 0 }
    }

    /// Starts with nothing in flight.
    pub fn begin(&mut self, start: Seq) {
        self.start = start;
    }

    /// Returns the number of SACKed bytes.
    #[inline]
    pub const fn sacked(&self) -> u32 {
        self.sacked
    }

    /// Returns the number of lost bytes.
    #[inline]
    pub const fn lost(&self) -> u32 {
        self.lost
    }

    /// Returns whether no data is SACKed or lost.
    #[inline]
    pub const fn is_whole(&self) -> bool {
        self.sacked | self.lost == 0
    }

    /// Records that new data up to `end` was sent.
    #[inline]
    pub fn sent(&mut self, end: Seq, now: Instant) {
        if self.sole.is_none() && self.runs.is_empty() {
            self.sole = Some(Run { end, fate: RunState::Sent, times: Times::Once, sent_at: now });
        } else {
            self.sent_behind(end, now);
        }
    }

    /// Appends new data to a flight with at least one run.
    fn sent_behind(&mut self, end: Seq, now: Instant) {
        let run = Run { end, fate: RunState::Sent, times: Times::Once, sent_at: now };
        if let Some(sole) = &mut self.sole
            && sole.sent_at == run.sent_at
        {
            sole.end = run.end;
            return;
        }
        self.spread();
        let full = self.runs.len() >= self.limit;
        if let Some(last) = self.runs.back_mut()
            && last.fate == RunState::Sent
            && (full || (last.sent_at == run.sent_at && last.times == Times::Once))
        {
            last.end = run.end;
            last.sent_at = run.sent_at;
            return;
        }
        self.runs.push_back(run);
    }

    /// Moves the sole run into the list, before an operation that needs the list.
    #[inline]
    fn spread(&mut self) {
        if let Some(sole) = self.sole.take() {
            self.runs.push_back(sole);
        }
    }

    /// Removes all data before `ack` from a flight without SACKed or lost data. Returns the round-trip time of the last
    /// run that was sent only once.
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

    /// Removes all data before `ack`, and records the arrivals.
    pub fn acked(&mut self, ack: Seq, news: &mut Deliveries<'_>) {
        self.spread();
        while let Some(&first) = self.runs.front() {
            let end = if first.end.after(ack) { ack } else { first.end };
            if !end.after(self.start) {
                break;
            }
            self.leave(first.fate, end.since(self.start));
            if first.fate != RunState::Sacked {
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

    /// Frees the memory of a large flight that has ended.
    fn forget(&mut self) {
        if self.runs.is_empty() && self.runs.capacity() > KEPT {
            self.runs = VecDeque::new();
        }
    }

    fn leave(&mut self, fate: RunState, len: u32) {
        match fate {
            RunState::Sent => {}
            RunState::Sacked => self.sacked -= len,
            RunState::Lost => self.lost -= len,
        }
    }

    fn join(&mut self, fate: RunState, len: u32) {
        match fate {
            RunState::Sent => {}
            RunState::Sacked => self.sacked += len,
            RunState::Lost => self.lost += len,
        }
    }

    /// Marks a block in the flight as SACKed, and records the arrivals.
    pub fn sack(&mut self, block: Block, news: &mut Deliveries<'_>) {
        self.spread();
        let mut index = self.runs.partition_point(|run| !run.end.after(block.start));
        let mut from =
            index.checked_sub(1).and_then(|before| self.runs.get(before)).map_or(self.start, |r| r.end);
        while let Some(&run) = self.runs.get(index)
            && from.before(block.end)
        {
            if run.fate != RunState::Sacked {
                let start = from.max(block.start);
                let end = if run.end.after(block.end) { block.end } else { run.end };
                let Some(run_index) = self.cut(index, (from, start, end)) else { break };
                index = run_index;
                self.turn(index, start, RunState::Sacked);
                news.take(start, end, &run);
                from = end;
            } else {
                from = run.end;
            }
            index += 1;
        }
        self.unite();
    }

    /// Splits the run at `index`, which begins at `from`, so that `start..end` is a run. Returns its index, or `None`
    /// if the split would exceed the limit.
    fn cut(&mut self, index: usize, (from, start, end): (Seq, Seq, Seq)) -> Option<usize> {
        let run = *self.runs.get(index)?;
        let pieces = usize::from(from.before(start)) + usize::from(end.before(run.end));
        if pieces > 0 && self.runs.len() + pieces > self.limit {
            return None;
        }
        let mut run_index = index;
        if from.before(start) {
            self.runs.insert(run_index, Run { end: start, ..run });
            run_index += 1;
        }
        if end.before(run.end) {
            self.runs.insert(run_index, Run { end, ..run });
        }
        Some(run_index)
    }

    /// Changes the state of the run at `index`, which begins at `start`.
    fn turn(&mut self, index: usize, start: Seq, fate: RunState) {
        let Some(run) = self.runs.get_mut(index) else { return };
        let (old, len) = (run.fate, run.end.since(start));
        run.fate = fate;
        self.leave(old, len);
        self.join(fate, len);
    }

    /// Merges adjacent runs of the same state, except in the state `Sent`, in which send times matter.
    fn unite(&mut self) {
        let mut last = 0;
        for index in 1..self.runs.len() {
            let (before, run) = (self.runs[last], self.runs[index]);
            if before.fate == run.fate && run.fate != RunState::Sent {
                let times = if before.times == run.times { run.times } else { Times::Again };
                self.runs[last] = Run { times, ..run };
            } else {
                last += 1;
                self.runs[last] = run;
            }
        }
        self.runs.truncate(last + 1);
    }

    /// Marks runs as lost for which some later sent data has arrived (RFC 8985 6.2). `is_due` returns the time from
    /// which a run is lost. Returns the latest such time of the remaining runs: the time of the next check.
    pub fn find_lost(&mut self, now: Instant, is_due: impl Fn(&Run) -> Option<Instant>) -> Option<Instant> {
        self.spread();
        let (mut from, mut look_at, mut found) = (self.start, None, 0);
        for run in &mut self.runs {
            if run.fate == RunState::Sent
                && let Some(due) = is_due(run)
            {
                if due <= now {
                    run.fate = RunState::Lost;
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

    /// Marks the first `len` bytes as lost, at most the first run, if that is in the state `Sent`. If the split would
    /// exceed the limit, marks the entire run.
    pub fn lose_first(&mut self, len: u32) {
        self.spread();
        let Some(&first) = self.runs.front() else { return };
        if first.fate != RunState::Sent {
            return;
        }
        let end = if first.end.since(self.start) > len { self.start + len } else { first.end };
        if let Some(run_index) = self.cut(0, (self.start, self.start, end)) {
            self.turn(run_index, self.start, RunState::Lost);
        } else {
            self.turn(0, self.start, RunState::Lost);
        }
        self.unite();
    }

    /// Marks the last `len` bytes as lost, at most the last run, if that is in the state `Sent`. Does nothing if the
    /// split would exceed the limit.
    pub fn lose_last(&mut self, len: u32) {
        self.spread();
        let Some(&last) = self.runs.back() else { return };
        if last.fate != RunState::Sent {
            return;
        }
        let index = self.runs.len() - 1;
        let from =
            index.checked_sub(1).and_then(|before| self.runs.get(before)).map_or(self.start, |r| r.end);
        let start = if last.end.since(from) > len { last.end.back(len) } else { from };
        if let Some(run_index) = self.cut(index, (from, start, last.end)) {
            self.turn(run_index, start, RunState::Lost);
        }
    }

    /// Marks all data as lost, even if SACKed: the peer may have discarded it (RFC 2018 8).
    pub fn lose_all(&mut self) {
        self.spread();
        let Some(&last) = self.runs.back() else { return };
        self.runs.clear();
        self.sacked = 0;
        self.lost = last.end.since(self.start);
        self.runs.push_back(Run { fate: RunState::Lost, times: Times::Again, ..last });
    }

    /// Marks all lost data as in flight again.
    pub fn find_all(&mut self) {
        self.runs
            .iter_mut()
            .filter(|run| run.fate == RunState::Lost)
            .for_each(|run| run.fate = RunState::Sent);
        self.lost = 0;
    }

    /// Returns start and end of the first lost run.
    pub fn first_lost(&self) -> Option<(Seq, Seq)> {
        let mut start = self.start;
        for run in &self.runs {
            if run.fate == RunState::Lost {
                return Some((start, run.end));
            }
            start = run.end;
        }
        None
    }

    /// Records that the bytes from the start of the first lost run up to `end` were retransmitted.
    pub fn sent_again(&mut self, end: Seq, now: Instant) {
        let Some(index) = self.runs.iter().position(|run| run.fate == RunState::Lost) else { return };
        let full = self.runs.len() >= self.limit;
        let before = index.checked_sub(1).and_then(|before| self.runs.get_mut(before));
        let start = before.as_ref().map_or(self.start, |run| run.end);
        let len = end.since(start);
        let joins = before.is_some_and(|run| {
            let same =
                run.fate == RunState::Sent && (full || (run.sent_at == now && run.times == Times::Again));
            if same {
                *run = Run { end, fate: RunState::Sent, times: Times::Again, sent_at: now };
            }
            same
        });
        self.lost -= len;
        let whole = self.runs.get(index).is_some_and(|run| run.end == end);
        let again = Run { end, fate: RunState::Sent, times: Times::Again, sent_at: now };
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
