//! The interface between a group and its policy.

use crate::policies::{Edf, Fifo, Priority, Reserve, Wfq};
use alloc::boxed::Box;
use isola_abi::grid::{Entitlement, PolicyKind};

/// A member of a group. The numbers of former members are used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entity(pub u32);

/// The request that a member would dispatch next. A group as a member has the time at which it began to wait: when it
/// got its first request, or when it was last served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Head {
    /// The time of arrival, in nanoseconds.
    pub arrived_ns: u64,
    /// The number of arrivals at the scheduler before.
    pub sequence: u64,
}

/// A policy's decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// This member is served next.
    Entity(Entity, Phase),
    /// No waiting member may be served before this time, in nanoseconds.
    NotBefore(u64),
    /// No member waits.
    Empty,
}

/// The claim by which a member is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Its share.
    Share,
    /// Its reservation.
    Reservation,
}

/// A request in service, whose cost so far its member's policy does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InService {
    /// [`Policy::dispatched`] was not called yet.
    Uncharged {
        /// The cost so far.
        cost: u64,
        /// The time of its dispatch, in nanoseconds.
        dispatched_ns: u64,
    },
    /// [`Policy::dispatched`] was called, and [`Policy::correct`] will be.
    Charged {
        /// The cost that was charged.
        charged: u64,
        /// The cost so far.
        cost: u64,
    },
}

/// The members for which a member in service has to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitFor {
    /// All that would be served first.
    All,
    /// Those of them that cannot wait until the next regular switch: they have come with unused share, or have a claim
    /// that comes before that of the request in service.
    Urgent,
}

/// Divides the service of a group among its members.
///
/// A member is *active* from [`Self::activate`] until [`Self::deactivate`], or until [`Self::dispatched`] without a
/// next request.
pub trait Policy {
    /// Sets a member's entitlement. The first call for a member adds it; it begins without earlier service.
    fn set(&mut self, entity: Entity, entitlement: &Entitlement);

    /// Marks a member as active.
    fn activate(&mut self, entity: Entity, head: Head, now_ns: u64);

    /// Marks an active member as no longer active.
    fn deactivate(&mut self, entity: Entity);

    /// Removes an inactive member. Its number may be used again.
    fn remove(&mut self, entity: Entity);

    /// Returns the active member that is served next. Has no effect on later decisions.
    fn choose(&mut self, now_ns: u64) -> Choice;

    /// Returns whether the member would have to wait, for some of the others or for its limit, if its request in service
    /// ended now and its next one arrived as `head`. Has no effect on later decisions.
    fn must_wait(
        &mut self,
        entity: Entity,
        service: InService,
        phase: Phase,
        head: Head,
        wait_for: WaitFor,
        now_ns: u64,
    ) -> bool;

    /// Records that a chosen member has dispatched requests of this cost, and its next request.
    fn dispatched(&mut self, entity: Entity, cost: u64, phase: Phase, next: Option<Head>, now_ns: u64);

    /// Replaces an earlier cost of a member, `charged`, by `actual`.
    fn correct(&mut self, entity: Entity, charged: u64, actual: u64, phase: Phase);

    /// Charges a member for service that was no request of the member.
    fn charge(&mut self, entity: Entity, cost: u64);

    /// Ends a busy period: no member is active, and no request in service. Limits and reservations remain.
    fn idle(&mut self) {}
}

/// Creates a policy without members.
pub fn create(kind: PolicyKind) -> Box<dyn Policy + Send> {
    match kind {
        PolicyKind::Fifo => Box::new(Fifo::default()),
        PolicyKind::Priority => Box::new(Priority::default()),
        PolicyKind::Wfq => Box::new(Wfq::default()),
        PolicyKind::Edf => Box::new(Edf::default()),
        PolicyKind::Reserve => Box::new(Reserve::default()),
    }
}
