//! Cores that come to a cell while it runs, and leave it (RainForest 4.1, 5.3).
//!
//! A core that comes is sent to a vacant place, and is the cell's at once; what is waited for is that it says so. One that
//! is to leave is asked to: the cell hands on what the core carries, says so, and then the core is taken back. From a cell
//! that does not within the limit it is taken by [force](super::force). Where that fails as well, the core is told to
//! stay, and whatever the cell answers last is taken for its word.

mod resume;

use super::Cells;
use super::cell::{Body, Cell, Held, Run};
use super::force::{ATTEMPTS, SetAside};
use super::ticket::Ticket;
use crate::effects::{Admission, Effects, Reclaimed};
use crate::inventory::{CHUNK, CoreToken, CoreWish};
use crate::report;
use alloc::format;
use alloc::vec::Vec;
use isola_abi::id::{CellId, CoreId, MAX_CORES, NodeId};
use isola_abi::management::{
    Change, CorePlacement, CoresResized, JournalEvent, ManagementError, Mode, PlacementPolicy,
};
use isola_abi::places::{Order, OrderKind};
use isola_abi::size::ByteSize;
pub(super) use resume::Ordered;

/// What came of asking for more cores, or fewer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CoresResize {
    /// It is done, or would be.
    Done(CoresResized),
    /// It is under way; [`Cells::take_cores_resized`] will tell.
    Asked(Ticket),
}

/// Cores to be had by a cell.
#[derive(Clone, Debug)]
pub struct CoresWanted<'a> {
    /// How many.
    pub change: Change<u32>,
    /// Which come, or leave: any, where there are none.
    pub ids: &'a [CoreId],
    /// How long a core may take to come free, in ms.
    pub limit_ms: u32,
}

/// What is under way of a cell's cores.
#[derive(Debug)]
pub(super) struct Moves {
    under_way: Vec<Move>,
    request: Option<Asked>,
    /// What cores that were taken by force were in the middle of.
    pub(super) set_aside: SetAside,
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

/// What was asked, and how far it is.
#[derive(Debug)]
struct Asked {
    ticket: Ticket,
    before: u32,
    limit_ms: u32,
    moved: Vec<CoreId>,
    stuck: Option<CoreId>,
    since_ns: u64,
}

impl Moves {
    /// Of a cell that has just been built.
    pub(super) fn new() -> Self {
        Self { under_way: Vec::new(), request: None, set_aside: SetAside::default(), has_lost: false }
    }

