//! Which requests for memory are granted: the state that all cores share, without the tasks that wait.
//!
//! Requests of an activity are granted in the order of their arrival: a smaller one does not overtake a larger one for
//! which there is no budget yet.
//!
//! A request is in exactly one place: apart, as its activity has no budget for it, or in the order of the resource, or
//! it is the next one, or granted, or abandoned. It is granted and abandoned under one lock, so that its bytes are given
//! back once.
//!
//! ```text
//! waiting core                             other core
//!   adds the request                         releases bytes
//!   looks: granted?                          looks: granted? takes the waker, wakes
//!   registers its waker
//!   granted? or waits to be woken
//! ```
//!
//! The waker is registered before the check, and taken after the grant: one of the two cores sees the other's.

use crate::sync::{AtomicBool, Lock, Ordering};
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::task::{Context, Poll, Waker};
use isola_abi::id::ActivityId;

/// A request for memory.
pub(super) struct Request {
    pub activity: ActivityId,
    pub len_bytes: u64,
    /// Its number in the order of arrival.
    number: u64,
    state: Arc<RequestState>,
}

#[derive(Default)]
struct RequestState {
    is_granted: AtomicBool,
    is_abandoned: AtomicBool,
    waker: Lock<Option<Waker>>,
}

/// The memory, and the order in which requests get some.
pub(super) trait Supply {
    /// Returns the bytes that may be reserved in all.
    fn reservable_bytes(&self) -> u64;

    /// Returns the bytes that an activity may have reserved in all.
    fn budget_bytes(&self, activity: ActivityId) -> u64;

    /// Adds a request to the order.
    fn enqueue(&mut self, request: Request);

    /// Removes and returns the next request of the order.
    fn dispatch(&mut self) -> Option<Request>;

    /// Returns the number of requests in the order.
    fn waiting(&self) -> usize;
}

/// The requests of a cell, and the bytes that are reserved.
pub(super) struct Grants<S> {
    state: Lock<State<S>>,
}

struct State<S> {
    reserved_bytes: u64,
    reserved: BTreeMap<ActivityId, u64>,
    supply: S,
    /// The requests that wait for memory of their own activity, by their numbers.
    over_budget: BTreeMap<u64, Request>,
    /// The number of the next request.
    next_number: u64,
    /// The one that is next, and did not fit yet.
    next: Option<Request>,
}

/// A request as its owner has it. Gives the grant back if it is dropped before that was accepted.
pub(super) struct PendingRequest<'a, S: Supply> {
    grants: &'a Grants<S>,
    activity: ActivityId,
    len_bytes: u64,
    state: Option<Arc<RequestState>>,
}

impl<S: Supply> Grants<S> {
    pub fn new(supply: S) -> Self {
        let (reserved, over_budget) = (BTreeMap::new(), BTreeMap::new());
        let state = State { reserved_bytes: 0, reserved, supply, over_budget, next_number: 0, next: None };
        Self { state: Lock::new(state) }
    }

    /// Adds a request. The caller then looks.
    pub fn add(&self, activity: ActivityId, len_bytes: u64) -> PendingRequest<'_, S> {
        let state = Arc::<RequestState>::default();
        self.state.with(|all| {
            let number = all.next_number;
            all.next_number += 1;
            all.over_budget.insert(number, Request { activity, len_bytes, number, state: state.clone() });
        });
        PendingRequest { grants: self, activity, len_bytes, state: Some(state) }
    }

    /// Grants the requests that fit, and wakes their owners. Returns whether others wait.
    #[must_use]
    pub fn look(&self) -> bool {
        let (granted, waits) = self.state.with(|state| (state.grant(), state.waiting() > 0));
        granted.into_iter().for_each(Waker::wake);
        waits
    }

    /// Gives reserved bytes back. The caller then looks.
    pub fn release(&self, activity: ActivityId, len_bytes: u64) {
        self.state.with(|state| state.release(activity, len_bytes));
    }

    /// Returns the number of requests that wait.
    pub fn waiting(&self) -> usize {
        self.state.with(|state| state.waiting())
    }

    /// Returns the number of an activity's requests that wait, of which `in_order` tells those in the order.
    pub fn waiting_of(&self, activity: ActivityId, in_order: impl FnOnce(&S) -> usize) -> usize {
        self.state.with(|state| {
            let apart = state.over_budget.values().chain(&state.next);
            apart.filter(|request| request.activity == activity).count() + in_order(&state.supply)
        })
    }
}

