//! Traces: what each core does, for the host tool (docs/decisions/0070-traces-from-existing-branches.md).
//!
//! During a trace each traced core records *periods*: its events, their parts for several activities, idle periods and
//! interrupts. Without a trace there is no cost: the loop calls the recorder from branches that exist for other reasons.
//!
//! | recorded | called from |
//! |---|---|
//! | the end of an event | the check of the [event limit](crate::watchdog), which all events exceed during a trace |
//! | a change of the running event's activity | the accounting of private activities: one seems to run |
//! | idle periods, interrupts | the idle handlers; the lengths are those of the counters in the report |
//!
//! | file | contents |
//! |---|---|
//! | this | begin and end of a trace, the records for the reader |
//! | `recorder` | the recorder of a core |
//! | `period_ring` | its ring of periods, which counts periods without room |
//!
//! A core copies its periods into the ring of answers when a quarter of its own ring is full, or after
//! [`DRAIN_INTERVAL`]. If the reader has read nothing for [`STALL_LIMIT`], the trace ends: the first core to notice ends
//! it, and each core releases its memory at its next copy.

mod period_ring;
mod recorder;

pub(crate) use recorder::Tracing;

use crate::event::spawn_on;
use crate::event_loop::EVENTS;
use crate::timer::now;
use crate::vcore_runner::present_cores;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::panic::Location;
use core::time::Duration;
use isola_abi::id::ActivityId;
use isola_abi::ledger::Generation;
use isola_abi::query::{
    Line, PeriodBatch, PeriodKind, Ring, TraceActivity, TraceBegin, TraceRecord, TraceSite, TraceSpec,
};
use isola_activities::{generation, name_of};
use isola_ebbs::{CellEbb, Representative, platform};
use isola_platform::{CoreSet, Instant};
use period_ring::{RecordedKind, RecordedPeriod};
use spin::Mutex;

/// The longest time for which a period stays in its core's ring.
const DRAIN_INTERVAL: Duration = Duration::from_millis(100);

/// The time without a read after which a trace ends.
const STALL_LIMIT: Duration = Duration::from_secs(10);

/// The time without a record after which the trace writes [`TraceRecord::Alive`].
const ALIVE_INTERVAL: Duration = Duration::from_millis(500);

/// The maximum number of remembered activity names; beyond that, all are sent again.
const MAX_NAMES: usize = 4096;

static TRACE: CellEbb<SharedTrace> = CellEbb::new();

/// The state of the trace that all cores share. The holder of the lock may write records.
struct SharedTrace {
    current: Mutex<Option<CurrentTrace>>,
}

impl Representative for SharedTrace {
    fn create() -> Self {
        Self { current: Mutex::new(None) }
    }
}

/// A running trace.
struct CurrentTrace {
    /// The number of its query.
    number: u32,
    /// The numbers of the sites that the reader knows, by address.
    sites: BTreeMap<usize, u32>,
    /// The activities whose names the reader knows, and their generations.
    named: BTreeMap<ActivityId, Generation>,
    /// The reader's position, and the time since which it has not changed.
    read: (u64, Instant),
    /// The time of the last record.
    written: Instant,
}

/// Whether a trace continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TraceState {
    Continues,
    Ended,
}

/// Begins a trace, for the query `number` on [`Line::Frames`], whose ring the caller has begun. It replaces the trace
/// before.
pub fn begin(number: u32, spec: TraceSpec) {
    let cores = CoreSet::from_bits(present_cores().bits() & spec.cores);
    let (clock, now) = (platform().descriptor().clock, now());
    let begin = TraceBegin {
        cycles_hz: clock.tsc_hz,
        zero_cycles: clock.tsc_at_epoch,
        unix_ns_at_zero: clock.unix_ns_at_epoch,
        cores: cores.bits(),
    };
    let ring = answers();
    let (sites, named) = (BTreeMap::new(), BTreeMap::new());
    let mut current = TRACE.current.lock();
    *current = Some(CurrentTrace { number, sites, named, read: (ring.read(), now), written: now });
    // The ring is empty.
    let _ = ring.push(&TraceRecord::Begin(begin).encode());
    drop(current);
    for core in cores {
        spawn_on(core, move || EVENTS.start_tracing(number));
    }
}

/// Ends the trace, if there is one: afterwards no core writes records. Each core releases its memory within
/// [`DRAIN_INTERVAL`].
pub fn end() {
    *TRACE.current.lock() = None;
}

