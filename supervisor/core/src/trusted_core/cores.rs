//! Plug and unplug of a running cell's cores (RainForest 4.1, 5.3).
//!
//! A plugged core is sent to a vacant core slot and belongs to the cell at once; the supervisor only waits for its
//! acknowledgement. For an unplug the core is ordered to leave: it passes its vcores to another core and acknowledges,
//! and is reclaimed. If the cell does not comply in time, the core is reclaimed by [force](super::force). If that fails
//! as well, the core is ordered to stay, and the cell's last acknowledgement decides.

use super::force::{ATTEMPTS, SuspendedContexts};
use super::{Rejection, TrustedCore};
use crate::hardware::{Hardware, Reclaimed};
use crate::inventory::{CHUNK, CoreToken};
use crate::report;
use crate::space::{Admission, CellSpace, OutOfStackMemory};
use alloc::vec::Vec;
use isola_abi::core_slots::{Order, OrderKind};
use isola_abi::id::{CellId, CoreId, NodeId};
use isola_abi::report::Report;

/// How long a core may take to leave that a failed supervisor has ordered to, in ns.
const RECOVERED_LIMIT_NS: u64 = 10_000_000;

/// The moves of a cell's cores.
#[derive(Debug)]
pub(super) struct Moves {
    in_progress: Vec<CoreMove>,
    /// The suspended contexts of cores that were taken by force.
    pub(super) suspended: SuspendedContexts,
    /// Whether a core did not come back, and may still write to the cell's memory.
    pub(super) has_lost: bool,
}

/// A core that joins or leaves the cell.
#[derive(Debug)]
struct CoreMove {
    slot: usize,
    core: CoreId,
    /// The last order to the core.
    order: Order,
    state: MoveState,
    since_ns: u64,
    deadline_ns: u64,
}

/// The state of a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MoveState {
    Arriving,
    /// The core is in the cell, whether or not the cell acknowledges it.
    Overdue,
    Leaving,
    /// The core should have left in time, and is ordered to yield. The NMI is repeated up to `attempts` times.
    Yielding {
        attempts: u32,
    },
    /// The core did not leave or yield, and is ordered to stay. It may still carry out the earlier order.
    Staying,
}

/// The outcome of a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Arrived,
    /// The core passed its vcores on.
    Left,
    /// The core's event is suspended.
    Yielded,
    Stays,
}

/// A change of a cell's cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoreEvent {
    /// The core.
    pub core: CoreId,
    /// The change.
    pub change: CoreChange,
    /// The beginning of the move.
    pub since_ns: u64,
    /// The number of the cell's cores after the change.
    pub cores: u32,
}

/// See [`CoreEvent`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CoreChange {
    /// The core has joined the cell.
    Arrived,
    /// The core has left, and is free.
    Left,
    /// The core was taken by force, and is free. Its event is suspended.
    Taken,
    /// The core did not come back, and is never used again.
    Lost,
}

/// A core of a recovered cell: its slot, its last order, and the last order that it acknowledged.
#[derive(Clone, Copy, Debug)]
pub(super) struct RecoveredOrder {
    pub(super) slot: usize,
    pub(super) core: CoreId,
    pub(super) order: Order,
    pub(super) acknowledged: Order,
}

impl Moves {
    /// Returns the moves of a cell that has just been built: none.
    pub(super) fn new() -> Self {
        Self { in_progress: Vec::new(), suspended: SuspendedContexts::default(), has_lost: false }
    }

    /// Returns the moves of a recovered cell, from its cores' orders and acknowledgements and its suspended contexts.
    pub(super) fn resume(
        orders: impl Iterator<Item = RecoveredOrder>,
        suspended: SuspendedContexts,
        now: u64,
    ) -> Self {
        let resume = |RecoveredOrder { slot, core, order, acknowledged }| {
            let state = match order.kind {
                // The first core stays, whatever its order.
                _ if slot == 0 => return None,
                OrderKind::Vacant => return None,
                OrderKind::Stay if acknowledged == order => return None,
                // The core has not arrived yet; or it did not leave in time, was ordered to stay, and may still leave.
                OrderKind::Stay => MoveState::Staying,
                OrderKind::Leave => MoveState::Leaving,
                OrderKind::Yield => MoveState::Yielding { attempts: ATTEMPTS },
            };
            let deadline_ns = now.saturating_add(RECOVERED_LIMIT_NS);
            Some(CoreMove { slot, core, order, state, since_ns: now, deadline_ns })
        };
        Self { in_progress: orders.filter_map(resume).collect(), suspended, ..Self::new() }
    }

