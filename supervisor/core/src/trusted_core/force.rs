//! Forced core reclaim: cores that are taken from a cell in the middle of an event (RainForest 4.1).
//!
//! If a core does not leave in time, the supervisor orders it to yield and sends it an NMI. The cell's own code
//! suspends the running event, and the supervisor reclaims the core by INIT. Another core of the cell resumes the
//! suspended context between two of its own events. Until that context has ended, its core slot stays without a core,
//! and the cell's cores rotate from time to time, so that no event waits forever for a suspended one.
//!
//! There are moments in which a core cannot yield, so the NMI is repeated. If a core never yields, its cell violates
//! the protocol: the core stays, and the request for it fails.

use super::cell::OwnedCell;
use crate::hardware::Hardware;
use crate::report;
use crate::space::CellSpace;
use alloc::vec::Vec;
use isola_abi::core_slots::{Order, OrderKind};
use isola_abi::report::Report;

/// How often a core that should yield is interrupted. The total is a second, as an emulated core may have to wait for a
/// core of the host.
pub(super) const ATTEMPTS: u32 = 500;

/// The time between two NMIs to a core that should yield, in ns.
const ATTEMPT_NS: u64 = 2_000_000;

/// The rotation period while a suspended context is unfinished, in ns. This bounds how long a core spins in vain on a
/// lock that a suspended context holds.
const ROTATION_NS: u64 = 10_000_000;

/// The suspended contexts of a cell that have not ended.
#[derive(Debug, Default)]
pub(super) struct SuspendedContexts {
    /// Their core slots.
    unfinished: Vec<usize>,
    /// The time of the next rotation.
    rotation_ns: u64,
}

impl SuspendedContexts {
    /// Returns the suspended contexts at these core slots, for which a failed supervisor had ordered a yield.
    pub(super) fn resume(slots: impl Iterator<Item = usize>, now: u64) -> Self {
        Self { unfinished: slots.collect(), rotation_ns: now }
    }

    /// Returns the factor by which the cell's work may be slower, as suspended contexts take turns with the rest.
    pub(super) fn slowdown(&self) -> u64 {
        1 + 2 * self.unfinished.len() as u64
    }

    /// Returns the time of the next rotation, if a context is unfinished.
    pub(super) fn deadline_ns(&self) -> Option<u64> {
        (!self.unfinished.is_empty()).then_some(self.rotation_ns)
    }

    /// Removes the core slots whose contexts have ended, and returns them. They can be vacated.
    ///
    /// Any acknowledged order to leave counts: a context that was suspended while it left carries out the order that it
    /// has seen, and its slot runs nothing any more. Acknowledgements of earlier cores at the slot are cleared when a
    /// core enters.
    pub(super) fn take_finished(&mut self, report: &Report) -> Vec<usize> {
        let has_ended = |slot: &mut usize| report::acknowledged(report, *slot).kind == OrderKind::Leave;
        self.unfinished.extract_if(.., has_ended).collect()
    }
}

impl<H: Hardware> OwnedCell<H> {
    /// Orders the core at a core slot to yield, and interrupts it by NMI. Returns the order, and when to repeat the
    /// NMI.
    pub(super) fn force(&self, slot: usize, now: u64) -> Option<(Order, u64)> {
        let core = self.cores.get(slot)?.as_ref()?;
        let order = self.order_yield(slot);
        self.space.force(core, slot);
        Some((order, now.saturating_add(ATTEMPT_NS)))
    }

    /// Records the suspended context of a core that has yielded and was reclaimed.
    pub(super) fn suspend(&mut self, slot: usize, now: u64) {
        self.space.empty(slot);
        // The last order may be to stay, given meanwhile; the suspended context should leave.
        self.order_yield(slot);
        self.moves.suspended.rotation_ns = now.saturating_add(ROTATION_NS);
        self.moves.suspended.unfinished.push(slot);
    }

    /// Rotates the cell's cores, if a rotation is due.
    pub(super) fn rotate(&mut self, now: u64) {
        if self.moves.suspended.deadline_ns().is_some_and(|rotation_ns| rotation_ns <= now) {
            self.moves.suspended.rotation_ns = now.saturating_add(ROTATION_NS);
            self.space.rotate(&self.cores);
        }
    }
}
