//! Cores: the supervisor's own, free cores, those of cells, and failed ones.
//!
//! | file | contents |
//! |---|---|
//! | this | the owner of each core |
//! | `choice` | the placement policies, which choose a cell's cores |
//! | `refusal` | the reasons why a cell gets no cores |

mod choice;
mod refusal;
#[cfg(test)]
mod tests;

pub use refusal::CoreRefusal;

use alloc::vec::Vec;
use choice::{Choice, Seat, Standing};
use isola_abi::id::{CellId, CoreId, MAX_CORES, NodeId};
use isola_abi::management::{CoreInfo, CoreOwner, CorePlacement};
use isola_abi::topology::CoreSite;

/// A token for a core that its holder may use.
pub trait CoreToken {
    /// Returns the core's id.
    fn id(&self) -> CoreId;
}

/// Cores that a cell should get in addition to those that it has.
#[derive(Clone, Copy, Debug)]
pub struct CoreRequest<'a> {
    /// The number of cores.
    pub count: usize,
    /// The placement.
    pub placement: &'a CorePlacement,
}

/// The cores of the machine.
#[derive(Debug)]
pub struct Cores<C> {
    entries: Vec<Entry<C>>,
}

#[derive(Debug)]
struct Entry<C> {
    id: CoreId,
    node: NodeId,
    site: CoreSite,
    state: State<C>,
    /// The cell for which the core is reserved: while free, no other cell gets it.
    reserved: Option<CellId>,
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
        Self { entries: Vec::new() }
    }
}

impl<C: CoreToken> Cores<C> {
    /// Returns no cores.
    pub fn new() -> Self {
        Self::default()
    }

    /// Enters the supervisor's core.
    pub fn add_supervisor(&mut self, id: CoreId, node: NodeId, site: CoreSite) {
        self.enter(id, node, site, State::Supervisor);
    }

    /// Enters a free core.
    pub fn add(&mut self, core: C, node: NodeId, site: CoreSite) {
        self.enter(core.id(), node, site, State::Free(core));
    }

    /// Enters a cell's core; [`Self::assign`] sets the cell.
    pub fn add_owned(&mut self, id: CoreId, node: NodeId, site: CoreSite) {
        self.enter(id, node, site, State::Owned(CellId(0)));
    }

    /// Sets the cell that owns a core entered by [`Self::add_owned`].
    pub fn assign(&mut self, id: CoreId, cell: CellId) {
        let owned = |entry: &&mut Entry<C>| entry.id == id && matches!(entry.state, State::Owned(_));
        if let Some(entry) = self.entries.iter_mut().find(owned) {
            entry.state = State::Owned(cell);
        }
    }

    /// Enters a core that did not start.
    pub fn add_failed(&mut self, id: CoreId, node: NodeId, site: CoreSite) {
        self.enter(id, node, site, State::Failed);
    }

    fn enter(&mut self, id: CoreId, node: NodeId, site: CoreSite, state: State<C>) {
        self.entries.push(Entry { id, node, site, state, reserved: None });
    }

    /// Returns the number of free cores.
    pub fn free(&self) -> usize {
        self.entries.iter().filter(|entry| entry.owner() == CoreOwner::Free).count()
    }

    /// Returns the number of all cores.
    pub fn count(&self) -> usize {
        self.entries.len()
    }

    /// Returns the number of core slots of each cell: one for each core that cells can have, at most [`MAX_CORES`].
    /// Counts failed cores as well, so the number never changes.
    pub fn slots_of_each_cell(&self) -> usize {
        let of_cells = self.entries.iter().filter(|entry| !matches!(entry.state, State::Supervisor));
        of_cells.count().min(MAX_CORES)
    }

    /// Returns the node of a core.
    pub fn node(&self, id: CoreId) -> Option<NodeId> {
        self.entries.iter().find(|entry| entry.id == id).map(|entry| entry.node)
    }

    /// Returns the cores that `cell` would get in addition to those that it has, in the order in which it would get
    /// them.
    ///
    /// # Errors
    /// Returns a [`CoreRefusal`] if it would get none.
    pub fn choose(&self, request: &CoreRequest<'_>, cell: CellId) -> Result<Vec<CoreId>, CoreRefusal> {
        Choice::new(self.seats(cell), request)?.choose()
    }

