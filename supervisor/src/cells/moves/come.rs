//! Plug of cores: stacks for core slots, and cores sent there.

use super::super::Cells;
use super::super::cell::{Body, Held};
use super::{Move, Way};
use crate::effects::{Admission, Effects};
use crate::inventory::CHUNK;
use alloc::format;
use alloc::vec::Vec;
use isola_abi::core_slots::OrderKind;
use isola_abi::id::{CellId, CoreId, MAX_CORES, NodeId};
use isola_abi::management::ManagementError;
use isola_abi::size::ByteSize;

impl<E: Effects> Cells<E> {
    /// Sends free cores to a cell.
    pub(super) fn let_come(
        &mut self,
        id: CellId,
        chosen: &[CoreId],
        since_ns: u64,
        deadline_ns: u64,
    ) -> Result<(), ManagementError> {
        let most = self.inventory.cores.count_for_cells();
        let Some(cell) = self.cells.get(&id) else { return Ok(()) };
        let Body::Held(held) = &cell.body else { return Ok(()) };
        let vacant = |effects: &E, held: &Held<E>, after: usize| {
            // A slot whose core was lost is not vacant.
            let is_vacant = |place: &usize| {
                let is_empty = held.cores.get(*place).is_none_or(Option::is_none);
                is_empty && effects.last_order(&held.space, *place).kind == OrderKind::Vacant
            };
            (after..MAX_CORES).find(is_vacant)
        };
        // The stacks of all slots are allocated first, so that nothing has changed if that fails.
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
        }
        for (place, core) in &places {
            self.allocate_stacks(id, *place, *core)?;
        }
        let Some(cell) = self.cells.get_mut(&id) else { return Ok(()) };
        let Body::Held(held) = &mut cell.body else { return Ok(()) };
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
        Ok(())
    }

    /// Allocates stacks for a core slot. If this takes another chunk, the chunk belongs to the cell from then on.
    fn allocate_stacks(&mut self, id: CellId, place: usize, core: CoreId) -> Result<(), ManagementError> {
        let Some(cell) = self.cells.get_mut(&id) else { return Ok(()) };
        let Body::Held(held) = &mut cell.body else { return Ok(()) };
        if self.effects.allocate_stacks(&mut held.space, place).is_ok() {
            return Ok(());
        }
        let node = self.inventory.cores.node(core).unwrap_or(NodeId(0));
        self.images.make_room(CHUNK, None, &mut self.inventory.memory);
        // There is always a zero chunk, unless growing cells have just used all of them; then one is scrubbed here.
        let memory = &mut self.inventory.memory;
        while memory.dirty() > 0 && memory.dirty() == memory.free() {
            memory.scrub(CHUNK, Some(node));
        }
        for chunk in memory.take(CHUNK, node).unwrap_or_default() {
            match self.effects.allocate_stacks_from(&mut held.space, chunk) {
                Ok(()) => {
                    cell.memory_bytes += CHUNK;
                    cell.growth.stack_bytes += CHUNK;
                }
                Err(chunk) => self.inventory.memory.put(alloc::vec![chunk]),
            }
        }
        let is_ready = self.effects.allocate_stacks(&mut held.space, place).is_ok();
        // The cell does not know of its stack memory, so the limit of its requests is reduced by it.
        let limit_bytes = cell.told_limit_bytes();
        if let Body::Held(held) = &cell.body {
            self.effects.set_limit(&held.space, limit_bytes);
        }
        self.keep_up(id);
        let (wanted, free) = (ByteSize(CHUNK), ByteSize(self.inventory.memory.free()));
        if is_ready { Ok(()) } else { Err(ManagementError::MemoryExhausted { wanted, free }) }
    }
}
