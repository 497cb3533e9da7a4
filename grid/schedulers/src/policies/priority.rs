//! Strict priorities.

use super::by_head::{ByHead, HeadKey};
use crate::policy::Head;
use core::cmp::Reverse;
use isola_abi::grid::{self, Entitlement};

/// Serves the member of the highest priority; among equals, the request that arrived first. Members of lower priority
/// get what remains, which may be nothing.
pub type Priority = ByHead<Rank>;

/// A request's priority, and the number of its arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank(Reverse<grid::Priority>, u64);

impl HeadKey for Rank {
    fn of(entitlement: &Entitlement, head: Head) -> Self {
        Self(Reverse(entitlement.priority), head.sequence)
    }
}
