//! Plug and unplug of a running cell's cores (RainForest 4.1, 5.3).
//!
//! A plugged core is sent to a vacant core slot and belongs to the cell at once; the supervisor only waits for its
//! acknowledgement. For an unplug the supervisor orders the core to leave: the core passes its vcores to another core
//! and acknowledges, and the supervisor reclaims it. If the cell does not comply in time, the core is reclaimed by
//! [force](super::force). If that fails as well, the core is ordered to stay, and the cell's last acknowledgement
//! decides.
//!
//! | file | contents |
//! |---|---|
//! | this | moves in progress and their outcomes |
//! | `request` | requests and their answers |
//! | `come` | stacks for core slots, and cores sent there |
//! | `leave` | cores ordered to leave, and their reclaim |
//! | `resume` | moves that a failed supervisor has begun |

mod come;
mod leave;
mod request;
mod resume;

use super::Cells;
use super::cell::Body;
use super::force::{ATTEMPTS, SetAside};
use super::ticket::Ticket;
use crate::effects::Effects;
use crate::report;
use alloc::vec::Vec;
use isola_abi::core_slots::{Order, OrderKind};
use isola_abi::id::{CellId, CoreId};
use isola_abi::management::JournalEvent;
use request::Asked;
pub use request::{CoresResize, CoresWanted};
pub(super) use resume::Ordered;

/// The moves of a cell's cores, and the request for them.
#[derive(Debug)]
pub(super) struct Moves {
    under_way: Vec<Move>,
    request: Option<Asked>,
    /// The suspended contexts of cores that were taken by force.
    pub(super) suspended: SetAside,
    /// Whether a core did not come back, and may still write to the cell's memory.
    has_lost: bool,
}

/// A core that joins or leaves the cell.
#[derive(Debug)]
struct Move {
    place: usize,
    core: CoreId,
    /// The last order to the core.
    order: Order,
    way: Way,
    since_ns: u64,
    deadline_ns: u64,
}

/// The kind of a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Coming,
    Leaving,
    /// The core should have left in time, and is ordered to yield. The NMI is repeated up to `attempts` times.
    Yielding {
        attempts: u32,
    },
    /// The core did not leave or yield, and is ordered to stay. It may still carry out the earlier order.
    Staying,
}

impl Moves {
    /// Returns the moves of a cell that has just been built: none.
    pub(super) fn new() -> Self {
        Self { under_way: Vec::new(), request: None, suspended: SetAside::default(), has_lost: false }
    }

    /// Drops all moves, as the cell has ended. Returns the ticket of the request in progress.
    pub(super) fn end(&mut self) -> Option<Ticket> {
        self.under_way.clear();
        self.suspended.clear();
        self.request.take().map(|asked| asked.ticket)
    }

    /// Returns whether a core did not come back, and may still write to the cell's memory.
    pub(super) fn has_lost(&self) -> bool {
        self.has_lost
    }

    /// Returns whether a request to move cores is in progress.
    pub(super) fn is_under_way(&self) -> bool {
        self.request.is_some()
    }

    /// Returns whether the core is to leave, and has not left yet.
    pub(super) fn is_leaving(&self, core: CoreId) -> bool {
        let leaves = |a_move: &Move| matches!(a_move.way, Way::Leaving | Way::Yielding { .. });
        self.under_way.iter().any(|a_move| a_move.core == core && leaves(a_move))
    }

    /// Returns the next deadline of a move or a rotation.
    pub(super) fn deadline_ns(&self) -> Option<u64> {
        self.answer_by_ns().into_iter().chain(self.suspended.deadline_ns()).min()
    }

    /// Returns the next deadline of an awaited move; `None` if the request can be answered.
    fn answer_by_ns(&self) -> Option<u64> {
        let awaited = |a_move: &&Move| !matches!(a_move.way, Way::Staying);
        self.under_way.iter().filter(awaited).map(|a_move| a_move.deadline_ns).min()
    }
}

