//! Unplug of cores: the choice of cores, the order to leave, and the reclaim.

use super::super::Cells;
use super::super::cell::{Body, Cell};
use super::{Gone, Move, Way};
use crate::effects::{Effects, Reclaimed};
use crate::inventory::{CoreRequest, CoreToken};
use alloc::format;
use alloc::vec::Vec;
use isola_abi::core_slots::OrderKind;
use isola_abi::id::{CellId, CoreId};
use isola_abi::management::{JournalEvent, ManagementError, PlacementPolicy};

impl<E: Effects> Cells<E> {
    /// Chooses the cores that leave a cell. The core at the first slot never does.
    pub(super) fn choose_to_leave(
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
            let request = CoreRequest { count, placement: &cell.spec.placement };
            let best =
                self.inventory.cores.choose_to_leave(&request, id).map_err(|refusal| self.told(refusal))?;
            let whole = cell.spec.placement.policy == PlacementPolicy::Siblings;
            if whole && best.iter().any(|core| !others.contains(core)) {
                let what = format!("{:?} keeps its first core, and so that one's siblings", cell.spec.name);
                return Err(ManagementError::OutOfLimits(what));
            }
            order = best.into_iter().filter(|core| others.contains(core)).collect();
            // If the best choice contains the first core, the last plugged core replaces it.
            let more: Vec<CoreId> =
                others.iter().rev().filter(|core| !order.contains(core)).copied().collect();
            order.extend(more);
        }
        order.truncate(count);
        Ok(order)
    }

    /// Orders cores of a cell to leave.
    pub(super) fn let_leave(&mut self, id: CellId, chosen: &[CoreId], since_ns: u64, deadline_ns: u64) {
        let Some(cell) = self.cells.get_mut(&id) else { return };
        let Body::Held(held) = &mut cell.body else { return };
        for core in chosen {
            let here = |at: &Option<E::Core>| at.as_ref().is_some_and(|at| at.id() == *core);
            let Some(place) = held.cores.iter().position(here) else { continue };
            let order = self.effects.order(&held.space, place, OrderKind::Leave);
            // A move of the core into the cell is not awaited any more.
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

    /// Reclaims a core that has left or yielded.
    pub(super) fn take_core(&mut self, id: CellId, place: usize, core: CoreId, gone: Gone, since_ns: u64) {
        let Some(cores) = self.free_core(id, place, core, since_ns) else { return };
        let event = match gone {
            Gone::Left => {
                if let Some(held) = self.cells.get(&id).and_then(Cell::held) {
                    self.effects.vacate(&held.space, place);
                }
                JournalEvent::CoreLeft { core, cores }
            }
            Gone::Yielded => {
                self.suspended(id, place);
                JournalEvent::CoreTaken { core, cores }
            }
        };
        self.note_move(id, event, core, since_ns);
        self.came_free(core);
    }

    /// Reclaims the core at a core slot. Returns the number of the cell's other cores; `None` if there was no core, or
    /// it is lost.
    fn free_core(&mut self, id: CellId, place: usize, core: CoreId, since_ns: u64) -> Option<u32> {
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
}
