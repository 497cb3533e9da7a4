//! Cores that come to a cell while it runs, and leave it (RainForest 4.1, 5.3).
//!
//! A core that comes is sent to a vacant place, and is the cell's at once; what is waited for is that it says so. One that
//! is to leave is asked to: the cell hands on what the core carries, says so, and then the core is taken back. From a cell
//! that does not within the limit it is taken by [force](super::force). Where that fails as well, the core is told to
//! stay, and whatever the cell answers last is taken for its word.
//!
//! | file | what |
//! |---|---|
//! | this | what is under way, and what becomes of it |
//! | `request` | what is asked for, and the answer |
//! | `come` | places made ready, and cores sent there |
//! | `leave` | cores asked for, and taken |
//! | `resume` | what a supervisor before this one has begun |

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
use isola_abi::id::{CellId, CoreId};
use isola_abi::management::JournalEvent;
use isola_abi::places::{Order, OrderKind};
use request::Asked;
pub use request::{CoresResize, CoresWanted};
pub(super) use resume::Ordered;

/// What is under way of a cell's cores.
#[derive(Debug)]
pub(super) struct Moves {
    under_way: Vec<Move>,
    request: Option<Asked>,
    /// What cores that were taken by force were in the middle of.
    pub(super) suspended: SetAside,
    /// Whether a core did not come back, and may still write to the cell's memory.
    has_lost: bool,
}

/// A core on its way.
#[derive(Debug)]
struct Move {
    place: usize,
    core: CoreId,
    /// The last order that it was given.
    order: Order,
    way: Way,
    since_ns: u64,
    deadline_ns: u64,
}

/// Which way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Coming,
    Leaving,
    /// It was to leave, and is to yield, as it took too long. It will be forced so often still.
    Yielding {
        attempts: u32,
    },
    /// It was to leave, and is to stay, as it did not. It may still leave, or yield.
    Staying,
}

impl Moves {
    /// Of a cell that has just been built.
    pub(super) fn new() -> Self {
        Self { under_way: Vec::new(), request: None, suspended: SetAside::default(), has_lost: false }
    }

    /// The cell has ended. Returns the request of whoever waits to be told what came of it.
    pub(super) fn end(&mut self) -> Option<Ticket> {
        self.under_way.clear();
        self.suspended.clear();
        self.request.take().map(|asked| asked.ticket)
    }

    /// Whether a core did not come back, and may still write to the cell's memory.
    pub(super) fn has_lost(&self) -> bool {
        self.has_lost
    }

    /// Whether cores are on their way that somebody waits for.
    pub(super) fn is_under_way(&self) -> bool {
        self.request.is_some()
    }

    /// Whether that core was asked for, and is still to come free.
    pub(super) fn is_leaving(&self, core: CoreId) -> bool {
        let leaves = |a_move: &Move| matches!(a_move.way, Way::Leaving | Way::Yielding { .. });
        self.under_way.iter().any(|a_move| a_move.core == core && leaves(a_move))
    }

    /// When somebody has taken too long, or is to be rotated.
    pub(super) fn deadline_ns(&self) -> Option<u64> {
        self.answer_by_ns().into_iter().chain(self.suspended.deadline_ns()).min()
    }

    /// When somebody who is waited for has taken too long.
    fn answer_by_ns(&self) -> Option<u64> {
        let awaited = |a_move: &&Move| !matches!(a_move.way, Way::Staying);
        self.under_way.iter().filter(awaited).map(|a_move| a_move.deadline_ns).min()
    }
}

impl<E: Effects> Cells<E> {
    /// Takes over what a live cell says of its cores on their way.
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
                // By whichever order since it came: nothing runs there any more.
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

    /// Acts on cores that have taken too long.
    pub(super) fn expire_moves(&mut self, id: CellId, now: u64) {
        let Some(cell) = self.cells.get_mut(&id) else { return };
        let Body::Held(held) = &cell.body else { return };
        let (mut came, mut forced) = (Vec::new(), Vec::new());
        cell.moves.under_way.retain_mut(|a_move| match a_move.way {
            _ if a_move.deadline_ns > now => true,
            // It is there; that the cell has seen it is its own affair.
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

    /// Enters in the journal that a core has come.
    fn note_came(&mut self, id: CellId, core: CoreId, since_ns: u64) {
        let Some(cell) = self.cells.get(&id) else { return };
        let cores = cell.core_count() as u32;
        self.note_move(id, JournalEvent::CoreCame { core, cores }, core, since_ns);
    }

    /// Enters in the journal that a core has come or gone.
    fn note_move(&mut self, id: CellId, event: JournalEvent, core: CoreId, since_ns: u64) {
        let Some(cell) = self.cells.get_mut(&id) else { return };
        let name = cell.spec.name.clone();
        if let Some(request) = &mut cell.moves.request {
            request.moved.push(core);
        }
        self.record(since_ns, Some(&name), event);
    }
}

/// What became of a core on its way.
#[derive(Clone, Copy, Debug)]
enum Outcome {
    Came,
    Gone(Gone),
    Stays,
}

/// How a cell has let go of a core.
#[derive(Clone, Copy, Debug)]
enum Gone {
    /// The core carries nothing any more.
    Left,
    /// What it was in the middle of is suspended.
    Yielded,
}
