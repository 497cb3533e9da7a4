//! Patience with clients: a core looks at its connections when the first of them may have been waited for long enough.
//!
//! Until when a connection is waited for is noted in a number that its handler and its core's list share. A core has one
//! alarm for all, set to the earliest end that it knew when it looked last, or has heard of since, and at most one in a few
//! seconds: so a busy core looks seldom, and one whose clients are silent is not woken before their time is up. What puts
//! an end off moves no alarm, so that a request costs none.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use core::cell::{Cell, RefCell};
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use isola_ebbs::{Ebb, Representative};
use isola_events::{Alarm, Instant, now};
use isola_net::TcpConnection;

/// How often a core looks at most. Waiting ends up to that much later than it should.
const INTERVAL: Duration = Duration::from_secs(5);

/// Connections of a core at once. Who comes on top is told to come again.
pub(crate) const MAX_CONNECTIONS: usize = 8192;

static WATCHES: Ebb<Watches> = Ebb::new();

/// What a connection waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waiting {
    /// The first request, or the next one.
    Idle,
    /// The rest of a request's head. Bytes of it do not count as progress.
    Head,
    /// The client's reading.
    Output,
    /// The client's end, after the server's.
    End,
}

impl Waiting {
    /// For how long.
    const fn limit(self) -> Duration {
        match self {
            Self::Idle => Duration::from_secs(75),
            Self::Head => Duration::from_secs(15),
            Self::Output => Duration::from_secs(60),
            Self::End => Duration::from_secs(5),
        }
    }
}

/// How long a connection is waited for, as its handler says, and in which core's list it is. Goes with the handler to
/// another core.
#[derive(Debug)]
pub(crate) struct Watch {
    waiting: Waiting,
    /// When the waiting ends, in ns.
    end: Arc<AtomicU64>,
    /// In this core's list; `None` on the way to another core's.
    number: Option<u64>,
}

impl Watch {
    /// Watches a connection of this core; `None` where there are too many.
    pub fn begin(connection: &TcpConnection) -> Option<Self> {
        if WATCHES.all.borrow().len() >= MAX_CONNECTIONS {
            return None;
        }
        let mut watch = Self { waiting: Waiting::Idle, end: Arc::default(), number: None };
        watch.progress();
        watch.enter(connection);
        Some(watch)
    }

    /// What the connection waits for.
    pub fn waiting(&self) -> Waiting {
        self.waiting
    }

    /// Notes what the connection waits for from now on, unless it did before.
    pub fn wait_for(&mut self, waiting: Waiting) {
        if self.waiting != waiting {
            self.waiting = waiting;
            self.progress();
            WATCHES.expect(&self.end);
        }
    }

    /// Notes that the connection has waited for nothing in vain so far.
    pub fn progress(&self) {
        self.end.store((now() + self.waiting.limit()).as_ns(), Ordering::Relaxed);
    }

    /// Whether the connection has waited for too long.
    pub fn has_expired(&self) -> bool {
        has_passed(&self.end, now())
    }

    /// The connection is of this core from now on.
    pub fn enter(&mut self, connection: &TcpConnection) {
        self.number = Some(WATCHES.enter(Watched { connection: connection.clone(), end: self.end.clone() }));
    }

    /// The connection is not of this core any more: it is over, or goes to another one.
    pub fn leave(&mut self) {
        if let Some(number) = self.number.take() {
            // Without a borrow: it may be the last that knows the connection.
            let left = WATCHES.all.borrow_mut().remove(&number);
            drop(left);
        }
    }
}

fn has_passed(end: &AtomicU64, now: Instant) -> bool {
    now.as_ns() >= end.load(Ordering::Relaxed)
}

/// What a core knows of a connection.
struct Watched {
    connection: TcpConnection,
    end: Arc<AtomicU64>,
}

/// When a core looks.
struct Looks {
    /// When it looks next, in ns; the end of time where it has nothing to look at.
    due: Cell<u64>,
    /// When it may look again, in ns.
    earliest: Cell<u64>,
}

impl Looks {
    const NEVER: u64 = u64::MAX;

    fn new() -> Self {
        Self { due: Cell::new(Self::NEVER), earliest: Cell::new(0) }
    }

    /// Some wait ends then, in ns. Returns what the alarm has to be set to, where that is another time than before.
    fn expect(&self, end: u64) -> Option<Instant> {
        let at = end.max(self.earliest.get());
        (at < self.due.get()).then(|| {
            self.due.set(at);
            Instant::from_ns(at)
        })
    }

    /// It looks now. What is expected from here on counts.
    fn begin(&self, now: Instant) {
        self.due.set(Self::NEVER);
        self.earliest.set((now + INTERVAL).as_ns());
    }
}

/// The connections of a core.
struct Watches {
    all: RefCell<BTreeMap<u64, Watched>>,
    next: Cell<u64>,
    looks: Looks,
    alarm: Alarm,
}

impl Representative for Watches {
    fn create() -> Self {
        let (all, next) = (RefCell::default(), Cell::default());
        Self { all, next, looks: Looks::new(), alarm: Alarm::new(|| WATCHES.look()) }
    }
}

impl Watches {
    fn enter(&self, watched: Watched) -> u64 {
        let number = self.next.replace(self.next.get() + 1);
        self.expect(&watched.end);
        self.all.borrow_mut().insert(number, watched);
        number
    }

    /// A wait of this core ends then, unless it is put off.
    fn expect(&self, end: &AtomicU64) {
        if let Some(at) = self.looks.expect(end.load(Ordering::Relaxed)) {
            self.alarm.set(Some(at));
        }
    }

    /// Looks at the connections of this core. The handlers of those that have waited for too long are called.
    fn look(&self) {
        let now = now();
        self.looks.begin(now);
        let all = self.all.borrow();
        all.values()
            .filter(|watched| has_passed(&watched.end, now))
            .for_each(|it| it.connection.call_again());
        let ends = all.values().map(|watched| watched.end.load(Ordering::Relaxed));
        if let Some(at) = ends.min().and_then(|first| self.looks.expect(first)) {
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
    fn nobody_looks_before_the_first_wait_can_be_over() {
        let (looks, second) = (Looks::new(), 1_000_000_000);
        assert_eq!(looks.expect(75 * second), Some(Instant::from_ns(75 * second)));
        assert_eq!(looks.expect(76 * second), None, "who comes later is seen later");
        assert_eq!(
            looks.expect(20 * second),
            Some(Instant::from_ns(20 * second)),
            "half a head is not waited for so long"
        );
        looks.begin(Instant::from_ns(20 * second));
        assert_eq!(
            looks.expect(90 * second),
            Some(Instant::from_ns(90 * second)),
            "that one's wait was put off"
        );
    }

    #[test]
    fn a_core_looks_once_in_an_interval_however_many_waits_end() {
        let (looks, began) = (Looks::new(), Instant::from_ns(9_000_000_000));
        looks.begin(began);
        let next = began + INTERVAL;
        assert_eq!(looks.expect((began + Duration::from_secs(1)).as_ns()), Some(next));
        assert_eq!(
            looks.expect(began.as_ns()),
            None,
            "one that has not ended yet is looked at again then, too"
        );
    }
}
