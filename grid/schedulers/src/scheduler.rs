//! The queues of a resource, and the order in which their requests are dispatched.

use crate::policy::{Head, InService, WaitFor};
use crate::tree::{ClientId, GroupId, PathChoice, Phases, Tree, TreeError};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::fmt;
use core::num::NonZeroU32;
use isola_abi::grid::{Entitlement, PolicyKind};

/// The requests that wait for a resource, with messages of type `M`.
///
/// The caller passes the time in nanoseconds, never less than in an earlier call.
///
/// ```
/// use isola_schedulers::{Cost, Dispatch, Entitlement, PolicyKind, Scheduler, Weight};
///
/// let mut scheduler = Scheduler::new(PolicyKind::Wfq);
/// let by_weight = |weight| Entitlement::by_weight(Weight::new(weight).unwrap());
/// let web = scheduler.add_client(scheduler.root(), by_weight(300))?;
/// let batch = scheduler.add_client(scheduler.root(), by_weight(100))?;
/// for number in 0..8 {
///     scheduler.enqueue(web, ("web", number), Cost::Known(1500), 0).unwrap();
///     scheduler.enqueue(batch, ("batch", number), Cost::Known(1500), 0).unwrap();
/// }
/// let mut sent = Vec::new();
/// while let Dispatch::Request(request) = scheduler.dispatch(0) {
///     sent.push(request.message.0);
/// }
/// assert_eq!(sent[..8].iter().filter(|client| **client == "web").count(), 6);
/// # Ok::<(), isola_schedulers::TreeError>(())
/// ```
pub struct Scheduler<M> {
    tree: Tree,
    /// The clients' queues, by the index of the client's node.
    queues: Vec<Queue<M>>,
    /// The most requests of a client per decision.
    batch: NonZeroU32,
    /// The last batch. Its cost is charged before the next decision: until then the actual costs of its requests may
    /// become known, which saves a correction.
    current: Option<Batch>,
    /// The number of batches so far.
    batches: u64,
    waiting: usize,
}

struct Queue<M> {
    requests: VecDeque<Request<M>>,
    /// The moving average of the client's actual costs, where they are not known in advance.
    estimate: u64,
    statistics: ClientStatistics,
}

impl<M> Default for Queue<M> {
    fn default() -> Self {
        Self { requests: VecDeque::new(), estimate: 0, statistics: ClientStatistics::default() }
    }
}

struct Request<M> {
    message: M,
    cost: Cost,
    head: Head,
}

struct Batch {
    number: u64,
    client: u32,
    phases: Phases,
    /// The time of its last request's dispatch, in nanoseconds.
    dispatched_ns: u64,
    /// The cost of its dispatched requests, which is not charged yet.
    cost: u64,
    /// The number of requests that may follow.
    left: u32,
}

/// The cost of a request, in the resource's unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cost {
    /// This cost.
    Known(u64),
    /// A cost that is known after the service. The scheduler estimates it from the client's earlier requests.
    Unknown,
}

/// The result of [`Scheduler::dispatch`].
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub enum Dispatch<M> {
    /// This request is served next.
    Request(Dispatched<M>),
    /// Requests wait, but no client may be served before this time, in nanoseconds.
    NotBefore(u64),
    /// No request waits.
    Empty,
}

/// A request on its way to the resource.
#[derive(Debug, PartialEq, Eq)]
pub struct Dispatched<M> {
    /// The request.
    pub message: M,
    /// To be passed to [`Scheduler::complete`] if the cost is not known in advance.
    pub ticket: Ticket,
}

/// The charge for a dispatched request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    batch: u64,
    client: ClientId,
    group: GroupId,
    phases: Phases,
    charged: u64,
    cost: Cost,
}

impl Ticket {
    /// Returns the client of the request.
    pub fn client(&self) -> ClientId {
        self.client
    }
}

/// What a client has received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientStatistics {
    /// The number of requests that wait now.
    pub waiting: usize,
    /// The number of dispatched requests.
    pub dispatched: u64,
    /// The cost of dispatched requests: actual where reported, otherwise as charged. Transfers are included.
    pub cost: u64,
    /// The sum of the times from arrival to dispatch, in nanoseconds.
    pub waited_ns: u64,
    /// The longest of these times, in nanoseconds.
    pub longest_wait_ns: u64,
}

/// The client of a request was removed, or is of another scheduler. Contains the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoSuchClient<M>(pub M);

impl<M> fmt::Display for NoSuchClient<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no such client")
    }
}

impl<M: fmt::Debug> core::error::Error for NoSuchClient<M> {}

