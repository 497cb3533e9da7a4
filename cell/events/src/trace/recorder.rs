//! The recorder of a core: derives periods from the readings and counters of the [accounting](crate::accounting).
//!
//! ```text
//!   event     loop  idle              interrupts      event
//!   ────────┤ ├─┤ ├─────────────────┤ ├─────────────┤ ├──────────
//!           ↑     ↑ idle handler                                ↑
//!        hook     hook                                       hook: the event exceeds its limit
//! ```
//!
//! At each hook the counters of idle and interrupt cycles in the report have grown by the cycles since the hook before.
//! An idle period begins at the idle handler. Interrupts end where the next event begins.

use super::period_ring::{PeriodRing, RecordedKind, RecordedPeriod};
use super::{DRAIN_INTERVAL, TraceState, report_no_memory, write};
use crate::event::EventTag;
use crate::event_loop::EVENTS;
use crate::idle::{Idle, IdleHandler, on_idle};
use crate::timer::{Alarm, now};
use alloc::boxed::Box;
use core::cell::{Cell, RefCell};
use core::panic::Location;
use core::sync::atomic::Ordering;
use core::time::Duration;
use isola_abi::id::ActivityId;
use isola_abi::report::CoreReport;
use isola_ebbs::{current_core, cycles};
use isola_platform::Instant;

/// The periods in a core's ring: 160 KiB.
const RING_PERIODS: usize = 4096;

/// The periods from which on a core copies them at once.
const DRAIN_PERIODS: usize = RING_PERIODS / 4;

/// The maximum number of periods of a record, which bounds its length to a few KiB.
const PERIODS_A_RECORD: usize = 128;

/// The maximum number of records that a core writes at a time, which bounds the delay of its events.
const RECORDS_A_DRAIN: usize = 8;

/// The time until the next records if more periods wait, and if the reader has left no room.
const BACKLOG_INTERVAL: Duration = Duration::from_millis(1);
const NO_ROOM_INTERVAL: Duration = Duration::from_millis(10);

/// The tracing of a core.
#[derive(Default)]
pub(crate) struct Tracing {
    recorder: RefCell<Option<Box<Recorder>>>,
    /// The reading of the cycle counter up to which the running event is recorded in parts.
    parts_until: Cell<u64>,
}

/// The recorder of a core, during a trace.
struct Recorder {
    /// The number of the trace's query.
    number: u32,
    ring: PeriodRing,
    report: &'static CoreReport,
    /// The report's counters at the last hook.
    counted: Counted,
    /// The reading at the last hook.
    last: u64,
    /// Whether the last hook was that of the idle handler.
    was_idle: bool,
    /// Copies periods when it rings.
    alarm: Alarm,
    /// Whether the alarm rings early, whatever else is recorded.
    is_urgent: bool,
    _idle: IdleHandler,
}

/// Counters of a core's report.
#[derive(Clone, Copy)]
struct Counted {
    idle: u64,
    interrupt: u64,
    interrupts: u64,
}

impl Counted {
    fn read(report: &CoreReport) -> Self {
        let [idle, interrupt, interrupts] =
            [&report.idle_cycles, &report.interrupt_cycles, &report.interrupts]
                .map(|counter| counter.load(Ordering::Relaxed));
        Self { idle, interrupt, interrupts }
    }
}

impl Tracing {
    /// Begins to record. Returns whether there was memory for it.
    pub fn start(&self, number: u32, report: &'static CoreReport) -> bool {
        let Some(ring) = PeriodRing::new(RING_PERIODS) else {
            report_no_memory(number, current_core().0);
            return false;
        };
        let alarm = Alarm::new(|| EVENTS.drain_trace());
        alarm.set(Some(now() + DRAIN_INTERVAL));
        let idle = on_idle(|| {
            EVENTS.tracing.idle_begins();
            Idle::MayHalt
        });
        let last = cycles();
        self.parts_until.set(last);
        let recorder = Recorder {
            number,
            ring,
            report,
            counted: Counted::read(report),
            last,
            was_idle: false,
            alarm,
            is_urgent: false,
            _idle: idle,
        };
        let before = self.recorder.replace(Some(Box::new(recorder)));
        // No borrow is held: dropping the recorder cancels its alarm.
        drop(before);
        true
    }

    fn stop(&self) {
        let recorder = self.recorder.take();
        drop(recorder);
    }

