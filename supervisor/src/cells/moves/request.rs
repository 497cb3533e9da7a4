//! Requests for more or fewer cores: validation, start, and answer.

use super::super::cell::Run;
use super::super::ticket::Ticket;
use super::super::{Cells, shorten};
use crate::effects::Effects;
use crate::inventory::CoreRequest;
use alloc::format;
use alloc::vec::Vec;
use isola_abi::id::{CellId, CoreId};
use isola_abi::management::{Change, CorePlacement, CoresResized, ManagementError, Mode};

/// The result of a request for more or fewer cores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CoresResize {
    /// The cores were moved, or would be.
    Done(CoresResized),
    /// The moves are in progress; [`Cells::take_cores_resized`] will have the result.
    Asked(Ticket),
}

/// A wanted change of a cell's cores.
#[derive(Clone, Debug)]
pub struct CoresWanted<'a> {
    /// The change of their number.
    pub change: Change<u32>,
    /// The cores that may be plugged or unplugged; empty: any.
    pub ids: &'a [CoreId],
    /// How long a core may take to leave, in ms.
    pub limit_ms: u32,
}

/// A request in progress.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) ticket: Ticket,
    pub(super) before: u32,
    pub(super) limit_ms: u32,
    pub(super) moved: Vec<CoreId>,
    pub(super) stuck: Option<CoreId>,
    pub(super) since_ns: u64,
}

impl<E: Effects> Cells<E> {
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
        let since_ns = self.effects.now_ns();
        let id = self.find(name)?;
        self.poll(id);
        let cell = self.cells.get(&id).ok_or_else(|| ManagementError::NoSuchCell(shorten(name)))?;
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
                let request = CoreRequest { count: (after - before) as usize, placement: &placement };
                self.inventory.cores.choose(&request, id).map_err(|refusal| self.told(refusal))?
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

    /// Returns the requests that were completed since the last call, with their results.
    pub fn take_cores_resized(&mut self) -> Vec<(Ticket, Result<CoresResized, ManagementError>)> {
        core::mem::take(&mut self.cores_resized)
    }

    /// Answers the request in progress once no move is awaited.
    pub(super) fn answer_resize(&mut self, id: CellId) {
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