impl<M> Scheduler<M> {
    /// Creates a scheduler whose root group has that policy, without clients.
    pub fn new(policy: PolicyKind) -> Self {
        Self {
            tree: Tree::new(policy),
            queues: Vec::new(),
            batch: NonZeroU32::MIN,
            current: None,
            batches: 0,
            waiting: 0,
        }
    }

    /// Returns the root group.
    pub fn root(&self) -> GroupId {
        self.tree.root()
    }

    /// Sets the most requests of a client that one decision dispatches: 1 at first. Larger batches cost less per
    /// request, and make shares coarser (omni-kernel 4.5).
    pub fn set_batch(&mut self, requests: NonZeroU32) {
        self.batch = requests;
    }

    /// Adds a client to a group.
    ///
    /// # Errors
    /// [`TreeError::Missing`], [`TreeError::Entitlement`].
    pub fn add_client(&mut self, parent: GroupId, entitlement: Entitlement) -> Result<ClientId, TreeError> {
        let client = self.tree.add_client(parent, entitlement)?;
        let index = client.index() as usize;
        if index >= self.queues.len() {
            self.queues.resize_with(index + 1, Queue::default);
        }
        self.queues[index] = Queue::default();
        Ok(client)
    }

    /// Removes a client. Returns its waiting requests with their costs, in the order of their arrival; `None` if it does
    /// not exist.
    pub fn remove_client(&mut self, client: ClientId) -> Option<Vec<(M, Cost)>> {
        self.end_batch();
        if !self.tree.remove_client(client) {
            return None;
        }
        let queue = core::mem::take(&mut self.queues[client.index() as usize]);
        self.waiting -= queue.requests.len();
        Some(queue.requests.into_iter().map(|request| (request.message, request.cost)).collect())
    }

    /// Adds a group to a group.
    ///
    /// # Errors
    /// [`TreeError::Missing`], [`TreeError::Entitlement`], [`TreeError::TooDeep`].
    pub fn add_group(
        &mut self,
        parent: GroupId,
        entitlement: Entitlement,
        policy: PolicyKind,
    ) -> Result<GroupId, TreeError> {
        self.tree.add_group(parent, entitlement, policy)
    }

    /// Removes a group without members.
    ///
    /// # Errors
    /// [`TreeError::Missing`], [`TreeError::Root`], [`TreeError::HasMembers`].
    pub fn remove_group(&mut self, group: GroupId) -> Result<(), TreeError> {
        self.tree.remove_group(group)
    }

    /// Moves a client to another group, with its statistics and its waiting requests in their order. It begins there
    /// without earlier service. Returns its new identifier. Dispatched requests that are not completed are charged to
    /// its earlier group.
    ///
    /// # Errors
    /// [`TreeError::Missing`], [`TreeError::Entitlement`]; the client stays where it is.
    pub fn move_client(
        &mut self,
        client: ClientId,
        group: GroupId,
        entitlement: Entitlement,
        now_ns: u64,
    ) -> Result<ClientId, TreeError> {
        if !self.tree.has_client(client) {
            return Err(TreeError::Missing);
        }
        self.end_batch();
        let moved = self.add_client(group, entitlement)?;
        self.tree.remove_client(client);
        let queue = core::mem::take(&mut self.queues[client.index() as usize]);
        let first = queue.requests.front().map(|request| request.head);
        self.queues[moved.index() as usize] = queue;
        if let Some(head) = first {
            self.tree.activate(moved.index(), head, now_ns);
        }
        Ok(moved)
    }

    /// Sets the entitlement of a client, for its waiting requests too.
    ///
    /// # Errors
    /// [`TreeError::Missing`], [`TreeError::Entitlement`].
    pub fn set_client(
        &mut self,
        client: ClientId,
        entitlement: Entitlement,
        now_ns: u64,
    ) -> Result<(), TreeError> {
        self.end_batch();
        self.tree.set_client(client, entitlement, now_ns)
    }

    /// Sets the entitlement of a group, for its waiting requests too.
    ///
    /// # Errors
    /// [`TreeError::Missing`], [`TreeError::Root`], [`TreeError::Entitlement`].
    pub fn set_group(
        &mut self,
        group: GroupId,
        entitlement: Entitlement,
        now_ns: u64,
    ) -> Result<(), TreeError> {
        self.end_batch();
        self.tree.set_group(group, entitlement, now_ns)
    }

    /// Replaces the policy of a group while its requests wait. The members begin without earlier service.
    ///
    /// # Errors
    /// [`TreeError::Missing`].
    pub fn set_policy(&mut self, group: GroupId, policy: PolicyKind, now_ns: u64) -> Result<(), TreeError> {
        self.end_batch();
        self.tree.set_policy(group, policy, now_ns)
    }

