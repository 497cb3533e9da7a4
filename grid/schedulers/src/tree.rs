//! The tree of groups and clients, without the requests.
//!
//! A group is active in its parent while any client below it has waiting requests. If none of them may be served yet
//! (their limits), the group is *throttled*: inactive in its parent until the time that its policy names, or until a
//! member below it becomes active or changes its entitlement.

use crate::policy::{self, Choice, Entity, Head, InService, Phase, Policy, WaitFor};
use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use core::fmt;
use isola_abi::grid::{Entitlement, EntitlementError, PolicyKind};
use slab::Slab;

/// The most levels of groups below the root.
pub const MAX_DEPTH: u32 = 16;

/// The root's index.
const ROOT: u32 = 0;

/// Names a client of a scheduler. It stays invalid after the client's removal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ClientId(NodeId);

/// Names a group of a scheduler. It stays invalid after the group's removal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GroupId(NodeId);

/// The index of a node, and the number of nodes that were added before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct NodeId {
    index: u32,
    serial: u64,
}

impl ClientId {
    /// Returns the index of the client's queue.
    pub(crate) fn index(self) -> u32 {
        self.0.index
    }
}

/// A change of the tree that is not possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TreeError {
    /// The group or client does not exist.
    Missing,
    /// The group has members.
    HasMembers,
    /// The root can neither be removed nor have an entitlement.
    Root,
    /// The tree would have more than [`MAX_DEPTH`] levels.
    TooDeep,
    /// The entitlement is contradictory.
    Entitlement(EntitlementError),
}

impl fmt::Display for TreeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing => f.write_str("no such group or client"),
            Self::HasMembers => f.write_str("the group has members: remove them first"),
            Self::Root => f.write_str("the root group cannot be removed, and has no entitlement"),
            Self::TooDeep => write!(f, "groups nest at most {MAX_DEPTH} levels deep"),
            Self::Entitlement(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for TreeError {}

impl From<EntitlementError> for TreeError {
    fn from(error: EntitlementError) -> Self {
        Self::Entitlement(error)
    }
}

/// By which claim each level of a path was served: a bit per level, set for a reservation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Phases(u32);

impl Phases {
    fn add(&mut self, depth: u32, phase: Phase) {
        if phase == Phase::Reservation {
            self.0 |= 1 << depth;
        }
    }

    fn at(self, depth: u32) -> Phase {
        if self.0 & (1 << depth) == 0 { Phase::Share } else { Phase::Reservation }
    }
}

/// The decision of all policies on the path to a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathChoice {
    /// The client with this index is served next.
    Client(u32, Phases),
    /// No client may be served before this time, in nanoseconds.
    NotBefore(u64),
    /// No client waits.
    Empty,
}

/// The groups and clients of a scheduler.
pub struct Tree {
    nodes: Slab<Node>,
    /// The throttled groups by the end of their throttling.
    throttled: BTreeSet<(u64, u32)>,
    /// The number of nodes added so far.
    serial: u64,
    /// The number of arrivals so far.
    sequence: u64,
    /// The number of busy periods that have ended.
    busy_periods: u64,
}

struct Node {
    id: NodeId,
    parent: u32,
    /// The number of groups from the root, which does not count, down to this node.
    depth: u32,
    /// The node's number in its parent.
    entity: Entity,
    entitlement: Entitlement,
    state: State,
    /// The next request, of a node that is not idle.
    head: Head,
    /// `None` in a client.
    group: Option<Group>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// No request waits.
    Idle,
    /// Active in the parent.
    Active,
    /// Requests wait, but none may be served before this time, in nanoseconds.
    Throttled(u64),
}

struct Group {
    policy: Box<dyn Policy + Send>,
    /// The nodes of the members.
    members: Slab<u32>,
    /// The number of members that are not idle.
    backlogged: u32,
    /// The number of ended busy periods that the policy knows of.
    busy_periods: u64,
}

impl Tree {
    /// Creates a tree with a root group only.
    pub fn new(policy: PolicyKind) -> Self {
        let mut tree =
            Self { nodes: Slab::new(), throttled: BTreeSet::new(), serial: 0, sequence: 0, busy_periods: 0 };
        let root = Node {
            id: NodeId { index: ROOT, serial: 0 },
            parent: ROOT,
            depth: 0,
            entity: Entity(0),
            entitlement: Entitlement::default(),
            state: State::Idle,
            head: Head::default(),
            group: Some(Group::new(policy)),
        };
        tree.nodes.insert(root);
        tree
    }

    /// Returns the root group.
    pub fn root(&self) -> GroupId {
        GroupId(NodeId { index: ROOT, serial: 0 })
    }