impl<E: Effects> Cells<E> {
    /// Acts on the cell's acknowledgements.
    pub(super) fn settle_moves(&mut self, id: CellId) {
        let Some(cell) = self.cells.get_mut(&id) else { return };
        let Body::Held(held) = &cell.body else { return };
        let report = self.effects.report(&held.space);
        let mut settled = Vec::new();
        cell.moves.under_way.retain(|a_move| {
            let (said, yielded) =
                (report::carried_out(report, a_move.place), report::yielded(report, a_move.place));
            let outcome = match a_move.way {
                Way::Coming if said == a_move.order => Outcome::Came,
                // Any acknowledged order to leave counts, even if the order has changed since: the slot runs nothing
                // any more.
                Way::Leaving | Way::Yielding { .. } | Way::Staying if said.kind == OrderKind::Leave => {
                    Outcome::Gone(Gone::Left)
                }
                _ if yielded.kind == OrderKind::Yield => Outcome::Gone(Gone::Yielded),
                Way::Staying if said == a_move.order => Outcome::Stays,
                _ => return true,
            };
            settled.push((a_move.place, a_move.core, a_move.since_ns, outcome));
            false
        });
        for place in cell.moves.suspended.take_finished(report) {
            self.effects.vacate(&held.space, place);
        }
        for (place, core, since_ns, outcome) in settled {
            match outcome {
                Outcome::Came => self.note_came(id, core, since_ns),
                Outcome::Gone(gone) => self.take_core(id, place, core, gone, since_ns),
                Outcome::Stays => {}
            }
        }
        self.answer_resize(id);
    }

    /// Acts on moves whose deadlines have passed.
    pub(super) fn expire_moves(&mut self, id: CellId, now: u64) {
        let Some(cell) = self.cells.get_mut(&id) else { return };
        let Body::Held(held) = &cell.body else { return };
        let (mut came, mut forced) = (Vec::new(), Vec::new());
        cell.moves.under_way.retain_mut(|a_move| match a_move.way {
            _ if a_move.deadline_ns > now => true,
            // The core is in the cell, whether or not the cell acknowledges it.
            Way::Coming => {
                came.push((a_move.core, a_move.since_ns));
                false
            }
            Way::Leaving => {
                a_move.way = Way::Yielding { attempts: ATTEMPTS };
                forced.push(a_move.place);
                true
            }
            Way::Yielding { attempts } if attempts > 0 => {
                a_move.way = Way::Yielding { attempts: attempts - 1 };
                forced.push(a_move.place);
                true
            }
            Way::Yielding { .. } => {
                a_move.way = Way::Staying;
                a_move.order = self.effects.order(&held.space, a_move.place, OrderKind::Stay);
                if let Some(request) = &mut cell.moves.request {
                    request.stuck = Some(a_move.core);
                }
                true
            }
            Way::Staying => true,
        });
        for place in forced {
            let forced = self.force(id, place, now);
            let Some(cell) = self.cells.get_mut(&id) else { return };
            let a_move = cell.moves.under_way.iter_mut().find(|a_move| a_move.place == place);
            if let (Some(a_move), Some((order, deadline_ns))) = (a_move, forced) {
                (a_move.order, a_move.deadline_ns) = (order, deadline_ns);
            }
        }
        for (core, since_ns) in came {
            self.note_came(id, core, since_ns);
        }
        self.rotate(id, now);
        self.settle_moves(id);
    }

    /// Enters the arrival of a core in the journal.
    fn note_came(&mut self, id: CellId, core: CoreId, since_ns: u64) {
        let Some(cell) = self.cells.get(&id) else { return };
        let cores = cell.core_count() as u32;
        self.note_move(id, JournalEvent::CoreCame { core, cores }, core, since_ns);
    }

    /// Enters the arrival or departure of a core in the journal and in the request.
    fn note_move(&mut self, id: CellId, event: JournalEvent, core: CoreId, since_ns: u64) {
        let Some(cell) = self.cells.get_mut(&id) else { return };
        let name = cell.spec.name.clone();
        if let Some(request) = &mut cell.moves.request {
            request.moved.push(core);
        }
        self.record(since_ns, Some(&name), event);
    }
}

/// The outcome of a move.
#[derive(Clone, Copy, Debug)]
enum Outcome {
    Came,
    Gone(Gone),
    Stays,
}

/// How a core has left.
#[derive(Clone, Copy, Debug)]
enum Gone {
    /// The core passed its vcores on.
    Left,
    /// The core's event is suspended.
    Yielded,
}
