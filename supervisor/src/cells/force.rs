//! Cores that are taken from a cell by force: from the middle of whatever they do (RainForest 4.1).
//!
//! A core that does not leave by itself in time is ordered to yield, and interrupted in a way that it cannot ignore. The
//! cell's own code suspends what the core was in the middle of, and the core is taken back. Another core of the cell goes
//! on with that, between two of its own events; until it has ended, its place is nobody's, and the cell's cores are rotated
//! now and then, so that none waits for ever for what another has suspended.
//!
//! For moments a core cannot yield, so that it is interrupted again. One that never does belongs to a cell that does not
//! keep to this: the core stays, and who asked is told so.

use super::Cells;
use super::cell::Body;
use crate::effects::Effects;
use crate::report;
use alloc::vec::Vec;
use isola_abi::id::CellId;
use isola_abi::places::{Order, OrderKind};
use isola_abi::report::Report;

/// How often a core is interrupted that is to yield.
/// That is for a second, as an emulated core may have to wait for a host's.
pub(super) const ATTEMPTS: u32 = 500;

/// After how long it is interrupted again.
const ATTEMPT_NS: u64 = 2_000_000;

/// How often cores are rotated while something that was suspended is not finished: for how long one that waits for a lock
/// of what was suspended may do so in vain.
const PRESS_NS: u64 = 10_000_000;

/// What was suspended in a cell, and has not ended.
#[derive(Debug, Default)]
pub(super) struct SetAside {
    unfinished: Vec<Unfinished>,
    /// When cores are rotated next.
    press_ns: u64,
}

/// What the core at a place was in the middle of.
#[derive(Debug)]
struct Unfinished {
    place: usize,
    /// The order by which it leaves in the end.
    order: Order,
}

impl SetAside {
    /// What was suspended at places where another supervisor has ordered that.
    pub(super) fn resume(places: impl Iterator<Item = (usize, Order)>, now: u64) -> Self {
        Self { unfinished: places.map(|(place, order)| Unfinished { place, order }).collect(), press_ns: now }
    }

    /// The cell has ended, and all that was in it.
    pub(super) fn clear(&mut self) {
        self.unfinished.clear();
    }

    /// In how many times its own time something may be done, as all that was suspended takes turns with the rest.
    pub(super) fn slowdown(&self) -> u64 {
        1 + 2 * self.unfinished.len() as u64
    }

    /// When cores are to be rotated, where anything is unfinished.
    pub(super) fn deadline_ns(&self) -> Option<u64> {
        (!self.unfinished.is_empty()).then_some(self.press_ns)
    }

    /// The places at which all has ended by now; they are nobody's from here on.
    pub(super) fn take_finished(&mut self, report: &Report) -> Vec<usize> {
        let has_ended = |one: &mut Unfinished| report::carried_out(report, one.place) == one.order.left();
        self.unfinished.extract_if(.., has_ended).map(|one| one.place).collect()
    }
}

impl<E: Effects> Cells<E> {
    /// Orders the core at a place to yield, and forces it. Returns the order, and when it is to be forced again.
    pub(super) fn force(&mut self, id: CellId, place: usize, now: u64) -> Option<(Order, u64)> {
        let Body::Held(held) = &self.cells.get(&id)?.body else { return None };
        let core = held.cores.get(place)?.as_ref()?;
        let order = to_yield(&mut self.effects, &held.space, place);
        self.effects.force(&held.space, core, place);
        Some((order, now.saturating_add(ATTEMPT_NS)))
    }

    /// Takes note of what a core was in the middle of that has yielded, and was taken back.
    pub(super) fn suspended(&mut self, id: CellId, place: usize) {
        let now = self.effects.now_ns();
        let Some(cell) = self.cells.get_mut(&id) else { return };
        let Body::Held(held) = &cell.body else { return };
        self.effects.empty(&held.space, place);
        // It may have been told otherwise meanwhile, and what was suspended is to leave.
        let order = to_yield(&mut self.effects, &held.space, place);
        cell.moves.suspended.press_ns = now.saturating_add(PRESS_NS);
        cell.moves.suspended.unfinished.push(Unfinished { place, order });
    }

    /// Rotates a cell's cores to go on with what was suspended, where it is time to.
    pub(super) fn rotate(&mut self, id: CellId, now: u64) {
        let Some(cell) = self.cells.get_mut(&id) else { return };
        let Body::Held(held) = &cell.body else { return };
        if cell.moves.suspended.deadline_ns().is_some_and(|press_ns| press_ns <= now) {
            cell.moves.suspended.press_ns = now.saturating_add(PRESS_NS);
            self.effects.rotate(&held.space, &held.cores);
        }
    }
}

/// The order to yield at a place; given, where the last one is another.
pub(super) fn to_yield<E: Effects>(effects: &mut E, space: &E::Space, place: usize) -> Order {
    match effects.last_order(space, place) {
        order if order.kind == OrderKind::Yield => order,
        _ => effects.order(space, place, OrderKind::Yield),
    }
}