    /// Adds a client to a group.
    ///
    /// # Errors
    /// [`TreeError::Missing`], [`TreeError::Entitlement`].
    pub fn add_client(&mut self, parent: GroupId, entitlement: Entitlement) -> Result<ClientId, TreeError> {
        self.add(parent, entitlement, None).map(ClientId)
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
        if self.get(parent.0).ok_or(TreeError::Missing)?.depth >= MAX_DEPTH {
            return Err(TreeError::TooDeep);
        }
        self.add(parent, entitlement, Some(Group::new(policy))).map(GroupId)
    }

    fn add(
        &mut self,
        parent: GroupId,
        entitlement: Entitlement,
        group: Option<Group>,
    ) -> Result<NodeId, TreeError> {
        entitlement.check()?;
        let above = self.get(parent.0).ok_or(TreeError::Missing)?;
        let depth = above.depth + u32::from(group.is_some());
        self.serial += 1;
        let serial = self.serial;
        let entry = self.nodes.vacant_entry();
        let index = entry.key() as u32;
        let id = NodeId { index, serial };
        entry.insert(Node {
            id,
            parent: parent.0.index,
            depth,
            entity: Entity(0),
            entitlement,
            state: State::Idle,
            head: Head::default(),
            group,
        });
        let above = self.group_mut(parent.0.index);
        let entity = Entity(above.members.insert(index) as u32);
        above.policy.set(entity, &entitlement);
        self.nodes[index as usize].entity = entity;
        Ok(id)
    }

    /// Removes a client. Returns whether it existed.
    pub fn remove_client(&mut self, client: ClientId) -> bool {
        if self.get(client.0).is_none() {
            return false;
        }
        self.deactivate(client.0.index);
        self.remove(client.0.index);
        true
    }

    /// Removes a group without members.
    ///
    /// # Errors
    /// [`TreeError::Missing`], [`TreeError::Root`], [`TreeError::HasMembers`].
    pub fn remove_group(&mut self, group: GroupId) -> Result<(), TreeError> {
        let node = self.get(group.0).ok_or(TreeError::Missing)?;
        if group.0.index == ROOT {
            return Err(TreeError::Root);
        }
        if node.group.as_ref().is_some_and(|group| !group.members.is_empty()) {
            return Err(TreeError::HasMembers);
        }
        self.remove(group.0.index);
        Ok(())
    }

    fn remove(&mut self, index: u32) {
        let Node { parent, entity, .. } = self.nodes.remove(index as usize);
        let above = self.group_mut(parent);
        above.members.remove(entity.0 as usize);
        above.policy.remove(entity);
    }

    /// Sets the entitlement of a client.
    ///
    /// # Errors
    /// [`TreeError::Missing`], [`TreeError::Entitlement`].
    pub fn set_client(
        &mut self,
        client: ClientId,
        entitlement: Entitlement,
        now_ns: u64,
    ) -> Result<(), TreeError> {
        self.set(client.0, entitlement, now_ns)
    }

    /// Sets the entitlement of a group.
    ///
    /// # Errors
    /// [`TreeError::Missing`], [`TreeError::Root`], [`TreeError::Entitlement`].
    pub fn set_group(
        &mut self,
        group: GroupId,
        entitlement: Entitlement,
        now_ns: u64,
    ) -> Result<(), TreeError> {
        self.set(group.0, entitlement, now_ns)
    }

    fn set(&mut self, id: NodeId, entitlement: Entitlement, now_ns: u64) -> Result<(), TreeError> {
        entitlement.check()?;
        self.get(id).ok_or(TreeError::Missing)?;
        if id.index == ROOT {
            return Err(TreeError::Root);
        }
        let node = &mut self.nodes[id.index as usize];
        node.entitlement = entitlement;
        let (parent, entity) = (node.parent, node.entity);
        self.group_mut(parent).policy.set(entity, &entitlement);
        self.end_throttling_above(parent, now_ns);
        Ok(())
    }

    /// Replaces the policy of a group. Its members begin without earlier service.
    ///
    /// # Errors
    /// [`TreeError::Missing`].
    pub fn set_policy(&mut self, group: GroupId, kind: PolicyKind, now_ns: u64) -> Result<(), TreeError> {
        let node = self.get(group.0).ok_or(TreeError::Missing)?;
        let members: Vec<u32> =
            node.group.iter().flat_map(|group| group.members.iter().map(|(_, &index)| index)).collect();
        let mut policy = policy::create(kind);
        for index in members {
            let member = &self.nodes[index as usize];
            policy.set(member.entity, &member.entitlement);
            if member.state == State::Active {
                policy.activate(member.entity, member.head, now_ns);
            }
        }
        self.group_mut(group.0.index).policy = policy;
        self.end_throttling_above(group.0.index, now_ns);
        Ok(())
    }