    /// Queues a request behind the client's earlier ones.
    ///
    /// # Errors
    /// Returns the message if the client does not exist.
    #[inline]
    pub fn enqueue(
        &mut self,
        client: ClientId,
        message: M,
        cost: Cost,
        now_ns: u64,
    ) -> Result<(), NoSuchClient<M>> {
        if !self.tree.has_client(client) {
            return Err(NoSuchClient(message));
        }
        let head = self.tree.arrival(now_ns);
        let requests = &mut self.queues[client.index() as usize].requests;
        requests.push_back(Request { message, cost, head });
        self.waiting += 1;
        if requests.len() == 1 {
            self.tree.activate(client.index(), head, now_ns);
        }
        Ok(())
    }

    /// Removes and returns the request that is served next.
    #[inline]
    pub fn dispatch(&mut self, now_ns: u64) -> Dispatch<M> {
        let mut batch = match self.current.take() {
            Some(batch) if batch.left > 0 && !self.queues[batch.client as usize].requests.is_empty() => batch,
            last => {
                if let Some(last) = last {
                    self.charge_batch(last);
                }
                match self.tree.choose(now_ns) {
                    PathChoice::Client(client, phases) => self.new_batch(client, phases),
                    PathChoice::NotBefore(ns) => return Dispatch::NotBefore(ns),
                    PathChoice::Empty => return Dispatch::Empty,
                }
            }
        };
        let queue = &mut self.queues[batch.client as usize];
        let request = queue.requests.pop_front().expect("an active client has a request");
        self.waiting -= 1;
        let charged = match request.cost {
            Cost::Known(cost) => cost,
            Cost::Unknown => queue.estimate,
        };
        queue.statistics.count(charged, now_ns.saturating_sub(request.head.arrived_ns));
        batch.cost = batch.cost.saturating_add(charged);
        batch.left -= 1;
        batch.dispatched_ns = now_ns;
        let (client, group) = self.tree.client_at(batch.client);
        let ticket =
            Ticket { batch: batch.number, client, group, phases: batch.phases, charged, cost: request.cost };
        self.current = Some(batch);
        Dispatch::Request(Dispatched { message: request.message, ticket })
    }

    /// Records that the resource now serves a request of the client that did not wait in its queue, because the
    /// resource was free. Its cost is reported by [`Self::complete`]. Returns `None` if the client does not exist, or if
    /// requests wait.
    pub fn serve_unqueued(&mut self, client: ClientId, now_ns: u64) -> Option<Ticket> {
        if !self.tree.has_client(client) || !self.is_empty() {
            return None;
        }
        self.end_batch();
        let head = self.tree.arrival(now_ns);
        self.tree.activate(client.index(), head, now_ns);
        self.queues[client.index() as usize].statistics.count(0, 0);
        let (client, group) = self.tree.client_at(client.index());
        let batch =
            Batch { dispatched_ns: now_ns, left: 0, ..self.new_batch(client.index(), Phases::default()) };
        let (number, phases) = (batch.number, batch.phases);
        self.current = Some(batch);
        Some(Ticket { batch: number, client, group, phases, charged: 0, cost: Cost::Unknown })
    }

    #[inline]
    fn new_batch(&mut self, client: u32, phases: Phases) -> Batch {
        self.batches += 1;
        Batch { number: self.batches, client, phases, dispatched_ns: 0, cost: 0, left: self.batch.get() }
    }

    /// Charges the last batch, so that the next dispatch makes a new decision.
    fn end_batch(&mut self) {
        if let Some(batch) = self.current.take() {
            self.charge_batch(batch);
        }
    }

    #[inline]
    fn charge_batch(&mut self, batch: Batch) {
        let Batch { client, phases, cost, dispatched_ns, .. } = batch;
        let next = self.queues[client as usize].requests.front().map(|request| request.head);
        self.tree.dispatched(client, cost, phases, next, dispatched_ns);
    }

    /// Reports the actual cost of a dispatched request. If its client was removed, the client's group is charged.
    #[inline]
    pub fn complete(&mut self, ticket: Ticket, cost: u64) {
        let Ticket { batch, client, group, phases, charged, cost: announced } = ticket;
        if self.tree.has_client(client) {
            let queue = &mut self.queues[client.index() as usize];
            if announced == Cost::Unknown {
                queue.estimate = match queue.estimate {
                    0 => cost,
                    estimate => estimate - estimate / 8 + cost / 8,
                };
            }
            queue.statistics.replace(charged, cost);
        }
        match &mut self.current {
            Some(last) if last.number == batch => {
                last.cost = last.cost.saturating_add(cost).saturating_sub(charged);
            }
            _ if cost != charged => self.tree.correct(client, group, charged, cost, phases),
            _ => {}
        }
    }