fn answers() -> Ring<'static> {
    platform().report().answers.on(Line::Frames)
}

/// Reports that a core has no memory for the trace `number`.
fn report_no_memory(number: u32, core: u32) {
    let current = TRACE.current.lock();
    if current.as_ref().is_some_and(|current| current.number == number) {
        let _ = answers().push(&TraceRecord::NoMemory { core }.encode());
    }
}

/// Writes periods of a core as a record of the trace `number`. Returns how many of `periods` it took: none if the ring has no
/// room for them.
fn write(
    number: u32,
    core: u32,
    periods: impl ExactSizeIterator<Item = RecordedPeriod>,
) -> (TraceState, usize) {
    let mut current = TRACE.current.lock();
    let Some(trace) = current.as_mut().filter(|trace| trace.number == number) else {
        return (TraceState::Ended, 0);
    };
    let (ring, now) = (answers(), now());
    let position = ring.read();
    if trace.read.0 != position {
        trace.read = (position, now);
    } else if now.since(trace.read.1) > STALL_LIMIT {
        // A reader that returns later sees that its query is not answered any more.
        ring.begin(0);
        *current = None;
        return (TraceState::Ended, 0);
    }
    let count = periods.len();
    if count > 0 {
        let (batch, new) = trace.batch(core, periods);
        let record = TraceRecord::Periods(batch).encode();
        // A record that does not fit is not lost: its periods stay in the core's ring.
        if ring.room() < (record.len() + 2 * size_of::<u64>()) as u64 || ring.push(&record).is_err() {
            return (TraceState::Continues, 0);
        }
        trace.sites.extend(new.sites);
        trace.named.extend(new.named);
        trace.written = now;
    } else if now.since(trace.written) >= ALIVE_INTERVAL && ring.push(&TraceRecord::Alive.encode()).is_ok() {
        trace.written = now;
    }
    (TraceState::Continues, count)
}

/// The sites and activities that a batch introduces.
#[derive(Default)]
struct Introduced {
    sites: BTreeMap<usize, u32>,
    named: BTreeMap<ActivityId, Generation>,
}

impl CurrentTrace {
    /// Encodes periods, with the names that the reader does not know.
    fn batch(
        &mut self,
        core: u32,
        periods: impl Iterator<Item = RecordedPeriod>,
    ) -> (PeriodBatch, Introduced) {
        if self.named.len() > MAX_NAMES {
            self.named.clear();
        }
        let (mut batch, mut new) = (PeriodBatch::new(core), Introduced::default());
        for period in periods {
            let kind = match period.kind {
                RecordedKind::Event { made_at, activity, resource, waiting } => {
                    self.name(activity, &mut new, &mut batch.activities);
                    let site = self.site(made_at, &mut new, &mut batch.sites);
                    PeriodKind::Event { site, activity: activity.0, resource: resource.0, waiting }
                }
                RecordedKind::Part { activity } => {
                    self.name(activity, &mut new, &mut batch.activities);
                    PeriodKind::Part { activity: activity.0 }
                }
                RecordedKind::Idle => PeriodKind::Idle,
                RecordedKind::Interrupts { count } => PeriodKind::Interrupts { count },
                RecordedKind::Lost { periods } => PeriodKind::Lost { periods },
            };
            batch.push(isola_abi::query::Period { start: period.start, cycles: period.cycles, kind });
        }
        (batch, new)
    }

    /// Returns a site's number.
    fn site(
        &self,
        made_at: &'static Location<'static>,
        new: &mut Introduced,
        sites: &mut Vec<TraceSite>,
    ) -> u32 {
        let address = core::ptr::from_ref(made_at).addr();
        if let Some(site) = self.sites.get(&address).or_else(|| new.sites.get(&address)) {
            return *site;
        }
        let site = (self.sites.len() + new.sites.len()) as u32;
        new.sites.insert(address, site);
        sites.push(TraceSite { site, file: made_at.file().into(), line: made_at.line() });
        site
    }

    /// Adds the name of an activity that the reader does not know, or that has ended since.
    fn name(&self, activity: ActivityId, new: &mut Introduced, names: &mut Vec<TraceActivity>) {
        let current = generation(activity);
        let known = new.named.get(&activity).or_else(|| self.named.get(&activity));
        if known != Some(&current) {
            new.named.insert(activity, current);
            names.push(TraceActivity { activity: activity.0, name: name_of(activity) });
        }
    }
}
