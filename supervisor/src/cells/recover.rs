//! Recovery: a restarted supervisor takes over the cells of the failed one.
//!
//! The owner of each resource is decided earlier ([`RecoveredState`]): each core, chunk and device is in the inventory
//! or belongs to one recovered cell. This module rebuilds the cells' records. A cell whose saved state is invalid is
//! dismantled, so no resource is left with an unidentified owner.

use super::cell::{Body, Cell, Held, Run};
use super::force::{SetAside, to_yield};
use super::grow::Growth;
use super::keep::SavedState;
use super::lend::Debt;
use super::moves::{Moves, Ordered};
use super::restart::Restarting;
use super::watch::Watch;
use super::{Boot, Cells, InventoryOf, Quarantined};
use crate::effects::{Effects, Reclaimed, RecoveredCell, RecoveredState};
use crate::images::Images;
use crate::inventory::CoreToken;
use crate::journal::Journal;
use crate::logs::Log;
use crate::report;
use alloc::vec::Vec;
use isola_abi::core_slots::OrderKind;
use isola_abi::id::{CoreId, MAX_CORES};
use isola_abi::management::{JournalEvent, MAX_CELLS};
use isola_abi::stage::Stage;

/// Journal entries and cell ids continue at this number, times the number of restarts. The last number given out is not
/// known after a restart; this avoids reuse.
const NUMBERS: u32 = 1 << 16;

impl<E: Effects> Cells<E> {
    /// Returns the cells that a failed supervisor left. `inventory` has the resources without an owner among them.
    pub fn recover(effects: E, inventory: InventoryOf<E>, boot: Boot, recovered: RecoveredState<E>) -> Self {
        let RecoveredState { cause, number, ended_ns, recovered_cells, mut gone, withheld_bytes, .. } =
            recovered;
        let RecoveredState { checkpoint, journal, images, texts, .. } = recovered;
        let journal = Journal::resume(u64::from(number) * u64::from(NUMBERS), &journal);
        let mut cells = Self::with_journal(effects, inventory, boot, journal);
        cells.next_id = number.saturating_mul(NUMBERS).max(1);
        cells.withheld_bytes = withheld_bytes;
        let mut found = 0;
        let mut debts = Vec::new();
        for recovered_cell in recovered_cells {
            match recovered_cell.stage {
                Stage::Quarantined => cells.shut_away(recovered_cell),
                _ => match cells.take_over(recovered_cell) {
                    Ok(owed) => {
                        found += 1;
                        debts.extend(owed);
                    }
                    Err(recovered_cell) => {
                        gone += 1;
                        debts.extend(
                            SavedState::decode(&recovered_cell.saved_state)
                                .into_iter()
                                .flat_map(SavedState::into_debts),
                        );
                        cells.give_up(recovered_cell);
                    }
                },
            }
        }
        cells.images = Images::resume(images, texts);
        cells.take_over_records(checkpoint);
        cells.count_images();
        cells.resume_lending(debts);
        cells.record(ended_ns, None, JournalEvent::Restart { cause, number, found, gone });
        cells
    }

