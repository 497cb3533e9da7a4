//! A bounded ring of spans. A span without room is counted, and the next span with room follows a span for the period
//! of the lost ones.

use crate::event::ResourceId;
use alloc::collections::VecDeque;
use core::panic::Location;
use isola_abi::id::ActivityId;

/// A period of a core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordedSpan {
    /// The reading of the cycle counter at its start.
    pub start: u64,
    /// Its length, in cycles.
    pub cycles: u64,
    /// What the core did.
    pub kind: RecordedKind,
}

/// The kind of a period; see [`SpanKind`](isola_abi::query::SpanKind).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecordedKind {
    Event { made_at: &'static Location<'static>, activity: ActivityId, resource: ResourceId, waiting: u32 },
    Part { activity: ActivityId },
    Idle,
    Interrupts { count: u32 },
    Lost { spans: u64 },
}

/// A ring of spans. It allocates nothing after its creation.
pub(crate) struct SpanRing {
    spans: VecDeque<RecordedSpan>,
    capacity: usize,
    lost: Option<LostSpans>,
}

/// Spans that found no room.
#[derive(Clone, Copy)]
struct LostSpans {
    spans: u64,
    since: u64,
    until: u64,
}

impl SpanRing {
    /// Creates an empty ring; returns `None` without memory for it.
    pub fn new(capacity: usize) -> Option<Self> {
        let mut spans = VecDeque::new();
        spans.try_reserve_exact(capacity).ok()?;
        Some(Self { spans, capacity, lost: None })
    }

    /// Returns the number of spans.
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// Adds a span, or counts it as lost.
    pub fn push(&mut self, span: RecordedSpan) {
        let until = span.start.saturating_add(span.cycles);
        let needed = 1 + usize::from(self.lost.is_some());
        if self.spans.len() + needed > self.capacity {
            let lost = self.lost.get_or_insert(LostSpans { spans: 0, since: span.start, until });
            lost.spans += 1;
            lost.until = until;
            return;
        }
        self.spans.extend(self.lost.take().map(LostSpans::span));
        self.spans.push_back(span);
    }

    /// Returns the first spans, at most `max`.
    pub fn first(&self, max: usize) -> impl ExactSizeIterator<Item = RecordedSpan> {
        self.spans.range(..self.spans.len().min(max)).copied()
    }

    /// Removes the first `count` spans.
    pub fn remove(&mut self, count: usize) {
        self.spans.drain(..count.min(self.spans.len()));
    }
}

impl LostSpans {
    fn span(self) -> RecordedSpan {
        let Self { spans, since, until } = self;
        RecordedSpan {
            start: since,
            cycles: until.saturating_sub(since),
            kind: RecordedKind::Lost { spans },
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    fn idle(start: u64) -> RecordedSpan {
        RecordedSpan { start, cycles: 10, kind: RecordedKind::Idle }
    }

    fn all(ring: &SpanRing) -> Vec<RecordedSpan> {
        ring.first(usize::MAX).collect()
    }

    #[test]
    fn spans_leave_in_the_order_of_their_arrival() {
        let mut ring = SpanRing::new(4).unwrap();
        for start in 0..100 {
            ring.push(idle(start));
            ring.push(idle(start + 1000));
            assert_eq!(all(&ring), [idle(start), idle(start + 1000)]);
            ring.remove(1);
            assert_eq!(all(&ring), [idle(start + 1000)]);
            ring.remove(1);
        }
    }

    #[test]
    fn spans_without_room_are_counted_and_reported_before_the_next_one() {
        let mut ring = SpanRing::new(4).unwrap();
        (0..4).for_each(|start| ring.push(idle(start)));
        assert_eq!(ring.len(), 4);
        ring.push(idle(50));
        ring.push(idle(60));
        ring.remove(1);
        // The room for one span is not enough: the report of the lost ones needs another.
        ring.push(idle(70));
        assert_eq!(ring.len(), 3);
        ring.remove(1);
        ring.push(idle(80));
        let lost = RecordedSpan { start: 50, cycles: 30, kind: RecordedKind::Lost { spans: 3 } };
        assert_eq!(all(&ring), [idle(2), idle(3), lost, idle(80)]);
        ring.remove(2);
        ring.push(idle(90));
        assert_eq!(all(&ring).last(), Some(&idle(90)), "no span was lost since");
    }
}