    /// Returns whether the client exists.
    pub fn has_client(&self, client: ClientId) -> bool {
        self.get(client.0).is_some()
    }

    /// Returns the identifiers of the client with that index and of its group.
    pub fn client_at(&self, index: u32) -> (ClientId, GroupId) {
        let Node { id, parent, .. } = self.nodes[index as usize];
        (ClientId(id), GroupId(self.nodes[parent as usize].id))
    }

    /// Returns the head of a request that arrives now.
    #[inline]
    pub fn arrival(&mut self, now_ns: u64) -> Head {
        self.sequence += 1;
        Head { arrived_ns: now_ns, sequence: self.sequence }
    }

    /// Marks a node as active, and all groups above it.
    pub fn activate(&mut self, index: u32, head: Head, now_ns: u64) {
        let (mut index, mut head) = (index, head);
        while index != ROOT {
            let node = &mut self.nodes[index as usize];
            let state = core::mem::replace(&mut node.state, State::Active);
            if state == State::Active {
                return;
            }
            node.head = head;
            let (parent, entity) = (node.parent, node.entity);
            if let State::Throttled(until) = state {
                self.throttled.remove(&(until, index));
            }
            let above = self.group_mut(parent);
            above.policy.activate(entity, head, now_ns);
            above.backlogged += u32::from(state == State::Idle);
            index = parent;
            // A group that is active already keeps its head.
            if index != ROOT && self.nodes[index as usize].state != State::Active {
                head = self.arrival(now_ns);
            }
        }
    }

    /// Marks a node as idle, and the groups above it that have no other waiting requests.
    fn deactivate(&mut self, index: u32) {
        let mut index = index;
        while index != ROOT {
            let node = &mut self.nodes[index as usize];
            let state = core::mem::replace(&mut node.state, State::Idle);
            let (parent, entity) = (node.parent, node.entity);
            let above = self.group_mut(parent);
            match state {
                State::Idle => return,
                State::Active => above.policy.deactivate(entity),
                State::Throttled(_) => {}
            }
            above.backlogged -= 1;
            let is_last = above.backlogged == 0;
            if let State::Throttled(until) = state {
                self.throttled.remove(&(until, index));
            }
            if !is_last {
                return;
            }
            index = parent;
        }
    }

    /// Marks an active group as throttled.
    fn throttle(&mut self, index: u32, until_ns: u64) {
        let node = &mut self.nodes[index as usize];
        node.state = State::Throttled(until_ns);
        let (parent, entity) = (node.parent, node.entity);
        self.throttled.insert((until_ns, index));
        self.group_mut(parent).policy.deactivate(entity);
    }

    /// Ends the throttling of a group and of the groups above it: their members may have become permitted.
    fn end_throttling_above(&mut self, group: u32, now_ns: u64) {
        let mut index = group;
        while index != ROOT {
            if let State::Throttled(_) = self.nodes[index as usize].state {
                let head = self.arrival(now_ns);
                self.activate(index, head, now_ns);
            }
            index = self.nodes[index as usize].parent;
        }
    }

    /// Marks the groups as active whose throttling has ended.
    fn end_throttling_until(&mut self, now_ns: u64) {
        while let Some(&(until, index)) = self.throttled.first()
            && until <= now_ns
        {
            let head = self.arrival(now_ns);
            self.activate(index, head, now_ns);
        }
    }

    /// Returns whether a client would have to wait, for another or for a limit, if its request in service ended now and
    /// its next one arrived. `true` also if another group comes first all of whose members are at their limits, which
    /// only [`Self::choose`] finds.
    pub fn must_wait(
        &mut self,
        client: u32,
        service: InService,
        phases: Phases,
        wait_for: WaitFor,
        now_ns: u64,
    ) -> bool {
        self.end_throttling_until(now_ns);
        let mut head = Head { arrived_ns: now_ns, sequence: self.sequence + 1 };
        let mut index = client;
        while index != ROOT {
            let node = &self.nodes[index as usize];
            let (parent, entity, phase) = (node.parent, node.entity, phases.at(node.level()));
            if self.group_mut(parent).policy.must_wait(entity, service, phase, head, wait_for, now_ns) {
                return true;
            }
            index = parent;
            // As in `dispatched`.
            if let InService::Uncharged { dispatched_ns, .. } = service {
                head.arrived_ns = dispatched_ns;
            }
        }
        false
    }