    /// The cell has ended. Returns the request of whoever waits to be told what came of it.
    pub(super) fn end(&mut self) -> Option<Ticket> {
        self.under_way.clear();
        self.set_aside.clear();
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

    /// When somebody has taken too long, or is to be pressed.
    pub(super) fn deadline_ns(&self) -> Option<u64> {
        self.answer_by_ns().into_iter().chain(self.set_aside.deadline_ns()).min()
    }

    /// When somebody who is waited for has taken too long.
    fn answer_by_ns(&self) -> Option<u64> {
        let awaited = |a_move: &&Move| !matches!(a_move.way, Way::Staying);
        self.under_way.iter().filter(awaited).map(|a_move| a_move.deadline_ns).min()
    }
}

impl<E: Effects> Cells<E> {
    /// Gives a running cell more cores, or takes some.
    ///
    /// # Errors
    /// [`ManagementError::NoSuchCell`]; [`ManagementError::WrongState`] where it does not run;
    /// [`ManagementError::OutOfLimits`] where it cannot have so many; what is said of cores that cannot be had; and
    /// [`ManagementError::MemoryExhausted`] where there is none for their stacks. Nothing has changed then.
    pub fn resize_cores(
        &mut self,
        name: &str,
        wanted: &CoresWanted<'_>,
        mode: Mode,
    ) -> Result<CoresResize, ManagementError> {
        let since_ns = self.effects.now_ns();
        let id = self.find(name)?;
        self.poll(id);
        let cell = self.cells.get(&id).ok_or_else(|| ManagementError::NoSuchCell(super::shorten(name)))?;
        if !matches!(cell.run, Run::Running { .. }) {
            return Err(cell.wrong_state());
        }
        if cell.moves.request.is_some() {
            let what =
                format!("cores of {:?} are being moved already: ask again when they are", cell.spec.name);
            return Err(ManagementError::OutOfLimits(what));
        }
        let (before, most) = (cell.core_count() as u32, self.inventory.cores.count_for_cells() as u64);
        let count = wanted.change.of(before.into()).filter(|count| (1..=most).contains(count));
        let Some(after) = count.map(|count| count as u32) else {
            let what = format!("{:?} has {before} cores, and can have 1 to {most}", cell.spec.name);
            return Err(ManagementError::OutOfLimits(what));
        };
        let (policy, node) = (cell.spec.placement.policy, cell.spec.placement.node);
        let ids = if wanted.ids.is_empty() { cell.spec.placement.ids.clone() } else { wanted.ids.to_vec() };
        let placement = CorePlacement { policy, node, ids };
        let chosen = match before.cmp(&after) {
            core::cmp::Ordering::Equal => Vec::new(),
            core::cmp::Ordering::Less => {
                let wish = CoreWish { count: (after - before) as usize, placement: &placement };
                self.inventory.cores.choose(&wish, id).map_err(|refusal| self.told(refusal))?
            }
            core::cmp::Ordering::Greater => {
                self.choose_to_leave(id, (before - after) as usize, wanted.ids)?
            }
        };
        if mode == Mode::DryRun || chosen.is_empty() {
            let duration_ns = self.effects.now_ns().saturating_sub(since_ns);
            return Ok(CoresResize::Done(CoresResized { before, after, cores: chosen, duration_ns }));
        }
        let deadline_ns = since_ns.saturating_add(u64::from(wanted.limit_ms) * 1_000_000);
        match before < after {
            true => self.let_come(id, &chosen, since_ns, deadline_ns)?,
            false => self.let_leave(id, &chosen, since_ns, deadline_ns),
        }
        let ticket = self.tickets.next();
        if let Some(cell) = self.cells.get_mut(&id) {
            let (limit_ms, moved) = (wanted.limit_ms, Vec::new());
            cell.moves.request = Some(Asked { ticket, before, limit_ms, moved, stuck: None, since_ns });
        }
        self.settle_moves(id);
        Ok(CoresResize::Asked(ticket))
    }

    /// The requests whose cores have been moved since this was last asked, and what came of it.
    pub fn take_cores_resized(&mut self) -> Vec<(Ticket, Result<CoresResized, ManagementError>)> {
        core::mem::take(&mut self.cores_resized)
    }

    /// Which of its cores a cell gives, that can be any but the one at its first place.
    fn choose_to_leave(
        &self,
        id: CellId,
        count: usize,
        ids: &[CoreId],
    ) -> Result<Vec<CoreId>, ManagementError> {
        let Some(cell) = self.cells.get(&id) else { return Ok(Vec::new()) };
        let Some(held) = cell.held() else { return Ok(Vec::new()) };
        let others: Vec<CoreId> = held.cores.iter().skip(1).flatten().map(CoreToken::id).collect();
        if let Some(stranger) = ids.iter().find(|id| !others.contains(id)) {
            let what = format!(
                "core {stranger} cannot leave {:?}: it is its first one, or none of its",
                cell.spec.name
            );
            return Err(ManagementError::OutOfLimits(what));
        }
        if !ids.is_empty() && ids.len() < count {
            let what = format!("{count} cores are to leave, and only {} are named: name more", ids.len());
            return Err(ManagementError::OutOfLimits(what));
        }
        let mut order = ids.to_vec();
        if order.is_empty() {
            let wish = CoreWish { count, placement: &cell.spec.placement };
            let best =
                self.inventory.cores.choose_to_leave(&wish, id).map_err(|refusal| self.told(refusal))?;
            let whole = cell.spec.placement.policy == PlacementPolicy::Siblings;
            if whole && best.iter().any(|core| !others.contains(core)) {
                let what = format!("{:?} keeps its first core, and so that one's siblings", cell.spec.name);
                return Err(ManagementError::OutOfLimits(what));
            }
            order = best.into_iter().filter(|core| others.contains(core)).collect();
            // In the place of the first one, the last of those that came.
            let more: Vec<CoreId> =
                others.iter().rev().filter(|core| !order.contains(core)).copied().collect();
            order.extend(more);
        }
        order.truncate(count);
        Ok(order)
    }

