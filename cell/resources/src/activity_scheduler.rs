//! A scheduler whose clients are activities.

use crate::resource::{Configuration, generation_of, name_of};
use alloc::vec::Vec;
use isola_abi::grid::{Entitlement, PolicyKind, Resource};
use isola_abi::id::ActivityId;
use isola_abi::ledger::Generation;
use isola_abi::query::GridClient;
use isola_schedulers::{
    ClientId, ClientStatistics, Cost, Dispatch, GroupId, NoSuchClient, Scheduler, Ticket,
};

/// The requests that wait at one of a resource's schedulers, ordered by the resource's configuration.
///
/// An activity becomes a client with its first request. The time is in nanoseconds, never less than in an earlier call.
pub struct ActivityScheduler<M> {
    scheduler: Scheduler<M>,
    /// The group of all clients.
    group: GroupId,
    /// By activity.
    clients: Vec<Option<Client>>,
    configuration: Configuration,
}

/// An activity at this scheduler.
#[derive(Clone, Copy, Debug)]
struct Client {
    id: ClientId,
    /// The generation of the activity's slot: another activity may get the slot.
    generation: Generation,
}

/// Returns an empty scheduler with a configuration, and the group of its clients. A limit is that of a group below the
/// root, as the root has no entitlement.
fn create<M>(configuration: &Configuration) -> (Scheduler<M>, GroupId) {
    let policy = configuration.policy;
    let mut scheduler =
        Scheduler::new(if configuration.limit.is_some() { PolicyKind::Reserve } else { policy });
    scheduler.set_batch(configuration.batch);
    let (root, limit) = (scheduler.root(), configuration.limit);
    let group = match limit {
        Some(_) => scheduler.add_group(root, Entitlement { limit, ..Entitlement::default() }, policy),
        None => Ok(root),
    };
    // A group below the root is permitted, and a limit alone is no contradiction.
    (scheduler, group.unwrap_or(root))
}

impl<M> ActivityScheduler<M> {
    /// Creates a scheduler without requests.
    pub fn new(configuration: Configuration) -> Self {
        let (scheduler, group) = create(&configuration);
        Self { scheduler, group, clients: Vec::new(), configuration }
    }

    /// Returns the configuration.
    pub fn configuration(&self) -> &Configuration {
        &self.configuration
    }

    /// Replaces the configuration while requests wait. No request is lost or overtakes another of its activity.
    /// Statistics begin anew if there was no limit and now there is, or the reverse.
    pub fn configure(&mut self, configuration: Configuration, now_ns: u64) {
        let before = core::mem::replace(&mut self.configuration, configuration);
        if before.limit.is_some() != self.configuration.limit.is_some() {
            let (scheduler, group) = create(&self.configuration);
            self.group = group;
            let earlier = core::mem::replace(&mut self.scheduler, scheduler);
            let clients = core::mem::take(&mut self.clients);
            let activity_of =
                |id| clients.iter().position(|client| client.is_some_and(|client| client.id == id));
            for (id, message, cost) in earlier.into_requests() {
                let activity = activity_of(id).unwrap_or_default();
                self.enqueue(ActivityId(activity as u16), message, cost, now_ns);
            }
            return;
        }
        self.scheduler.set_batch(self.configuration.batch);
        let Configuration { policy, limit, .. } = self.configuration;
        // Group and clients exist, and entitlements are checked before they become part of a configuration.
        if before.policy != policy {
            let _ = self.scheduler.set_policy(self.group, policy, now_ns);
        }
        if before.limit != limit {
            let _ =
                self.scheduler.set_group(self.group, Entitlement { limit, ..Entitlement::default() }, now_ns);
        }
        for (index, client) in self.clients.iter().enumerate() {
            let Some(client) = client else { continue };
            let entitlement = self.configuration.entitlement(ActivityId(index as u16), client.generation);
            let _ = self.scheduler.set_client(client.id, entitlement, now_ns);
        }
    }

    /// Queues a request behind the activity's earlier ones.
    #[inline]
    pub fn enqueue(&mut self, activity: ActivityId, message: M, cost: Cost, now_ns: u64) {
        let client = self.client(activity, now_ns);
        if let Err(NoSuchClient(_)) = self.scheduler.enqueue(client, message, cost, now_ns) {
            unreachable!("the client of activity {} was just found", activity.0);
        }
    }