    /// Takes a cell over, if its saved state is valid and it has all its cores. Returns the cores that it owes and is
    /// owed.
    fn take_over(&mut self, recovered_cell: RecoveredCell<E>) -> Result<Vec<Debt>, RecoveredCell<E>> {
        let Some(saved_state) = SavedState::decode(&recovered_cell.saved_state) else {
            return Err(recovered_cell);
        };
        let SavedState {
            id,
            spec,
            image_bytes,
            text_bytes,
            created_unix_ns,
            started_unix_ns,
            started_ns,
            ..
        } = saved_state;
        let SavedState { durations, limit, stack_bytes, restarts, loans, .. } = saved_state;
        let is_new = !self.cells.contains_key(&id) && self.find(&spec.name).is_err();
        let is_whole =
            recovered_cell.lost.is_empty() && recovered_cell.cores.first().is_some_and(Option::is_some);
        if !is_new || !is_whole || spec.validate().is_err() || self.cells.len() >= MAX_CELLS {
            return Err(recovered_cell);
        }
        let RecoveredCell {
            stage, space, mut cores, mut core_ids, device, memory, answered, settled, ..
        } = recovered_cell;
        for core in cores.iter().flatten() {
            self.inventory.cores.assign(core.id(), id);
        }
        let used = cores.iter().rposition(Option::is_some).map_or(0, |place| place + 1).max(core_ids.len());
        cores.resize_with(used, || None);
        core_ids.resize(used, CoreId(0));
        let now = self.effects.now_ns();
        let moves = match stage {
            Stage::Built => Moves::new(),
            _ => self.moves_of(&space, &cores, now),
        };
        // A first core is never lent.
        let others: Vec<CoreId> = cores.iter().skip(1).flatten().map(CoreToken::id).collect();
        let debts = self.loans.resume(id, loans, &others, now);
        let places = self.inventory.cores.count_for_cells();
        let core_requests = report::core_requests(self.effects.report(&space));
        let log = Log::resume(&self.effects.report(&space).console);
        let run = match stage {
            Stage::Built => Run::Created,
            _ => Run::Running { watch: Watch::new(spec.watchdog_ms, places, now) },
        };
        let cell = Cell {
            id,
            body: Body::Held(Held { space, cores, device }),
            core_ids,
            moves,
            core_requests,
            memory_bytes: memory.iter().map(|range| range.len_bytes).sum(),
            growth: Growth::resume(answered, settled, limit, stack_bytes),
            shrink: None,
            restarting: Restarting::resume(restarts, None),
            image_bytes,
            text_bytes,
            run,
            log,
            exit_code: None,
            crash: None,
            created_unix_ns,
            started_unix_ns,
            started_ns,
            durations,
            spec,
        };
        self.next_id = self.next_id.max(id.0.saturating_add(1));
        self.cells.insert(id, cell);
        Ok(debts)
    }

    /// Returns the moves in progress and the suspended contexts of a recovered cell.
    fn moves_of(&mut self, space: &E::Space, cores: &[Option<E::Core>], now: u64) -> Moves {
        let report = self.effects.report(space);
        let here = cores.iter().enumerate().filter_map(|(place, core)| Some((place, core.as_ref()?.id())));
        let orders = here.map(|(place, core)| {
            let (order, said) = (self.effects.last_order(space, place), report::carried_out(report, place));
            Ordered { place, core, order, said }
        });
        let empty = (0..MAX_CORES).filter(|place| cores.get(*place).is_none_or(Option::is_none));
        let is_unfinished = |place: &usize| self.effects.last_order(space, *place).kind != OrderKind::Vacant;
        let unfinished: Vec<usize> = empty.filter(is_unfinished).collect();
        let orders: Vec<Ordered> = orders.collect();
        let suspended =
            unfinished.into_iter().map(|place| (place, to_yield(&mut self.effects, space, place)));
        let suspended = SetAside::resume(suspended, now);
        Moves::resume(orders.into_iter(), suspended, now)
    }

    /// Dismantles a cell that cannot be recovered.
    fn give_up(&mut self, recovered_cell: RecoveredCell<E>) {
        let RecoveredCell { space, cores, lost, device, memory, .. } = recovered_cell;
        let Reclaimed { back, lost: more } = self.effects.reclaim(cores.into_iter().flatten().collect());
        let mut held = Held { space, cores: back.into_iter().map(Some).collect(), device };
        let is_safe = self.reset(&mut held) && lost.is_empty() && more.is_empty();
        self.take_back(None, held, memory.iter().map(|range| range.len_bytes).sum(), is_safe);
        lost.into_iter().chain(more).for_each(|core| self.inventory.cores.lose(core));
    }

    /// Keeps the memory and the device of a cell in quarantine.
    fn shut_away(&mut self, recovered_cell: RecoveredCell<E>) {
        let RecoveredCell { space, device, memory, .. } = recovered_cell;
        let memory_bytes = memory.iter().map(|range| range.len_bytes).sum();
        self.quarantine.push(Quarantined { memory_bytes, _parts: (space, device) });
    }
}
