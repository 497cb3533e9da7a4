//! A scheduler whose clients are activities.

use crate::resource::Configuration;
use alloc::vec::Vec;
use isola_abi::grid::{Entitlement, PolicyKind, Resource};
use isola_abi::id::ActivityId;
use isola_abi::ledger::Generation;
use isola_abi::query::GridClient;
use isola_activities::{generation, name_of, parent_of};
use isola_schedulers::{
    ClientId, ClientStatistics, Cost, Dispatch, GroupId, NoSuchClient, Scheduler, Ticket,
};

/// The requests that wait at one of a resource's schedulers, ordered by the resource's configuration.
///
/// An activity becomes a client with its first request. An activity whose child has made a request is a group: what it
/// is entitled to is divided among its own requests and its children. The time is in nanoseconds, never less than in an
/// earlier call.
pub struct ActivityScheduler<M> {
    scheduler: Scheduler<M>,
    /// The group of all activities without a parent.
    root: GroupId,
    /// By activity.
    nodes: Vec<Option<Node>>,
    configuration: Configuration,
}

/// An activity at this scheduler.
#[derive(Clone, Copy, Debug)]
struct Node {
    /// Has the activity's own requests.
    client: ClientId,
    /// The group of the client and of the activity's children.
    group: Option<GroupId>,
    parent: Option<ActivityId>,
    /// Another activity with the same id has another generation.
    generation: Generation,
}

