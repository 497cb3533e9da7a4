//! The service latency of requests, as the application counts them: from the earliest possible arrival of a request's
//! last bytes to the hand-over of its response to the device.
//!
//! ```text
//!   device's ring empty     frames arrive  interrupt   their event: handlers answer   flush
//!   ──────┬───────────────────────┬────────────┬───────────┬──────────────────────────┬─────▶
//!         └ if it is polled       └ otherwise: when the core last checked interrupts  │
//!           ├───────────────────────── latency of each request of the batch ──────────┤
//! ```
//!
//! All requests of a batch of frames count as having arrived with its first frame. So a request costs an addition, and
//! a batch one read of the cycle counter and one counter of the report ([`isola_abi::histogram`]). The latency does not
//! include the later wait of a response, in another core's device queue or for the peer's window, nor the delay of
//! frames in the hypervisor.
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

/// The most distinct arrival times that wait for one flush. Requests of further ones count as answered at once.
const MAX_ARRIVALS: usize = 64;

/// Counts requests of the frames that are being processed as answered. Outside of that processing, for example in a
/// task, they count as having arrived just now: see [`arrival`].
#[inline]
pub fn answered(requests: u64) {
    arrival().answered(requests);
}

/// Returns the arrival time of the frames that are being processed, for responses from a later event or another core.
#[inline]
pub fn arrival() -> Arrival {
    Arrival { arrived_at: NETWORK.latency.arrived_at() }
}

/// The arrival time of a request.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    /// A cycle counter value.
    arrived_at: u64,
}

impl Arrival {
    /// Counts requests of that arrival time as answered, on the calling core.
    #[inline]
    pub fn answered(self, requests: u64) {
        NETWORK.latency.answered(self.arrived_at, requests);
    }
}

/// The latency state of a core.
pub(crate) struct Latency {
    service: &'static Histogram,
    /// The arrival time of the frames that are being processed; `None` if there are none.
    arrived_at: Cell<Option<u64>>,
    /// The number of responses that the flush will hand over, and the arrival time of their requests.
    answered: Cell<u64>,
    answered_arrived_at: Cell<u64>,
    /// Arrival time and number of other requests.
    others: RefCell<Vec<(u64, u64)>>,
    has_others: Cell<bool>,
}

impl Latency {
    pub fn new() -> Self {
        Self {
            service: &platform().report().cores[current_core().0 as usize].service,
            arrived_at: Cell::new(None),
            answered: Cell::new(0),
            answered_arrived_at: Cell::new(0),
            others: RefCell::default(),
            has_others: Cell::new(false),
        }
    }

    /// Begins the processing of frames that arrived when the cycle counter was `arrived_at`, or later.
    #[inline]
    pub fn begin(&self, arrived_at: u64) {
        self.arrived_at.set(Some(arrived_at));
    }

    /// Ends the processing.
    #[inline]
    pub fn end(&self) {
        self.arrived_at.set(None);
    }

    /// Returns the arrival time of the frames that are being processed.
    #[inline]
    pub fn arrived_at(&self) -> u64 {
        self.arrived_at.get().unwrap_or_else(cycles)
    }

    #[inline]
    fn answered(&self, arrived_at: u64, requests: u64) {
        let waiting = self.answered.get();
        if requests == 0 {
            return;
        }
        if waiting > 0 && self.answered_arrived_at.get() != arrived_at {
            return self.answered_others(arrived_at, requests);
        }
        self.answered.set(waiting + requests);
        self.answered_arrived_at.set(arrived_at);
    }

    #[cold]
    fn answered_others(&self, arrived_at: u64, requests: u64) {
        let mut others = self.others.borrow_mut();
        let index = others.iter().position(|(other, _)| *other == arrived_at);
        match index {
            Some(index) => others[index].1 += requests,
            None if others.len() < MAX_ARRIVALS => {
                others.push((arrived_at, requests));
                self.has_others.set(true);
            }
            None => self.service.count(cycles().saturating_sub(arrived_at), requests),
        }
    }

    /// Records that the stack's frames were handed to the device.
    #[inline]
    pub fn sent(&self) {
        let requests = self.answered.take();
        if requests > 0 {
            let now = cycles();
            self.service.count(now.saturating_sub(self.answered_arrived_at.get()), requests);
            if self.has_others.replace(false) {
                self.sent_others(now);
            }
        }
    }

    #[cold]
    fn sent_others(&self, now: u64) {
        for (arrived_at, requests) in self.others.borrow_mut().drain(..) {
            self.service.count(now.saturating_sub(arrived_at), requests);
        }
    }
}
