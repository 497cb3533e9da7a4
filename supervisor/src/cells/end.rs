//! The ends of cells: by themselves, by request, or by force.

use super::cell::{Body, Cell, End, Held, Run};
use super::info::Usage;
use super::lend::Afterwards;
use super::memory::Shrink;
use super::watch::Watch;
use super::{Cells, Quarantined};
use crate::effects::{Effects, Reclaimed};
use crate::report;
use alloc::boxed::Box;
use alloc::vec::Vec;
use isola_abi::id::CellId;
use isola_abi::management::{Crash, JournalEvent, ManagementError};
use isola_abi::report::{CellPhase, CorePhase, CrashKind};
use isola_abi::stage::Stage;

/// How long a cell that received an NMI may take to record the interrupted instruction, in ns.
const EXAMINATION_NS: u64 = 100_000_000;

/// The result of a stop request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The cell has stopped.
    Stopped(CellId),
    /// The cell was asked to stop; [`Cells::take_ended`] will return it.
    Asked(CellId),
}

impl<E: Effects> Cells<E> {
    /// Asks a cell to stop within `timeout_ms`, after which it is stopped by force; 0 stops it by force at once. If it
    /// was asked before, the earlier deadline applies. The cell's restart policy no longer applies until its next
    /// creation by request.
    ///
    /// # Errors
    /// Returns [`ManagementError::NoSuchCell`], or [`ManagementError::WrongState`] if the cell does not run.
    pub fn stop(&mut self, name: &str, timeout_ms: u32) -> Result<Stop, ManagementError> {
        let id = self.find(name)?;
        if self.stop_restarting(id) {
            return Ok(Stop::Stopped(id));
        }
        let was_live = self.cells.get(&id).is_some_and(Cell::is_live);
        self.poll(id);
        let now = self.effects.now_ns();
        let Some(cell) = self.cells.get_mut(&id).filter(|cell| !was_live || cell.is_live()) else {
            // The cell has just ended by itself.
            return Ok(Stop::Stopped(id));
        };
        let until = now.saturating_add(u64::from(timeout_ms) * 1_000_000);
        match &mut cell.run {
            Run::Created | Run::Ended(_) => return Err(cell.wrong_state()),
            Run::Running { .. } => {
                if let Body::Held(Held { space, .. }) = &cell.body {
                    self.effects.request_stop(space);
                }
                cell.run = Run::Stopping { since_ns: now, deadline_ns: until };
            }
            Run::Stopping { deadline_ns, .. } => *deadline_ns = until.min(*deadline_ns),
            Run::Examined { .. } => {}
        }
        if timeout_ms == 0 {
            self.finish(id, End::Killed, now);
            return Ok(Stop::Stopped(id));
        }
        Ok(Stop::Asked(id))
    }

    /// Handles a notification: checks all running cells, as the sender is not known.
    pub fn doorbell(&mut self) {
        let live: Vec<CellId> =
            self.cells.values().filter(|cell| cell.is_live()).map(|cell| cell.id).collect();
        live.iter().for_each(|id| self.poll(*id));
        self.settle_loans();
        live.into_iter().for_each(|id| self.grant_core(id));
    }

    /// Acts on the deadlines that have passed.
    pub fn tick(&mut self) {
        let now = self.effects.now_ns();
        let due = |cell: &&Cell<E>| self.deadline_of(cell).is_some_and(|deadline| deadline <= now);
        let due: Vec<CellId> = self.cells.values().filter(due).map(|cell| cell.id).collect();
        for id in due {
            self.poll(id);
            self.expire(id, now);
        }
        self.end_leases(now);
        self.settle_loans();
    }

    /// Returns when [`Self::tick`] is due; `None` if there is no deadline.
    pub fn next_deadline_ns(&self) -> Option<u64> {
        let of_cells = self.cells.values().filter_map(|cell| self.deadline_of(cell));
        of_cells.chain(self.loans.deadline_ns()).min()
    }

    /// Returns the cell's next deadline. A restart that waits for memory or its image has none.
    fn deadline_of(&self, cell: &Cell<E>) -> Option<u64> {
        let waits = matches!(cell.run, Run::Ended(_)) && self.is_pending(cell.id);
        cell.deadline_ns().filter(|_| !waits)
    }

