//! The migration of flow buckets between the stacks of two cores.
//!
//! TCP's complete state of the flows migrates: connections with queues, timers and signals, half-open handshakes, and
//! TIME-WAIT entries. The layer above transports it between the cores, holds back the flows' frames in the meantime,
//! and then assigns the buckets to their new owner ([`Steering::give`](crate::Steering::give)).

use super::{Stack, stack_parts};
use crate::base::{ConnId, Instant};
use crate::steering::Buckets;
use crate::tcp::{MovedFlows, StackParts};
use core::fmt;

/// The state of some buckets' flows, between two stacks.
pub struct MovedBuckets(MovedFlows);

const _: () = {
    const fn may_change_cores<T: Send>() {}
    may_change_cores::<MovedBuckets>();
};

impl fmt::Debug for MovedBuckets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MovedBuckets").field("connections", &self.0.connections()).finish_non_exhaustive()
    }
}

impl Stack {
    /// Returns the buckets' connections that the application has accepted or opened and has not closed. The caller must
    /// ask the application which of them can migrate.
    pub fn connections_of(&self, buckets: Buckets) -> alloc::vec::Vec<ConnId> {
        self.tcp.known_connections_of(buckets)
    }

    /// Returns the number of connections for which the table has room.
    pub fn room(&self) -> usize {
        self.tcp.room()
    }

    /// Extracts the flows of buckets, for [`Self::insert`] on another stack. The connections in `staying` remain here
    /// until they end, and their frames are forwarded here ([`Steering::keep`](crate::Steering::keep)).
    pub fn extract(&mut self, now: Instant, buckets: Buckets, staying: &[ConnId]) -> MovedBuckets {
        self.at(now);
        let mut staying = staying.to_vec();
        staying.sort_unstable();
        MovedBuckets(self.tcp.extract(buckets, &staying, &mut stack_parts!(self)))
    }

    /// Excludes the flows of these buckets from new connections until [`Self::insert`]. Must be called before the other
    /// stack extracts them.
    pub fn expect(&mut self, buckets: Buckets) {
        self.tcp.expect(buckets);
    }

    /// Ends the exclusion by [`Self::expect`], if nothing will be inserted.
    pub fn expect_no_longer(&mut self, buckets: Buckets) {
        self.tcp.expect_no_longer(buckets);
    }

    /// Inserts flows of another stack, which must have the same secret, settings and address. Returns the connections'
    /// ids there, each with its id here. Connections that are not among them have ended.
    pub fn insert(&mut self, now: Instant, moved: MovedBuckets) -> alloc::vec::Vec<(ConnId, ConnId)> {
        self.at(now);
        self.tcp.insert(moved.0, &mut stack_parts!(self))
    }
}
