//! First in, first out.

use super::by_head::{ByHead, HeadKey};
use crate::policy::Head;
use isola_abi::grid::Entitlement;

/// Serves the request that arrived first. A group as a member queues anew after each of its requests.
pub type Fifo = ByHead<Arrival>;

/// The number of a request's arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Arrival(u64);

impl HeadKey for Arrival {
    fn of(_entitlement: &Entitlement, head: Head) -> Self {
        Self(head.sequence)
    }
}
