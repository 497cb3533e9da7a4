//! Patience with clients: a core looks at its connections every few seconds, as long as it has any.
//!
//! Until when a connection is waited for is noted in a number that its handler and its core's list share. No timer is armed
//! for a connection, and none for a request.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use core::cell::{Cell, RefCell};
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use isola_ebbs::{Ebb, Representative};
use isola_events::{Instant, now, sleep, spawn_task};
use isola_net::TcpConnection;

/// How often a core looks. Waiting ends up to that much later than it should.
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

/// The connections of a core.
#[derive(Default)]
struct Watches {
    all: RefCell<BTreeMap<u64, Watched>>,
    next: Cell<u64>,
    looks: Cell<bool>,
}

impl Representative for Watches {
    fn create() -> Self {
        Self::default()
    }
}

impl Watches {
    fn enter(&self, watched: Watched) -> u64 {
        let number = self.next.replace(self.next.get() + 1);
        self.all.borrow_mut().insert(number, watched);
        if !self.looks.replace(true) {
            spawn_task(look()).detach();
        }
        number
    }
}

/// Looks at the connections of this core until there are none. The handlers of those that have waited for too long are
/// called.
async fn look() {
    loop {
        sleep(INTERVAL).await;
        let now = now();
        let all = WATCHES.all.borrow();
        if all.is_empty() {
            WATCHES.looks.set(false);
            return;
        }
        all.values()
            .filter(|watched| has_passed(&watched.end, now))
            .for_each(|it| it.connection.call_again());
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
}