/// Returns an empty scheduler with a configuration, and the group of activities without a parent. A limit is that of a group below the
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
        let (scheduler, root) = create(&configuration);
        Self { scheduler, root, nodes: Vec::new(), configuration }
    }

    /// Returns the configuration.
    pub fn configuration(&self) -> &Configuration {
        &self.configuration
    }

    /// Replaces the configuration while requests wait. No request is lost or overtakes another of its activity.
    /// Statistics restart if there was no limit and now there is, or the reverse.
    pub fn configure(&mut self, configuration: Configuration, now_ns: u64) {
        let before = core::mem::replace(&mut self.configuration, configuration);
        if before.limit.is_some() != self.configuration.limit.is_some() {
            let (scheduler, root) = create(&self.configuration);
            self.root = root;
            let earlier = core::mem::replace(&mut self.scheduler, scheduler);
            let nodes = core::mem::take(&mut self.nodes);
            let activity_of = |id| nodes.iter().position(|node| node.is_some_and(|node| node.client == id));
            for (id, message, cost) in earlier.into_requests() {
                let activity = activity_of(id).unwrap_or_default();
                self.enqueue(ActivityId(activity as u32), message, cost, now_ns);
            }
            return;
        }
        self.scheduler.set_batch(self.configuration.batch);
        let Configuration { policy, limit, .. } = self.configuration;
        // Groups and clients exist, and entitlements are checked before they become part of a configuration.
        if before.policy != policy {
            let groups = self.nodes.iter().flatten().filter_map(|node| node.group);
            for group in groups.chain([self.root]) {
                let _ = self.scheduler.set_policy(group, policy, now_ns);
            }
        }
        if before.limit != limit {
            let _ =
                self.scheduler.set_group(self.root, Entitlement { limit, ..Entitlement::default() }, now_ns);
        }
        for (index, node) in self.nodes.iter().enumerate() {
            let Some(node) = node else { continue };
            let entitlement = self.configuration.entitlement(ActivityId(index as u32), node.generation);
            let _ = match node.group {
                Some(group) => self.scheduler.set_group(group, entitlement, now_ns),
                None => self.scheduler.set_client(node.client, entitlement, now_ns),
            };
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

    /// Returns whether another request of a dispatched request's activity would have to wait if the dispatched one ended
    /// now, after this `cost` ([`Scheduler::must_wait`]).
    pub fn must_wait(&mut self, ticket: Ticket, cost: u64, granularity: u64, now_ns: u64) -> bool {
        self.scheduler.must_wait(ticket, cost, granularity, now_ns)
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

    /// Returns the service of an activity's own requests here.
    pub fn statistics(&self, activity: ActivityId) -> ClientStatistics {
        let node = self.nodes.get(activity.index()).copied().flatten();
        node.and_then(|node| self.scheduler.statistics(node.client)).unwrap_or_default()
    }

    /// Returns the service of each activity's own requests here since its first request.
    pub fn report(&self, resource: Resource, core: u32) -> Vec<GridClient> {
        let nodes = self.nodes.iter().enumerate().filter_map(|(index, node)| Some((index, (*node)?)));
        let report = |(index, node): (usize, Node)| {
            let activity = ActivityId(index as u32);
            let statistics = self.scheduler.statistics(node.client)?;
            let is_current = generation(activity) == node.generation;
            is_current.then(|| GridClient {
                resource,
                core,
                activity: activity.0,
                parent: node.parent.map(|parent| parent.0),
                name: name_of(activity),
                entitlement: self.configuration.entitlement(activity, node.generation),
                waiting: statistics.waiting as u64,
                dispatched: statistics.dispatched,
                cost: statistics.cost,
                waited_ns: statistics.waited_ns,
                longest_wait_ns: statistics.longest_wait_ns,
            })
        };
        nodes.filter_map(report).collect()
    }

    /// Returns the client of an activity.
    #[inline]
    fn client(&mut self, activity: ActivityId, now_ns: u64) -> ClientId {
        let generation = generation(activity);
        match self.nodes.get(activity.index()) {
            Some(Some(node)) if node.generation == generation => node.client,
            _ => self.add(activity, generation, now_ns),
        }
    }

    /// Adds an activity. Requests of the id's earlier activity and its children, if any wait, go to the new one.
    #[cold]
    #[inline(never)]
    fn add(&mut self, activity: ActivityId, generation: Generation, now_ns: u64) -> ClientId {
        let index = activity.index();
        if index >= self.nodes.len() {
            self.nodes.resize(index + 1, None);
        }
        let waiting = self.remove(index);
        let parent = parent_of(activity);
        let group = parent.map_or(self.root, |parent| self.group_of(parent, now_ns));
        let entitlement = self.configuration.entitlement(activity, generation);
        let Ok(client) = self.scheduler.add_client(group, entitlement) else {
            unreachable!("the group exists, and entitlements are checked when they are set")
        };
        self.nodes[index] = Some(Node { client, group: None, parent, generation });
        for (message, cost) in waiting {
            let _ = self.scheduler.enqueue(client, message, cost, now_ns);
        }
        client
    }

    /// Returns the group of an activity that has a child here. The activity's own requests become a member of it.
    fn group_of(&mut self, activity: ActivityId, now_ns: u64) -> GroupId {
        self.client(activity, now_ns);
        let Some(node) = self.nodes[activity.index()] else { unreachable!("the activity was just added") };
        if let Some(group) = node.group {
            return group;
        }
        let above = node.parent.map_or(self.root, |parent| self.group_of(parent, now_ns));
        let entitlement = self.configuration.entitlement(activity, node.generation);
        // Activities nest less deep than groups.
        let Ok(group) = self.scheduler.add_group(above, entitlement, self.configuration.policy) else {
            unreachable!("the group above exists, and entitlements are checked when they are set")
        };
        let Ok(client) = self.scheduler.move_client(node.client, group, Entitlement::default(), now_ns)
        else {
            unreachable!("client and group exist")
        };
        self.nodes[activity.index()] = Some(Node { client, group: Some(group), ..node });
        group
    }

    /// Removes the node of an activity that has ended, and those of its children. Returns their waiting requests.
    fn remove(&mut self, index: usize) -> Vec<(M, Cost)> {
        let Some(node) = self.nodes[index].take() else { return Vec::new() };
        let mut waiting = self.scheduler.remove_client(node.client).unwrap_or_default();
        if let Some(group) = node.group {
            let is_child =
                |node: &Option<Node>| node.and_then(|node| node.parent).map(ActivityId::index) == Some(index);
            let children: Vec<usize> = self
                .nodes
                .iter()
                .enumerate()
                .filter(|(_, node)| is_child(node))
                .map(|(child, _)| child)
                .collect();
            for child in children {
                waiting.extend(self.remove(child));
            }
            let _ = self.scheduler.remove_group(group);
        }
        waiting
    }
}

// A limit of all activities takes a level of groups.
const _: () = assert!(isola_activities::MAX_DEPTH + 2 <= isola_schedulers::MAX_DEPTH);
