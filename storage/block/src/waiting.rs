//! The requests that wait for room in the device, by activity while there is a policy.

use crate::parts::cost_of;
use crate::request::Part;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use isola_abi::id::ActivityId;
use isola_abi::query::GridClient;
use isola_events::now;
use isola_resources::{
    ActivityScheduler, ClientStatistics, Configuration, Cost, Dispatch, Dispatched, Resource,
};

/// The requests that wait.
pub(crate) struct Waiting {
    /// A request that was dispatched, but found no room in the device; or a half of a divided request.
    next: VecDeque<Part>,
    order: Order,
}

enum Order {
    Arrival(VecDeque<Part>),
    Policy {
        scheduler: Box<ActivityScheduler<Part>>,
        /// Whether a request may have to wait although the device has room.
        has_limits: bool,
    },
}

/// The next request to submit.
pub(crate) enum Next {
    Part(Part),
    /// All waiting requests are of activities at their limits until this time, in nanoseconds.
    NotBefore(u64),
    None,
}

impl Waiting {
    pub fn new() -> Self {
        Self { next: VecDeque::new(), order: Order::Arrival(VecDeque::new()) }
    }

    /// Follows a change of the policy. Requests of an activity keep their order.
    pub fn configure(&mut self, configuration: Option<Configuration>) {
        let now_ns = now().as_ns();
        match (&mut self.order, configuration) {
            (Order::Policy { scheduler, has_limits }, Some(configuration)) => {
                *has_limits = configuration.has_limits();
                scheduler.configure(configuration, now_ns);
            }
            (Order::Arrival(parts), Some(configuration)) => {
                let parts = core::mem::take(parts);
                let has_limits = configuration.has_limits();
                self.order =
                    Order::Policy { scheduler: Box::new(ActivityScheduler::new(configuration)), has_limits };
                parts.into_iter().for_each(|part| self.add(part));
            }
            (Order::Policy { .. }, None) => {
                let before = core::mem::replace(&mut self.order, Order::Arrival(VecDeque::new()));
                if let (Order::Policy { scheduler, .. }, Order::Arrival(parts)) = (before, &mut self.order) {
                    parts.extend(scheduler.into_requests());
                }
            }
            (Order::Arrival(_), None) => {}
        }
    }

    pub fn has_policy(&self) -> bool {
        matches!(self.order, Order::Policy { .. })
    }

    /// Returns whether the order decides which request is next: others wait, or there are limits.
    pub fn must_order(&self) -> bool {
        !self.is_empty() || matches!(self.order, Order::Policy { has_limits: true, .. })
    }

    pub fn is_empty(&self) -> bool {
        self.next.is_empty()
            && match &self.order {
                Order::Arrival(parts) => parts.is_empty(),
                Order::Policy { scheduler, .. } => scheduler.is_empty(),
            }
    }

    /// Returns the number of requests that count against the bound of an activity: its own while there is a policy,
    /// else all.
    pub fn len_for(&self, activity: ActivityId) -> usize {
        match &self.order {
            Order::Arrival(parts) => parts.len(),
            Order::Policy { scheduler, .. } => scheduler.statistics(activity).waiting,
        }
    }

    /// Adds a request behind those of its activity.
    pub fn add(&mut self, part: Part) {
        match &mut self.order {
            Order::Arrival(parts) => parts.push_back(part),
            Order::Policy { scheduler, .. } => {
                let cost = Cost::Known(cost_of(&part.request));
                scheduler.enqueue(part.operation.activity, part, cost, now().as_ns());
            }
        }
    }

    /// Puts a request before all others: the device has no room for it, or it is a half of one.
    pub fn put_back(&mut self, part: Part) {
        self.next.push_front(part);
    }

    /// Removes and returns the next request.
    pub fn take_next(&mut self) -> Next {
        if let Some(part) = self.next.pop_front() {
            return Next::Part(part);
        }
        match &mut self.order {
            Order::Arrival(parts) => parts.pop_front().map_or(Next::None, Next::Part),
            Order::Policy { scheduler, .. } => match scheduler.dispatch(now().as_ns()) {
                Dispatch::Request(Dispatched { message: part, .. }) => Next::Part(part),
                Dispatch::NotBefore(ns) => Next::NotBefore(ns),
                Dispatch::Empty => Next::None,
            },
        }
    }

    /// Ends a busy period: no request waits, and the device has none.
    pub fn idle(&mut self) {
        if let Order::Policy { scheduler, .. } = &mut self.order {
            scheduler.idle();
        }
    }

    /// Removes all requests.
    pub fn take_all(&mut self) -> Vec<Part> {
        let mut all: Vec<Part> = self.next.drain(..).collect();
        match &mut self.order {
            Order::Arrival(parts) => all.extend(parts.drain(..)),
            Order::Policy { scheduler, .. } => {
                let configuration = scheduler.configuration().clone();
                let before = core::mem::replace(&mut **scheduler, ActivityScheduler::new(configuration));
                all.extend(before.into_requests());
            }
        }
        all
    }

    /// Returns the service of each activity; empty without a policy.
    pub fn report(&self, resource: Resource, core: u32) -> Vec<GridClient> {
        match &self.order {
            Order::Arrival(_) => Vec::new(),
            Order::Policy { scheduler, .. } => scheduler.report(resource, core),
        }
    }

    /// Returns the service of an activity; the default without a policy.
    pub fn statistics(&self, activity: ActivityId) -> ClientStatistics {
        match &self.order {
            Order::Arrival(_) => ClientStatistics::default(),
            Order::Policy { scheduler, .. } => scheduler.statistics(activity),
        }
    }
}