    /// Returns whether the core is to leave, and has not left yet.
    pub(super) fn is_leaving(&self, core: CoreId) -> bool {
        let leaves =
            |a_move: &CoreMove| matches!(a_move.state, MoveState::Leaving | MoveState::Yielding { .. });
        self.in_progress.iter().any(|a_move| a_move.core == core && leaves(a_move))
    }

    /// Returns the next deadline of a move or a rotation.
    pub(super) fn deadline_ns(&self) -> Option<u64> {
        self.awaited_ns().into_iter().chain(self.suspended.deadline_ns()).min()
    }

    /// Returns the next deadline of an awaited move.
    pub(super) fn awaited_ns(&self) -> Option<u64> {
        let awaited = |a_move: &&CoreMove| !matches!(a_move.state, MoveState::Staying);
        self.in_progress.iter().filter(awaited).map(|a_move| a_move.deadline_ns).min()
    }

    /// Removes and returns the first move with an outcome.
    fn take_complete(&mut self, report: &Report) -> Option<(CoreMove, Outcome)> {
        let (index, outcome) = self
            .in_progress
            .iter()
            .enumerate()
            .find_map(|(index, a_move)| Some((index, a_move.outcome(report)?)))?;
        Some((self.in_progress.remove(index), outcome))
    }
}

impl CoreMove {
    /// Returns the outcome of the move, if there is one, by the cell's acknowledgements.
    fn outcome(&self, report: &Report) -> Option<Outcome> {
        let acknowledged = report::acknowledged(report, self.slot);
        let yielded = || report::yielded(report, self.slot);
        match self.state {
            MoveState::Overdue => Some(Outcome::Arrived),
            MoveState::Arriving if acknowledged == self.order => Some(Outcome::Arrived),
            // Any acknowledged order to leave counts, even if the order has changed since: the slot runs nothing any
            // more.
            MoveState::Leaving | MoveState::Yielding { .. } | MoveState::Staying
                if acknowledged.kind == OrderKind::Leave =>
            {
                Some(Outcome::Left)
            }
            _ if yielded().kind == OrderKind::Yield => Some(Outcome::Yielded),
            MoveState::Staying if acknowledged == self.order => Some(Outcome::Stays),
            _ => None,
        }
    }
}

impl<H: Hardware> TrustedCore<H> {
    /// Allocates stacks for a core slot of a running cell and for all slots before it.
    ///
    /// # Errors
    /// Returns [`OutOfStackMemory`] if the cell needs [more memory](Self::add_stack_memory) for them, does not run, or has no
    /// such slot.
    pub fn allocate_stacks(&mut self, id: CellId, slot: usize) -> Result<(), OutOfStackMemory> {
        let slots = self.inventory.cores.slots_of_each_cell();
        let cell = self.entered(id).map_err(|_| OutOfStackMemory)?;
        if slot >= slots {
            return Err(OutOfStackMemory);
        }
        cell.space.allocate_stacks(slot)?;
        cell.slots_with_stacks = cell.slots_with_stacks.max(slot + 1);
        Ok(())
    }

    /// Gives a running cell a chunk for the stacks of cores. Returns the bytes given: none, if no memory is available.
    pub fn add_stack_memory(&mut self, id: CellId, node: NodeId) -> u64 {
        let Some(cell) = self.cells.get_mut(&id).filter(|cell| cell.is_entered()) else { return 0 };
        // There is always a zero chunk, unless growing cells have just used all of them; then one is scrubbed here.
        let memory = &mut self.inventory.memory;
        while memory.dirty() > 0 && memory.dirty() == memory.free() {
            memory.scrub(CHUNK, Some(node));
        }
        let mut given = 0;
        for chunk in memory.take(CHUNK, node).unwrap_or_default() {
            match cell.space.allocate_stacks_from(chunk) {
                Ok(()) => given += CHUNK,
                Err(chunk) => memory.put(alloc::vec![chunk]),
            }
        }
        cell.memory_bytes += given;
        given
    }

    /// Sends a free core to a vacant core slot with stacks of a running cell.
    ///
    /// # Errors
    /// Returns a [`Rejection`].
    pub fn plug_core(
        &mut self,
        id: CellId,
        core: CoreId,
        slot: usize,
        (since_ns, deadline_ns): (u64, u64),
    ) -> Result<(), Rejection> {
        let cell = self.cells.get_mut(&id).ok_or(Rejection::NoSuchCell)?;
        if !cell.is_entered() {
            return Err(Rejection::WrongStage);
        }
        if slot >= cell.slots_with_stacks || !cell.is_vacant(slot) {
            return Err(Rejection::WrongSlot);
        }
        let token = self.inventory.cores.take_this(core, id).ok_or(Rejection::WrongCore)?;
        if cell.cores.len() <= slot {
            cell.cores.resize_with(slot + 1, || None);
            cell.core_ids.resize(slot + 1, core);
        }
        cell.core_ids[slot] = core;
        let (token, admission) = cell.space.admit(token, slot);
        if admission == Admission::Refused {
            self.inventory.cores.put(token);
            return Err(Rejection::NotAdmitted);
        }
        cell.cores[slot] = Some(token);
        let order = cell.space.last_order(slot);
        let state = MoveState::Arriving;
        cell.moves.in_progress.push(CoreMove { slot, core, order, state, since_ns, deadline_ns });
        Ok(())
    }

