//! The share of one stack of the interface that it has in common with others.

use super::Steering;
use crate::base::Flow;
use alloc::sync::Arc;

/// The share of this instance among the stacks of one interface.
#[derive(Clone, Debug)]
pub struct CoreShare {
    /// The index of this instance, below the number of cores. Instance 0 processes packets without a flow: ARP, NDP,
    /// ICMP, DHCP.
    pub index: u16,
    /// The steering table, common to all instances.
    pub steering: Arc<Steering>,
}

impl CoreShare {
    /// Returns the share of a stack that has the interface alone.
    pub fn alone() -> Self {
        Self { index: 0, steering: Arc::new(Steering::alone()) }
    }

    /// Returns whether this is the instance that processes packets without a flow.
    pub const fn is_first(&self) -> bool {
        self.index == 0
    }

    /// Returns whether no other stack shares the interface.
    pub fn is_alone(&self) -> bool {
        self.steering.cores() == 1
    }

    /// Returns whether this instance owns a flow.
    pub fn serves(&self, flow: &Flow) -> bool {
        self.steering.core_of(flow) == self.index
    }
}