    /// Records an event of `spent` cycles that has ended at the reading `ended`. `activity` is charged for its end.
    pub fn event_ended(
        &self,
        tag: EventTag,
        activity: ActivityId,
        made_at: &'static Location<'static>,
        waiting: usize,
        spent: u64,
        ended: u64,
    ) {
        let began = ended.wrapping_sub(spent);
        let parts_until = self.parts_until.replace(ended);
        let mut recorder = self.recorder.borrow_mut();
        let Some(recorder) = recorder.as_mut() else { return };
        recorder.record_gap(began);
        if parts_until > began && parts_until < ended {
            recorder.push(parts_until, ended - parts_until, RecordedKind::Part { activity });
        }
        let kind = RecordedKind::Event { made_at, activity, resource: tag.resource, waiting: waiting as u32 };
        recorder.push(began, spent, kind);
        recorder.pass_hook(ended, false);
        if recorder.ring.len() >= DRAIN_PERIODS && !recorder.is_urgent {
            recorder.is_urgent = true;
            recorder.alarm.set(Some(Instant::default()));
        }
    }

    /// Records that the running event, which began at the reading `began`, has worked for `activity` since the part
    /// before, until the reading `until`.
    pub fn part_ended(&self, began: u64, until: u64, activity: ActivityId) {
        let start = self.parts_until.replace(until).max(began);
        if until > start
            && let Some(recorder) = self.recorder.borrow_mut().as_mut()
        {
            recorder.push(start, until - start, RecordedKind::Part { activity });
        }
    }

    fn idle_begins(&self) {
        if let Some(recorder) = self.recorder.borrow_mut().as_mut() {
            // Interrupts before the halt count before it.
            let now = EVENTS.accounting.charge_so_far();
            recorder.record_gap(now);
            recorder.pass_hook(now, true);
        }
    }

    /// Copies periods into the answer. Returns whether the trace continues.
    pub fn drain(&self) -> bool {
        let mut recorder = self.recorder.borrow_mut();
        let Some(current) = recorder.as_mut() else { return false };
        let state = current.drain();
        drop(recorder);
        if state == TraceState::Ended {
            self.stop();
        }
        state == TraceState::Continues
    }
}

impl Recorder {
    /// Records the idle period and the interrupts from the last hook to the reading `until`.
    fn record_gap(&mut self, until: u64) {
        let counted = Counted::read(self.report);
        let before = core::mem::replace(&mut self.counted, counted);
        let mut last = self.last;
        let idle = counted.idle.wrapping_sub(before.idle);
        if idle > 0 && self.was_idle {
            self.push(last, idle, RecordedKind::Idle);
            last = last.saturating_add(idle);
        }
        let interrupt = counted.interrupt.wrapping_sub(before.interrupt);
        if interrupt > 0 {
            let start = until.saturating_sub(interrupt).max(last);
            let count = counted.interrupts.wrapping_sub(before.interrupts) as u32;
            // The last instructions before a halt are counted after it.
            let cycles = interrupt.min(until.saturating_sub(start));
            self.push(start, cycles, RecordedKind::Interrupts { count });
        }
    }

    fn pass_hook(&mut self, at: u64, is_idle: bool) {
        self.last = at;
        self.was_idle = is_idle;
    }

    fn push(&mut self, start: u64, cycles: u64, kind: RecordedKind) {
        self.ring.push(RecordedPeriod { start, cycles, kind });
    }

    /// Copies periods, a bounded number at a time, and sets the alarm for the next time.
    fn drain(&mut self) -> TraceState {
        let core = current_core().0;
        // If more is left, other periods do not change the next time.
        self.is_urgent = true;
        let mut pause = BACKLOG_INTERVAL;
        for _ in 0..RECORDS_A_DRAIN {
            let periods = self.ring.first(PERIODS_A_RECORD);
            let offered = periods.len();
            let (state, taken) = write(self.number, core, periods);
            if state == TraceState::Ended {
                return TraceState::Ended;
            }
            self.ring.remove(taken);
            if taken < offered {
                pause = NO_ROOM_INTERVAL;
                break;
            }
            if self.ring.len() < PERIODS_A_RECORD {
                self.is_urgent = false;
                pause = DRAIN_INTERVAL;
                break;
            }
        }
        self.alarm.set(Some(now() + pause));
        TraceState::Continues
    }
}
