//! The records of a trace: the periods of a cell's cores, encoded by postcard.
//!
//! A period is a period of a core in cycles: an event, a part of one that belongs to another activity, an idle period,
//! interrupts. The periods of a [`PeriodBatch`] belong to one core. Each begins relative to the one before, which keeps most
//! numbers short. Sites and activities are numbers; a batch has the names of those that it mentions first.

use super::RecordError;
use super::records::whole;
use alloc::string::String;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// The specification of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceSpec {
    /// The traced cores, by index in the cell: core `n` is bit `n`. Absent cores are ignored.
    pub cores: u64,
}

/// A record of a trace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TraceRecord {
    /// The start of the trace.
    Begin(TraceBegin),
    /// Periods of a core.
    Periods(PeriodBatch),
    /// A core that has no memory for its periods, and is not traced.
    NoMemory {
        /// The core's index in the cell.
        core: u32,
    },
    /// The trace continues. Sent if there is nothing else to send, so that the cell sees whether it is read.
    Alive,
}

/// The start of a trace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceBegin {
    /// The rate of the cycle counter, in Hz.
    pub cycles_hz: u64,
    /// The reading of the cycle counter at the clock's start.
    pub zero_cycles: u64,
    /// The time of day at the clock's start, in ns since 1970-01-01 UTC.
    pub unix_ns_at_zero: u64,
    /// The traced cores, by index in the cell: core `n` is bit `n`.
    pub cores: u64,
}

/// Successive periods of a core, in the order of their ends.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeriodBatch {
    /// The core's index in the cell.
    pub core: u32,
    /// The sites that are mentioned for the first time.
    pub sites: Vec<TraceSite>,
    /// The activities that are mentioned for the first time, or have new names.
    pub activities: Vec<TraceActivity>,
    periods: Vec<EncodedPeriod>,
    /// The start of the last period.
    #[serde(skip)]
    last: u64,
}

/// A source location that creates events.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceSite {
    /// The site's number in this trace.
    pub site: u32,
    /// The source file.
    pub file: String,
    /// The line in it.
    pub line: u32,
}

/// The name of an activity.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceActivity {
    /// The activity's id.
    pub activity: u32,
    /// Its name.
    pub name: String,
}

/// A period. Its start is relative to the start of the period before, or to 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct EncodedPeriod {
    after: i64,
    cycles: u64,
    kind: PeriodKind,
}

/// A period of a core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Period {
    /// The reading of the cycle counter at its start.
    pub start: u64,
    /// Its length, in cycles.
    pub cycles: u64,
    /// What the core did.
    pub kind: PeriodKind,
}

/// The kind of a period.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PeriodKind {
    /// An event. Its parts come before it.
    Event {
        /// The site that created it.
        site: u32,
        /// The activity at its end.
        activity: u32,
        /// The resource that it served.
        resource: u16,
        /// The number of events that wait at its end.
        waiting: u32,
    },
    /// A part of an event that worked for several activities, or work for an activity between two events.
    Part {
        /// The activity.
        activity: u32,
    },
    /// The core waited for work.
    Idle,
    /// Handlers of interrupts and alarms, and the work of the loop from an interrupt's arrival to the next event.
    Interrupts {
        /// The number of interrupts; 0 if only alarms were due.
        count: u32,
    },
    /// A period with periods for which there was no room.
    Lost {
        /// The number of these periods.
        periods: u64,
    },
}

impl PeriodBatch {
    /// Creates an empty batch of a core.
    pub fn new(core: u32) -> Self {
        Self { core, ..Self::default() }
    }

    /// Adds a period.
    pub fn push(&mut self, Period { start, cycles, kind }: Period) {
        let after = start.wrapping_sub(self.last).cast_signed();
        self.last = start;
        self.periods.push(EncodedPeriod { after, cycles, kind });
    }

    /// Returns the periods.
    pub fn periods(&self) -> impl Iterator<Item = Period> {
        self.periods.iter().scan(0_u64, |start, encoded| {
            *start = start.wrapping_add_signed(encoded.after);
            Some(Period { start: *start, cycles: encoded.cycles, kind: encoded.kind })
        })
    }
}

impl TraceRecord {
    /// Returns the encoded record.
    pub fn encode(&self) -> Vec<u8> {
        postcard::to_allocvec(self).unwrap_or_default()
    }

    /// Decodes a record.
    ///
    /// # Errors
    /// [`RecordError::Malformed`].
    pub fn decode(bytes: &[u8]) -> Result<Self, RecordError> {
        whole(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn usual_periods_take_few_bytes() {
        let mut batch = PeriodBatch::new(3);
        let kind = PeriodKind::Event { site: 20, activity: 2, resource: 0, waiting: 5 };
        for number in 0..100 {
            batch.push(Period { start: (1 << 50) + number * 3_000, cycles: 2_500, kind });
        }
        let len = TraceRecord::Periods(batch).encode().len();
        assert!(len < 1_000, "{len} bytes for 100 periods");
    }

    proptest! {
        #[test]
        fn periods_read_back(periods in proptest::collection::vec(any::<(u64, u64, u32)>(), 0..50)) {
            let periods: Vec<Period> = periods
                .into_iter()
                .map(|(start, cycles, activity)| Period { start, cycles, kind: PeriodKind::Part { activity } })
                .collect();
            let mut batch = PeriodBatch::new(7);
            periods.iter().for_each(|period| batch.push(*period));
            let record = TraceRecord::decode(&TraceRecord::Periods(batch).encode()).unwrap();
            let TraceRecord::Periods(batch) = record else { panic!("{record:?}") };
            prop_assert_eq!(batch.core, 7);
            prop_assert_eq!(batch.periods().collect::<Vec<_>>(), periods);
        }

        #[test]
        fn any_bytes_are_decoded_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            if let Ok(TraceRecord::Periods(batch)) = TraceRecord::decode(&bytes) {
                prop_assert!(batch.periods().count() <= bytes.len());
            }
        }
    }
}
