//! Requests to resize a cell's cores or memory, and the progress of resizes.

use super::cell::End;
use super::cores::{CoreResizing, CoresResize, CoresWanted};
use super::memory::{Resize, ShrinkStep};
use super::pending::{Job, Obstacle};
use super::ticket::{Resized, Ticket};
use super::{Cells, shorten};
use alloc::format;
use alloc::vec::Vec;
use isola_abi::id::{CellId, CoreId};
use isola_abi::management::{
    Change, CorePlacement, CoresResized, JournalEvent, ManagementError, MemoryResized, Mode, PlacementPolicy,
};
use isola_abi::size::ByteSize;
use isola_supervisor_core::Hardware;
use isola_supervisor_core::inventory::CoreRequest;
use isola_supervisor_core::trusted_core::{CoreChange, CoreEvent, OwnedCell};

impl<H: Hardware> Cells<H> {
    /// Plugs cores into a running cell, or unplugs some.
    ///
    /// # Errors
    /// Returns [`ManagementError::NoSuchCell`]; [`ManagementError::WrongState`] if the cell does not run;
    /// [`ManagementError::OutOfLimits`] if it cannot have that number of cores; the errors about unavailable cores; and
    /// [`ManagementError::MemoryExhausted`] if there is no memory for their stacks. The state is unchanged then.
    pub fn resize_cores(
        &mut self,
        name: &str,
        wanted: &CoresWanted<'_>,
        mode: Mode,
    ) -> Result<CoresResize, ManagementError> {
        let since_ns = self.core.now_ns();
        let id = self.find(name)?;
        self.poll(id);
        let cell = self.table.get(id).ok_or_else(|| ManagementError::NoSuchCell(shorten(name)))?;
        if !cell.is_running() {
            return Err(cell.wrong_state());
        }
        if cell.cores.resize.is_some() {
            let what =
                format!("cores of {:?} are being moved already: ask again when they are", cell.spec.name);
            return Err(ManagementError::OutOfLimits(what));
        }
        let before = self.core.cell(id).map_or(0, OwnedCell::core_count) as u32;
        let most = self.core.inventory().cores.slots_of_each_cell() as u64;
        let count = wanted.change.of(before.into()).filter(|count| (1..=most).contains(count));
        let Some(after) = count.map(|count| count as u32) else {
            let what = format!("{:?} can have 1 to {most} cores, and has {before}", cell.spec.name);
            return Err(ManagementError::OutOfLimits(what));
        };
        let (policy, node) = (cell.spec.placement.policy, cell.spec.placement.node);
        let ids = if wanted.ids.is_empty() { cell.spec.placement.ids.clone() } else { wanted.ids.to_vec() };
        let placement = CorePlacement { policy, node, ids };
        let chosen = match before.cmp(&after) {
            core::cmp::Ordering::Equal => Vec::new(),
            core::cmp::Ordering::Less => {
                let request = CoreRequest { count: (after - before) as usize, placement: &placement };
                let cores = &self.core.inventory().cores;
                cores.choose(&request, id).map_err(|refusal| self.core_error(refusal))?
            }
            core::cmp::Ordering::Greater => {
                self.choose_to_leave(id, (before - after) as usize, wanted.ids)?
            }
        };
        if mode == Mode::DryRun || chosen.is_empty() {
            let duration_ns = self.core.now_ns().saturating_sub(since_ns);
            return Ok(CoresResize::Done(CoresResized { before, after, cores: chosen, duration_ns }));
        }
        let deadline_ns = since_ns.saturating_add(u64::from(wanted.limit_ms) * 1_000_000);
        let gone = || ManagementError::NoSuchCell(shorten(name));
        let (cell, mut parts) = self.parts(id).ok_or_else(gone)?;
        match before < after {
            true => cell.plug_cores(&mut parts, &chosen, (since_ns, deadline_ns))?,
            // Cannot fail, as the cores were chosen among those that may leave.
            false => chosen.iter().for_each(|core| {
                let _ = parts.core.unplug_core(id, *core, (since_ns, deadline_ns));
            }),
        }
        let (ticket, limit_ms, moved) = (parts.answers.tickets.next(), wanted.limit_ms, Vec::new());
        cell.cores.resize = Some(CoreResizing { ticket, before, limit_ms, moved, stuck: None, since_ns });
        self.settle_cores(id);
        Ok(CoresResize::Pending(ticket))
    }

    /// Returns the requests for cores that were completed since the last call, with their results.
    pub fn take_cores_resized(&mut self) -> Vec<(Ticket, Result<CoresResized, ManagementError>)> {
        core::mem::take(&mut self.answers.cores_resized)
    }

