//! A supervisor without a machine: it keeps records of cells, which behave as their first argument selects.
//!
//! | argument | behaviour of the cell |
//! |---|---|
//! | none | runs until it is stopped |
//! | `exit:N` | prints `bye`, and ends with code N after 300 ms |
//! | `crash` | crashes with a page fault after 300 ms |
//! | `stubborn` | ignores a stop request; ends at its timeout |
//! | `endless` | ends only when it is stopped by force with a timeout of 0 |
//! | `slow` | takes a second to stop |
//! | `hungry` | returns half of the requested memory |
//! | `busy` | answers 200 requests between two inspections: in 16 ms on one core, in 3 ms on more |
//!
//! A cell with a restart policy that ends by itself is due for its restart in an hour.

use crate::fake_answers::Answering;
use isola_abi::descriptor::NetworkAddress;
use isola_abi::frame::{Decoder, encode};
use isola_abi::histogram::Histogram;
use isola_abi::id::{CellId, CoreId, NodeId};
use isola_abi::integrity::{Distrust, ImageDigest};
use isola_abi::management::*;
use isola_abi::report::{CellPhase, CorePhase, CrashKind, MemoryPressure};
use isola_abi::size::ByteSize;
use isola_abi::topology::CoreSite;
use sha2::{Digest, Sha256};
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The number of cores for cells.
const CORES: u32 = 3;

/// The time after which cells with that behaviour end.
const LIFE: Duration = Duration::from_millis(300);

pub struct Supervisor {
    version: u32,
    cells: Vec<Cell>,
    journal: Vec<JournalEntry>,
    next_id: u32,
    answering: Answering,
    image: Option<(u64, Vec<u8>)>,
    images: BTreeMap<ImageDigest, Vec<u8>>,
    pending: Vec<Pending>,
    /// The ends of the leases of borrowed cores.
    leases: BTreeMap<CoreId, Instant>,
}

struct Cell {
    info: CellInfo,
    log: Vec<u8>,
    started: Option<Instant>,
}

/// A cell with a stop request.
struct Pending {
    sequence: u32,
    name: String,
    at: Instant,
    end: CellState,
}

impl Cell {
    fn serve(&mut self) {
        if self.info.spec.arguments.first().is_some_and(|first| first == "busy") {
            let requests = Histogram::new();
            requests.count(if self.info.cores.len() == 1 { 33_000_000 } else { 6_300_000 }, 200);
            self.info.service.add(&requests.read());
        }
    }
}

impl Supervisor {
    pub fn new(version: u32) -> Self {
        let mut supervisor = Self {
            version,
            cells: vec![],
            journal: vec![],
            next_id: 1,
            answering: Answering::new(),
            image: None,
            images: BTreeMap::new(),
            pending: vec![],
            leases: BTreeMap::new(),
        };
        supervisor.note(None, JournalEvent::Boot);
        supervisor
    }

    /// Serves one client at a time, as QEMU's socket does.
    pub fn serve(&mut self, listener: &UnixListener) {
        for stream in listener.incoming() {
            self.serve_client(stream.unwrap());
        }
    }

    fn serve_client(&mut self, mut stream: UnixStream) {
        stream.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
        // Half an answer to an earlier client, and an answer with another sequence number.
        let late = encode(&Response { sequence: 0, body: Ok(ResponseBody::Done) }).unwrap();
        let mut junk = late[..late.len() - 2].to_vec();
        junk.extend(&late);
        if stream.write_all(&junk).is_err() {
            return;
        }
        let mut decoder = Decoder::new();
        let mut buffer = [0; 70_000];
        loop {
            for (sequence, body) in self.pass_time() {
                if stream.write_all(&encode(&Response { sequence, body }).unwrap()).is_err() {
                    return;
                }
            }
            let count = match stream.read(&mut buffer) {
                Ok(0) => return,
                Ok(count) => count,
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => continue,
                Err(_) => return,
            };
            let mut bytes = &buffer[..count];
            while let Some(message) = decoder.next::<Request>(&mut bytes) {
                let Ok(request) = message else { continue };
                let power_off = request.body == RequestBody::PowerOff;
                if let Some(body) = self.answer(request.sequence, request.body) {
                    let response = Response { sequence: request.sequence, body };
                    if stream.write_all(&encode(&response).unwrap()).is_err() {
                        return;
                    }
                }
                if power_off {
                    process::exit(1);
                }
            }
        }
    }