    /// Returns the client that is served next.
    pub fn choose(&mut self, now_ns: u64) -> PathChoice {
        self.end_throttling_until(now_ns);
        let (mut index, mut phases) = (ROOT, Phases::default());
        loop {
            let group = self.group_mut(index);
            match group.policy.choose(now_ns) {
                Choice::Entity(entity, phase) => {
                    index = group.members[entity.0 as usize];
                    let member = &self.nodes[index as usize];
                    phases.add(member.level(), phase);
                    if member.group.is_none() {
                        return PathChoice::Client(index, phases);
                    }
                }
                Choice::NotBefore(until) if index == ROOT => {
                    return PathChoice::NotBefore(until.min(self.next_throttling_end()));
                }
                Choice::Empty if index == ROOT => {
                    return match self.throttled.first() {
                        Some(&(until, _)) => PathChoice::NotBefore(until),
                        None => PathChoice::Empty,
                    };
                }
                // Each of these leaves the parent one active member less, so the search ends.
                Choice::NotBefore(until) => {
                    self.throttle(index, until);
                    (index, phases) = (ROOT, Phases::default());
                }
                // All members are throttled groups. The end of the first one's throttling activates this group, too.
                Choice::Empty => {
                    self.throttle(index, u64::MAX);
                    (index, phases) = (ROOT, Phases::default());
                }
            }
        }
    }

    fn next_throttling_end(&self) -> u64 {
        self.throttled.first().map_or(u64::MAX, |&(until, _)| until)
    }

    /// Charges requests of a chosen client, and sets its next request.
    #[inline]
    pub fn dispatched(&mut self, client: u32, cost: u64, phases: Phases, next: Option<Head>, now_ns: u64) {
        let (mut index, mut next) = (client, next);
        while index != ROOT {
            let node = &mut self.nodes[index as usize];
            match next {
                Some(head) => node.head = head,
                None => node.state = State::Idle,
            }
            let (parent, entity, phase) = (node.parent, node.entity, phases.at(node.level()));
            let above = self.group_mut(parent);
            above.policy.dispatched(entity, cost, phase, next, now_ns);
            above.backlogged -= u32::from(next.is_none());
            let waits = above.backlogged > 0;
            index = parent;
            next = if waits && index != ROOT { Some(self.arrival(now_ns)) } else { None };
        }
    }

    /// Replaces a cost that was charged to a client, and to the groups above it. If the client was removed, its group
    /// is charged all the same, so that clients of short life do not evade their costs.
    pub fn correct(&mut self, client: ClientId, group: GroupId, charged: u64, actual: u64, phases: Phases) {
        let mut index = match (self.get(client.0), self.get(group.0)) {
            (Some(_), _) => client.0.index,
            (None, Some(_)) => group.0.index,
            (None, None) => return,
        };
        while index != ROOT {
            let node = &self.nodes[index as usize];
            let (parent, entity, phase) = (node.parent, node.entity, phases.at(node.level()));
            self.group_mut(parent).policy.correct(entity, charged, actual, phase);
            index = parent;
        }
    }

    /// Charges a client, and the groups above it, for service that was no request of the client.
    pub fn charge(&mut self, client: ClientId, cost: u64) {
        if self.get(client.0).is_none() {
            return;
        }
        let mut index = client.0.index;
        while index != ROOT {
            let node = &self.nodes[index as usize];
            let (parent, entity) = (node.parent, node.entity);
            self.group_mut(parent).policy.charge(entity, cost);
            index = parent;
        }
    }

    /// Ends a busy period, while no client is active. Each policy learns of it at its next use.
    pub fn idle(&mut self) {
        self.busy_periods += 1;
    }

    fn get(&self, id: NodeId) -> Option<&Node> {
        self.nodes.get(id.index as usize).filter(|node| node.id == id)
    }

    /// Returns the group at an index, at which there is one.
    #[inline]
    fn group_mut(&mut self, index: u32) -> &mut Group {
        let group = self.nodes[index as usize].group.as_mut().expect("parents are groups");
        if group.busy_periods != self.busy_periods {
            group.busy_periods = self.busy_periods;
            group.policy.idle();
        }
        group
    }
}

impl Node {
    /// Returns the bit of this node in [`Phases`].
    fn level(&self) -> u32 {
        self.depth + u32::from(self.group.is_none())
    }
}

impl Group {
    fn new(policy: PolicyKind) -> Self {
        Self { policy: policy::create(policy), members: Slab::new(), backlogged: 0, busy_periods: 0 }
    }
}