    /// Chooses the cores that leave a cell. The core at the first slot never does.
    fn choose_to_leave(
        &self,
        id: CellId,
        count: usize,
        ids: &[CoreId],
    ) -> Result<Vec<CoreId>, ManagementError> {
        let (Some(cell), Some(owned)) = (self.table.get(id), self.core.cell(id)) else {
            return Ok(Vec::new());
        };
        let others: Vec<CoreId> = owned.movable_cores().collect();
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
            let best = self.core.inventory().cores.choose_to_leave(&request, id);
            let best = best.map_err(|refusal| self.core_error(refusal))?;
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

    /// Acts on the cell's acknowledgements of core moves, and answers the request for them once it is complete.
    pub(super) fn settle_cores(&mut self, id: CellId) {
        while let Some(event) = self.core.next_core_event(id) {
            self.note_core_event(id, event);
        }
        self.answer_resize(id);
    }

    /// Acts on the deadlines of core moves that have passed.
    pub(super) fn expire_cores(&mut self, id: CellId, now: u64) {
        let stuck = self.core.expire_core_moves(id, now);
        if let Some(request) = self.table.get_mut(id).and_then(|cell| cell.cores.resize.as_mut()) {
            request.stuck = stuck.or(request.stuck);
        }
        self.settle_cores(id);
    }

    /// Enters a change of a cell's cores in the journal and in the request.
    fn note_core_event(&mut self, id: CellId, CoreEvent { core, change, since_ns, cores }: CoreEvent) {
        let event = match change {
            CoreChange::Arrived => JournalEvent::CoreCame { core, cores },
            CoreChange::Left => JournalEvent::CoreLeft { core, cores },
            CoreChange::Taken => JournalEvent::CoreTaken { core, cores },
            CoreChange::Lost => JournalEvent::CoreLost(core),
        };
        if change != CoreChange::Lost
            && let Some(request) = self.table.get_mut(id).and_then(|cell| cell.cores.resize.as_mut())
        {
            request.moved.push(core);
        }
        self.record_about(id, since_ns, event);
        if matches!(change, CoreChange::Left | CoreChange::Taken) {
            self.end_loan_of_free_core(core);
        }
    }

    /// Answers the request in progress once no move is awaited.
    fn answer_resize(&mut self, id: CellId) {
        let now = self.core.now_ns();
        let (Some(cell), Some(owned)) = (self.table.get_mut(id), self.core.cell(id)) else { return };
        let Some(request) = cell.cores.resize.take_if(|_| owned.has_moved()) else { return };
        let CoreResizing { ticket, before, limit_ms, moved, stuck, since_ns } = request;
        let after = owned.core_count() as u32;
        let result = match stuck {
            Some(core) => {
                let name = cell.spec.name.clone();
                Err(ManagementError::CoreBusy { name, core, limit_ms, cores: after })
            }
            None => {
                Ok(CoresResized { before, after, cores: moved, duration_ns: now.saturating_sub(since_ns) })
            }
        };
        self.answers.cores_resized.push((ticket, result));
    }

    /// Plugs memory into a running cell, begins to unplug some, or reports whether that is possible.
    ///
    /// # Errors
    /// Returns [`ManagementError::NoSuchCell`]; [`ManagementError::WrongState`] if the cell does not run;
    /// [`ManagementError::BeingResized`]; [`ManagementError::CoreAtLarge`]; and the errors about limits and exhausted
    /// resources. The state is unchanged then.
    pub fn resize_memory(
        &mut self,
        name: &str,
        memory: Change<ByteSize>,
        mode: Mode,
    ) -> Result<Resize, ManagementError> {
        let began = self.core.now_ns();
        let id = self.find(name)?;
        self.poll(id);
        let is_pending = self.pending.is_about(id);
        let gone = || ManagementError::NoSuchCell(shorten(name));
        let (cell, mut parts) = self.parts(id).ok_or_else(gone)?;
        let (had, wanted) = cell.check_resize(&parts, memory, is_pending)?;
        match mode {
            Mode::DryRun => {
                let took_ns = parts.core.now_ns().saturating_sub(began);
                let has = ByteSize(wanted);
                let resized = cell.resized(had, (had, wanted), took_ns);
                Ok(Resize::Done(MemoryResized { has, ..resized }))
            }
            Mode::Apply if wanted > had => match cell.give(&mut parts, wanted, began) {
                Ok(resized) => Ok(Resize::Done(resized)),
                Err(Obstacle::Refused(error)) => Err(error),
                Err(Obstacle::Needs(need)) => {
                    Ok(Resize::Pending(self.put_off(Job::Give(id, wanted), began, need)))
                }
            },
            Mode::Apply if wanted < had => Ok(Resize::Pending(cell.begin_shrink(&mut parts, wanted, began))),
            Mode::Apply => Ok(Resize::Done(cell.resized(had, (had, wanted), 0))),
        }
    }

    /// Returns the delayed answers to requests for memory since the last call.
    pub fn take_resized(&mut self) -> Vec<Resized> {
        core::mem::take(&mut self.answers.resized)
    }

    /// Advances an unplug of memory in progress as far as the cell has answered. Ends the cell if one of its cores does
    /// not acknowledge the TLB shootdown.
    pub(super) fn shrink(&mut self, id: CellId) {
        let now = self.core.now_ns();
        let Some((cell, mut parts)) = self.parts(id) else { return };
        match cell.shrink(&mut parts, now) {
            ShrinkStep::Done => {}
            ShrinkStep::Reclaimed { len_bytes, is_complete } => {
                self.memory_reclaimed(id, len_bytes, is_complete);
            }
            ShrinkStep::CoreIsStuck => self.finish(id, End::Crashed, now),
        }
    }

    /// Handles a running cell's memory request, if there is a new one. Borrows memory for it, if none is free.
    pub(super) fn grow(&mut self, id: CellId) {
        let Some((cell, mut parts)) = self.parts(id) else { return };
        let Some(block) = cell.grow(&mut parts) else { return };
        let (now, is_borrowing) = (self.core.now_ns(), self.borrow_for_growth(id, block));
        let Some((cell, mut parts)) = self.parts(id) else { return };
        if is_borrowing { cell.await_loan(now) } else { cell.refuse_exhausted(&mut parts) }
    }

    /// Checks the open memory requests of cells again, as there is more zero memory.
    pub(super) fn grow_waiting(&mut self) {
        let waiting = self.table.iter().filter(|cell| cell.growth.is_open());
        let waiting: Vec<CellId> = waiting.map(|cell| cell.id).collect();
        waiting.into_iter().for_each(|id| self.grow(id));
    }
}