    /// Sends these free cores to a cell.
    fn let_come(
        &mut self,
        id: CellId,
        chosen: &[CoreId],
        since_ns: u64,
        deadline_ns: u64,
    ) -> Result<(), ManagementError> {
        let most = self.inventory.cores.count_for_cells();
        let Some(cell) = self.cells.get_mut(&id) else { return Ok(()) };
        let Body::Held(held) = &mut cell.body else { return Ok(()) };
        let vacant = |effects: &E, held: &Held<E>, after: usize| {
            // A place whose core was lost is not vacant.
            let is_vacant = |place: &usize| {
                let is_empty = held.cores.get(*place).is_none_or(Option::is_none);
                is_empty && effects.last_order(&held.space, *place).kind == OrderKind::Vacant
            };
            (after..MAX_CORES).find(is_vacant)
        };
        let furniture_bytes = cell.growth.furniture_bytes;
        // All places are made ready first, so that nothing has changed where that fails.
        let mut places = Vec::new();
        for core in chosen {
            let after = places.last().map_or(0, |(place, _)| place + 1);
            let Some(place) = vacant(&self.effects, held, after).filter(|place| *place < most) else {
                let what = format!(
                    "{:?} has no place for core {core}: what cores do there that were taken from it by force has to end \
                     first",
                    cell.spec.name
                );
                return Err(ManagementError::OutOfLimits(what));
            };
            places.push((place, *core));
            if self.effects.furnish(&mut held.space, place).is_err() {
                let node = self.inventory.cores.node(*core).unwrap_or(NodeId(0));
                self.images.make_room(CHUNK, None, &mut self.inventory.memory);
                for chunk in self.inventory.memory.take(CHUNK, node).unwrap_or_default() {
                    match self.effects.furnish_from(&mut held.space, chunk) {
                        Ok(()) => {
                            cell.memory_bytes += CHUNK;
                            cell.growth.furniture_bytes += CHUNK;
                        }
                        Err(chunk) => self.inventory.memory.put(alloc::vec![chunk]),
                    }
                }
                if self.effects.furnish(&mut held.space, place).is_err() {
                    let (wanted, free) = (ByteSize(CHUNK), ByteSize(self.inventory.memory.free()));
                    return Err(ManagementError::MemoryExhausted { wanted, free });
                }
            }
        }
        for (place, core) in places {
            let Some(token) = self.inventory.cores.take_this(core, id) else { continue };
            if held.cores.len() <= place {
                held.cores.resize_with(place + 1, || None);
                cell.core_ids.resize(place + 1, core);
            }
            cell.core_ids[place] = core;
            let (token, admission) = self.effects.admit(&mut held.space, token, place);
            if admission == Admission::Refused {
                self.inventory.cores.put(token);
                continue;
            }
            held.cores[place] = Some(token);
            let order = self.effects.last_order(&held.space, place);
            cell.moves.under_way.push(Move { place, core, order, way: Way::Coming, since_ns, deadline_ns });
        }
        // Stacks are memory that the cell has and does not know of: what it may ask for is less by that.
        let limit_bytes = cell.told_limit_bytes();
        if let Body::Held(held) = &cell.body
            && cell.growth.furniture_bytes > furniture_bytes
        {
            self.effects.set_limit(&held.space, limit_bytes);
            self.keep_up(id);
        }
        Ok(())
    }

