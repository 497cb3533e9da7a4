//! The records of a trace: the spans of a cell's cores, encoded by postcard.
//!
//! A span is a period of a core in cycles: an event, a part of one that belongs to another activity, an idle period,
//! interrupts. The spans of a [`SpanBatch`] belong to one core. Each begins relative to the one before, which keeps most
//! numbers short. Sites and activities are numbers; a batch has the names of those that it mentions first.

use super::RecordError;
use super::facts::whole;
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
    /// Spans of a core.
    Spans(SpanBatch),
    /// A core that has no memory for its spans, and is not traced.
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

/// Successive spans of a core, in the order of their ends.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpanBatch {
    /// The core's index in the cell.
    pub core: u32,
    /// The sites that are mentioned for the first time.
    pub sites: Vec<TraceSite>,
    /// The activities that are mentioned for the first time, or have new names.
    pub activities: Vec<TraceActivity>,
    spans: Vec<EncodedSpan>,
    /// The start of the last span.
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

/// A span. Its start is relative to the start of the span before, or to 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct EncodedSpan {
    after: i64,
    cycles: u64,
    kind: SpanKind,
}

/// A period of a core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The reading of the cycle counter at its start.
    pub start: u64,
    /// Its length, in cycles.
    pub cycles: u64,
    /// What the core did.
    pub kind: SpanKind,
}

/// The kind of a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SpanKind {
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
    /// A period with spans for which there was no room.
    Lost {
        /// The number of these spans.
        spans: u64,
    },
}

impl SpanBatch {
    /// Creates an empty batch of a core.
    pub fn new(core: u32) -> Self {
        Self { core, ..Self::default() }
    }

    /// Adds a span.
    pub fn push(&mut self, Span { start, cycles, kind }: Span) {
        let after = start.wrapping_sub(self.last).cast_signed();
        self.last = start;
        self.spans.push(EncodedSpan { after, cycles, kind });
    }

    /// Returns the spans.
    pub fn spans(&self) -> impl Iterator<Item = Span> {
        self.spans.iter().scan(0_u64, |start, encoded| {
            *start = start.wrapping_add_signed(encoded.after);
            Some(Span { start: *start, cycles: encoded.cycles, kind: encoded.kind })
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
    fn usual_spans_take_few_bytes() {
        let mut batch = SpanBatch::new(3);
        let kind = SpanKind::Event { site: 20, activity: 2, resource: 0, waiting: 5 };
        for number in 0..100 {
            batch.push(Span { start: 1 << 50 | number * 3_000, cycles: 2_500, kind });
        }
        let len = TraceRecord::Spans(batch).encode().len();
        assert!(len < 1_000, "{len} bytes for 100 spans");
    }

    proptest! {
        #[test]
        fn spans_read_back(spans in proptest::collection::vec(any::<(u64, u64, u32)>(), 0..50)) {
            let spans: Vec<Span> = spans
                .into_iter()
                .map(|(start, cycles, activity)| Span { start, cycles, kind: SpanKind::Part { activity } })
                .collect();
            let mut batch = SpanBatch::new(7);
            spans.iter().for_each(|span| batch.push(*span));
            let record = TraceRecord::decode(&TraceRecord::Spans(batch).encode()).unwrap();
            let TraceRecord::Spans(batch) = record else { panic!("{record:?}") };
            prop_assert_eq!(batch.core, 7);
            prop_assert_eq!(batch.spans().collect::<Vec<_>>(), spans);
        }

        #[test]
        fn any_bytes_are_decoded_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            if let Ok(TraceRecord::Spans(batch)) = TraceRecord::decode(&bytes) {
                prop_assert!(batch.spans().count() <= bytes.len());
            }
        }
    }
}
