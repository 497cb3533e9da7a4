//! Records of cells, from creation to removal.

use super::Supervisor;
use super::inventory::{crash, now};
use isola_abi::histogram::Histogram;
use isola_abi::id::CellId;
use isola_abi::integrity::UnmetRequirement;
use isola_abi::management::*;
use isola_abi::report::CrashKind;
use isola_abi::size::ByteSize;
use std::time::{Duration, Instant};

/// The time after which cells with that behaviour end.
const LIFE: Duration = Duration::from_millis(300);

pub struct Cell {
    pub info: CellInfo,
    log: Vec<u8>,
    started: Option<Instant>,
}

/// A cell with a stop request.
pub struct PendingStop {
    sequence: u32,
    name: String,
    at: Instant,
    end: CellState,
}

impl Cell {
    pub(super) fn is_mute(&self) -> bool {
        self.info.spec.arguments.first().is_some_and(|first| first == "mute")
    }

    pub(super) fn serve(&mut self) {
        if self.info.spec.arguments.first().is_some_and(|first| first == "busy") {
            let requests = Histogram::new();
            requests.count(if self.info.cores.len() == 1 { 33_000_000 } else { 6_300_000 }, 200);
            self.info.service.add(&requests.read());
        }
    }

    pub(super) fn end(&mut self, state: CellState) {
        // The restart time is too far ahead to arrive in a test.
        let due = self.info.spec.restart != RestartPolicy::No && self.info.state == CellState::Running;
        self.info.restarts.next_unix_ns = due.then(|| now() + 3_600_000_000_000);
        self.info.state = state;
        self.info.memory = ByteSize(0);
        self.info.address = None;
    }
}

impl Supervisor {
    /// Returns a page of the list: few cells, so that lists have several pages.
    pub(super) fn list(&self, from: CellId) -> CellPage {
        let cells = self.cells.iter().map(|cell| &cell.info).filter(|info| info.id >= from);
        let mut cells: Vec<CellInfo> = cells.cloned().collect();
        cells.sort_by_key(|info| info.id);
        let next = cells.get(2).map(|info| info.id);
        cells.truncate(2);
        CellPage { cells, next }
    }

    pub(super) fn cell(&mut self, name: &str) -> Result<&mut Cell, ManagementError> {
        let found = self.cells.iter_mut().find(|cell| cell.info.spec.name == name);
        found.ok_or_else(|| ManagementError::NoSuchCell(name.to_owned()))
    }

    pub(super) fn create(&mut self, spec: CellSpec) -> Result<CellInfo, ManagementError> {
        spec.validate()?;
        if let Some(required) = spec.requirement.sha256.filter(|required| *required != spec.image) {
            let distrust = UnmetRequirement::Digest { required, measured: spec.image };
            return Err(ManagementError::ImageNotTrusted(distrust));
        }
        if spec.requirement.signed_by.is_some() && spec.requirement.signature.is_none() {
            return Err(ManagementError::ImageNotTrusted(UnmetRequirement::Unsigned));
        }
        if self.cell(&spec.name).is_ok() {
            return Err(ManagementError::NameTaken(spec.name));
        }
        let image = self.image(&spec.image, spec.cores)?;
        let info = self.info(spec, image.len() as u64);
        self.next_id += 1;
        self.note(Some(&info.spec.name), JournalEvent::Create);
        // A cell with more output than the log keeps.
        let chatty = info.spec.arguments.first().is_some_and(|first| first == "chatty");
        let log = if chatty { b"0123456789abcde\n".repeat(1024) } else { Vec::new() };
        self.cells.push(Cell { info: info.clone(), log, started: None });
        Ok(info)
    }

    pub(super) fn recreate(&mut self, name: String) -> Result<CellInfo, ManagementError> {
        let old = self.cell(&name)?.info.clone();
        if !old.state.has_ended() {
            return Err(ManagementError::WrongState { name, state: old.state });
        }
        let image = self.image(&old.spec.image, old.spec.cores)?;
        let new = self.info(old.spec, image.len() as u64);
        let cell = self.cell(&name)?;
        cell.info = CellInfo { id: old.id, created_unix_ns: old.created_unix_ns, ..new };
        let info = cell.info.clone();
        self.note(Some(&name), JournalEvent::Recreate);
        Ok(info)
    }

    /// Starts a created cell.
    pub(super) fn start(&mut self, name: String) -> Result<CellInfo, ManagementError> {
        let cell = self.cell(&name)?;
        if cell.info.state != CellState::Created {
            return Err(ManagementError::WrongState { name, state: cell.info.state });
        }
        cell.info.state = CellState::Running;
        cell.info.started_unix_ns = Some(now());
        cell.started = Some(Instant::now());
        let words = cell.info.spec.arguments.join(" ");
        cell.log.extend(format!("{name}: started [{words}]\n").bytes());
        let info = cell.info.clone();
        self.note(Some(&name), JournalEvent::Start);
        Ok(info)
    }

