//! Handing the flows of buckets from one core's stack to another's.
//!
//! Everything that TCP knows of them goes along: connections with their queues, timers and signals, handshakes, and what is
//! left of connections that have ended. The layer above carries it from core to core, holds back what comes for these flows
//! meanwhile, and then gives the buckets to their new owner ([`Steering::give`](crate::Steering::give)).

use super::{Stack, around};
use crate::event::ConnId;
use crate::steering::Buckets;
use crate::tcp::tables::{Around, MovedFlows};
use crate::time::Instant;
use core::fmt;

/// The flows of buckets, between two stacks.
pub struct Moved(MovedFlows);

const _: () = {
    const fn may_change_cores<T: Send>() {}
    may_change_cores::<Moved>();
};

impl fmt::Debug for Moved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Moved").field("connections", &self.0.connections()).finish_non_exhaustive()
    }
}

impl Stack {
    /// The connections of buckets whose application has to be asked whether it can go along: those that it has taken or
    /// begun, and not let go of.
    pub fn connections_of(&self, buckets: Buckets) -> alloc::vec::Vec<ConnId> {
        self.tcp.known_connections_of(buckets)
    }

    /// How many connections of another stack there is room for.
    pub fn room(&self) -> usize {
        self.tcp.room()
    }

    /// Takes the flows of buckets out, for another stack to [`Self::insert`] them. Connections in `staying` go on here, until they
    /// end, and their frames go on coming here ([`Steering::keep`](crate::Steering::keep)).
    pub fn extract(&mut self, now: Instant, buckets: Buckets, staying: &[ConnId]) -> Moved {
        self.at(now);
        let mut staying = staying.to_vec();
        staying.sort_unstable();
        Moved(self.tcp.extract(buckets, &staying, &mut around!(self)))
    }

    /// Takes no flow of these buckets for free to connect from, until [`Self::insert`] has put in what another stack had: to be
    /// called before that gives them away.
    pub fn expect(&mut self, buckets: Buckets) {
        self.tcp.expect(buckets);
    }

    /// Nothing of these buckets comes after all.
    pub fn expect_no_longer(&mut self, buckets: Buckets) {
        self.tcp.expect_no_longer(buckets);
    }

    /// Goes on with flows that another stack had: one with the same secret, settings and address. Returns the names that the
    /// connections had there, each with its name here; those that are not among them have ended.
    pub fn insert(&mut self, now: Instant, moved: Moved) -> alloc::vec::Vec<(ConnId, ConnId)> {
        self.at(now);
        self.tcp.insert(moved.0, &mut around!(self))
    }
}
