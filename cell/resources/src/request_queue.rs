//! The requests that wait at one scheduler of a resource, with and without a policy.

use crate::activity_scheduler::ActivityScheduler;
use crate::resource::{Configuration, GridResource};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use isola_abi::grid::Resource;
use isola_abi::id::ActivityId;
use isola_abi::query::GridClient;
use isola_schedulers::{ClientStatistics, Cost, Dispatch, Dispatched, Ticket};

/// The requests that wait at one of a resource's schedulers: in the order of the resource's policy, or without one in
/// the order of their arrival.
///
/// [`Self::follow`] has to be called before the other functions that take the time, so that a change of the settings
/// holds from then on. The time is in nanoseconds, never less than in an earlier call.
pub struct RequestQueue<M> {
    resource: Option<GridResource>,
    /// The version of the settings that it follows.
    version: Option<u64>,
    order: Order<M>,
    /// The number of the scheduler whose tickets are valid.
    scheduler_number: u64,
}

enum Order<M> {
    Arrival(VecDeque<Waiting<M>>),
    Policy {
        scheduler: Box<ActivityScheduler<Waiting<M>>>,
        /// Whether a request may have to wait although no other does.
        has_limits: bool,
    },
}

struct Waiting<M> {
    activity: ActivityId,
    cost: Cost,
    message: M,
}

/// The charge for a request in service, for [`RequestQueue::complete`]; empty without a policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServiceTicket(Option<(u64, Ticket)>);

impl ServiceTicket {
    /// Returns whether a policy has chosen the request, so that its cost has to be reported.
    pub fn is_charged(self) -> bool {
        self.0.is_some()
    }
}

/// The result of [`RequestQueue::take_next`].
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub enum NextRequest<M> {
    /// This request is served next, for this activity.
    Request(ActivityId, M, ServiceTicket),
    /// All waiting requests are of activities at their limits until this time, in nanoseconds.
    NotBefore(u64),
    /// No request waits.
    Empty,
}

impl<M> RequestQueue<M> {
    /// Creates a queue without requests, which has no policy before [`Self::follow`] is called; without a resource it
    /// never has one.
    pub fn new(resource: Option<GridResource>) -> Self {
        Self { resource, version: None, order: Order::Arrival(VecDeque::new()), scheduler_number: 0 }
    }

    /// Follows changes of the resource's settings. No request is lost, or overtakes another of its activity. Returns
    /// whether there were changes.
    #[inline]
    pub fn follow(&mut self, now_ns: impl FnOnce() -> u64) -> bool {
        let Some(resource) = self.resource else { return false };
        let version = resource.version();
        if self.version == Some(version) {
            return false;
        }
        self.version = Some(version);
        self.configure(resource.configuration(), now_ns());
        true
    }

    #[cold]
    fn configure(&mut self, configuration: Option<Configuration>, now_ns: u64) {
        match (&mut self.order, configuration) {
            (Order::Policy { scheduler, has_limits }, Some(configuration)) => {
                // A limit of all activities comes and goes with another scheduler.
                let is_replaced = scheduler.configuration().limit.is_some() != configuration.limit.is_some();
                self.scheduler_number += u64::from(is_replaced);
                *has_limits = configuration.has_limits();
                scheduler.configure(configuration, now_ns);
            }
            (Order::Arrival(waiting), Some(configuration)) => {
                let waiting = core::mem::take(waiting);
                let has_limits = configuration.has_limits();
                let scheduler = Box::new(ActivityScheduler::new(configuration));
                self.scheduler_number += 1;
                self.order = Order::Policy { scheduler, has_limits };
                for Waiting { activity, cost, message } in waiting {
                    self.add(activity, message, cost, now_ns);
                }
            }
            (Order::Policy { .. }, None) => {
                let before = core::mem::replace(&mut self.order, Order::Arrival(VecDeque::new()));
                if let (Order::Policy { scheduler, .. }, Order::Arrival(waiting)) = (before, &mut self.order)
                {
                    waiting.extend(scheduler.into_requests());
                }
            }
            (Order::Arrival(_), None) => {}
        }
    }

    /// Returns whether a policy orders the requests.
    pub fn has_policy(&self) -> bool {
        matches!(self.order, Order::Policy { .. })
    }