    /// Returns whether a long request should divide itself: whether its client would have to wait if the dispatched
    /// request ended now, after this `cost`, and another one of the client arrived. It may have to wait for another
    /// client whose request would be dispatched first, for an earlier request of its own, or for its limit. Batches are
    /// ignored.
    ///
    /// While the cost is less than `granularity`, this is `true` only if another client cannot wait so long: one that
    /// has come with unused share (`wfq`, `reserve`) or below its reservation, or whose request has a higher priority or
    /// an earlier deadline than the dispatched one. So clients that always have requests do not alternate at each call.
    ///
    /// If limits throttle whole groups, `true` is possible without another client that may be served now; the next
    /// [`Self::dispatch`] finds that out.
    pub fn must_wait(&mut self, ticket: Ticket, cost: u64, granularity: u64, now_ns: u64) -> bool {
        let Ticket { client, phases, charged, .. } = ticket;
        let wait_for = if cost < granularity { WaitFor::Urgent } else { WaitFor::All };
        if !self.tree.has_client(client) {
            return true;
        }
        if !self.queues[client.index() as usize].requests.is_empty() && wait_for == WaitFor::All {
            return true;
        }
        let service = match &self.current {
            Some(last) if last.number == ticket.batch => InService::Uncharged {
                cost: last.cost.saturating_sub(charged).saturating_add(cost),
                dispatched_ns: last.dispatched_ns,
            },
            _ => InService::Charged { charged, cost },
        };
        self.tree.must_wait(client.index(), service, phases, wait_for, now_ns)
    }

    /// Moves a cost from a client that did work without a known owner to the client whose work it was (omni-kernel
    /// 2.2). A client that does not exist is skipped.
    ///
    /// The statistics of `from` decrease, but its policy does not give the service back: `from` remains within its own
    /// entitlement. Otherwise a flood of work for one client, done by a substitute that never pays, would displace all
    /// others. `to` is charged in addition, and receives so much less of its share.
    pub fn transfer(&mut self, from: ClientId, to: ClientId, cost: u64) {
        self.end_batch();
        if self.tree.has_client(from) {
            self.queues[from.index() as usize].statistics.replace(cost, 0);
        }
        if self.tree.has_client(to) {
            self.queues[to.index() as usize].statistics.replace(0, cost);
            self.tree.charge(to, cost);
        }
    }

    /// Ends a busy period: the resource serves no request. If none waits either, all members of all groups start over:
    /// the debt of a member that received more than its share while others had nothing to do is cancelled.
    pub fn idle(&mut self) {
        if self.waiting == 0 {
            self.end_batch();
            self.tree.idle();
        }
    }

    /// Returns the waiting requests with their clients and costs, in the order of their arrival.
    pub fn into_requests(self) -> impl Iterator<Item = (ClientId, M, Cost)> {
        let mut requests = Vec::with_capacity(self.waiting);
        for (index, queue) in
            self.queues.into_iter().enumerate().filter(|(_, queue)| !queue.requests.is_empty())
        {
            let (client, _) = self.tree.client_at(index as u32);
            requests.extend(queue.requests.into_iter().map(|request| (client, request)));
        }
        requests.sort_unstable_by_key(|(_, request)| request.head.sequence);
        requests.into_iter().map(|(client, request)| (client, request.message, request.cost))
    }

    /// Returns the number of waiting requests.
    #[inline]
    pub fn len(&self) -> usize {
        self.waiting
    }

    /// Returns whether no request waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    /// Returns what a client has received; `None` if it does not exist.
    pub fn statistics(&self, client: ClientId) -> Option<ClientStatistics> {
        let queue = self.tree.has_client(client).then(|| &self.queues[client.index() as usize])?;
        Some(ClientStatistics { waiting: queue.requests.len(), ..queue.statistics })
    }
}

impl ClientStatistics {
    fn count(&mut self, cost: u64, waited_ns: u64) {
        self.dispatched += 1;
        self.cost = self.cost.saturating_add(cost);
        self.waited_ns = self.waited_ns.saturating_add(waited_ns);
        self.longest_wait_ns = self.longest_wait_ns.max(waited_ns);
    }

    fn replace(&mut self, charged: u64, actual: u64) {
        self.cost = self.cost.saturating_add(actual).saturating_sub(charged);
    }
}
