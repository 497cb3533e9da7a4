//! Cores: the supervisor's own, free ones, those of cells, and those that failed.
//!
//! | file | what |
//! |---|---|
//! | this | who has which |
//! | `choice` | which a cell gets: the policies of placement |
//! | `refusal` | why it gets none |

mod choice;
mod refusal;
#[cfg(test)]
mod tests;

pub use refusal::CoreRefusal;

use alloc::vec::Vec;
use choice::{Choice, Seat, Standing};
use isola_abi::id::{CellId, CoreId, NodeId};
use isola_abi::management::{CoreInfo, CoreOwner, CorePlacement};
use isola_abi::topology::CoreSite;

/// Stands for a core that its holder may use.
pub trait CoreToken {
    /// Which core.
    fn id(&self) -> CoreId;
}

/// Cores that a cell is to have on top of those that it has.
#[derive(Clone, Copy, Debug)]
pub struct CoreRequest<'a> {
    /// How many.
    pub count: usize,
    /// Which.
    pub placement: &'a CorePlacement,
}

/// The cores of the machine.
#[derive(Debug)]
pub struct Cores<C> {
    slots: Vec<Slot<C>>,
}

#[derive(Debug)]
struct Slot<C> {
    id: CoreId,
    node: NodeId,
    site: CoreSite,
    state: State<C>,
    /// Who gets it when it is free, and nobody else.
    promised: Option<CellId>,
}

#[derive(Debug)]
enum State<C> {
    Supervisor,
    Free(C),
    Owned(CellId),
    Failed,
}

impl<C> Default for Cores<C> {
    fn default() -> Self {
        Self { slots: Vec::new() }
    }
}

impl<C: CoreToken> Cores<C> {
    /// No cores.
    pub fn new() -> Self {
        Self::default()
    }

    /// Enters the core that the supervisor runs on.
    pub fn add_supervisor(&mut self, id: CoreId, node: NodeId, site: CoreSite) {
        self.enter(id, node, site, State::Supervisor);
    }

    /// Enters a core that can be given to cells.
    pub fn add(&mut self, core: C, node: NodeId, site: CoreSite) {
        self.enter(core.id(), node, site, State::Free(core));
    }

    /// Enters a core that a cell has; [`Self::assign`] says which.
    pub fn add_owned(&mut self, id: CoreId, node: NodeId, site: CoreSite) {
        self.enter(id, node, site, State::Owned(CellId(0)));
    }

    /// Says which cell has a core that one has.
    pub fn assign(&mut self, id: CoreId, cell: CellId) {
        let owned = |slot: &&mut Slot<C>| slot.id == id && matches!(slot.state, State::Owned(_));
        if let Some(slot) = self.slots.iter_mut().find(owned) {
            slot.state = State::Owned(cell);
        }
    }

    /// Enters a core that did not come up.
    pub fn add_failed(&mut self, id: CoreId, node: NodeId, site: CoreSite) {
        self.enter(id, node, site, State::Failed);
    }

    fn enter(&mut self, id: CoreId, node: NodeId, site: CoreSite, state: State<C>) {
        self.slots.push(Slot { id, node, site, state, promised: None });
    }

    /// Number of free cores.
    pub fn free(&self) -> usize {
        self.slots.iter().filter(|slot| slot.owner() == CoreOwner::Free).count()
    }

    /// How many cores cells can have, free or not: what failed included, as the number is for good.
    pub fn count_for_cells(&self) -> usize {
        self.slots.iter().filter(|slot| !matches!(slot.state, State::Supervisor)).count()
    }

    /// The node of that core.
    pub fn node(&self, id: CoreId) -> Option<NodeId> {
        self.slots.iter().find(|slot| slot.id == id).map(|slot| slot.node)
    }

    /// Which cores `cell` would get on top of those that it has, in the order in which it gets them.
    ///
    /// # Errors
    /// [`CoreRefusal`] says why it would get none.
    pub fn choose(&self, request: &CoreRequest<'_>, cell: CellId) -> Result<Vec<CoreId>, CoreRefusal> {
        Choice::new(self.seats(cell), request)?.choose()
    }

    /// Gives `cell` cores on top of those that it has, in the order of the policy: the first is the one to start with.
    ///
    /// # Errors
    /// As of [`Self::choose`]; it gets none then.
    pub fn take(&mut self, request: &CoreRequest<'_>, cell: CellId) -> Result<Vec<C>, CoreRefusal> {
        let chosen = self.choose(request, cell)?;
        Ok(chosen.into_iter().filter_map(|id| self.give(id, cell)).collect())
    }

