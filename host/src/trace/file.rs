//! A trace file for Perfetto (ui.perfetto.dev, `trace_processor`), written record by record: the file is valid whenever
//! the writing ends.
//!
//! The cell is a process. Each core has a track with slices, and a counter of the events that wait. The name of an
//! event's slice is the source location that created the event, its category the activity. An event that worked for
//! several activities has a slice for each part below its own.

use super::cores_of;
use super::packets::{
    BOOTTIME, COUNTER, Clock, ClockSnapshot, CounterDescriptor, DebugAnnotation, EXPLICIT_ORDER,
    INCREMENTAL_STATE_CLEARED, InternedData, InternedName, NEEDS_INCREMENTAL_STATE, ProcessDescriptor,
    REALTIME, SLICE_BEGIN, SLICE_END, SourceLocation, Trace, TracePacket, TrackDescriptor, TrackEvent,
};
use isola_abi::query::{Period, PeriodBatch, PeriodKind, RecordError, TraceBegin, TraceRecord};
use prost::Message;
use std::collections::{BTreeMap, HashMap};

/// The cell's track.
const CELL_TRACK: u64 = 1;

/// The one sequence of packets.
const SEQUENCE: u32 = 1;

/// The maximum number of names that a cell may introduce.
const MAX_NAMES: usize = 1 << 20;

/// The maximum number of parts of an event that are kept until the event's end is known.
const MAX_PARTS: usize = 4096;

/// The folder of third-party sources in a path.
const REGISTRY: &str = "/registry/src/";

/// Generates the bytes of a trace file.
pub struct TraceFile {
    cell: String,
    clock: TraceBegin,
    activities: HashMap<u32, NamedActivity>,
    /// The name and location of each site.
    sites: HashMap<u32, u64>,
    categories: HashMap<String, u64>,
    names: HashMap<String, u64>,
    /// Strings to be written with the next event.
    new: InternedData,
    cores: BTreeMap<u32, CoreTrack>,
    trace: Trace,
}

/// The interned name of an activity.
#[derive(Clone, Copy)]
struct NamedActivity {
    category: u64,
    name: u64,
}

/// The state of a core's track.
#[derive(Default)]
struct CoreTrack {
    /// Parts of an event that is not complete.
    parts: Vec<(Period, u32)>,
    /// The last value of the counter.
    waiting: Option<u32>,
}

impl TraceFile {
    /// Starts a file for a trace of the cell `name`.
    pub fn begin(name: &str) -> Self {
        Self {
            cell: name.to_owned(),
            clock: TraceBegin { cycles_hz: 0, zero_cycles: 0, unix_ns_at_zero: 0, cores: 0 },
            activities: HashMap::new(),
            sites: HashMap::new(),
            categories: HashMap::new(),
            names: HashMap::new(),
            new: InternedData::default(),
            cores: BTreeMap::new(),
            trace: Trace::default(),
        }
    }

    /// Adds a record.
    ///
    /// # Errors
    /// [`RecordError::Malformed`] if the cell introduces too many names or cores.
    pub fn add(&mut self, record: &TraceRecord) -> Result<(), RecordError> {
        match record {
            TraceRecord::Begin(begin) => {
                self.start(begin);
                Ok(())
            }
            TraceRecord::Periods(batch) => self.add_periods(batch),
            TraceRecord::NoMemory { .. } | TraceRecord::Alive => Ok(()),
        }
    }

