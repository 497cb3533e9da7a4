//! Traces: what a reader of a cell's periods learns, and the end of a trace that is not read.

use isola_abi::id::ActivityId;
use isola_abi::query::{Line, Period, PeriodKind, QueryState, Records, TraceBegin, TraceRecord, TraceSpec};
use isola_ebbs::{cycles, platform};
use isola_events::activity::{APPLICATION, INFRASTRUCTURE, charge_piece, charge_to, charge_until};
use isola_events::trace;
use isola_events::{
    Event, exit, register_activity, register_activity_under, run, sleep, spawn, spawn_on, spawn_task,
    spawn_task_for, yield_now,
};
use isola_hosted::Settings;
use isola_platform::CoreIndex;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

const NUMBER: u32 = 7;

/// Runs `main` as a task of the first core of a cell.
fn in_cell<F: Future<Output = ()> + 'static>(cores: usize, main: fn() -> F) {
    let settings = Settings { cores, ..Settings::default() };
    isola_hosted::run(settings, Vec::new(), move |_| {
        if isola_ebbs::current_core() == CoreIndex(0) {
            spawn_task(async move {
                let _end = CellEnd;
                main().await;
            })
            .detach();
        }
        run()
    });
}

/// Ends the cell on drop, also if a test has failed: its other cores would wait for ever.
struct CellEnd;

impl Drop for CellEnd {
    fn drop(&mut self) {
        exit(0);
    }
}

/// A reader of the trace.
#[derive(Default)]
struct Reader {
    records: Records,
    begin: Option<TraceBegin>,
    periods: Vec<(u32, Period)>,
    sites: BTreeMap<u32, (String, u32)>,
    names: BTreeMap<u32, String>,
}

impl Reader {
    fn begin(cores: u64) -> Self {
        platform().report().answers.on(Line::Frames).begin(NUMBER);
        trace::begin(NUMBER, TraceSpec { cores });
        Self::default()
    }

    /// Reads all that was written. Returns whether the trace continues.
    fn read(&mut self) -> bool {
        loop {
            let ring = platform().report().answers.on(Line::Frames);
            let piece = ring.piece(NUMBER, NUMBER, self.records.end(), 4096);
            if piece.state != QueryState::Answered {
                return false;
            }
            assert_eq!(piece.lost, 0, "a period stays with its core until there is room");
            self.records.add(&piece).unwrap();
            while let Some(record) = self.records.next_record().unwrap() {
                match TraceRecord::decode(record).unwrap() {
                    TraceRecord::Begin(begin) => self.begin = Some(begin),
                    TraceRecord::Periods(batch) => {
                        self.periods.extend(batch.periods().map(|period| (batch.core, period)));
                        self.sites
                            .extend(batch.sites.into_iter().map(|site| (site.site, (site.file, site.line))));
                        self.names.extend(batch.activities.into_iter().map(|one| (one.activity, one.name)));
                    }
                    TraceRecord::NoMemory { core } => panic!("core {core} has no memory"),
                    TraceRecord::Alive => {}
                }
            }
            if piece.bytes.is_empty() {
                return true;
            }
        }
    }

    /// Returns the cycles of an activity: events without parts, and parts.
    fn cycles_of(&self, activity: ActivityId) -> u64 {
        let (mut sum, mut parts) = (0, BTreeMap::new());
        for (core, period) in &self.periods {
            match period.kind {
                PeriodKind::Part { activity: of } => {
                    parts.insert(*core, period.start);
                    sum += if of == activity.0 { period.cycles } else { 0 };
                }
                PeriodKind::Event { activity: of, .. } => {
                    let is_divided = parts.remove(core).is_some_and(|start| start >= period.start);
                    sum += if of == activity.0 && !is_divided { period.cycles } else { 0 };
                }
                PeriodKind::Idle | PeriodKind::Interrupts { .. } | PeriodKind::Lost { .. } => {}
            }
        }
        sum
    }
}

fn spin(for_cycles: u64) {
    let began = cycles();
    while cycles() - began < for_cycles {}
}

fn ledger(activity: ActivityId) -> u64 {
    platform().ledger().sum(activity.index()).cycles.into_inner()
}

/// Asserts that two numbers of cycles differ by less than the loop's own work around a few events.
#[track_caller]
fn assert_near(traced: u64, charged: u64) {
    assert!(traced.abs_diff(charged) < 300_000 + charged / 50, "{traced} traced, {charged} charged");
}

