//! The interface between a group and its policy.

use crate::entitlement::Entitlement;
use crate::policies::{Edf, Fifo, Priority, Reserve, Wfq};
use alloc::boxed::Box;
use core::fmt;

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

    /// Records that a chosen member has dispatched requests of this cost, and its next request.
    fn dispatched(&mut self, entity: Entity, cost: u64, phase: Phase, next: Option<Head>, now_ns: u64);

    /// Replaces an earlier cost of a member, `charged`, by `actual`.
    fn correct(&mut self, entity: Entity, charged: u64, actual: u64, phase: Phase);
}

/// The policy of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyKind {
    /// First in, first out.
    Fifo,
    /// Strict priorities. A member waits as long as members of higher priority have requests.
    Priority,
    /// Start-time fair queueing by weight.
    Wfq,
    /// Earliest deadline first.
    Edf,
    /// Reservation, limit and share.
    Reserve,
}

impl PolicyKind {
    /// All policies.
    pub const ALL: [Self; 5] = [Self::Fifo, Self::Priority, Self::Wfq, Self::Edf, Self::Reserve];

    pub(crate) fn create(self) -> Box<dyn Policy> {
        match self {
            Self::Fifo => Box::new(Fifo::default()),
            Self::Priority => Box::new(Priority::default()),
            Self::Wfq => Box::new(Wfq::default()),
            Self::Edf => Box::new(Edf::default()),
            Self::Reserve => Box::new(Reserve::default()),
        }
    }
}

impl fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Fifo => "fifo",
            Self::Priority => "priority",
            Self::Wfq => "wfq",
            Self::Edf => "edf",
            Self::Reserve => "reserve",
        })
    }
}
