//! Forced core reclaim: cores that are taken from a cell in the middle of an event (RainForest 4.1).
//!
//! If a core does not leave in time, the supervisor orders it to yield and sends it an NMI. The cell's own code
//! suspends the running event, and the supervisor reclaims the core by INIT. Another core of the cell resumes the
//! suspended context between two of its own events. Until that context has ended, its core slot stays without a core,
//! and the cell's cores rotate from time to time, so that no event waits forever for a suspended one.
//!
//! There are moments in which a core cannot yield, so the NMI is repeated. If a core never yields, its cell violates
//! the protocol: the core stays, and the request for it fails.

use super::Cells;
use super::cell::Body;
use crate::effects::Effects;
use crate::report;
use alloc::vec::Vec;
use isola_abi::core_slots::{Order, OrderKind};
use isola_abi::id::CellId;
use isola_abi::report::Report;

/// How often a core that should yield is interrupted. The total is a second, as an emulated core may have to wait for a
/// core of the host.
pub(super) const ATTEMPTS: u32 = 500;

/// The time between two NMIs to a core that should yield, in ns.
const ATTEMPT_NS: u64 = 2_000_000;

/// The rotation period while a suspended context is unfinished, in ns. This bounds how long a core spins in vain on a
/// lock that a suspended context holds.
const PRESS_NS: u64 = 10_000_000;

/// The suspended contexts of a cell that have not ended.
#[derive(Debug, Default)]
pub(super) struct SetAside {
    unfinished: Vec<Unfinished>,
    /// The time of the next rotation.
    press_ns: u64,
}

/// The suspended context of a core slot.
#[derive(Debug)]
struct Unfinished {
    place: usize,
    /// The order to yield, which the slot's context carries out by leaving.
    order: Order,
}

impl SetAside {
    /// Returns the suspended contexts at the core slots for which a failed supervisor had ordered a yield.
    pub(super) fn resume(places: impl Iterator<Item = (usize, Order)>, now: u64) -> Self {
        Self { unfinished: places.map(|(place, order)| Unfinished { place, order }).collect(), press_ns: now }
    }

    /// Drops all contexts, as the cell has ended.
    pub(super) fn clear(&mut self) {
        self.unfinished.clear();
    }

    /// Returns the factor by which the cell's work may be slower, as suspended contexts take turns with the rest.
    pub(super) fn slowdown(&self) -> u64 {
        1 + 2 * self.unfinished.len() as u64
    }

    /// Returns the time of the next rotation, if a context is unfinished.
    pub(super) fn deadline_ns(&self) -> Option<u64> {
        (!self.unfinished.is_empty()).then_some(self.press_ns)
    }

    /// Removes the core slots whose contexts have ended, and returns them. They can be vacated.
    pub(super) fn take_finished(&mut self, report: &Report) -> Vec<usize> {
        let has_ended = |one: &mut Unfinished| report::carried_out(report, one.place) == one.order.left();
        self.unfinished.extract_if(.., has_ended).map(|one| one.place).collect()
    }
}

impl<E: Effects> Cells<E> {
    /// Orders the core at a core slot to yield, and interrupts it by NMI. Returns the order, and when to repeat the
    /// NMI.
    pub(super) fn force(&mut self, id: CellId, place: usize, now: u64) -> Option<(Order, u64)> {
        let Body::Held(held) = &self.cells.get(&id)?.body else { return None };
        let core = held.cores.get(place)?.as_ref()?;
        let order = to_yield(&mut self.effects, &held.space, place);
        self.effects.force(&held.space, core, place);
        Some((order, now.saturating_add(ATTEMPT_NS)))
    }

    /// Records the suspended context of a core that has yielded and was reclaimed.
    pub(super) fn suspended(&mut self, id: CellId, place: usize) {
        let now = self.effects.now_ns();
        let Some(cell) = self.cells.get_mut(&id) else { return };
        let Body::Held(held) = &cell.body else { return };
        self.effects.empty(&held.space, place);
        // The last order may be to stay, given meanwhile; the suspended context should leave.
        let order = to_yield(&mut self.effects, &held.space, place);
        cell.moves.suspended.press_ns = now.saturating_add(PRESS_NS);
        cell.moves.suspended.unfinished.push(Unfinished { place, order });
    }

    /// Rotates a cell's cores, if a rotation is due.
    pub(super) fn rotate(&mut self, id: CellId, now: u64) {
        let Some(cell) = self.cells.get_mut(&id) else { return };
        let Body::Held(held) = &cell.body else { return };
        if cell.moves.suspended.deadline_ns().is_some_and(|press_ns| press_ns <= now) {
            cell.moves.suspended.press_ns = now.saturating_add(PRESS_NS);
            self.effects.rotate(&held.space, &held.cores);
        }
    }
}

/// Returns the order to yield of a core slot. Gives that order, if the last one is another.
pub(super) fn to_yield<E: Effects>(effects: &mut E, space: &E::Space, place: usize) -> Order {
    match effects.last_order(space, place) {
        order if order.kind == OrderKind::Yield => order,
        _ => effects.order(space, place, OrderKind::Yield),
    }
}
