//! Slots for calls: a limit on concurrent calls, beyond which others wait, in the order of the policy of `rpc` if there is
//! one.
//!
//! A call occupies a slot for some time, which is its cost: also while its handler, or the called machine, waits for
//! something else.

use crate::messenger::MESSENGER_CORE;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::rc::{Rc, Weak};
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use core::future::poll_fn;
use core::task::{Poll, Waker};
use isola_abi::id::ActivityId;
use isola_abi::query::GridClient;
use isola_ebbs::{CellEbb, Ebb, Representative, current_core};
use isola_events::{Alarm, Instant, current_activity, now, spawn_on};
use isola_resources::{Cost, NextRequest, RPC, RequestQueue, Resource, ServiceTicket, merged};

static ALL: Ebb<AllSlots> = Ebb::new();
static FOLLOWER: CellEbb<Follower> = CellEbb::new();

/// All slots of the messenger's core.
#[derive(Default)]
struct AllSlots(RefCell<Vec<Weak<Slots>>>);

impl Representative for AllSlots {
    fn create() -> Self {
        Self::default()
    }
}

impl AllSlots {
    fn list(&self) -> Vec<Rc<Slots>> {
        self.0.borrow().iter().filter_map(Weak::upgrade).collect()
    }
}

/// Makes waiting calls follow changes of the settings while no call comes or ends: all may wait for a limit.
struct Follower;

impl Representative for Follower {
    fn create() -> Self {
        RPC.on_change(|| spawn_on(MESSENGER_CORE, || ALL.list().iter().for_each(|slots| slots.grant())));
        Self
    }
}

/// Returns what each activity has received at the calling core since `rpc` has a policy: the calls of other machines that
/// were answered for it, and its own calls of other machines.
pub fn rpc_report() -> Vec<GridClient> {
    if current_core() != MESSENGER_CORE {
        return Vec::new();
    }
    merged(ALL.list().iter().flat_map(|slots| slots.report(MESSENGER_CORE.0)))
}

/// The slots of a place where calls wait.
pub(crate) struct Slots {
    state: RefCell<State>,
    /// Rings when an activity at its limit may have a slot again.
    throttle: Alarm,
}

struct State {
    requests: RequestQueue<Rc<Waiter>>,
    used: usize,
    /// The calls with slots whose tasks have not run since, in the order in which they got them. An activity's calls
    /// begin in that order, whichever task runs first. No list is empty.
    granted: BTreeMap<ActivityId, VecDeque<Rc<Waiter>>>,
    /// The number of slots while there is a policy.
    most: usize,
    /// The number of slots without a policy; `None`: no limit.
    most_direct: Option<usize>,
}

/// A call that waits for a slot.
#[derive(Default)]
struct Waiter {
    granted: Cell<Option<Service>>,
    is_abandoned: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

/// A call in a slot.
#[derive(Clone, Copy)]
struct Service {
    ticket: ServiceTicket,
    begun: Instant,
}

/// A slot, returned on drop.
pub(crate) struct Slot {
    slots: Rc<Slots>,
    service: Service,
}

impl Slots {
    /// Creates `most` slots; without a policy `most_direct`, or any number.
    pub fn new(most: usize, most_direct: Option<usize>) -> Rc<Self> {
        let _follower: &Follower = &FOLLOWER;
        let requests = RequestQueue::new(Some(RPC));
        let state = RefCell::new(State { requests, used: 0, granted: BTreeMap::new(), most, most_direct });
        let slots = Rc::new_cyclic(|slots: &Weak<Self>| {
            let slots = slots.clone();
            let throttle = Alarm::new(move || {
                if let Some(slots) = slots.upgrade() {
                    slots.grant();
                }
            });
            Self { state, throttle }
        });
        let mut all = ALL.0.borrow_mut();
        all.retain(|slots| slots.strong_count() > 0);
        all.push(Rc::downgrade(&slots));
        slots
    }

    /// Waits for a slot, for the current activity.
    pub async fn take(self: &Rc<Self>) -> Slot {
        let activity = current_activity();
        self.grant();
        let free = self.state.borrow_mut().take_free(activity);
        if let Some(service) = free {
            return Slot { slots: self.clone(), service };
        }
        let waiter = Rc::<Waiter>::default();
        let pending = PendingSlot { slots: self.clone(), activity, waiter: waiter.clone() };
        self.state.borrow_mut().requests.add(activity, waiter, Cost::Unknown, now().as_ns());
        self.grant();
        poll_fn(|context| match self.begin(activity, &pending.waiter) {
            Some(service) => Poll::Ready(Slot { slots: self.clone(), service }),
            None => {
                pending.waiter.waker.replace(Some(context.waker().clone()));
                Poll::Pending
            }
        })
        .await
    }