    /// Promises these cores to these cells, and no others to any: whoever has one until then, once it is free nobody else
    /// gets it, nor does that cell before the core is [released](Self::release).
    pub fn promise(&mut self, promised: &[(CoreId, CellId)]) {
        for slot in &mut self.slots {
            let to = promised.iter().find(|(id, _)| *id == slot.id);
            slot.promised = to.map(|(_, cell)| *cell);
        }
    }

    /// Promises a core to nobody any more.
    pub fn release(&mut self, id: CoreId) {
        let slot = self.slots.iter_mut().find(|slot| slot.id == id);
        slot.into_iter().for_each(|slot| slot.promised = None);
    }

    /// Who has a core.
    pub fn owner(&self, id: CoreId) -> Option<CoreOwner> {
        self.slots.iter().find(|slot| slot.id == id).map(Slot::owner)
    }

    /// Gives `cell` that core, where it is free.
    pub fn take_this(&mut self, id: CoreId, cell: CellId) -> Option<C> {
        self.give(id, cell)
    }

    /// Which of its cores `cell` can best do without, so that those that remain are placed as well as they can be.
    ///
    /// # Errors
    /// [`CoreRefusal::NotWhole`] where the remaining ones would not be whole physical cores, and are to be.
    pub fn choose_to_leave(
        &self,
        request: &CoreRequest<'_>,
        cell: CellId,
    ) -> Result<Vec<CoreId>, CoreRefusal> {
        let mut seats = self.seats(cell);
        for seat in &mut seats {
            seat.standing = match seat.standing {
                Standing::Own => Standing::Free,
                Standing::Free => Standing::Idle,
                standing => standing,
            };
        }
        let own: Vec<CoreId> =
            seats.iter().filter(|seat| seat.standing == Standing::Free).map(|seat| seat.id).collect();
        let count = own.len().saturating_sub(request.count);
        // What it has it may keep, whatever has been asked for since.
        let placement = CorePlacement { policy: request.placement.policy, ..CorePlacement::default() };
        let remaining = Choice::new(seats, &CoreRequest { count, placement: &placement })?.choose()?;
        Ok(own.into_iter().filter(|id| !remaining.contains(id)).collect())
    }

    /// Takes a core back from its cell.
    pub fn put(&mut self, core: C) {
        if let Some(slot) = self.slots.iter_mut().find(|slot| slot.id == core.id()) {
            slot.state = State::Free(core);
        }
    }

    /// Notes that a core did not come back from its cell: it is never given again.
    pub fn lose(&mut self, id: CoreId) {
        if let Some(slot) = self.slots.iter_mut().find(|slot| slot.id == id) {
            slot.state = State::Failed;
        }
    }

    /// All cores and who has them.
    pub fn info(&self) -> Vec<CoreInfo> {
        let info =
            |slot: &Slot<C>| CoreInfo { id: slot.id, node: slot.node, site: slot.site, owner: slot.owner() };
        self.slots.iter().map(info).collect()
    }

    fn give(&mut self, id: CoreId, cell: CellId) -> Option<C> {
        let slot = self.slots.iter_mut().find(|slot| slot.id == id && slot.promised.is_none())?;
        match core::mem::replace(&mut slot.state, State::Owned(cell)) {
            State::Free(core) => Some(core),
            other => {
                slot.state = other;
                None
            }
        }
    }

    /// The cores as a choice for `cell` sees them.
    fn seats(&self, cell: CellId) -> Vec<Seat> {
        let seat = |slot: &Slot<C>| Seat {
            id: slot.id,
            node: slot.node,
            cache: slot.site.cache,
            physical: slot.site.physical,
            standing: match slot.owner() {
                CoreOwner::Free => Standing::Free,
                CoreOwner::Cell(owner) if owner == cell => Standing::Own,
                owner => Standing::Taken(owner),
            },
        };
        self.slots.iter().map(seat).collect()
    }
}

impl<C> Slot<C> {
    fn owner(&self) -> CoreOwner {
        match (&self.state, self.promised) {
            (State::Supervisor, _) => CoreOwner::Supervisor,
            (State::Free(_), None) => CoreOwner::Free,
            (State::Free(_), Some(cell)) => CoreOwner::OnItsWay(cell),
            (State::Owned(cell), _) => CoreOwner::Cell(*cell),
            (State::Failed, _) => CoreOwner::Failed,
        }
    }
}