    /// Reads a running cell's report and acts on it.
    pub(super) fn poll(&mut self, id: CellId) {
        let now = self.effects.now_ns();
        let Some(cell) = self.cells.get_mut(&id).filter(|cell| cell.is_live()) else { return };
        cell.drain_console(&self.effects);
        let phase = cell.report(&self.effects).map_or(CellPhase::Silent, report::phase);
        if phase != CellPhase::Silent && cell.durations.first_sign_ns.is_none() {
            cell.durations.first_sign_ns = Some(now.saturating_sub(cell.started_ns));
            self.keep(id, Stage::Entered);
        }
        let Some(cell) = self.cells.get(&id) else { return };
        match (phase, &cell.run) {
            (CellPhase::Exited, _) => self.finish(id, End::Exited, now),
            (CellPhase::Crashed, &Run::Examined { since_ns, end, .. }) => self.finish(id, end, since_ns),
            (CellPhase::Crashed, _) => self.finish(id, End::Crashed, now),
            (CellPhase::Silent | CellPhase::Running, _) => {
                // A core that has yielded is reclaimed first, as it does nothing else any more.
                self.settle_moves(id);
                self.shrink(id);
                self.grow(id);
            }
        }
    }

    /// Acts on a deadline of a cell that has passed.
    fn expire(&mut self, id: CellId, now: u64) {
        self.expire_moves(id, now);
        let Some(cell) = self.cells.get_mut(&id) else { return };
        match &mut cell.run {
            Run::Ended(_) if cell.restarting.next_ns().is_some_and(|next| next <= now) => self.restart(id),
            Run::Created | Run::Ended(_) => {}
            Run::Running { watch: Some(watch) } if watch.next_ns() <= now => {
                if cell.growth.is_open() {
                    // The cell waits for memory, and cannot make progress.
                    watch.forgive(now);
                }
                let Body::Held(held) = &cell.body else { return };
                if let Some(suspect) =
                    watch.look(self.effects.report(&held.space), now, cell.moves.suspended.slowdown())
                {
                    let since_ns = now;
                    self.examine(id, suspect, End::Crashed, since_ns, now);
                }
            }
            Run::Running { .. } => {}
            Run::Stopping { since_ns, deadline_ns } if *deadline_ns <= now => {
                let since_ns = *since_ns;
                let running = cell.report(&self.effects).and_then(|report| {
                    (0..cell.core_ids.len())
                        .find(|&index| report::sign(report, index).0 == CorePhase::Running)
                });
                self.examine(id, running.unwrap_or(0), End::Killed, since_ns, now);
            }
            Run::Examined { since_ns, deadline_ns, end, .. } if *deadline_ns <= now => {
                let (since_ns, end) = (*since_ns, *end);
                self.finish(id, end, since_ns);
            }
            Run::Stopping { .. } | Run::Examined { .. } => {}
        }
    }

    /// Sends an NMI to a cell that does not respond, so that it records the interrupted instruction.
    fn examine(&mut self, id: CellId, suspect: usize, end: End, since_ns: u64, now: u64) {
        let Some(cell) = self.cells.get_mut(&id) else { return };
        if let Some(held) = cell.held() {
            // The core at another slot may run the vcore that makes no progress.
            let place = report::carrier(self.effects.report(&held.space), suspect);
            // That slot may be without a core, if its context is suspended; then another core is interrupted.
            self.effects.examine(&held.space, &held.cores, place);
        }
        let deadline_ns = now.saturating_add(EXAMINATION_NS);
        cell.run = Run::Examined { since_ns, deadline_ns, suspect, end };
    }

    /// Ends a running cell: reclaims its cores, resets its device, reads its report a last time, and returns its
    /// resources to the inventory. The checkpoint with a due restart is saved before the ownership record says
    /// *ending*, because a restarted supervisor dismantles a cell in that stage and keeps no record of it.
    pub(super) fn finish(&mut self, id: CellId, end: End, since_ns: u64) {
        let Some(event) = self.take_note_of_end(id, end) else { return };
        let restart = self.decide_restart(id);
        self.save_checkpoint();
        self.keep(id, Stage::Ending);
        let Some(cell) = self.cells.get_mut(&id) else { return };
        let Body::Held(held) = &mut cell.body else { return };
        let cores = core::mem::take(&mut held.cores).into_iter().flatten().collect();
        let Reclaimed { back, lost } = self.effects.reclaim(cores);
        held.cores = back.into_iter().map(Some).collect();
        let device_is_back = held.device.as_mut().is_none_or(|device| self.effects.reset(device));
        cell.drain_console(&self.effects);
        cell.log.shrink();
        let Some(held) = cell.held() else { return };
        let (report, ledger) = (self.effects.report(&held.space), self.effects.ledger(&held.space));
        let mut usage = Usage::read(report, ledger, &cell.core_ids);
        usage.keep_one_page();
        let usage = Box::new(usage);
        let (unanswered, has_lost) = (cell.moves.end(), cell.moves.has_lost());
        let (name, memory_bytes) = (cell.spec.name.clone(), cell.memory_bytes);
        if let Body::Held(held) = core::mem::replace(&mut cell.body, Body::Gone(usage)) {
            self.take_back(Some(id), held, memory_bytes, device_is_back && lost.is_empty() && !has_lost);
        }
        for core in lost {
            self.inventory.cores.lose(core);
            self.record(since_ns, Some(&name), JournalEvent::CoreLost(core));
        }
        if !device_is_back {
            self.record(since_ns, Some(&name), JournalEvent::DeviceLost);
        }
        let took = self.effects.now_ns().saturating_sub(since_ns);
        if let Some(cell) = self.cells.get_mut(&id) {
            cell.durations.reclaim_ns = Some(took);
        }
        self.record(since_ns, Some(&name), event);
        let then = match &restart {
            Some(JournalEvent::RestartDue { .. }) => Afterwards::Restart,
            _ => Afterwards::Nothing,
        };
        if let Some(event) = restart {
            let now = self.effects.now_ns();
            self.record(now, Some(&name), event);
        }
        self.cancel_of(id);
        self.count_images();
        self.forget_shrink(id);
        self.ended.push(id);
        self.lending_ended(id, then);
        if let Some(ticket) = unanswered {
            self.cores_resized.push((ticket, Err(ManagementError::NoSuchCell(name))));
        }
    }