    /// Stops a cell; returns `None` if the answer follows when the cell has ended.
    pub(super) fn stop(
        &mut self,
        sequence: u32,
        name: String,
        timeout_ms: u32,
    ) -> Result<Option<CellInfo>, ManagementError> {
        let cell = self.cell(&name)?;
        if cell.info.restarts.next_unix_ns.take().is_some() {
            let info = cell.info.clone();
            self.note(Some(&name), JournalEvent::RestartCancelled);
            return Ok(Some(info));
        }
        if !matches!(cell.info.state, CellState::Running | CellState::Stopping) {
            return Err(ManagementError::WrongState { name, state: cell.info.state });
        }
        let manner = cell.info.spec.arguments.first().map_or("", String::as_str);
        let (after_ms, end) = match (timeout_ms, manner) {
            (0, _) => (0, CellState::Killed),
            (timeout, "stubborn") => (timeout, CellState::Killed),
            (_, "endless") => (u32::MAX, CellState::Killed),
            (timeout, "slow") => (1000.min(timeout), CellState::Exited),
            _ => (20, CellState::Exited),
        };
        cell.info.state = CellState::Stopping;
        let at = Instant::now() + Duration::from_millis(u64::from(after_ms));
        // Earlier stop requests are answered as well, at the earlier of the two times.
        for earlier in self.pending.iter_mut().filter(|pending| pending.name == name) {
            (earlier.at, earlier.end) = (earlier.at.min(at), end);
        }
        self.pending.push(PendingStop { sequence, name, at, end });
        Ok(None)
    }

    /// Ends the cells and the leases that are due; returns the deferred answers.
    pub(super) fn pass_time(&mut self) -> Vec<(u32, Result<ResponseBody, ManagementError>)> {
        self.end_leases();
        let mut events = Vec::new();
        for cell in &mut self.cells {
            let over = cell.started.is_some_and(|started| started.elapsed() >= LIFE);
            if cell.info.state != CellState::Running || !over {
                continue;
            }
            let first = cell.info.spec.arguments.first().cloned().unwrap_or_default();
            if let Some(code) = first.strip_prefix("exit:") {
                cell.log.extend(b"bye\n");
                cell.end(CellState::Exited);
                cell.info.exit_code = code.parse().ok();
                events.push((cell.info.spec.name.clone(), JournalEvent::Exit(code.parse().unwrap())));
            } else if first == "crash" {
                cell.end(CellState::Crashed);
                cell.info.crash = Some(crash());
                events.push((cell.info.spec.name.clone(), JournalEvent::Crash(CrashKind::Exception)));
            }
        }
        let (due, pending): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.pending).into_iter().partition(|pending| pending.at <= Instant::now());
        self.pending = pending;
        let mut answers = Vec::new();
        for PendingStop { sequence, name, end, .. } in due {
            if let Some(cell) = self.cells.iter_mut().find(|cell| cell.info.spec.name == name) {
                cell.end(end);
                cell.info.exit_code = (end == CellState::Exited).then_some(0);
                answers.push((sequence, Ok(ResponseBody::Cell(Box::new(cell.info.clone())))));
                let event = if end == CellState::Killed { JournalEvent::Kill } else { JournalEvent::Exit(0) };
                events.push((name, event));
            }
        }
        for (name, event) in events {
            self.note(Some(&name), event);
        }
        answers
    }

    /// Removes the record of an ended cell.
    pub(super) fn destroy(&mut self, name: String) -> Result<(), ManagementError> {
        let cell = self.cell(&name)?;
        if matches!(cell.info.state, CellState::Running | CellState::Stopping) {
            return Err(ManagementError::WrongState { name, state: cell.info.state });
        }
        self.cells.retain(|cell| cell.info.spec.name != name);
        self.note(Some(&name), JournalEvent::Destroy);
        Ok(())
    }

    /// Returns a piece of a log. The supervisor keeps only the last 4096 bytes.
    pub(super) fn logs(
        &mut self,
        name: &str,
        from: u64,
        max_bytes: u32,
    ) -> Result<LogPiece, ManagementError> {
        let log = &self.cell(name)?.log;
        let first = (log.len() as u64).saturating_sub(4096);
        let from = from.clamp(first, log.len() as u64);
        let bytes = log[from as usize..].iter().take(max_bytes.min(1000) as usize).copied().collect();
        Ok(LogPiece { from, bytes, end: log.len() as u64 })
    }
}