    /// Asks a cell for these of its cores.
    fn let_leave(&mut self, id: CellId, chosen: &[CoreId], since_ns: u64, deadline_ns: u64) {
        let Some(cell) = self.cells.get_mut(&id) else { return };
        let Body::Held(held) = &mut cell.body else { return };
        for core in chosen {
            let here = |at: &Option<E::Core>| at.as_ref().is_some_and(|at| at.id() == *core);
            let Some(place) = held.cores.iter().position(here) else { continue };
            let order = self.effects.order(&held.space, place, OrderKind::Leave);
            // One that is still coming is not waited for any more.
            cell.moves.under_way.retain(|a_move| a_move.place != place);
            cell.moves.under_way.push(Move {
                place,
                core: *core,
                order,
                way: Way::Leaving,
                since_ns,
                deadline_ns,
            });
        }
    }

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
                    Outcome::Left
                }
                _ if yielded.kind == OrderKind::Yield => Outcome::Yielded,
                Way::Staying if said == a_move.order => Outcome::Stays,
                _ => return true,
            };
            settled.push((a_move.place, a_move.core, a_move.since_ns, outcome));
            false
        });
        for place in cell.moves.set_aside.take_finished(report) {
            self.effects.vacate(&held.space, place);
        }
        for (place, core, since_ns, outcome) in settled {
            match outcome {
                Outcome::Came => self.note_came(id, core, since_ns),
                Outcome::Left => self.take_core(id, place, core, since_ns),
                Outcome::Yielded => self.take_forced(id, place, core, since_ns),
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
        self.press(id, now);
        self.settle_moves(id);
    }

    /// Takes back a core of which a cell says that it carries nothing any more.
    fn take_core(&mut self, id: CellId, place: usize, core: CoreId, since_ns: u64) {
        let Some(cores) = self.free_core(id, place, core, since_ns) else { return };
        if let Some(held) = self.cells.get(&id).and_then(Cell::held) {
            self.effects.vacate(&held.space, place);
        }
        self.note_move(id, JournalEvent::CoreLeft { core, cores }, core, since_ns);
        self.came_free(core);
    }

    /// Takes the core at a place out of a cell. Returns how many are left there, where there was one and it came.
    pub(super) fn free_core(&mut self, id: CellId, place: usize, core: CoreId, since_ns: u64) -> Option<u32> {
        let cell = self.cells.get_mut(&id)?;
        let Body::Held(held) = &mut cell.body else { return None };
        let token = held.cores.get_mut(place)?.take()?;
        let Reclaimed { back, lost } = self.effects.reclaim(alloc::vec![token]);
        if !lost.is_empty() {
            cell.moves.has_lost = true;
            let name = cell.spec.name.clone();
            self.inventory.cores.lose(core);
            self.record(since_ns, Some(&name), JournalEvent::CoreLost(core));
            return None;
        }
        back.into_iter().for_each(|core| self.inventory.cores.put(core));
        Some(cell.core_count() as u32)
    }

    /// Enters in the journal that a core has come.
    fn note_came(&mut self, id: CellId, core: CoreId, since_ns: u64) {
        let Some(cell) = self.cells.get(&id) else { return };
        let cores = cell.core_count() as u32;
        self.note_move(id, JournalEvent::CoreCame { core, cores }, core, since_ns);
    }

    /// Enters in the journal that a core has come or gone.
    pub(super) fn note_move(&mut self, id: CellId, event: JournalEvent, core: CoreId, since_ns: u64) {
        let Some(cell) = self.cells.get_mut(&id) else { return };
        let name = cell.spec.name.clone();
        if let Some(request) = &mut cell.moves.request {
            request.moved.push(core);
        }
        self.record(since_ns, Some(&name), event);
    }

    /// Has the request that moved cores answered, once none is awaited any more.
    fn answer_resize(&mut self, id: CellId) {
        let now = self.effects.now_ns();
        let Some(cell) = self.cells.get_mut(&id).filter(|cell| cell.moves.answer_by_ns().is_none()) else {
            return;
        };
        let Some(Asked { ticket, before, limit_ms, moved, stuck, since_ns }) = cell.moves.request.take()
        else {
            return;
        };
        let after = cell.core_count() as u32;
        let result = match stuck {
            Some(core) => {
                let name = cell.spec.name.clone();
                Err(ManagementError::CoreBusy { name, core, limit_ms, cores: after })
            }
            None => {
                Ok(CoresResized { before, after, cores: moved, duration_ns: now.saturating_sub(since_ns) })
            }
        };
        self.cores_resized.push((ticket, result));
    }
}

/// What became of a core on its way.
#[derive(Clone, Copy, Debug)]
enum Outcome {
    Came,
    Left,
    Yielded,
    Stays,
}