impl<S: Supply> PendingRequest<'_, S> {
    /// Completes when the request is granted. The owner then has the bytes, and [releases](Grants::release) them.
    pub fn poll(&mut self, context: &Context<'_>) -> Poll<()> {
        let Some(state) = &self.state else { return Poll::Ready(()) };
        let earlier = state.waker.with(|waker| waker.replace(context.waker().clone()));
        drop(earlier);
        // Checked after the waker is registered, so that no later grant goes unnoticed.
        if !state.is_granted.load(Ordering::Acquire) {
            return Poll::Pending;
        }
        self.state = None;
        Poll::Ready(())
    }
}

impl<S: Supply> Drop for PendingRequest<'_, S> {
    fn drop(&mut self) {
        let Some(state) = self.state.take() else { return };
        // Under the lock under which requests are granted.
        self.grants.state.with(|all| {
            state.is_abandoned.store(true, Ordering::Relaxed);
            if state.is_granted.load(Ordering::Relaxed) {
                all.release(self.activity, self.len_bytes);
            }
        });
        // Not under the lock, and not later with the request: it may be the last reference of a task.
        drop(state.waker.with(Option::take));
        // Others may use the bytes. Those that wait still are watched.
        let _ = self.grants.look();
    }
}

impl<S: Supply> State<S> {
    fn waiting(&self) -> usize {
        self.supply.waiting() + self.over_budget.len() + usize::from(self.next.is_some())
    }

    fn release(&mut self, activity: ActivityId, len_bytes: u64) {
        debug_assert!(self.reserved_bytes >= len_bytes, "{len_bytes} bytes are given back twice");
        self.reserved_bytes = self.reserved_bytes.saturating_sub(len_bytes);
        if let Some(reserved) = self.reserved.get_mut(&activity) {
            *reserved = reserved.saturating_sub(len_bytes);
            if *reserved == 0 {
                self.reserved.remove(&activity);
            }
        }
    }

    /// Returns whether the activity is within its hard budget with the request.
    fn is_within_budget(&self, request: &Request) -> bool {
        let reserved = self.reserved.get(&request.activity).copied().unwrap_or(0);
        reserved.saturating_add(request.len_bytes) <= self.supply.budget_bytes(request.activity)
    }

    fn has_earlier_without_budget(&self, request: &Request) -> bool {
        let mut earlier = self.over_budget.range(..request.number);
        earlier.any(|(_, other)| other.activity == request.activity)
    }

