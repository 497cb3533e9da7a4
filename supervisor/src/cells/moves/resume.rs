//! Moves that were in progress when a supervisor failed, and that the next one completes.

use super::super::force::{ATTEMPTS, SetAside};
use super::{Move, Moves, Way};
use isola_abi::core_slots::{Order, OrderKind};
use isola_abi::id::CoreId;

/// How long a core may take to leave that a failed supervisor has ordered to, in ns.
const LIMIT_NS: u64 = 10_000_000;

/// A core of a recovered cell: its slot, its last order, and the last order that it acknowledged.
#[derive(Clone, Copy, Debug)]
pub(in crate::cells) struct Ordered {
    pub(in crate::cells) place: usize,
    pub(in crate::cells) core: CoreId,
    pub(in crate::cells) order: Order,
    pub(in crate::cells) said: Order,
}

impl Moves {
    /// Returns the moves of a recovered cell, from its cores' orders and acknowledgements and its suspended contexts.
    pub(in crate::cells) fn resume(
        cores: impl Iterator<Item = Ordered>,
        suspended: SetAside,
        now: u64,
    ) -> Self {
        let resume = |Ordered { place, core, order, said }| {
            let way = match order.kind {
                // The first core stays, whatever its order.
                _ if place == 0 => return None,
                OrderKind::Vacant => return None,
                OrderKind::Stay if said == order => return None,
                // The core has not arrived yet; or it did not leave in time, was ordered to stay, and may still leave.
                OrderKind::Stay => Way::Staying,
                OrderKind::Leave => Way::Leaving,
                OrderKind::Yield => Way::Yielding { attempts: ATTEMPTS },
            };
            Some(Move { place, core, order, way, since_ns: now, deadline_ns: now.saturating_add(LIMIT_NS) })
        };
        Self { under_way: cores.filter_map(resume).collect(), suspended, ..Self::new() }
    }
}
