//! A bounded ring of periods. A period without room is counted, and the next period with room follows a period for the period
//! of the lost ones.

use crate::event::ResourceId;
use alloc::collections::VecDeque;
use core::panic::Location;
use isola_abi::id::ActivityId;

/// A period of a core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordedPeriod {
    /// The reading of the cycle counter at its start.
    pub start: u64,
    /// Its length, in cycles.
    pub cycles: u64,
    /// What the core did.
    pub kind: RecordedKind,
}

/// The kind of a period; see [`PeriodKind`](isola_abi::query::PeriodKind).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecordedKind {
    Event { made_at: &'static Location<'static>, activity: ActivityId, resource: ResourceId, waiting: u32 },
    Part { activity: ActivityId },
    Idle,
    Interrupts { count: u32 },
    Lost { periods: u64 },
}

/// A ring of periods. It allocates nothing after its creation.
pub(crate) struct PeriodRing {
    periods: VecDeque<RecordedPeriod>,
    capacity: usize,
    lost: Option<LostPeriods>,
}

/// Periods that found no room.
#[derive(Clone, Copy)]
struct LostPeriods {
    periods: u64,
    since: u64,
    until: u64,
}

impl PeriodRing {
    /// Creates an empty ring; returns `None` without memory for it.
    pub fn new(capacity: usize) -> Option<Self> {
        let mut periods = VecDeque::new();
        periods.try_reserve_exact(capacity).ok()?;
        Some(Self { periods, capacity, lost: None })
    }

    /// Returns the number of periods.
    pub fn len(&self) -> usize {
        self.periods.len()
    }

    /// Adds a period, or counts it as lost.
    pub fn push(&mut self, period: RecordedPeriod) {
        let until = period.start.saturating_add(period.cycles);
        let needed = 1 + usize::from(self.lost.is_some());
        if self.periods.len() + needed > self.capacity {
            let lost = self.lost.get_or_insert(LostPeriods { periods: 0, since: period.start, until });
            lost.periods += 1;
            lost.until = until;
            return;
        }
        self.periods.extend(self.lost.take().map(LostPeriods::period));
        self.periods.push_back(period);
    }

    /// Returns the first periods, at most `max`.
    pub fn first(&self, max: usize) -> impl ExactSizeIterator<Item = RecordedPeriod> {
        self.periods.range(..self.periods.len().min(max)).copied()
    }

    /// Removes the first `count` periods.
    pub fn remove(&mut self, count: usize) {
        self.periods.drain(..count.min(self.periods.len()));
    }
}

impl LostPeriods {
    fn period(self) -> RecordedPeriod {
        let Self { periods, since, until } = self;
        RecordedPeriod {
            start: since,
            cycles: until.saturating_sub(since),
            kind: RecordedKind::Lost { periods },
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    fn idle(start: u64) -> RecordedPeriod {
        RecordedPeriod { start, cycles: 10, kind: RecordedKind::Idle }
    }

    fn all(ring: &PeriodRing) -> Vec<RecordedPeriod> {
        ring.first(usize::MAX).collect()
    }

    #[test]
    fn periods_leave_in_the_order_of_their_arrival() {
        let mut ring = PeriodRing::new(4).unwrap();
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
    fn periods_without_room_are_counted_and_reported_before_the_next_one() {
        let mut ring = PeriodRing::new(4).unwrap();
        (0..4).for_each(|start| ring.push(idle(start)));
        assert_eq!(ring.len(), 4);
        ring.push(idle(50));
        ring.push(idle(60));
        ring.remove(1);
        // The room for one period is not enough: the report of the lost ones needs another.
        ring.push(idle(70));
        assert_eq!(ring.len(), 3);
        ring.remove(1);
        ring.push(idle(80));
        let lost = RecordedPeriod { start: 50, cycles: 30, kind: RecordedKind::Lost { periods: 3 } };
        assert_eq!(all(&ring), [idle(2), idle(3), lost, idle(80)]);
        ring.remove(2);
        ring.push(idle(90));
        assert_eq!(all(&ring).last(), Some(&idle(90)), "no period was lost since");
    }
}