    /// Ends the cells and the leases that are due; returns the deferred answers.
    fn pass_time(&mut self) -> Vec<(u32, Result<ResponseBody, ManagementError>)> {
        while let Some(core) =
            self.leases.iter().find(|(_, end)| **end <= Instant::now()).map(|(core, _)| *core)
        {
            self.send_back(core, ReturnReason::LeaseOver);
        }
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
        for Pending { sequence, name, end, .. } in due {
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

    fn note(&mut self, cell: Option<&str>, event: JournalEvent) {
        let number = self.journal.len() as u64;
        let cell = cell.map(str::to_owned);
        self.journal.push(JournalEntry { number, unix_ns: now(), duration_ns: 1_500_000, cell, event });
    }

    fn answer(&mut self, sequence: u32, body: RequestBody) -> Option<Result<ResponseBody, ManagementError>> {
        match self.handle(sequence, body) {
            Ok(Some(body)) => Some(Ok(body)),
            Ok(None) => None,
            Err(error) => {
                self.note(None, JournalEvent::Refused(error.clone()));
                Some(Err(error))
            }
        }
    }

    fn handle(&mut self, sequence: u32, body: RequestBody) -> Result<Option<ResponseBody>, ManagementError> {
        Ok(Some(match body {
            RequestBody::GoWrong(_) => return Err(ManagementError::NotForTests),
            RequestBody::Hello { .. } => {
                self.image = None;
                ResponseBody::Hello { version: self.version }
            }
            RequestBody::Machine => ResponseBody::Machine(self.machine()),
            RequestBody::Images => {
                let info = |(digest, image): (&ImageDigest, &Vec<u8>)| ImageInfo {
                    digest: *digest,
                    len_bytes: image.len() as u64,
                    cells: 0,
                };
                ResponseBody::Images(self.images.iter().map(info).collect())
            }
            RequestBody::ImageBegin { len_bytes } => {
                self.image = Some((len_bytes, Vec::new()));
                ResponseBody::Done
            }
            RequestBody::ImageChunk { offset, bytes } => {
                let (len, image) = self.image.as_mut().ok_or(ManagementError::NoImage)?;
                assert_eq!(offset, image.len() as u64);
                image.extend(bytes);
                assert!(image.len() as u64 <= *len);
                if image.len() as u64 == *len
                    && let Some((_, image)) = self.image.take()
                {
                    let digest = ImageDigest(Sha256::digest(&image).into());
                    assert!(!self.images.contains_key(&digest), "the client uploads an image that is stored");
                    // The store has room for one image.
                    self.images = [(digest, image)].into();
                }
                ResponseBody::Done
            }
            RequestBody::Create(spec) => ResponseBody::Cell(Box::new(self.create(spec)?)),
            RequestBody::Recreate { name } => ResponseBody::Cell(Box::new(self.recreate(name)?)),
            RequestBody::Start { name } => {
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
                ResponseBody::Cell(Box::new(info))
            }
            RequestBody::Stop { name, timeout_ms } => {
                let cell = self.cell(&name)?;
                if cell.info.restarts.next_unix_ns.take().is_some() {
                    let info = cell.info.clone();
                    self.note(Some(&name), JournalEvent::RestartCancelled);
                    return Ok(Some(ResponseBody::Cell(Box::new(info))));
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
                self.pending.push(Pending { sequence, name, at, end });
                return Ok(None);
            }
            RequestBody::ResizeMemory { name, memory, mode } => {
                ResponseBody::MemoryResized(self.resize_memory(name, memory, mode)?)
            }
            RequestBody::ResizeCores { name, change, cores, mode, .. } => {
                ResponseBody::CoresResized(self.resize_cores(&name, change, &cores, mode)?)
            }
            RequestBody::Borrow { name, lease_ms } => ResponseBody::Loan(self.borrow(&name, lease_ms)?),
            RequestBody::Renew { name, core, lease_ms } => {
                let over = || ManagementError::OutOfLimits(format!("{name:?} has no loan of core {core}"));
                let loans = self.cell(&name)?.info.loans.clone();
                let loan = loans.into_iter().find(|loan| loan.core == core).ok_or_else(over)?;
                let end = self.leases.get_mut(&core).ok_or_else(over)?;
                *end = (*end).max(Instant::now() + Duration::from_millis(lease_ms.into()));
                ResponseBody::Loan(LoanInfo { left_ns: left_ns(*end), ..loan })
            }
            RequestBody::GiveBack { name } => {
                let nothing =
                    || ManagementError::OutOfLimits(format!("{name:?} has no borrowed core to give back"));
                let loan = self.cell(&name)?.info.loans.last().cloned().ok_or_else(nothing)?;
                self.send_back(loan.core, ReturnReason::GivenBack);
                ResponseBody::Loan(loan)
            }
            RequestBody::Destroy { name } => {
                let cell = self.cell(&name)?;
                if matches!(cell.info.state, CellState::Running | CellState::Stopping) {
                    return Err(ManagementError::WrongState { name, state: cell.info.state });
                }
                self.cells.retain(|cell| cell.info.spec.name != name);
                self.note(Some(&name), JournalEvent::Destroy);
                ResponseBody::Done
            }
            RequestBody::List => {
                ResponseBody::Cells(self.cells.iter().map(|cell| cell.info.clone()).collect())
            }
            RequestBody::Inspect { name } => {
                let leases = self.leases.clone();
                let cell = self.cell(&name)?;
                cell.serve();
                cell.info.loans.iter_mut().for_each(|loan| loan.left_ns = left_ns(leases[&loan.core]));
                ResponseBody::Cell(Box::new(cell.info.clone()))
            }
            RequestBody::Activities { name, from } => {
                self.cell(&name)?;
                ResponseBody::Activities(page(from))
            }
            RequestBody::Logs { name, from, max_bytes } => {
                // Keeps only the last 4096 bytes.
                let log = &self.cell(&name)?.log;
                let first = (log.len() as u64).saturating_sub(4096);
                let from = from.clamp(first, log.len() as u64);
                let bytes = log[from as usize..].iter().take(max_bytes.min(1000) as usize).copied().collect();
                ResponseBody::Logs(LogPiece { from, bytes, end: log.len() as u64 })
            }
            RequestBody::Ask { name, line, question } => {
                self.cell(&name)?;
                ResponseBody::Asked { number: self.answering.ask(line, &question) }
            }
            RequestBody::Answers { line, number, from, max_bytes, .. } => {
                ResponseBody::Answers(self.answering.piece(line, number, from, max_bytes))
            }
            RequestBody::Events { from, max_entries } => {
                // Keeps only the latest 20 entries.
                let first = (self.journal.len() as u64).saturating_sub(20).max(from);
                let entries = self.journal.iter().filter(|entry| entry.number >= first);
                ResponseBody::Events(entries.take(max_entries.min(3) as usize).cloned().collect())
            }
            RequestBody::Note { cell, decision, .. } => {
                self.note(cell.as_deref(), JournalEvent::Decision(decision));
                ResponseBody::Done
            }
            RequestBody::PowerOff => ResponseBody::Done,
        }))
    }

    /// Resizes the memory of a cell. A cell with the behaviour `hungry` returns only half of the requested memory.
    fn resize_memory(
        &mut self,
        name: String,
        memory: Change<ByteSize>,
        mode: Mode,
    ) -> Result<MemoryResized, ManagementError> {
        let cell = self.cell(&name)?;
        if cell.info.state != CellState::Running {
            return Err(ManagementError::WrongState { name, state: cell.info.state });
        }
        let had = cell.info.memory;
        let Some(wanted) = memory.of(had.0).filter(|bytes| *bytes > 0).map(ByteSize) else {
            return Err(ManagementError::OutOfLimits("that is no size for a cell".into()));
        };
        if wanted.0 > had.0 + (1 << 29) {
            let wanted = ByteSize(wanted.0 - had.0);
            return Err(ManagementError::MemoryExhausted { wanted, free: ByteSize(1 << 29) });
        }
        let least = ByteSize(8 << 20);
        if wanted < least {
            return Err(ManagementError::MemoryInUse { wanted, least });
        }
        let is_hungry = cell.info.spec.arguments.first().is_some_and(|first| first == "hungry");
        let (has, kept) = match wanted.0.cmp(&had.0) {
            Ordering::Less if is_hungry && mode == Mode::Apply => {
                (ByteSize((had.0 + wanted.0) / 2), Some(Kept::InUse))
            }
            _ => (wanted, None),
        };
        if mode == Mode::Apply {
            (cell.info.memory, cell.info.memory_given) = (has, has);
            self.note(Some(&name), JournalEvent::ResizeMemory { from: had, to: has, wanted });
        }
        Ok(MemoryResized { had, wanted, has, limit: has, moved: ByteSize(0), kept, took_ns: 40_000 })
    }

    /// Lends a free core, or one of the first cell that lends.
    fn borrow(&mut self, name: &str, lease_ms: u32) -> Result<LoanInfo, ManagementError> {
        let priority = self.cell(name)?.info.spec.lending.priority;
        let from =
            match self.free_cores() {
                0 => Some(self.lender(priority).ok_or_else(|| {
                    ManagementError::OutOfLimits(format!("nobody lends a core to {name:?}"))
                })?),
                _ => None,
            };
        if let Some(from) = &from {
            self.resize_cores(from, Change::Less(1), &[], Mode::Apply)?;
        }
        let core = self.resize_cores(name, Change::More(1), &[], Mode::Apply)?.cores[0];
        let end = Instant::now() + Duration::from_millis(lease_ms.into());
        self.leases.insert(core, end);
        let loan = LoanInfo { core, from: from.clone(), left_ns: u64::from(lease_ms) * 1_000_000 };
        self.cell(name)?.info.loans.push(loan.clone());
        self.note(Some(name), JournalEvent::Borrow { core, from, lease_ns: loan.left_ns });
        Ok(loan)
    }

    /// Returns a cell of lower priority that has a core to lend.
    fn lender(&self, priority: u8) -> Option<String> {
        let loans: Vec<&LoanInfo> = self.cells.iter().flat_map(|cell| &cell.info.loans).collect();
        let can_lend = |cell: &&Cell| {
            let spec = &cell.info.spec;
            let lent = loans.iter().filter(|loan| loan.from.as_ref() == Some(&spec.name)).count() as u32;
            cell.info.state == CellState::Running
                && spec.lending.priority < priority
                && lent < spec.lending.lends
                && cell.info.cores.len() > 1
        };
        self.cells.iter().find(can_lend).map(|cell| cell.info.spec.name.clone())
    }

    /// Returns a borrowed core to its lender.
    fn send_back(&mut self, core: CoreId, why: ReturnReason) {
        self.leases.remove(&core);
        let has = |cell: &&mut Cell| cell.info.loans.iter().any(|loan| loan.core == core);
        let borrower = self.cells.iter_mut().find(has).unwrap();
        let loan = borrower.info.loans.extract_if(.., |loan| loan.core == core).next().unwrap();
        // The last core is the one that leaves.
        borrower.info.cores.sort_by_key(|usage| usage.id == core);
        let name = borrower.info.spec.name.clone();
        self.resize_cores(&name, Change::Less(1), &[], Mode::Apply).unwrap();
        if let Some(lender) = &loan.from {
            self.resize_cores(lender, Change::More(1), &[core], Mode::Apply).unwrap();
        }
        self.note(Some(&name), JournalEvent::Return { core, to: loan.from, why });
    }

    fn cell(&mut self, name: &str) -> Result<&mut Cell, ManagementError> {
        let found = self.cells.iter_mut().find(|cell| cell.info.spec.name == name);
        found.ok_or_else(|| ManagementError::NoSuchCell(name.to_owned()))
    }

    /// Returns the image for a cell with this number of cores.
    fn image(&self, digest: &ImageDigest, cores: u32) -> Result<Vec<u8>, ManagementError> {
        let image = self.images.get(digest).cloned().ok_or(ManagementError::NoImage)?;
        let free = self.free_cores();
        if cores > free {
            return Err(ManagementError::CoresExhausted { wanted: cores, free });
        }
        Ok(image)
    }

    fn recreate(&mut self, name: String) -> Result<CellInfo, ManagementError> {
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

    fn create(&mut self, spec: CellSpec) -> Result<CellInfo, ManagementError> {
        spec.validate()?;
        if let Some(required) = spec.requirement.sha256.filter(|required| *required != spec.image) {
            let distrust = Distrust::Digest { required, measured: spec.image };
            return Err(ManagementError::ImageNotTrusted(distrust));
        }
        if spec.requirement.signed_by.is_some() && spec.requirement.signature.is_none() {
            return Err(ManagementError::ImageNotTrusted(Distrust::Unsigned));
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

    /// Moves cores at once: unplugs the last ones, or plugs the named ones, or any free ones.
    fn resize_cores(
        &mut self,
        name: &str,
        change: Change<u32>,
        named: &[CoreId],
        mode: Mode,
    ) -> Result<CoresResized, ManagementError> {
        let machine = self.machine();
        let free = machine.cores.iter().filter(|core| core.owner == CoreOwner::Free).map(|core| core.id);
        let free: Vec<CoreId> = free.filter(|id| named.is_empty() || named.contains(id)).collect();
        let cell = self.cell(name)?;
        let before = cell.info.cores.len() as u32;
        let after = change.of(before.into()).unwrap_or_default() as u32;
        if after == 0 {
            return Err(ManagementError::OutOfLimits("a cell keeps a core".into()));
        }
        let wanted = after.saturating_sub(before);
        if wanted > free.len() as u32 {
            return Err(ManagementError::CoresExhausted { wanted, free: free.len() as u32 });
        }
        let (like, mut cores) = (cell.info.cores[0].clone(), cell.info.cores.clone());
        let gone = cores.split_off(after.min(before) as usize);
        let came = free.iter().take(wanted as usize).map(|id| CoreUsage { id: *id, ..like.clone() });
        let came: Vec<CoreUsage> = came.collect();
        let moved: Vec<CoreId> = gone.iter().chain(&came).map(|core| core.id).collect();
        if mode == Mode::Apply {
            cores.extend(came);
            (cell.info.cores, cell.info.spec.cores) = (cores, after);
            for core in &moved {
                let event = match before < after {
                    true => JournalEvent::CoreCame { core: *core, cores: after },
                    false => JournalEvent::CoreLeft { core: *core, cores: after },
                };
                self.note(Some(name), event);
            }
        }
        Ok(CoresResized { before, after, cores: moved, duration_ns: 250_000 })
    }

    fn free_cores(&self) -> u32 {
        let held = self.cells.iter().filter(|cell| !cell.info.state.has_ended());
        CORES - held.map(|cell| cell.info.spec.cores).sum::<u32>()
    }

    fn info(&self, spec: CellSpec, image_len: u64) -> CellInfo {
        let first = CORES - self.free_cores() + 1;
        let (waits, requests) = (Histogram::new(), Histogram::new());
        waits.count(500, 7);
        requests.count(1 << 20, 1_000);
        requests.count(1 << 30, 20);
        let usage = |id| CoreUsage {
            id: CoreId(id),
            is_present: true,
            phase: CorePhase::Halted,
            interrupts: 12,
            idle_cycles: 1_000_000,
            loop_cycles: 2_000,
            interrupt_cycles: 3_000,
            event_cycles: 4_000,
            long_events: 0,
            longest_event_cycles: 1_500,
            queueing: waits.read(),
        };
        CellInfo {
            id: CellId(self.next_id),
            state: CellState::Created,
            phase: CellPhase::Silent,
            exit_code: None,
            cores: (first..first + spec.cores).map(usage).collect(),
            memory_given: spec.memory,
            memory: spec.memory,
            image: ByteSize(image_len),
            text: ByteSize(0),
            memory_usage: MemoryUsage {
                total: ByteSize(60 << 20),
                used: ByteSize(1 << 20),
                peak: ByteSize(2 << 20),
                pressure: MemoryPressure::Low,
                ..MemoryUsage::default()
            },
            device: (spec.network != NetworkSpec::None).then(|| device(self.next_id % 8)),
            address: match spec.network {
                NetworkSpec::None => None,
                NetworkSpec::Dhcp => Some([10, 0, 2, 128].into()),
                NetworkSpec::Static(NetworkAddress { ip, .. }) => Some(ip),
            },
            network: NetworkUsage { received_frames: 5, received_bytes: 500, ..NetworkUsage::default() },
            service: requests.read(),
            activities: page(0),
            loans: vec![],
            crash: None,
            restarts: Restarts::default(),
            created_unix_ns: now(),
            started_unix_ns: None,
            durations: Durations { create_ns: Some(1_000_000), ..Durations::default() },
            spec,
        }
    }

    fn machine(&self) -> MachineInfo {
        let core = |id, owner| CoreInfo { id, node: NodeId(0), site: CoreSite::alone(id), owner };
        let mut cores = vec![core(CoreId(0), CoreOwner::Supervisor)];
        for id in 1..=CORES {
            let of = |cell: &&Cell| {
                !cell.info.state.has_ended() && cell.info.cores.iter().any(|core| core.id == CoreId(id))
            };
            let owner =
                self.cells.iter().find(of).map_or(CoreOwner::Free, |cell| CoreOwner::Cell(cell.info.id));
            cores.push(core(CoreId(id), owner));
        }
        MachineInfo {
            cores,
            memory_total: ByteSize(1 << 30),
            memory_free: ByteSize(1 << 29),
            memory_dirty: ByteSize(1 << 28),
            memory_quarantined: ByteSize(0),
            memory_supervisor: ByteSize(8 << 20),
            memory_images: ByteSize(2 << 20),
            devices_total: 8,
            devices_free: 7,
            tsc_hz: 2_100_000_000,
            boot_ns: 12_000_000,
            uptime_ns: 1_000_000_000,
            restarts: 0,
        }
    }
}

impl Cell {
    fn end(&mut self, state: CellState) {
        // The restart time is too far ahead to arrive in a test.
        let due = self.info.spec.restart != RestartPolicy::No && self.info.state == CellState::Running;
        self.info.restarts.next_unix_ns = due.then(|| now() + 3_600_000_000_000);
        self.info.state = state;
        self.info.memory = ByteSize(0);
        self.info.address = None;
    }
}

/// Returns the location of the machine's network device of that number, counted from 0.
fn device(number: u32) -> DeviceLocation {
    let arguments = std::env::var("FAKE_ARGUMENTS").unwrap_or_default();
    if arguments.contains("microvm") {
        DeviceLocation::Mmio { address: 0xfeb0_2c00 - u64::from(number) * 0x200 }
    } else {
        DeviceLocation::Pci { bus: 0, device: 2 + number as u8, function: 0 }
    }
}

fn crash() -> Crash {
    Crash {
        kind: CrashKind::Exception,
        core: Some(CoreId(1)),
        vector: 14,
        error_code: 2,
        fault_address: 0x10,
        instruction: isola_abi::layout::IMAGE + 0x1000,
        stack_pointer: isola_abi::layout::STACKS,
        backtrace: vec![isola_abi::layout::IMAGE + 0x2000],
        message: "a wild write".into(),
    }
}

fn left_ns(end: Instant) -> u64 {
    end.saturating_duration_since(Instant::now()).as_nanos() as u64
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64
}

/// Returns a page of the activities of any cell: two pages of one slot each, and a third with ended activities only.
fn page(from: u32) -> ActivityPage {
    let used = |name: &str, cycles, events, memory_bytes| ActivityUsage {
        name: name.into(),
        cycles,
        events,
        memory_bytes,
    };
    let (activities, ended) = match from {
        0 => (vec![used("infrastructure", 4_000, 7, -2048)], used("", 50, 1, 0)),
        1 => (vec![used("tenant", 123, 4, 0)], ActivityUsage::default()),
        _ => (Vec::new(), used("", 7, 2, 4096)),
    };
    ActivityPage { activities, ended, next: (from < 2).then_some(from + 1) }
}
