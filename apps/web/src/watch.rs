//! Patience with clients: a core looks at its connections every few seconds, as long as it has any.
//!
//! What a connection waits for, and since when, is noted in a cell. No timer is armed for a connection, and none for a
//! request.

use alloc::collections::BTreeMap;
use alloc::rc::Rc;
use core::cell::{Cell, RefCell};
use core::task::Waker;
use core::time::Duration;
use isola_ebbs::{Ebb, Representative};
use isola_events::{Instant, now, sleep, spawn_task};

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

/// A connection that is watched.
#[derive(Debug)]
pub(crate) struct Watch {
    waiting: Cell<Waiting>,
    since: Cell<Instant>,
    expired: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl Watch {
    /// Notes what the connection waits for from now on, unless it did before.
    pub fn wait_for(&self, waiting: Waiting) {
        if self.waiting.replace(waiting) != waiting {
            self.progress();
        }
    }

    /// Notes that the connection has waited for nothing in vain so far.
    pub fn progress(&self) {
        self.since.set(now());
    }

    /// Names the task to wake, once.
    pub fn wakes(&self, waker: &Waker) {
        let mut known = self.waker.borrow_mut();
        if known.is_none() {
            *known = Some(waker.clone());
        }
    }

    /// Whether the connection has waited for too long, and for what. Says so once.
    pub fn take_expired(&self) -> Option<Waiting> {
        self.expired.replace(false).then(|| self.waiting.get())
    }

    fn look(&self, now: Instant) {
        if now.since(self.since.get()) >= self.waiting.get().limit() {
            self.expired.set(true);
            if let Some(waker) = &*self.waker.borrow() {
                waker.wake_by_ref();
            }
        }
    }
}

/// Keeps a connection watched.
#[derive(Debug)]
pub(crate) struct Watched {
    number: u64,
    pub watch: Rc<Watch>,
}

impl Watched {
    /// Watches a connection of this core; `None` where there are too many.
    pub fn begin() -> Option<Self> {
        WATCHES.begin()
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        WATCHES.all.borrow_mut().remove(&self.number);
    }
}

/// The connections of a core.
#[derive(Default)]
struct Watches {
    all: RefCell<BTreeMap<u64, Rc<Watch>>>,
    next: Cell<u64>,
    looks: Cell<bool>,
}

impl Representative for Watches {
    fn create() -> Self {
        Self::default()
    }
}

impl Watches {
    fn begin(&self) -> Option<Watched> {
        let mut all = self.all.borrow_mut();
        if all.len() >= MAX_CONNECTIONS {
            return None;
        }
        let number = self.next.replace(self.next.get() + 1);
        let (waiting, since) = (Cell::new(Waiting::Idle), Cell::new(now()));
        let watch = Watch { waiting, since, expired: Cell::new(false), waker: RefCell::new(None) };
        let watch = Rc::new(watch);
        all.insert(number, watch.clone());
        if !self.looks.replace(true) {
            spawn_task(look()).detach();
        }
        Some(Watched { number, watch })
    }
}

/// Looks at the connections of this core until there are none.
async fn look() {
    loop {
        sleep(INTERVAL).await;
        let all = WATCHES.all.borrow();
        if all.is_empty() {
            WATCHES.looks.set(false);
            return;
        }
        let now = now();
        all.values().for_each(|watch| watch.look(now));
    }
}
