//! How long requests take, as the application counts them: from when the last of their bytes can first have come to when
//! their answers are handed to the device.
//!
//! ```text
//!   device's ring empty     frames come    interrupt   their event: handlers answer   flush
//!   ──────┬───────────────────────┬────────────┬───────────┬──────────────────────────┬─────▶
//!         └ where it is polled    └ else: when the core last looked for interrupts    │
//!           ├───────────────────────── each request of the batch took so long ────────┤
//! ```
//!
//! All requests of a batch of frames count as having come with its first. So a request costs an addition, and a batch a
//! reading of the cycle counter and a counter of the report ([`isola_abi::histogram`]). What answers wait for afterwards, in
//! the queue of another core's device or for the peer's window, is not in it, and neither is how long frames wait in the
//! machine below.
//!
//! ```ignore
//! fn received(&mut self, connection: &TcpConnection, data: Chain) {
//!     let requests = self.serve(data);
//!     latency::answered(requests);
//! }
//! ```

use crate::core_network::NETWORK;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use isola_abi::histogram::Histogram;
use isola_ebbs::{current_core, cycles, platform};

/// Most different arrivals whose answers wait for one flush. Those of further ones count as handed over at once.
const MAX_WAITING: usize = 64;

/// Says that so many of the requests that came with what is being handled now were answered. Where nothing that came is
/// being handled, as in a task, they count as having come just now: see [`arrival`].
#[inline]
pub fn answered(requests: u64) {
    arrival().answered(requests);
}

/// When what is being handled now has come, for answers that are given later: in another event, or on another core.
#[inline]
pub fn arrival() -> Arrival {
    Arrival { came_at: NETWORK.latency.came_at() }
}

/// When a request has come.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    /// A reading of the cycle counter.
    came_at: u64,
}

impl Arrival {
    /// Says that so many requests that came then were answered, on the core that this is called on.
    #[inline]
    pub fn answered(self, requests: u64) {
        NETWORK.latency.answered(self.came_at, requests);
    }
}

/// A core's requests.
pub(crate) struct Latency {
    service: &'static Histogram,
    /// When what is being taken in has come; `None` while nothing is.
    came_at: Cell<Option<u64>>,
    /// Answers that the flush will hand over, and when their requests came.
    answered: Cell<u64>,
    answered_came_at: Cell<u64>,
    /// The same, of other requests.
    others: RefCell<Vec<(u64, u64)>>,
    has_others: Cell<bool>,
}

impl Latency {
    pub fn new() -> Self {
        Self {
            service: &platform().report().cores[current_core().0 as usize].service,
            came_at: Cell::new(None),
            answered: Cell::new(0),
            answered_came_at: Cell::new(0),
            others: RefCell::default(),
            has_others: Cell::new(false),
        }
    }

    /// Something is taken in that came at that reading of the cycle counter, or later.
    #[inline]
    pub fn begin(&self, came_at: u64) {
        self.came_at.set(Some(came_at));
    }

    /// It has been handled.
    #[inline]
    pub fn end(&self) {
        self.came_at.set(None);
    }

    /// When what is being handled has come.
    #[inline]
    pub fn came_at(&self) -> u64 {
        self.came_at.get().unwrap_or_else(cycles)
    }

    #[inline]
    fn answered(&self, came_at: u64, requests: u64) {
        let waiting = self.answered.get();
        if requests == 0 {
            return;
        }
        if waiting > 0 && self.answered_came_at.get() != came_at {
            return self.answered_others(came_at, requests);
        }
        self.answered.set(waiting + requests);
        self.answered_came_at.set(came_at);
    }

    #[cold]
    fn answered_others(&self, came_at: u64, requests: u64) {
        let mut others = self.others.borrow_mut();
        let place = others.iter().position(|(came, _)| *came == came_at);
        match place {
            Some(place) => others[place].1 += requests,
            None if others.len() < MAX_WAITING => {
                others.push((came_at, requests));
                self.has_others.set(true);
            }
            None => self.service.count(cycles().saturating_sub(came_at), requests),
        }
    }

    /// What the stack had ready was handed to the device.
    #[inline]
    pub fn sent(&self) {
        let requests = self.answered.take();
        if requests > 0 {
            let now = cycles();
            self.service.count(now.saturating_sub(self.answered_came_at.get()), requests);
            if self.has_others.replace(false) {
                self.sent_others(now);
            }
        }
    }

    #[cold]
    fn sent_others(&self, now: u64) {
        for (came_at, requests) in self.others.borrow_mut().drain(..) {
            self.service.count(now.saturating_sub(came_at), requests);
        }
    }
}