    /// Returns whether the order decides which request is next: others wait, or there are limits.
    pub fn must_order(&self) -> bool {
        !self.is_empty() || matches!(self.order, Order::Policy { has_limits: true, .. })
    }

    /// Returns whether no request waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of waiting requests.
    pub fn len(&self) -> usize {
        match &self.order {
            Order::Arrival(waiting) => waiting.len(),
            Order::Policy { scheduler, .. } => scheduler.len(),
        }
    }

    /// Returns the number of requests that count against the bound of an activity: its own while there is a policy,
    /// else all.
    pub fn len_for(&self, activity: ActivityId) -> usize {
        match &self.order {
            Order::Arrival(waiting) => waiting.len(),
            Order::Policy { scheduler, .. } => scheduler.statistics(activity).waiting,
        }
    }

    /// Adds a request behind those of its activity.
    pub fn add(&mut self, activity: ActivityId, message: M, cost: Cost, now_ns: u64) {
        let request = Waiting { activity, cost, message };
        match &mut self.order {
            Order::Arrival(waiting) => waiting.push_back(request),
            Order::Policy { scheduler, .. } => scheduler.enqueue(activity, request, cost, now_ns),
        }
    }

    /// Records that the resource now serves a request that did not wait, because it was free.
    pub fn serve_unqueued(&mut self, activity: ActivityId, now_ns: u64) -> ServiceTicket {
        match &mut self.order {
            Order::Arrival(_) => ServiceTicket::default(),
            Order::Policy { scheduler, .. } => {
                let ticket = scheduler.serve_unqueued(activity, now_ns);
                ServiceTicket(ticket.map(|ticket| (self.scheduler_number, ticket)))
            }
        }
    }

    /// Removes and returns the request that is served next.
    pub fn take_next(&mut self, now_ns: u64) -> NextRequest<M> {
        match &mut self.order {
            Order::Arrival(waiting) => match waiting.pop_front() {
                Some(Waiting { activity, message, .. }) => {
                    NextRequest::Request(activity, message, ServiceTicket::default())
                }
                None => NextRequest::Empty,
            },
            Order::Policy { scheduler, .. } => match scheduler.dispatch(now_ns) {
                Dispatch::Request(Dispatched { message: Waiting { activity, message, .. }, ticket }) => {
                    NextRequest::Request(
                        activity,
                        message,
                        ServiceTicket(Some((self.scheduler_number, ticket))),
                    )
                }
                Dispatch::NotBefore(ns) => NextRequest::NotBefore(ns),
                Dispatch::Empty => NextRequest::Empty,
            },
        }
    }

    /// Removes all requests, in the order of their arrival.
    pub fn take_all(&mut self) -> Vec<M> {
        let waiting: Vec<Waiting<M>> = match &mut self.order {
            Order::Arrival(waiting) => waiting.drain(..).collect(),
            Order::Policy { scheduler, .. } => {
                let empty = ActivityScheduler::new(scheduler.configuration().clone());
                self.scheduler_number += 1;
                core::mem::replace(&mut **scheduler, empty).into_requests().collect()
            }
        };
        waiting.into_iter().map(|request| request.message).collect()
    }

    /// Reports the actual cost of a request. No effect if another policy began since it was chosen: the statistics began
    /// anew.
    pub fn complete(&mut self, served: ServiceTicket, cost: u64) {
        if let (Some((number, ticket)), Order::Policy { scheduler, .. }) = (served.0, &mut self.order)
            && number == self.scheduler_number
        {
            scheduler.complete(ticket, cost);
        }
    }

    /// Ends a busy period, if no request waits: the resource serves none.
    pub fn idle(&mut self) {
        if let Order::Policy { scheduler, .. } = &mut self.order {
            scheduler.idle();
        }
    }

    /// Returns the service of each activity by the policy; empty without one.
    pub fn report(&self, resource: Resource, core: u32) -> Vec<GridClient> {
        match &self.order {
            Order::Arrival(_) => Vec::new(),
            Order::Policy { scheduler, .. } => scheduler.report(resource, core),
        }
    }

    /// Returns the service of an activity by the policy; the default without one.
    pub fn statistics(&self, activity: ActivityId) -> ClientStatistics {
        match &self.order {
            Order::Arrival(_) => ClientStatistics::default(),
            Order::Policy { scheduler, .. } => scheduler.statistics(activity),
        }
    }
}
