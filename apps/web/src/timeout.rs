//! Timeouts of clients: a core scans its connections when the first of them may have timed out.
//!
//! The handler of a connection and its core's list share an atomic number with the time at which the wait ends. A core
//! has one alarm for all its connections, set to the earliest end that it knew at its last scan or has learnt since,
//! and at least 5 s after that scan. So a busy core scans rarely, and a core with silent clients is not woken before a
//! timeout is due. Progress that postpones an end does not touch the alarm, so a request costs nothing.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use core::cell::{Cell, RefCell};
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use isola_ebbs::{Ebb, Representative};
use isola_events::{Alarm, Instant, now};
use isola_net::TcpConnection;

/// The minimum interval between scans. A timeout can be late by this much.
const INTERVAL: Duration = Duration::from_secs(5);

/// The maximum number of connections per core. Further connections get the status 503.
pub(crate) const MAX_CONNECTIONS: usize = 8192;

static TIMEOUTS: Ebb<CoreTimeouts> = Ebb::new();

/// The event that a connection waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waiting {
    /// The first request, or the next one.
    Idle,
    /// The rest of a request's head. Single bytes of it do not count as progress.
    Head,
    /// The client to read its responses.
    Output,
    /// The client to close its side, after the server.
    End,
}

impl Waiting {
    /// Returns the timeout.
    const fn limit(self) -> Duration {
        match self {
            Self::Idle => Duration::from_secs(75),
            Self::Head => Duration::from_secs(15),
            Self::Output => Duration::from_secs(60),
            Self::End => Duration::from_secs(5),
        }
    }
}

/// The timeout of a connection, as its handler sets it, and its place in a core's list. It migrates with the handler to
/// another core.
#[derive(Debug)]
pub(crate) struct Timeout {
    waiting: Waiting,
    /// The time at which the wait ends, in ns.
    end: Arc<AtomicU64>,
    /// The number in this core's list; `None` during a migration.
    number: Option<u64>,
}

impl Timeout {
    /// Adds a connection of this core to its list; returns `None` if there are too many.
    pub fn begin(connection: &TcpConnection) -> Option<Self> {
        if TIMEOUTS.all.borrow().len() >= MAX_CONNECTIONS {
            return None;
        }
        let mut timeout = Self { waiting: Waiting::Idle, end: Arc::default(), number: None };
        timeout.progress();
        timeout.enter(connection);
        Some(timeout)
    }

    /// Returns the event that the connection waits for.
    pub fn waiting(&self) -> Waiting {
        self.waiting
    }

    /// Sets the event that the connection waits for. Restarts the timeout if the event changes.
    pub fn wait_for(&mut self, waiting: Waiting) {
        if self.waiting != waiting {
            self.waiting = waiting;
            self.progress();
            TIMEOUTS.expect(&self.end);
        }
    }

    /// Restarts the timeout.
    pub fn progress(&self) {
        self.end.store((now() + self.waiting.limit()).as_ns(), Ordering::Relaxed);
    }

    /// Returns whether the timeout has expired.
    pub fn has_expired(&self) -> bool {
        has_passed(&self.end, now())
    }

    /// Adds the connection to this core's list.
    pub fn enter(&mut self, connection: &TcpConnection) {
        self.number =
            Some(TIMEOUTS.enter(TimedConnection { connection: connection.clone(), end: self.end.clone() }));
    }

    /// Removes the connection from this core's list: it has ended, or migrates to another core.
    pub fn leave(&mut self) {
        if let Some(number) = self.number.take() {
            // Drops the entry outside of the borrow: its drop may be the connection's last reference.
            let left = TIMEOUTS.all.borrow_mut().remove(&number);
            drop(left);
        }
    }
}

fn has_passed(end: &AtomicU64, now: Instant) -> bool {
    now.as_ns() >= end.load(Ordering::Relaxed)
}

/// A core's entry of a connection.
struct TimedConnection {
    connection: TcpConnection,
    end: Arc<AtomicU64>,
}

/// The schedule of a core's scans.
struct ScanSchedule {
    /// The time of the next scan, in ns; [`Self::NEVER`] without connections.
    due: Cell<u64>,
    /// The earliest time of the next scan, in ns.
    earliest: Cell<u64>,
}

