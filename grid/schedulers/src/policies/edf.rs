//! Earliest deadline first (Liu and Layland 1973).

use super::by_head::{ByHead, HeadKey};
use crate::policy::Head;
use isola_abi::grid::Entitlement;

/// Serves the request with the earliest deadline: its arrival plus its member's [`Entitlement::deadline_ns`]. If the
/// requests are feasible for any policy, each ends at most the longest request after its deadline, as requests are not
/// preempted. In overload all members are late; combine it with a limit in the parent group.
///
/// Deadlines hold only where the resource itself gets its time in time: a policy with deadlines below one without has
/// none (omni-kernel 3.1).
pub type Edf = ByHead<Deadline>;

/// A request's deadline in nanoseconds, and the number of its arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline(u64, u64);

impl HeadKey for Deadline {
    fn of(entitlement: &Entitlement, head: Head) -> Self {
        Self(head.arrived_ns.saturating_add(entitlement.deadline_ns), head.sequence)
    }
}