    /// Records how a running cell ends, with its exit code or crash. Returns the journal event.
    fn take_note_of_end(&mut self, id: CellId, end: End) -> Option<JournalEvent> {
        let cell = self.cells.get_mut(&id)?;
        let report = cell.report(&self.effects)?;
        let record = report::crash(report, &cell.core_ids);
        let code = report::exit_code(report);
        let suspect = match cell.run {
            Run::Examined { suspect, .. } => Some(suspect),
            _ => None,
        };
        let event = match end {
            End::Exited => {
                cell.exit_code = Some(code);
                JournalEvent::Exit(code)
            }
            End::Crashed => {
                let crash = record.unwrap_or_else(|| unexplained(cell, suspect));
                let kind = crash.kind;
                cell.crash = Some(crash);
                JournalEvent::Crash(kind)
            }
            End::Killed => {
                // The interrupted instruction is of interest, if the cell received an NMI.
                cell.crash = suspect.map(|_| record.unwrap_or_else(|| unexplained(cell, suspect)));
                JournalEvent::Kill
            }
        };
        cell.run = Run::Ended(end);
        Some(event)
    }

    /// Resets a cell's device. Returns whether that succeeded, or there is no device.
    pub(super) fn reset(&mut self, held: &mut Held<E>) -> bool {
        held.device.as_mut().is_none_or(|device| self.effects.reset(device))
    }

    /// Returns the resources of a cell to the inventory: the cores that came back and, if `memory_is_safe`, memory and
    /// device. Otherwise a core or the device could still write to the memory, so memory and device go to quarantine.
    /// `id` is `None` for a cell that could not be recovered.
    pub(super) fn take_back(
        &mut self,
        id: Option<CellId>,
        held: Held<E>,
        memory_bytes: u64,
        memory_is_safe: bool,
    ) {
        let Held { mut space, cores, device } = held;
        cores.into_iter().flatten().for_each(|core| self.inventory.cores.put(core));
        if memory_is_safe {
            device.into_iter().for_each(|device| self.inventory.devices.put(device, id));
            let memory = self.effects.dismantle(space);
            self.inventory.memory.put(memory);
        } else {
            self.effects.keep(&mut space, Stage::Quarantined, Vec::new());
            self.quarantine.push(Quarantined { memory_bytes, _parts: (space, device) });
        }
    }
}

impl<E: Effects> Cell<E> {
    /// Returns the cell's next deadline.
    fn deadline_ns(&self) -> Option<u64> {
        let own = match &self.run {
            Run::Running { watch } => {
                let watch = watch.as_ref().map(Watch::next_ns);
                watch.into_iter().chain(self.shrink.as_ref().map(Shrink::next_ns)).min()
            }
            Run::Stopping { deadline_ns, .. } | Run::Examined { deadline_ns, .. } => Some(*deadline_ns),
            Run::Ended(_) => self.restarting.next_ns(),
            Run::Created => None,
        };
        own.into_iter().chain(self.moves.deadline_ns()).min()
    }
}

/// Returns the crash of a cell that recorded none: one with a hang at the core slot `suspect`, or one that reports a
/// crash without details.
fn unexplained<E: Effects>(cell: &Cell<E>, suspect: Option<usize>) -> Crash {
    let (kind, message) = match suspect {
        Some(_) => (CrashKind::Hang, "the cell stood still, and did not say where"),
        None => (CrashKind::Exception, "the cell crashed, and did not say how"),
    };
    Crash {
        kind,
        core: suspect.and_then(|index| cell.core_ids.get(index)).copied(),
        vector: 0,
        error_code: 0,
        fault_address: 0,
        instruction: 0,
        stack_pointer: 0,
        backtrace: Vec::new(),
        message: message.into(),
    }
}
