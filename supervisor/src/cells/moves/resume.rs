//! Cores that were on their way when a supervisor went wrong: the next one takes up what was asked of them.

use super::super::force::{ATTEMPTS, SetAside};
use super::{Move, Moves, Way};
use isola_abi::id::CoreId;
use isola_abi::places::{Order, OrderKind};

/// How long a core may take to come free that a supervisor before this one has asked for, in ns.
const LIMIT_NS: u64 = 10_000_000;

/// A core of a cell: where it is, what it was ordered last, and which order it said last that it has carried out.
#[derive(Clone, Copy, Debug)]
pub(in crate::cells) struct Ordered {
    pub(in crate::cells) place: usize,
    pub(in crate::cells) core: CoreId,
    pub(in crate::cells) order: Order,
    pub(in crate::cells) said: Order,
}

impl Moves {
    /// Of a cell whose cores another supervisor has ordered this, and what was suspended in it.
    pub(in crate::cells) fn resume(
        cores: impl Iterator<Item = Ordered>,
        suspended: SetAside,
        now: u64,
    ) -> Self {
        let resume = |Ordered { place, core, order, said }| {
            let way = match order.kind {
                // The first one stays, whatever it says.
                _ if place == 0 => return None,
                OrderKind::Vacant => return None,
                OrderKind::Stay if said == order => return None,
                // It has not come yet; or it was to leave, did not in time, and may do so still.
                OrderKind::Stay => Way::Staying,
                OrderKind::Leave => Way::Leaving,
                OrderKind::Yield => Way::Yielding { attempts: ATTEMPTS },
            };
            Some(Move { place, core, order, way, since_ns: now, deadline_ns: now.saturating_add(LIMIT_NS) })
        };
        Self { under_way: cores.filter_map(resume).collect(), suspended, ..Self::new() }
    }
}