impl ScanSchedule {
    const NEVER: u64 = u64::MAX;

    fn new() -> Self {
        Self { due: Cell::new(Self::NEVER), earliest: Cell::new(0) }
    }

    /// Accounts for a wait that ends at `end`, in ns. Returns the new time of the alarm if that changes.
    fn expect(&self, end: u64) -> Option<Instant> {
        let at = end.max(self.earliest.get());
        (at < self.due.get()).then(|| {
            self.due.set(at);
            Instant::from_ns(at)
        })
    }

    /// Begins a scan. It collects the expected ends anew.
    fn begin(&self, now: Instant) {
        self.due.set(Self::NEVER);
        self.earliest.set((now + INTERVAL).as_ns());
    }
}

/// The connections of a core.
struct CoreTimeouts {
    all: RefCell<BTreeMap<u64, TimedConnection>>,
    next: Cell<u64>,
    schedule: ScanSchedule,
    alarm: Alarm,
}

impl Representative for CoreTimeouts {
    fn create() -> Self {
        let (all, next) = (RefCell::default(), Cell::default());
        Self { all, next, schedule: ScanSchedule::new(), alarm: Alarm::new(|| TIMEOUTS.scan()) }
    }
}

impl CoreTimeouts {
    fn enter(&self, watched: TimedConnection) -> u64 {
        let number = self.next.replace(self.next.get() + 1);
        self.expect(&watched.end);
        self.all.borrow_mut().insert(number, watched);
        number
    }

    /// Sets the alarm for a wait of this core, unless the alarm is earlier.
    fn expect(&self, end: &AtomicU64) {
        if let Some(at) = self.schedule.expect(end.load(Ordering::Relaxed)) {
            self.alarm.set(Some(at));
        }
    }

    /// Scans the connections of this core, and calls the handlers of those that have timed out.
    fn scan(&self) {
        let now = now();
        self.schedule.begin(now);
        let all = self.all.borrow();
        all.values()
            .filter(|watched| has_passed(&watched.end, now))
            .for_each(|it| it.connection.call_again());
        let ends = all.values().map(|watched| watched.end.load(Ordering::Relaxed));
        if let Some(at) = ends.min().and_then(|first| self.schedule.expect(first)) {
            self.alarm.set(Some(at));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_wait_ends_at_its_own_limit_and_not_before() {
        let began = Instant::from_ns(7_000_000_000);
        for (waiting, seconds) in
            [(Waiting::Idle, 75), (Waiting::Head, 15), (Waiting::Output, 60), (Waiting::End, 5)]
        {
            let end = AtomicU64::new((began + waiting.limit()).as_ns());
            let limit = Duration::from_secs(seconds);
            assert!(!has_passed(&end, began + (limit - Duration::from_nanos(1))), "{waiting:?}");
            assert!(has_passed(&end, began + limit), "{waiting:?}");
        }
    }

    #[test]
    fn no_scan_happens_before_the_first_timeout() {
        let (schedule, second) = (ScanSchedule::new(), 1_000_000_000);
        assert_eq!(schedule.expect(75 * second), Some(Instant::from_ns(75 * second)));
        assert_eq!(schedule.expect(76 * second), None, "a later end moves the alarm");
        assert_eq!(
            schedule.expect(20 * second),
            Some(Instant::from_ns(20 * second)),
            "the earlier end of an incomplete head does not move the alarm"
        );
        schedule.begin(Instant::from_ns(20 * second));
        assert_eq!(
            schedule.expect(90 * second),
            Some(Instant::from_ns(90 * second)),
            "a postponed end does not move the alarm"
        );
    }

    #[test]
    fn a_core_scans_at_most_once_per_interval() {
        let (schedule, began) = (ScanSchedule::new(), Instant::from_ns(9_000_000_000));
        schedule.begin(began);
        let next = began + INTERVAL;
        assert_eq!(schedule.expect((began + Duration::from_secs(1)).as_ns()), Some(next));
        assert_eq!(schedule.expect(began.as_ns()), None, "an earlier end moves the alarm again");
    }
}