    /// Removes and returns the request that is served next.
    #[inline]
    pub fn dispatch(&mut self, now_ns: u64) -> Dispatch<M> {
        self.scheduler.dispatch(now_ns)
    }

    /// Records that the resource now serves a request of the activity that did not wait, because the resource was free.
    /// Its cost is reported by [`Self::complete`].
    pub fn serve_unqueued(&mut self, activity: ActivityId, now_ns: u64) -> Option<Ticket> {
        let client = self.client(activity, now_ns);
        self.scheduler.serve_unqueued(client, now_ns)
    }

    /// Reports the actual cost of a dispatched request.
    #[inline]
    pub fn complete(&mut self, ticket: Ticket, cost: u64) {
        self.scheduler.complete(ticket, cost);
    }

    /// Moves a cost from an activity that did work for another to that other.
    pub fn transfer(&mut self, from: ActivityId, to: ActivityId, cost: u64, now_ns: u64) {
        let (from, to) = (self.client(from, now_ns), self.client(to, now_ns));
        self.scheduler.transfer(from, to, cost);
    }

    /// Ends a busy period, if no request waits: the resource serves none.
    pub fn idle(&mut self) {
        self.scheduler.idle();
    }

    /// Returns the number of waiting requests.
    #[inline]
    pub fn len(&self) -> usize {
        self.scheduler.len()
    }

    /// Returns whether no request waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.scheduler.is_empty()
    }

    /// Returns the waiting requests in the order of their arrival.
    pub fn into_requests(self) -> impl Iterator<Item = M> {
        self.scheduler.into_requests().map(|(_, message, _)| message)
    }

    /// Returns the service of an activity here.
    pub fn statistics(&self, activity: ActivityId) -> ClientStatistics {
        let client = self.clients.get(usize::from(activity.0)).copied().flatten();
        client.and_then(|client| self.scheduler.statistics(client.id)).unwrap_or_default()
    }

    /// Returns the service of each activity here since its first request.
    pub fn report(&self, resource: Resource, core: u32) -> Vec<GridClient> {
        let clients = self.clients.iter().enumerate().filter_map(|(index, client)| Some((index, (*client)?)));
        let report = |(index, client): (usize, Client)| {
            let activity = ActivityId(index as u16);
            let statistics = self.scheduler.statistics(client.id)?;
            let is_current = generation_of(activity) == client.generation;
            is_current.then(|| GridClient {
                resource,
                core,
                activity: activity.0,
                name: name_of(activity),
                entitlement: self.configuration.entitlement(activity, client.generation),
                waiting: statistics.waiting as u64,
                dispatched: statistics.dispatched,
                cost: statistics.cost,
                waited_ns: statistics.waited_ns,
                longest_wait_ns: statistics.longest_wait_ns,
            })
        };
        clients.filter_map(report).collect()
    }

    /// Returns the client of an activity.
    #[inline]
    fn client(&mut self, activity: ActivityId, now_ns: u64) -> ClientId {
        let generation = generation_of(activity);
        match self.clients.get(usize::from(activity.0)) {
            Some(Some(client)) if client.generation == generation => client.id,
            _ => self.add_client(activity, generation, now_ns),
        }
    }

    /// Adds a client for an activity. Requests of the slot's earlier activity, if any wait, go to the new one.
    #[cold]
    #[inline(never)]
    fn add_client(&mut self, activity: ActivityId, generation: Generation, now_ns: u64) -> ClientId {
        let index = usize::from(activity.0);
        if index >= self.clients.len() {
            self.clients.resize(index + 1, None);
        }
        let entitlement = self.configuration.entitlement(activity, generation);
        let Ok(id) = self.scheduler.add_client(self.group, entitlement) else {
            unreachable!("the group exists, and entitlements are checked when they are set")
        };
        if let Some(earlier) = self.clients[index].replace(Client { id, generation }) {
            for (message, cost) in self.scheduler.remove_client(earlier.id).into_iter().flatten() {
                let _ = self.scheduler.enqueue(id, message, cost, now_ns);
            }
        }
        id
    }
}
