//! How cells end: by themselves, as asked, or by force.

use super::Cells;
use super::cell::{Body, Cell, End, Run, Soundness};
use super::watch::Watch;
use crate::effects::{Effects, Reclaimed};
use crate::report;
use alloc::vec::Vec;
use isola_abi::id::CellId;
use isola_abi::management::{Crash, JournalEvent, ManagementError};
use isola_abi::report::{CellPhase, CorePhase, CrashKind};

/// How long a cell that did not answer may take to say where it stands, in ns.
const EXAMINATION_NS: u64 = 100_000_000;

/// Whether a cell that was asked to stop has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// It has stopped.
    Stopped(CellId),
    /// It is asked; [`Cells::take_ended`] will name it.
    Asked(CellId),
}

impl<E: Effects> Cells<E> {
    /// Asks a cell to stop within `timeout_ms`, after which it is stopped by force; 0: by force at once. Where
    /// it was asked before, the earlier of the two times holds.
    ///
    /// # Errors
    /// [`ManagementError::NoSuchCell`], and [`ManagementError::WrongState`] where it does not run.
    pub fn stop(&mut self, name: &str, timeout_ms: u32) -> Result<Stop, ManagementError> {
        let id = self.find(name)?;
        let was_live = self.cells.get(&id).is_some_and(Cell::is_live);
        self.poll(id);
        let now = self.effects.now_ns();
        let Some(cell) = self.cells.get_mut(&id).filter(|cell| !was_live || cell.is_live()) else {
            // It has just ended by itself.
            return Ok(Stop::Stopped(id));
        };
        let until = now.saturating_add(u64::from(timeout_ms) * 1_000_000);
        match &mut cell.run {
            Run::Created | Run::Ended(_) => {
                return Err(ManagementError::WrongState {
                    name: cell.spec.name.clone(),
                    state: cell.state(),
                });
            }
            Run::Running { .. } => {
                if let (Body::Built(space), Some(first)) = (&cell.body, cell.cores.first()) {
                    self.effects.request_stop(space, first);
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

    /// Looks at all cells: one of them has rung.
    pub fn doorbell(&mut self) {
        let live: Vec<CellId> =
            self.cells.values().filter(|cell| cell.is_live()).map(|cell| cell.id).collect();
        live.into_iter().for_each(|id| self.poll(id));
    }

    /// Does what is due.
    pub fn tick(&mut self) {
        let now = self.effects.now_ns();
        let due = |cell: &&Cell<E>| cell.deadline_ns().is_some_and(|deadline| deadline <= now);
        let due: Vec<CellId> = self.cells.values().filter(due).map(|cell| cell.id).collect();
        for id in due {
            self.poll(id);
            self.expire(id, now);
        }
    }

    /// When [`Self::tick`] has something to do; `None` while nothing waits for time.
    pub fn next_deadline_ns(&self) -> Option<u64> {
        self.cells.values().filter_map(Cell::deadline_ns).min()
    }

    /// Takes over what a live cell says of itself.
    pub(super) fn poll(&mut self, id: CellId) {
        let now = self.effects.now_ns();
        let Some(cell) = self.cells.get_mut(&id).filter(|cell| cell.is_live()) else { return };
        cell.drain_console(&self.effects);
        let phase = cell.report(&self.effects).map_or(CellPhase::Silent, report::phase);
        if phase != CellPhase::Silent && cell.durations.first_sign_ns.is_none() {
            cell.durations.first_sign_ns = Some(now.saturating_sub(cell.started_ns));
        }
        match (phase, &cell.run) {
            (CellPhase::Exited, _) => self.finish(id, End::Exited, now),
            (CellPhase::Crashed, &Run::Examined { since_ns, end, .. }) => self.finish(id, end, since_ns),
            (CellPhase::Crashed, _) => self.finish(id, End::Crashed, now),
            (CellPhase::Silent | CellPhase::Running, _) => {}
        }
    }

    /// Acts on a deadline that a live cell has let pass.
    fn expire(&mut self, id: CellId, now: u64) {
        let Some(cell) = self.cells.get_mut(&id) else { return };
        match &mut cell.run {
            Run::Created | Run::Ended(_) => {}
            Run::Running { watch: Some(watch) } => {
                let Body::Built(space) = &cell.body else { return };
                if let Some(suspect) = watch.look(self.effects.report(space), now) {
                    let since_ns = now;
                    self.examine(id, suspect, End::Crashed, since_ns, now);
                }
            }
            Run::Running { watch: None } => {}
            Run::Stopping { since_ns, deadline_ns } if *deadline_ns <= now => {
                let since_ns = *since_ns;
                let running = cell.report(&self.effects).and_then(|report| {
                    (0..cell.cores.len()).find(|&index| report::sign(report, index).0 == CorePhase::Running)
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

    /// Makes a cell that does not answer say where it stands.
    fn examine(&mut self, id: CellId, suspect: usize, end: End, since_ns: u64, now: u64) {
        let Some(cell) = self.cells.get_mut(&id) else { return };
        if let Some(core) = cell.cores.get(suspect) {
            self.effects.examine(core);
        }
        let deadline_ns = now.saturating_add(EXAMINATION_NS);
        cell.run = Run::Examined { since_ns, deadline_ns, suspect, end };
    }

    /// Ends a live cell: takes its cores back, resets its device, reads its last words.
    fn finish(&mut self, id: CellId, end: End, since_ns: u64) {
        let Some(cell) = self.cells.get_mut(&id) else { return };
        let Reclaimed { back, lost } = self.effects.reclaim(core::mem::take(&mut cell.cores));
        cell.cores = back;
        if !lost.is_empty() {
            cell.soundness = Soundness::CoreLost;
        }
        if let Some(device) = &mut cell.device
            && !self.effects.reset(device)
            && cell.soundness == Soundness::Sound
        {
            cell.soundness = Soundness::DeviceLost;
        }
        cell.drain_console(&self.effects);
        let record = cell.report(&self.effects).and_then(|report| report::crash(report, &cell.core_ids));
        let code = cell.report(&self.effects).map_or(0, report::exit_code);
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
                // Where it stood when it did not answer is worth knowing, if it was asked.
                cell.crash = suspect.map(|_| record.unwrap_or_else(|| unexplained(cell, suspect)));
                JournalEvent::Kill
            }
        };
        cell.run = Run::Ended(end);
        let now = self.effects.now_ns();
        let took = now.saturating_sub(since_ns);
        cell.durations.reclaim_ns = Some(took);
        let unix_ns = self.boot.unix_ns.saturating_add(now);
        let name = cell.spec.name.as_str();
        for core in lost {
            self.inventory.cores.lose(core);
            self.journal.record(unix_ns, took, Some(name), JournalEvent::CoreLost(core));
        }
        self.journal.record(unix_ns, took, Some(name), event);
        self.ended.push(id);
    }
}

impl<E: Effects> Cell<E> {
    /// When something is due for the cell.
    fn deadline_ns(&self) -> Option<u64> {
        match &self.run {
            Run::Running { watch } => watch.as_ref().map(Watch::next_ns),
            Run::Stopping { deadline_ns, .. } | Run::Examined { deadline_ns, .. } => Some(*deadline_ns),
            Run::Created | Run::Ended(_) => None,
        }
    }
}

/// The crash of a cell that says nothing of it: one that was found standing still, at the core of that index,
/// or one that says that it crashed, but not how.
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