    /// Returns the bytes generated since the last call.
    pub fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.trace).encode_to_vec()
    }

    fn start(&mut self, begin: &TraceBegin) {
        self.clock = begin.clone();
        let reading = |clock_id, timestamp| Clock { clock_id: Some(clock_id), timestamp: Some(timestamp) };
        let clocks = vec![reading(BOOTTIME, 0), reading(REALTIME, begin.unix_ns_at_zero)];
        self.trace.packet.push(TracePacket {
            clock_snapshot: Some(ClockSnapshot { clocks }),
            timestamp: Some(0),
            trusted_packet_sequence_id: Some(SEQUENCE),
            sequence_flags: Some(INCREMENTAL_STATE_CLEARED),
            ..TracePacket::default()
        });
        let process = ProcessDescriptor { pid: Some(1), process_name: Some(self.cell.clone()) };
        self.describe(TrackDescriptor {
            uuid: Some(CELL_TRACK),
            process: Some(process),
            child_ordering: Some(EXPLICIT_ORDER),
            ..TrackDescriptor::default()
        });
        for core in cores_of(begin.cores) {
            self.add_core(core);
        }
    }

    fn describe(&mut self, track: TrackDescriptor) {
        self.trace.packet.push(TracePacket {
            trusted_packet_sequence_id: Some(SEQUENCE),
            track_descriptor: Some(track),
            ..TracePacket::default()
        });
    }

    /// Writes the tracks of a core.
    fn add_core(&mut self, core: u32) {
        let describe = |uuid, name, counter, rank| TrackDescriptor {
            uuid: Some(uuid),
            name: Some(name),
            parent_uuid: Some(CELL_TRACK),
            counter,
            sibling_order_rank: Some(rank),
            ..TrackDescriptor::default()
        };
        let rank = core as i32 * 2;
        self.describe(describe(slices(core), format!("core {core}"), None, rank));
        let counter = CounterDescriptor { unit_name: Some("events".into()) };
        let name = format!("core {core}: waiting events");
        self.describe(describe(counters(core), name, Some(counter), rank + 1));
        self.cores.insert(core, CoreTrack::default());
    }

    fn add_periods(&mut self, batch: &PeriodBatch) -> Result<(), RecordError> {
        let core = batch.core;
        if !self.cores.contains_key(&core) {
            // The cell names its cores at the beginning.
            return Err(RecordError::Malformed);
        }
        for activity in &batch.activities {
            let named =
                NamedActivity { category: self.category(&activity.name), name: self.name(&activity.name) };
            self.activities.insert(activity.activity, named);
        }
        for site in &batch.sites {
            let name = format!("{}:{}", short(&site.file), site.line);
            let iid = self.name(&name);
            if self.sites.insert(site.site, iid).is_none() {
                self.new.source_locations.push(SourceLocation {
                    iid: Some(location(site.site)),
                    file_name: Some(site.file.clone()),
                    line_number: Some(site.line),
                });
            }
        }
        if self.names.len() + self.categories.len() + self.sites.len() + self.activities.len() > MAX_NAMES {
            return Err(RecordError::Malformed);
        }
        for period in batch.periods() {
            self.add_period(core, period);
        }
        Ok(())
    }

    fn add_period(&mut self, core: u32, period: Period) {
        let track = self.cores.entry(core).or_default();
        match period.kind {
            PeriodKind::Part { activity } => {
                track.parts.push((period, activity));
                if track.parts.len() >= MAX_PARTS {
                    self.end_parts(core, u64::MAX);
                }
            }
            PeriodKind::Event { site, activity, resource, waiting } => {
                let changed = track.waiting.replace(waiting) != Some(waiting);
                // Parts before the event belong to no event.
                let parts = self.end_parts(core, period.start);
                let mut event = self.site_event(site);
                event.category_iids = self.categories_of(activity);
                if resource != 0 {
                    event.debug_annotations.push(annotation("resource", resource.into()));
                }
                self.begin_slice(core, period, event);
                for (part, activity) in parts {
                    self.add_part(core, clip(part, period), activity);
                }
                self.end_slice(core, period);
                if changed {
                    let mut counter = self.track_event(COUNTER, counters(core));
                    counter.counter_value = Some(waiting.into());
                    self.write(end(period), counter);
                }
            }
            PeriodKind::Idle => self.add_slice(core, period, "idle", None),
            PeriodKind::Interrupts { count: 0 } => self.add_slice(core, period, "alarms", None),
            PeriodKind::Interrupts { count } => {
                self.add_slice(core, period, "interrupts", Some(annotation("count", count.into())));
            }
            PeriodKind::Lost { periods } => {
                self.end_parts(core, u64::MAX);
                self.add_slice(core, period, "lost", Some(annotation("periods", periods)));
            }
        }
    }

    /// Writes the parts before the reading `until`, and returns the others.
    fn end_parts(&mut self, core: u32, until: u64) -> Vec<(Period, u32)> {
        let parts = std::mem::take(&mut self.cores.entry(core).or_default().parts);
        let (before, others) = parts.into_iter().partition(|(part, _)| part.start < until);
        let before: Vec<(Period, u32)> = before;
        before.into_iter().for_each(|(part, activity)| self.add_part(core, part, activity));
        others
    }

    fn add_part(&mut self, core: u32, part: Period, activity: u32) {
        let mut event = self.track_event(SLICE_BEGIN, slices(core));
        let known = self.activities.get(&activity).map(|named| named.name);
        event.name_iid = Some(known.unwrap_or_else(|| self.name("activity")));
        event.category_iids = self.categories_of(activity);
        self.begin_slice(core, part, event);
        self.end_slice(core, part);
    }

    /// Writes a slice that belongs to no activity. Its category is its name.
    fn add_slice(&mut self, core: u32, period: Period, name: &str, argument: Option<DebugAnnotation>) {
        let mut event = self.track_event(SLICE_BEGIN, slices(core));
        event.name_iid = Some(self.name(name));
        event.category_iids = vec![self.category(name)];
        event.debug_annotations.extend(argument);
        self.begin_slice(core, period, event);
        self.end_slice(core, period);
    }

    fn categories_of(&self, activity: u32) -> Vec<u64> {
        self.activities.get(&activity).map(|named| named.category).into_iter().collect()
    }

    /// Returns the start of an event that a site has created.
    fn site_event(&mut self, site: u32) -> TrackEvent {
        let known = self.sites.get(&site).copied();
        TrackEvent {
            name_iid: Some(known.unwrap_or_else(|| self.name("event"))),
            source_location_iid: known.map(|_| location(site)),
            ..TrackEvent::default()
        }
    }

    fn track_event(&self, kind: i32, track: u64) -> TrackEvent {
        TrackEvent { r#type: Some(kind), track_uuid: Some(track), ..TrackEvent::default() }
    }

    fn begin_slice(&mut self, core: u32, period: Period, event: TrackEvent) {
        let (kind, track) = (Some(SLICE_BEGIN), Some(slices(core)));
        self.write(period.start, TrackEvent { r#type: kind, track_uuid: track, ..event });
    }

    fn end_slice(&mut self, core: u32, period: Period) {
        let event = self.track_event(SLICE_END, slices(core));
        self.write(end(period), event);
    }

    /// Writes an event at a reading of the cycle counter, with the strings that it introduces.
    fn write(&mut self, cycles: u64, event: TrackEvent) {
        let new = std::mem::take(&mut self.new);
        self.trace.packet.push(TracePacket {
            timestamp: Some(self.ns(cycles)),
            trusted_packet_sequence_id: Some(SEQUENCE),
            track_event: Some(event),
            interned_data: (new != InternedData::default()).then_some(new),
            sequence_flags: Some(NEEDS_INCREMENTAL_STATE),
            ..TracePacket::default()
        });
    }

    /// Returns the time of a reading of the cycle counter, in ns since the clock's start.
    fn ns(&self, cycles: u64) -> u64 {
        let since = u128::from(cycles.saturating_sub(self.clock.zero_cycles)) * 1_000_000_000;
        u64::try_from(since / u128::from(self.clock.cycles_hz.max(1))).unwrap_or(u64::MAX)
    }

    fn name(&mut self, name: &str) -> u64 {
        intern(&mut self.names, &mut self.new.event_names, name)
    }

    fn category(&mut self, name: &str) -> u64 {
        intern(&mut self.categories, &mut self.new.event_categories, name)
    }
}

fn intern(known: &mut HashMap<String, u64>, new: &mut Vec<InternedName>, name: &str) -> u64 {
    if let Some(iid) = known.get(name) {
        return *iid;
    }
    let iid = known.len() as u64 + 1;
    known.insert(name.to_owned(), iid);
    new.push(InternedName { iid: Some(iid), name: Some(name.to_owned()) });
    iid
}

fn annotation(name: &str, value: u64) -> DebugAnnotation {
    DebugAnnotation { uint_value: Some(value), name: Some(name.to_owned()) }
}

/// Returns the id of a core's track of slices.
fn slices(core: u32) -> u64 {
    16 + 2 * u64::from(core)
}

/// Returns the id of a core's counter.
fn counters(core: u32) -> u64 {
    slices(core) + 1
}

/// Returns the number of a site's source location.
fn location(site: u32) -> u64 {
    u64::from(site) + 1
}

fn end(period: Period) -> u64 {
    period.start.saturating_add(period.cycles)
}

/// Returns the part of a period that is within another.
fn clip(part: Period, within: Period) -> Period {
    let start = part.start.clamp(within.start, end(within));
    let until = end(part).clamp(start, end(within));
    Period { start, cycles: until - start, kind: part.kind }
}

/// Returns a source file without the folder of third-party sources.
fn short(file: &str) -> &str {
    let third_party = file.split_once(REGISTRY).and_then(|(_, rest)| rest.split_once('/'));
    third_party.map_or(file, |(_, path)| path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use isola_abi::query::{TraceActivity, TraceSite};
    use isola_tests::perfetto::{self, Slice};
    use proptest::prelude::*;

    fn begin() -> TraceRecord {
        TraceRecord::Begin(TraceBegin {
            cycles_hz: 2_000_000_000,
            zero_cycles: 1_000,
            unix_ns_at_zero: 1_800_000_000_000_000_000,
            cores: 0b101,
        })
    }

    fn batch(core: u32, periods: &[(u64, u64, PeriodKind)]) -> PeriodBatch {
        let mut batch = PeriodBatch::new(core);
        periods.iter().for_each(|&(start, cycles, kind)| batch.push(Period { start, cycles, kind }));
        batch
    }

    fn event(activity: u32, waiting: u32) -> PeriodKind {
        PeriodKind::Event { site: 0, activity, resource: 0, waiting }
    }

    #[test]
    fn a_file_has_a_track_per_core_with_nested_slices_and_counters() {
        let mut first = batch(
            2,
            &[
                (1_000, 400, PeriodKind::Idle),
                (1_400, 100, PeriodKind::Interrupts { count: 2 }),
                (2_000, 1_000, PeriodKind::Part { activity: 7 }),
                (3_000, 1_000, PeriodKind::Part { activity: 8 }),
                (2_000, 2_000, event(8, 3)),
                (4_000, 2_000, PeriodKind::Lost { periods: 9 }),
            ],
        );
        let name = |activity, name: &str| TraceActivity { activity, name: name.into() };
        first.activities = vec![name(7, "web"), name(8, "batch")];
        let file = "/home/user/.cargo/registry/src/index.crates.io-0/some-1.0/src/lib.rs".to_owned();
        first.sites = vec![TraceSite { site: 0, file, line: 12 }];
        let mut file = TraceFile::begin("kv");
        file.add(&begin()).unwrap();
        let mut bytes = file.take();
        file.add(&TraceRecord::Periods(first)).unwrap();
        file.add(&TraceRecord::Periods(batch(0, &[(5_000, 10, event(7, 0))]))).unwrap();
        bytes.extend(file.take());
        assert!(file.take().is_empty());
        let trace = perfetto::parse(&bytes).unwrap();
        assert_eq!(trace.process, "kv");
        assert_eq!(trace.unix_ns_at_zero, 1_800_000_000_000_000_000);
        let slice = |track: &str, name: &str, category: &str, start_ns, end_ns, depth| Slice {
            track: track.into(),
            name: name.into(),
            category: category.into(),
            start_ns,
            end_ns,
            depth,
        };
        let site = "some-1.0/src/lib.rs:12";
        assert_eq!(
            trace.slices,
            [
                slice("core 2", "idle", "idle", 0, 200, 0),
                slice("core 2", "interrupts", "interrupts", 200, 250, 0),
                slice("core 2", site, "batch", 500, 1_500, 0),
                slice("core 2", "web", "web", 500, 1_000, 1),
                slice("core 2", "batch", "batch", 1_000, 1_500, 1),
                slice("core 2", "lost", "lost", 1_500, 2_500, 0),
                slice("core 0", site, "web", 2_000, 2_005, 0),
            ]
        );
        let counter = |core| format!("core {core}: waiting events");
        assert_eq!(trace.counters, [(counter(2), 1_500, 3), (counter(0), 2_005, 0)]);
    }

    #[test]
    fn an_activity_that_takes_over_an_id_has_its_own_name() {
        let mut file = TraceFile::begin("kv");
        file.add(&begin()).unwrap();
        for name in ["first", "second"] {
            let mut batch = batch(0, &[(2_000, 10, event(9, 0))]);
            batch.activities = vec![TraceActivity { activity: 9, name: name.into() }];
            file.add(&TraceRecord::Periods(batch)).unwrap();
        }
        let trace = perfetto::parse(&file.take()).unwrap();
        let categories: Vec<&str> = trace.slices.iter().map(|slice| &*slice.category).collect();
        assert_eq!(categories, ["first", "second"]);
    }

    #[test]
    fn periods_of_a_core_that_the_cell_has_not_named_are_refused() {
        let mut file = TraceFile::begin("kv");
        file.add(&begin()).unwrap();
        let refused = file.add(&TraceRecord::Periods(batch(1, &[])));
        assert_eq!(refused, Err(RecordError::Malformed));
    }

    proptest! {
        /// A cell may write anything into its answers; the file remains readable.
        #[test]
        fn hostile_records_make_a_readable_file(periods in proptest::collection::vec(
            (any::<u64>(), any::<u64>(), 0..5_u32, any::<u32>()), 0..60,
        )) {
            let periods: Vec<_> = periods.into_iter().map(|(start, cycles, kind, number)| {
                let kind = match kind {
                    0 => PeriodKind::Event { site: number, activity: number, resource: 1, waiting: number },
                    1 => PeriodKind::Part { activity: number },
                    2 => PeriodKind::Idle,
                    3 => PeriodKind::Interrupts { count: number },
                    _ => PeriodKind::Lost { periods: number.into() },
                };
                (start, cycles, kind)
            }).collect();
            let mut file = TraceFile::begin("kv");
            file.add(&begin()).unwrap();
            file.add(&TraceRecord::Periods(batch(0, &periods))).unwrap();
            prop_assert!(perfetto::parse(&file.take()).is_ok());
        }
    }
}