    /// Gives `cell` cores in addition to those that it has, in the order of the policy: the first is the core to start
    /// with.
    ///
    /// # Errors
    /// Returns the refusal of [`Self::choose`]; the cell gets no core then.
    pub fn take(&mut self, request: &CoreRequest<'_>, cell: CellId) -> Result<Vec<C>, CoreRefusal> {
        let chosen = self.choose(request, cell)?;
        Ok(chosen.into_iter().filter_map(|id| self.give(id, cell)).collect())
    }

    /// Reserves these cores for these cells, and removes all other reservations. A reserved core keeps its owner; once
    /// it is free, no cell gets it, not even its destination, before its reservation is [removed](Self::unreserve).
    pub fn reserve(&mut self, reserved: &[(CoreId, CellId)]) {
        for entry in &mut self.entries {
            let to = reserved.iter().find(|(id, _)| *id == entry.id);
            entry.reserved = to.map(|(_, cell)| *cell);
        }
    }

    /// Removes the reservation of a core.
    pub fn unreserve(&mut self, id: CoreId) {
        let entry = self.entries.iter_mut().find(|entry| entry.id == id);
        entry.into_iter().for_each(|entry| entry.reserved = None);
    }

    /// Returns the owner of a core.
    pub fn owner(&self, id: CoreId) -> Option<CoreOwner> {
        self.entries.iter().find(|entry| entry.id == id).map(Entry::owner)
    }

    /// Gives `cell` the core if it is free and not reserved.
    pub fn take_this(&mut self, id: CoreId, cell: CellId) -> Option<C> {
        self.give(id, cell)
    }

    /// Returns the cores that `cell` should give up, so that its remaining cores have the best placement.
    ///
    /// # Errors
    /// Returns [`CoreRefusal::NotWhole`] if the policy needs whole physical cores and the remaining ones would not be.
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
        // A cell may keep its cores, whatever node or cores were requested since.
        let placement = CorePlacement { policy: request.placement.policy, ..CorePlacement::default() };
        let remaining = Choice::new(seats, &CoreRequest { count, placement: &placement })?.choose()?;
        Ok(own.into_iter().filter(|id| !remaining.contains(id)).collect())
    }

    /// Takes a core back from its cell.
    pub fn put(&mut self, core: C) {
        if let Some(entry) = self.entries.iter_mut().find(|entry| entry.id == core.id()) {
            entry.state = State::Free(core);
        }
    }

    /// Marks a core that did not come back from its cell as failed: it is never used again.
    pub fn lose(&mut self, id: CoreId) {
        if let Some(entry) = self.entries.iter_mut().find(|entry| entry.id == id) {
            entry.state = State::Failed;
        }
    }

    /// Returns all cores and their owners.
    pub fn info(&self) -> Vec<CoreInfo> {
        let info = |entry: &Entry<C>| CoreInfo {
            id: entry.id,
            node: entry.node,
            site: entry.site,
            owner: entry.owner(),
        };
        self.entries.iter().map(info).collect()
    }

    fn give(&mut self, id: CoreId, cell: CellId) -> Option<C> {
        let entry = self.entries.iter_mut().find(|entry| entry.id == id && entry.reserved.is_none())?;
        match core::mem::replace(&mut entry.state, State::Owned(cell)) {
            State::Free(core) => Some(core),
            other => {
                entry.state = other;
                None
            }
        }
    }

    /// Returns the cores as candidates for `cell`.
    fn seats(&self, cell: CellId) -> Vec<Seat> {
        let seat = |entry: &Entry<C>| Seat {
            id: entry.id,
            node: entry.node,
            cache: entry.site.cache,
            physical: entry.site.physical,
            standing: match entry.owner() {
                CoreOwner::Free => Standing::Free,
                CoreOwner::Cell(owner) if owner == cell => Standing::Own,
                owner => Standing::Taken(owner),
            },
        };
        self.entries.iter().map(seat).collect()
    }
}

impl<C> Entry<C> {
    fn owner(&self) -> CoreOwner {
        match (&self.state, self.reserved) {
            (State::Supervisor, _) => CoreOwner::Supervisor,
            (State::Free(_), None) => CoreOwner::Free,
            (State::Free(_), Some(cell)) => CoreOwner::InTransfer(cell),
            (State::Owned(cell), _) => CoreOwner::Cell(*cell),
            (State::Failed, _) => CoreOwner::Failed,
        }
    }
}