    /// Gives free slots to waiting calls.
    pub fn grant(&self) {
        loop {
            let mut state = self.state.borrow_mut();
            state.requests.follow(|| now().as_ns());
            if !state.has_free() {
                return;
            }
            match state.requests.take_next(now().as_ns()) {
                NextRequest::Request(_, waiter, ticket) if waiter.is_abandoned.get() => {
                    state.requests.complete(ticket, 0);
                }
                NextRequest::Request(activity, waiter, ticket) => {
                    state.used += 1;
                    waiter.granted.set(Some(Service { ticket, begun: now() }));
                    let granted = state.granted.entry(activity).or_default();
                    granted.push_back(waiter);
                    let first = if granted.len() == 1 { granted[0].waker.take() } else { None };
                    drop(state);
                    first.into_iter().for_each(Waker::wake);
                }
                NextRequest::NotBefore(ns) => return self.throttle.set(Some(Instant::from_ns(ns))),
                NextRequest::Empty => {
                    if state.used == 0 {
                        state.requests.idle();
                    }
                    return;
                }
            }
        }
    }

    /// Returns the slot of a call if it has one, and no earlier call of the activity is about to begin.
    fn begin(&self, activity: ActivityId, waiter: &Rc<Waiter>) -> Option<Service> {
        waiter.granted.get()?;
        let is_first = |granted: &VecDeque<Rc<Waiter>>| Rc::ptr_eq(&granted[0], waiter);
        if !self.state.borrow().granted.get(&activity).is_some_and(is_first) {
            return None;
        }
        self.forget(activity, waiter)
    }

    /// Removes a call from those that are about to begin, and wakes the next. Returns its slot.
    fn forget(&self, activity: ActivityId, waiter: &Rc<Waiter>) -> Option<Service> {
        let service = waiter.granted.take()?;
        let mut state = self.state.borrow_mut();
        let mut next = None;
        if let Some(granted) = state.granted.get_mut(&activity) {
            granted.retain(|other| !Rc::ptr_eq(other, waiter));
            next = granted.front().and_then(|first| first.waker.take());
            if granted.is_empty() {
                state.granted.remove(&activity);
            }
        }
        drop(state);
        next.into_iter().for_each(Waker::wake);
        Some(service)
    }

    fn give_back(&self, service: Service) {
        let mut state = self.state.borrow_mut();
        state.used -= 1;
        if service.ticket.is_charged() {
            let cost = now().as_ns().saturating_sub(service.begun.as_ns());
            state.requests.complete(service.ticket, cost);
        }
        drop(state);
        self.grant();
    }

    /// Returns the service of each activity by the policy; empty without one.
    fn report(&self, core: u32) -> Vec<GridClient> {
        self.state.borrow().requests.report(Resource::Rpc, core)
    }
}

impl State {
    fn has_free(&self) -> bool {
        let most = if self.requests.has_policy() { Some(self.most) } else { self.most_direct };
        most.is_none_or(|most| self.used < most)
    }

    /// Takes a free slot for a call that need not wait.
    fn take_free(&mut self, activity: ActivityId) -> Option<Service> {
        if !self.has_free() || self.granted.contains_key(&activity) || self.requests.must_order() {
            return None;
        }
        self.used += 1;
        let begun = now();
        Some(Service { ticket: self.requests.serve_unqueued(activity, begun.as_ns()), begun })
    }
}

/// Gives a slot back that was granted to a future that is dropped before it has returned it.
struct PendingSlot {
    slots: Rc<Slots>,
    activity: ActivityId,
    waiter: Rc<Waiter>,
}

impl Drop for PendingSlot {
    fn drop(&mut self) {
        self.waiter.is_abandoned.set(true);
        if let Some(service) = self.slots.forget(self.activity, &self.waiter) {
            self.slots.give_back(service);
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.slots.give_back(self.service);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::future::Future;
    use core::task::Context;
    use core::time::Duration;
    use isola_events::{exit, run, spawn_task, timeout};
    use isola_hosted::Settings;

    #[test]
    fn a_slot_granted_to_a_call_that_is_dropped_goes_to_the_next() {
        isola_hosted::run(Settings::default(), Vec::new(), |_| {
            spawn_task(async {
                let slots = Slots::new(1, Some(1));
                let first = slots.take().await;
                let mut context = Context::from_waker(Waker::noop());
                let [mut dropped, mut next] = [(); 2].map(|()| alloc::boxed::Box::pin(slots.take()));
                assert!(dropped.as_mut().poll(&mut context).is_pending());
                assert!(next.as_mut().poll(&mut context).is_pending());
                drop(first);
                // It has the slot now.
                assert!(next.as_mut().poll(&mut context).is_pending());
                drop(dropped);
                let Poll::Ready(slot) = next.as_mut().poll(&mut context) else { panic!("no slot") };
                drop(slot);
                let again = timeout(Duration::from_secs(5), slots.take()).await;
                assert!(again.is_ok() && slots.state.borrow().used == 1);
                exit(0);
            })
            .detach();
            run()
        });
    }
}
