//! Patience with clients: a core looks at its connections every few seconds, as long as it has any.
//!
//! What a connection waits for, and since when, is noted in a cell. No timer is armed for a connection, and none for a
//! request.

use alloc::collections::BTreeMap;
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
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

/// Who is watched.
pub(crate) trait Patient {
    /// What it waits for.
    fn watch(&self) -> &Watch;

    /// It has waited for this for too long.
    fn expired(&self, waiting: Waiting);
}

/// What a connection waits for, and since when.
#[derive(Debug)]
pub(crate) struct Watch {
    number: u64,
    waiting: Cell<Waiting>,
    since: Cell<Instant>,
}

impl Watch {
    /// Watches the connection of this core that `make` makes; `None` where there are too many.
    pub fn begin<P: Patient + 'static>(make: impl FnOnce(Self) -> P) -> Option<Rc<P>> {
        WATCHES.begin(make)
    }

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

    /// The connection is over.
    pub fn end(&self) {
        // Without a borrow: it may be the last that holds it.
        let ended = WATCHES.all.borrow_mut().remove(&self.number);
        drop(ended);
    }

    fn has_expired(&self, now: Instant) -> bool {
        now.since(self.since.get()) >= self.waiting.get().limit()
    }
}

/// The connections of a core.
#[derive(Default)]
struct Watches {
    all: RefCell<BTreeMap<u64, Rc<dyn Patient>>>,
    next: Cell<u64>,
    looks: Cell<bool>,
}

impl Representative for Watches {
    fn create() -> Self {
        Self::default()
    }
}

impl Watches {
    fn begin<P: Patient + 'static>(&self, make: impl FnOnce(Watch) -> P) -> Option<Rc<P>> {
        let mut all = self.all.borrow_mut();
        if all.len() >= MAX_CONNECTIONS {
            return None;
        }
        let number = self.next.replace(self.next.get() + 1);
        let patient =
            Rc::new(make(Watch { number, waiting: Cell::new(Waiting::Idle), since: Cell::new(now()) }));
        all.insert(number, patient.clone());
        if !self.looks.replace(true) {
            spawn_task(look()).detach();
        }
        Some(patient)
    }
}

/// Looks at the connections of this core until there are none.
async fn look() {
    loop {
        sleep(INTERVAL).await;
        let now = now();
        let expired: Vec<_> = {
            let all = WATCHES.all.borrow();
            if all.is_empty() {
                WATCHES.looks.set(false);
                return;
            }
            all.values().filter(|patient| patient.watch().has_expired(now)).cloned().collect()
        };
        expired.iter().for_each(|patient| patient.expired(patient.watch().waiting.get()));
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
            let watch = Watch { number: 0, waiting: Cell::new(waiting), since: Cell::new(began) };
            let limit = Duration::from_secs(seconds);
            assert!(!watch.has_expired(began + (limit - Duration::from_nanos(1))), "{waiting:?}");
            assert!(watch.has_expired(began + limit), "{waiting:?}");
        }
    }
}