#[test]
fn periods_agree_with_the_ledger_for_events_and_their_parts() {
    in_cell(1, || async {
        let [one, two] = ["one", "two"].map(|name| register_activity(name).unwrap());
        let own = register_activity_under(two, "private").unwrap();
        let mut reader = Reader::begin(u64::MAX);
        // The trace begins in an event of its own.
        sleep(Duration::from_millis(1)).await;
        let before = [one, two, INFRASTRUCTURE].map(ledger);
        for _ in 0..10 {
            Event::new().charged_to(one).spawn(|| spin(1_000_000));
            yield_now().await;
            let task = spawn_task_for(two, async move {
                spin(500_000);
                charge_to(one);
                spin(500_000);
                let since = cycles();
                spin(500_000);
                charge_piece(since, cycles(), own);
                spin(500_000);
                charge_to(APPLICATION);
                yield_now().await;
                spin(500_000);
                charge_until(cycles(), INFRASTRUCTURE);
            });
            task.await;
        }
        sleep(Duration::from_millis(250)).await;
        assert!(reader.read());
        trace::end();
        let after = [one, two, INFRASTRUCTURE].map(ledger);
        let charged = |index: usize| after[index] - before[index];
        assert_near(reader.cycles_of(one), charged(0));
        // The ledger has the private activity's cycles in its ancestor's slot.
        assert_near(reader.cycles_of(two) + reader.cycles_of(own), charged(1));
        assert!(reader.cycles_of(own) >= 10_000_000, "{}", reader.cycles_of(own));
        assert_near(reader.cycles_of(INFRASTRUCTURE), charged(2));
        assert_eq!(reader.names[&own.0], "private");
        let here = reader.sites.values().filter(|(file, _)| file.ends_with("tests/trace.rs")).count();
        assert!(here >= 2, "{:?}", reader.sites);
    });
}

#[test]
fn idle_periods_interrupts_and_the_length_of_the_queue_are_recorded() {
    in_cell(1, || async {
        let mut reader = Reader::begin(u64::MAX);
        sleep(Duration::from_millis(1)).await;
        let report = &platform().report().cores[0];
        let idle = report.idle_cycles.load(Ordering::Relaxed);
        for _ in 0..5 {
            sleep(Duration::from_millis(20)).await;
            (0..3).for_each(|_| spawn(|| spin(100_000)));
        }
        let idle = report.idle_cycles.load(Ordering::Relaxed) - idle;
        sleep(Duration::from_millis(250)).await;
        reader.read();
        trace::end();
        let begin = reader.begin.expect("the first record");
        assert_eq!((begin.cores, begin.cycles_hz), (1, platform().descriptor().clock.tsc_hz));
        let of_kind =
            |is: fn(PeriodKind) -> bool| reader.periods.iter().filter(move |(_, period)| is(period.kind));
        let traced_idle: u64 =
            of_kind(|kind| kind == PeriodKind::Idle).map(|(_, period)| period.cycles).sum();
        assert!(traced_idle >= idle, "{traced_idle} of {idle}");
        assert!(of_kind(|kind| matches!(kind, PeriodKind::Interrupts { .. })).count() >= 5);
        let longest = reader.periods.iter().map(|(_, period)| match period.kind {
            PeriodKind::Event { waiting, .. } => waiting,
            _ => 0,
        });
        assert!(longest.max() >= Some(2));
        // The loop runs between two periods, so they do not overlap, except parts with their events.
        let mut until = 0;
        for (_, period) in
            reader.periods.iter().filter(|(_, period)| !matches!(period.kind, PeriodKind::Part { .. }))
        {
            assert!(period.start >= until, "{period:?} begins before {until}");
            until = period.start + period.cycles;
        }
    });
}

#[test]
fn only_the_chosen_cores_are_traced_and_their_periods_are_complete_or_counted() {
    in_cell(3, || async {
        const EVENTS: u64 = 100_000;
        let mut reader = Reader::begin(0b010);
        sleep(Duration::from_millis(1)).await;
        let busy = register_activity("busy").unwrap();
        for core in 1..3 {
            spawn_on(CoreIndex(core), move || {
                for _ in 0..EVENTS {
                    Event::new().charged_to(busy).spawn(|| spin(50));
                }
            });
        }
        // The reader is late: neither the core's ring nor that of the answer has room for all.
        while platform().ledger().sum(busy.index()).events.into_inner() < 2 * EVENTS {
            sleep(Duration::from_millis(10)).await;
        }
        for _ in 0..4 {
            reader.read();
            sleep(Duration::from_millis(150)).await;
        }
        trace::end();
        assert!(reader.periods.iter().all(|(core, _)| *core == 1));
        let (mut events, mut lost) = (0, 0);
        for (_, period) in &reader.periods {
            match period.kind {
                PeriodKind::Event { activity, .. } => events += u64::from(activity == busy.0),
                PeriodKind::Lost { periods } => lost += periods,
                _ => {}
            }
        }
        assert!(events > 4_000 && lost > 0 && events < EVENTS, "{events} events, {lost} lost");
        assert!(events + lost >= EVENTS, "{events} events, {lost} lost");
    });
}

#[test]
fn an_unread_trace_ends_and_another_can_begin() {
    in_cell(2, || async {
        let mut reader = Reader::begin(u64::MAX);
        for _ in 0..14 {
            sleep(Duration::from_secs(1)).await;
        }
        assert!(!reader.read(), "the trace continues without a reader");
        let mut reader = Reader::begin(u64::MAX);
        sleep(Duration::from_millis(250)).await;
        assert!(reader.read());
        assert!(!reader.periods.is_empty());
        trace::end();
        let before = reader.periods.len();
        sleep(Duration::from_millis(250)).await;
        reader.read();
        assert_eq!(reader.periods.len(), before, "nothing is recorded after the end");
    });
}