    /// Grants the requests that fit, in the order of the supply. Returns their wakers.
    fn grant(&mut self) -> Vec<Waker> {
        // The activities that have an earlier request without budget.
        let mut without: Vec<ActivityId> = Vec::new();
        for (number, request) in core::mem::take(&mut self.over_budget) {
            if request.state.is_abandoned.load(Ordering::Relaxed) {
                continue;
            }
            if !without.contains(&request.activity) {
                if self.is_within_budget(&request) {
                    self.supply.enqueue(request);
                    continue;
                }
                without.push(request.activity);
            }
            self.over_budget.insert(number, request);
        }
        let mut granted = Vec::new();
        loop {
            let Some(request) = self.next.take().or_else(|| self.supply.dispatch()) else { return granted };
            if request.state.is_abandoned.load(Ordering::Relaxed) {
                continue;
            }
            if self.has_earlier_without_budget(&request) || !self.is_within_budget(&request) {
                self.over_budget.insert(request.number, request);
                continue;
            }
            let wanted = self.reserved_bytes.saturating_add(request.len_bytes);
            if wanted > self.supply.reservable_bytes() {
                self.next = Some(request);
                return granted;
            }
            self.reserved_bytes = wanted;
            *self.reserved.entry(request.activity).or_default() += request.len_bytes;
            request.state.is_granted.store(true, Ordering::Release);
            granted.extend(request.state.waker.with(Option::take));
        }
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use crate::sync::AtomicU64;
    use alloc::collections::VecDeque;
    use alloc::task::Wake;
    use loom::thread;

    const WEB: ActivityId = ActivityId(5);
    const BATCH: ActivityId = ActivityId(6);

    /// Memory for one request.
    #[derive(Default)]
    struct One(VecDeque<Request>);

    impl Supply for One {
        fn reservable_bytes(&self) -> u64 {
            10
        }

        fn budget_bytes(&self, _: ActivityId) -> u64 {
            10
        }

        fn enqueue(&mut self, request: Request) {
            self.0.push_back(request);
        }

        fn dispatch(&mut self) -> Option<Request> {
            self.0.pop_front()
        }

        fn waiting(&self) -> usize {
            self.0.len()
        }
    }

    struct Cell {
        grants: Grants<One>,
        /// The bytes that owners believe to have.
        owned: AtomicU64,
    }

    #[derive(Default)]
    struct Woken(AtomicBool);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::Release);
        }
    }

    impl Cell {
        fn new() -> loom::sync::Arc<Self> {
            let cell = Self { grants: Grants::new(One::default()), owned: AtomicU64::new(0) };
            loom::sync::Arc::new(cell)
        }

        /// Waits for the bytes, as a task that runs again only when it is woken.
        fn reserve(&self, activity: ActivityId) {
            let mut pending = self.grants.add(activity, 10);
            let _ = self.grants.look();
            loop {
                let woken = Arc::<Woken>::default();
                let waker = Waker::from(woken.clone());
                if pending.poll(&Context::from_waker(&waker)).is_ready() {
                    break;
                }
                while !woken.0.load(Ordering::Acquire) {
                    thread::yield_now();
                }
            }
            assert_eq!(self.owned.fetch_add(10, Ordering::Relaxed), 0, "the bytes were granted twice");
        }

        fn give_back(&self, activity: ActivityId) {
            self.owned.fetch_sub(10, Ordering::Relaxed);
            self.grants.release(activity, 10);
            let _ = self.grants.look();
        }

        fn assert_unused(&self) {
            self.grants.state.with(|state| {
                assert_eq!((state.reserved_bytes, state.reserved.len(), state.waiting()), (0, 0, 0));
            });
        }
    }

    #[test]
    fn a_request_is_granted_when_another_core_gives_its_bytes_back() {
        loom::model(|| {
            let cell = Cell::new();
            cell.reserve(WEB);
            let waiting = thread::spawn({
                let cell = cell.clone();
                move || {
                    cell.reserve(BATCH);
                    cell.give_back(BATCH);
                }
            });
            cell.give_back(WEB);
            waiting.join().unwrap();
            cell.assert_unused();
        });
    }

    #[test]
    fn requests_of_several_cores_get_the_same_bytes_one_after_the_other() {
        loom::model(|| {
            let cell = Cell::new();
            let other = thread::spawn({
                let cell = cell.clone();
                move || {
                    cell.reserve(WEB);
                    cell.give_back(WEB);
                }
            });
            cell.reserve(WEB);
            cell.give_back(WEB);
            other.join().unwrap();
            cell.assert_unused();
        });
    }

    #[test]
    fn the_bytes_of_a_request_that_is_abandoned_as_it_is_granted_go_to_the_next() {
        loom::model(|| {
            let cell = Cell::new();
            cell.reserve(WEB);
            let abandons = thread::spawn({
                let cell = cell.clone();
                move || {
                    let mut pending = cell.grants.add(BATCH, 10);
                    let _ = cell.grants.look();
                    let _ = pending.poll(&Context::from_waker(Waker::noop()));
                    // Granted or not, the owner does not accept it, unless it has just done so.
                    if pending.state.is_none() {
                        cell.owned.fetch_add(10, Ordering::Relaxed);
                        cell.give_back(BATCH);
                    }
                    drop(pending);
                }
            });
            cell.give_back(WEB);
            cell.reserve(WEB);
            cell.give_back(WEB);
            abandons.join().unwrap();
            cell.assert_unused();
        });
    }
}
