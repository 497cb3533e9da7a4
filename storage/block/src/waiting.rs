//! The requests that wait for room in the device, by activity while there is a policy.

use crate::parts::cost_of;
use crate::request::Part;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use isola_abi::id::ActivityId;
use isola_abi::query::GridClient;
use isola_events::now;
use isola_resources::{ClientStatistics, Cost, GridResource, NextRequest, RequestQueue, Resource};

/// The requests that wait.
pub(crate) struct Waiting {
    /// A request that was dispatched, but found no room in the device; or a half of a divided request.
    next: VecDeque<Part>,
    queue: RequestQueue<Part>,
}

/// The next request to submit.
pub(crate) enum Next {
    Part(Part),
    /// All waiting requests are of activities at their limits until this time, in nanoseconds.
    NotBefore(u64),
    None,
}

impl Waiting {
    pub fn new(resource: Option<GridResource>) -> Self {
        Self { next: VecDeque::new(), queue: RequestQueue::new(resource) }
    }

    /// Follows changes of the resource's settings. Requests of an activity keep their order.
    pub fn follow_policy(&mut self) {
        self.queue.follow(|| now().as_ns());
    }

    pub fn has_policy(&self) -> bool {
        self.queue.has_policy()
    }

    /// Returns whether the order decides which request is next: others wait, or there are limits.
    pub fn must_order(&self) -> bool {
        !self.next.is_empty() || self.queue.must_order()
    }

    pub fn is_empty(&self) -> bool {
        self.next.is_empty() && self.queue.is_empty()
    }

    /// Returns the number of requests that count against the bound of an activity: its own while there is a policy,
    /// else all.
    pub fn len_for(&self, activity: ActivityId) -> usize {
        self.queue.len_for(activity)
    }

    /// Adds a request behind those of its activity.
    pub fn add(&mut self, part: Part) {
        let cost = Cost::Known(cost_of(&part.request));
        self.queue.add(part.operation.activity, part, cost, now().as_ns());
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
        match self.queue.take_next(now().as_ns()) {
            NextRequest::Request(_, part, _) => Next::Part(part),
            NextRequest::NotBefore(ns) => Next::NotBefore(ns),
            NextRequest::Empty => Next::None,
        }
    }

    /// Ends a busy period: no request waits, and the device has none.
    pub fn idle(&mut self) {
        self.queue.idle();
    }

    /// Removes all requests.
    pub fn take_all(&mut self) -> Vec<Part> {
        let mut all: Vec<Part> = self.next.drain(..).collect();
        all.extend(self.queue.take_all());
        all
    }

    /// Returns the service of each activity; empty without a policy.
    pub fn report(&self, resource: Resource, core: u32) -> Vec<GridClient> {
        self.queue.report(resource, core)
    }

    /// Returns the service of an activity; the default without a policy.
    pub fn statistics(&self, activity: ActivityId) -> ClientStatistics {
        self.queue.statistics(activity)
    }
}