    /// Orders a core of a running cell to leave.
    ///
    /// # Errors
    /// Returns a [`Rejection`].
    pub fn unplug_core(
        &mut self,
        id: CellId,
        core: CoreId,
        (since_ns, deadline_ns): (u64, u64),
    ) -> Result<(), Rejection> {
        let cell = self.entered(id)?;
        let is_here = |at: &Option<H::Core>| at.as_ref().is_some_and(|at| at.id() == core);
        let slot =
            cell.cores.iter().position(is_here).filter(|slot| *slot > 0).ok_or(Rejection::WrongCore)?;
        let order = cell.space.order(slot, OrderKind::Leave);
        // A move of the core into the cell is not awaited any more.
        cell.moves.in_progress.retain(|a_move| a_move.slot != slot);
        let state = MoveState::Leaving;
        cell.moves.in_progress.push(CoreMove { slot, core, order, state, since_ns, deadline_ns });
        Ok(())
    }

    /// Acts on the next acknowledgement of a running cell, and returns the change of its cores. Returns `None` once
    /// there is no other one.
    pub fn next_core_event(&mut self, id: CellId) -> Option<CoreEvent> {
        let cell = self.cells.get_mut(&id).filter(|cell| cell.is_entered())?;
        for slot in cell.moves.suspended.take_finished(cell.space.report()) {
            cell.space.vacate(slot);
        }
        while let Some((a_move, outcome)) = cell.moves.take_complete(cell.space.report()) {
            let CoreMove { slot, core, since_ns, .. } = a_move;
            let change = match outcome {
                Outcome::Stays => continue,
                Outcome::Arrived => CoreChange::Arrived,
                Outcome::Left | Outcome::Yielded => {
                    let Some(token) = cell.cores.get_mut(slot).and_then(Option::take) else { continue };
                    let Reclaimed { back, lost } = self.hardware.reclaim(alloc::vec![token]);
                    back.into_iter().for_each(|core| self.inventory.cores.put(core));
                    if !lost.is_empty() {
                        cell.moves.has_lost = true;
                        self.inventory.cores.lose(core);
                        CoreChange::Lost
                    } else if outcome == Outcome::Left {
                        cell.space.vacate(slot);
                        CoreChange::Left
                    } else {
                        cell.suspend(slot, self.hardware.now_ns());
                        CoreChange::Taken
                    }
                }
            };
            return Some(CoreEvent { core, change, since_ns, cores: cell.core_count() as u32 });
        }
        None
    }

    /// Acts on the deadlines of core moves that have passed, and rotates the cell's cores if that is due. Returns a core
    /// that neither left nor yielded, and now stays.
    pub fn expire_core_moves(&mut self, id: CellId, now: u64) -> Option<CoreId> {
        let cell = self.cells.get_mut(&id).filter(|cell| cell.is_entered())?;
        let mut stuck = None;
        for index in 0..cell.moves.in_progress.len() {
            let Some(a_move) = cell.moves.in_progress.get_mut(index) else { break };
            if a_move.deadline_ns > now {
                continue;
            }
            let slot = a_move.slot;
            match a_move.state {
                MoveState::Arriving => a_move.state = MoveState::Overdue,
                MoveState::Leaving => a_move.state = MoveState::Yielding { attempts: ATTEMPTS },
                MoveState::Yielding { attempts } if attempts > 0 => {
                    a_move.state = MoveState::Yielding { attempts: attempts - 1 };
                }
                MoveState::Yielding { .. } => {
                    a_move.state = MoveState::Staying;
                    a_move.order = cell.space.order(slot, OrderKind::Stay);
                    stuck = Some(a_move.core);
                }
                MoveState::Overdue | MoveState::Staying => {}
            }
            if matches!(a_move.state, MoveState::Yielding { .. })
                && let Some((order, deadline_ns)) = cell.force(slot, now)
                && let Some(a_move) = cell.moves.in_progress.get_mut(index)
            {
                (a_move.order, a_move.deadline_ns) = (order, deadline_ns);
            }
        }
        cell.rotate(now);
        stuck
    }
}
