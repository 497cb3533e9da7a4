//! The ends of cells: by themselves, by request, or by force. Also notifications and deadlines, which find them.

use super::Cells;
use super::cell::{Cell, End, Run};
use super::lend::AfterEnd;
use super::memory::Shrink;
use super::usage::Usage;
use super::watch::Watch;
use crate::report;
use alloc::boxed::Box;
use alloc::vec::Vec;
use isola_abi::id::{CellId, CoreId};
use isola_abi::management::{Crash, JournalEvent, ManagementError};
use isola_abi::report::{CellPhase, CorePhase, CrashKind};
use isola_supervisor_core::Hardware;
use isola_supervisor_core::trusted_core::{OwnedCell, Released};

/// How long a cell that received an NMI may take to record the interrupted instruction, in ns.
const EXAMINATION_NS: u64 = 100_000_000;

/// The result of a stop request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The cell has stopped.
    Stopped(CellId),
    /// The cell was asked to stop; [`Cells::take_ended`] will return it.
    Requested(CellId),
}

impl<H: Hardware> Cells<H> {
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
        let was_live = self.table.get(id).is_some_and(Cell::is_live);
        self.poll(id);
        let now = self.core.now_ns();
        let Some(cell) = self.table.get_mut(id).filter(|cell| !was_live || cell.is_live()) else {
            // The cell has just ended by itself.
            return Ok(Stop::Stopped(id));
        };
        let until = now.saturating_add(u64::from(timeout_ms) * 1_000_000);
        match &mut cell.run {
            Run::Created | Run::Ended(_) => return Err(cell.wrong_state()),
            Run::Running { .. } => {
                self.core.cell(id).into_iter().for_each(OwnedCell::request_stop);
                cell.run = Run::Stopping { since_ns: now, deadline_ns: until };
            }
            Run::Stopping { deadline_ns, .. } => *deadline_ns = until.min(*deadline_ns),
            Run::Examined { .. } => {}
        }
        if timeout_ms == 0 {
            self.finish(id, End::Killed, now);
            return Ok(Stop::Stopped(id));
        }
        Ok(Stop::Requested(id))
    }

    /// Handles a notification: checks all running cells, as the sender is not known.
    pub fn on_notification(&mut self) {
        let live: Vec<CellId> = self.table.iter().filter(|cell| cell.is_live()).map(|cell| cell.id).collect();
        live.iter().for_each(|id| self.poll(*id));
        live.iter().for_each(|id| self.serve_link(*id));
        self.settle_loans();
        self.settle_memory();
        live.into_iter().for_each(|id| self.grant_core(id));
    }

    /// Acts on the deadlines that have passed.
    pub fn tick(&mut self) {
        let now = self.core.now_ns();
        self.send_samples(now);
        let due = |cell: &&Cell| self.deadline_of(cell).is_some_and(|deadline| deadline <= now);
        let due: Vec<CellId> = self.table.iter().filter(due).map(|cell| cell.id).collect();
        for id in due {
            self.poll(id);
            self.expire(id, now);
        }
        self.end_leases(now);
        self.settle_loans();
        self.end_memory_leases(now);
        self.settle_memory();
    }

    /// Returns when [`Self::tick`] is due; `None` if there is no deadline.
    pub fn next_deadline_ns(&self) -> Option<u64> {
        let of_cells = self.table.iter().filter_map(|cell| self.deadline_of(cell));
        let of_memory = self.loans.memory.deadline_ns(self.core.now_ns());
        of_cells.chain(self.loans.deadline_ns()).chain(of_memory).chain(self.samples_due_ns).min()
    }

    /// Returns the cell's next deadline. A restart that waits for memory or its image has none.
    fn deadline_of(&self, cell: &Cell) -> Option<u64> {
        let waits = matches!(cell.run, Run::Ended(_)) && self.pending.is_about(cell.id);
        let own = cell.deadline_ns().filter(|_| !waits);
        own.into_iter().chain(self.core.cell(cell.id).and_then(OwnedCell::move_deadline_ns)).min()
    }

    /// Reads a running cell's report and acts on it.
    pub(super) fn poll(&mut self, id: CellId) {
        let now = self.core.now_ns();
        let Some(cell) = self.table.get_mut(id).filter(|cell| cell.is_live()) else { return };
        let Some(owned) = self.core.cell(id) else { return };
        cell.log.drain(&owned.report().console);
        let phase = report::phase(owned.report());
        if phase != CellPhase::Silent && cell.times.durations.first_sign_ns.is_none() {
            cell.times.durations.first_sign_ns = Some(now.saturating_sub(cell.times.started_ns));
            self.save(id);
        }
        let Some(cell) = self.table.get(id) else { return };
        match (phase, &cell.run) {
            (CellPhase::Exited, _) => self.finish(id, End::Exited, now),
            (CellPhase::Crashed, &Run::Examined { since_ns, end, .. }) => self.finish(id, end, since_ns),
            (CellPhase::Crashed, _) => self.finish(id, End::Crashed, now),
            (CellPhase::Silent | CellPhase::Running, _) => {
                // A core that has yielded is reclaimed first, as it does nothing else any more.
                self.settle_cores(id);
                self.shrink(id);
                self.grow(id);
            }
        }
    }

    /// Acts on a deadline of a cell that has passed.
    fn expire(&mut self, id: CellId, now: u64) {
        self.expire_cores(id, now);
        let Some(cell) = self.table.get_mut(id) else { return };
        match &mut cell.run {
            Run::Ended(_) if cell.restarting.next_ns().is_some_and(|next| next <= now) => self.restart(id),
            Run::Created | Run::Ended(_) => {}
            Run::Running { watch: Some(watch) } if watch.next_ns() <= now => {
                if cell.growth.is_open() {
                    // The cell waits for memory, and cannot make progress.
                    watch.forgive(now);
                }
                let Some(owned) = self.core.cell(id) else { return };
                if let Some(suspect) = watch.check(owned.report(), now, owned.slowdown()) {
                    let since_ns = now;
                    self.examine(id, suspect, End::Crashed, since_ns, now);
                }
            }
            Run::Running { .. } => {}
            Run::Stopping { since_ns, deadline_ns } if *deadline_ns <= now => {
                let since_ns = *since_ns;
                let running = self.core.cell(id).and_then(|owned| {
                    (0..owned.core_ids().len())
                        .find(|&slot| report::sign(owned.report(), slot).0 == CorePhase::Running)
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
        let Some(cell) = self.table.get_mut(id) else { return };
        if let Some(owned) = self.core.cell(id) {
            // The core at another slot may run the vcore that makes no progress. That slot may be without a core, if its
            // context is suspended; then another core is interrupted.
            owned.examine(report::runner_slot(owned.report(), suspect));
        }
        let deadline_ns = now.saturating_add(EXAMINATION_NS);
        cell.run = Run::Examined { since_ns, deadline_ns, suspect, end };
    }

    /// Ends a running cell: its cores are reclaimed and its devices are reset, its report is read a last time, and its
    /// resources return to the inventory. The checkpoint with a due restart is saved before the ownership record says
    /// *ending*, because a restarted supervisor dismantles a cell in that stage and keeps no record of it.
    pub(super) fn finish(&mut self, id: CellId, end: End, since_ns: u64) {
        let Some(event) = self.take_note_of_end(id, end) else { return };
        self.end_sampling(id);
        let now = self.core.now_ns();
        let restart = self.table.get_mut(id).and_then(|cell| cell.decide_restart(now));
        self.save_checkpoint();
        let Some(cell) = self.table.get_mut(id) else { return };
        // Cannot fail, as the cell runs.
        let _ = self.core.end(id, cell.notes(self.loans.saved(cell, &self.core)));
        let Some(owned) = self.core.cell(id) else { return };
        cell.log.drain(&owned.report().console);
        cell.log.shrink();
        let mut usage = Usage::read(owned);
        usage.keep_one_page();
        cell.outcome.usage = Some(Box::new(usage));
        let unanswered = cell.cores.resize.take();
        let Ok(Released { memory_bytes, lost, devices_are_back }) = self.core.release(id) else { return };
        cell.outcome.memory_bytes = memory_bytes;
        for core in lost {
            self.record_about(id, since_ns, JournalEvent::CoreLost(core));
        }
        if !devices_are_back {
            self.record_about(id, since_ns, JournalEvent::DeviceLost);
        }
        let took = self.core.now_ns().saturating_sub(since_ns);
        if let Some(cell) = self.table.get_mut(id) {
            cell.times.durations.reclaim_ns = Some(took);
        }
        self.record_about(id, since_ns, event);
        let then = match &restart {
            Some(JournalEvent::RestartDue { .. }) => AfterEnd::Restart,
            _ => AfterEnd::Nothing,
        };
        if let Some(event) = restart {
            let now = self.core.now_ns();
            self.record_about(id, now, event);
        }
        self.cancel_about(id);
        self.count_images();
        if let Some((cell, mut parts)) = self.parts(id) {
            cell.drop_shrink(&mut parts);
        }
        self.answers.ended.push(id);
        self.lending_ended(id, then);
        self.memory_lending_ended(id, then);
        if let (Some(resize), Some(name)) = (unanswered, self.table.name_of(id)) {
            let answer = Err(ManagementError::NoSuchCell(name));
            self.answers.cores_resized.push((resize.ticket, answer));
        }
    }

    /// Records how a running cell ends, with its exit code or crash. Returns the journal event.
    fn take_note_of_end(&mut self, id: CellId, end: End) -> Option<JournalEvent> {
        let (cell, owned) = (self.table.get_mut(id)?, self.core.cell(id)?);
        let record = report::crash(owned.report(), owned.core_ids());
        let code = report::exit_code(owned.report());
        let suspect = match cell.run {
            Run::Examined { suspect, .. } => Some(suspect),
            _ => None,
        };
        let unexplained = || unexplained(suspect, owned.core_ids());
        let event = match end {
            End::Exited => {
                cell.outcome.exit_code = Some(code);
                JournalEvent::Exit(code)
            }
            End::Crashed => {
                let crash = record.unwrap_or_else(unexplained);
                let kind = crash.kind;
                cell.outcome.crash = Some(crash);
                JournalEvent::Crash(kind)
            }
            End::Killed => {
                // The interrupted instruction is of interest, if the cell received an NMI.
                cell.outcome.crash = suspect.map(|_| record.unwrap_or_else(unexplained));
                JournalEvent::Kill
            }
        };
        cell.run = Run::Ended(end);
        Some(event)
    }
}

impl Cell {
    /// Returns the cell's next deadline, except for core moves.
    fn deadline_ns(&self) -> Option<u64> {
        match &self.run {
            Run::Running { watch } => {
                let watch = watch.as_ref().map(Watch::next_ns);
                watch.into_iter().chain(self.shrink.as_ref().map(Shrink::next_ns)).min()
            }
            Run::Stopping { deadline_ns, .. } | Run::Examined { deadline_ns, .. } => Some(*deadline_ns),
            Run::Ended(_) => self.restarting.next_ns(),
            Run::Created => None,
        }
    }
}

/// Returns the crash of a cell that recorded none: one with a hang at the core slot `suspect`, or one that reports a
/// crash without details.
fn unexplained(suspect: Option<usize>, core_ids: &[CoreId]) -> Crash {
    let (kind, message) = match suspect {
        Some(_) => (CrashKind::Hang, "the cell stood still, and did not say where"),
        None => (CrashKind::Exception, "the cell crashed, and did not say how"),
    };
    Crash {
        kind,
        core: suspect.and_then(|slot| core_ids.get(slot)).copied(),
        vector: 0,
        error_code: 0,
        fault_address: 0,
        instruction: 0,
        stack_pointer: 0,
        backtrace: Vec::new(),
        message: message.into(),
    }
}
