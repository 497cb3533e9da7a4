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
//! | `mute` | answers no queries |
//! | `hostile` | has an activity with a name that could end a quoted text |
//! | `busy` | answers 200 requests between two inspections: in 16 ms on one core, in 3 ms on more |
//!
//! | module | contents |
//! |---|---|
//! | this | the connection, and the requests |
//! | `answers` | the answers of cells to queries |
//! | `cells` | records of cells, from creation to removal |
//! | `images` | the image store |
//! | `inventory` | the machine, and the facts about a cell |
//! | `loans` | loans of cores between cells |
//! | `resize` | memory and cores of running cells |
//!
//! A cell with a restart policy that ends by itself is due for its restart in an hour.

mod answers;
mod cells;
mod images;
mod inventory;
mod loans;
mod resize;

use answers::AnsweringCell;
use cells::{Cell, PendingStop};
use inventory::{now, page};
use isola_abi::frame::{Decoder, encode};
use isola_abi::id::CoreId;
use isola_abi::integrity::ImageDigest;
use isola_abi::management::*;
use isola_abi::query::{AnswerPiece, QueryState};
use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process;
use std::time::{Duration, Instant};

pub struct Supervisor {
    version: u32,
    cells: Vec<Cell>,
    journal: Vec<JournalEntry>,
    next_id: u32,
    /// The answers of cells to queries, by the cell's name.
    answering: BTreeMap<String, AnsweringCell>,
    image: Option<(u64, Vec<u8>)>,
    images: BTreeMap<ImageDigest, Vec<u8>>,
    pending: Vec<PendingStop>,
    /// The ends of the leases of borrowed cores.
    leases: BTreeMap<CoreId, Instant>,
}

impl Supervisor {
    pub fn new(version: u32) -> Self {
        let mut supervisor = Self {
            version,
            cells: vec![],
            journal: vec![],
            next_id: 1,
            answering: BTreeMap::new(),
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
            RequestBody::Images => ResponseBody::Images(self.image_infos()),
            RequestBody::ImageBegin { len_bytes } => {
                self.image = Some((len_bytes, Vec::new()));
                ResponseBody::Done
            }
            RequestBody::ImageChunk { offset, bytes } => {
                self.store_chunk(offset, bytes)?;
                ResponseBody::Done
            }
            RequestBody::Create(spec) => ResponseBody::Cell(Box::new(self.create(*spec)?)),
            RequestBody::Recreate { name } => ResponseBody::Cell(Box::new(self.recreate(name)?)),
            RequestBody::Start { name } => ResponseBody::Cell(Box::new(self.start(name)?)),
            RequestBody::Stop { name, timeout_ms } => {
                return Ok(self
                    .stop(sequence, name, timeout_ms)?
                    .map(|info| ResponseBody::Cell(Box::new(info))));
            }
            RequestBody::ResizeMemory { name, memory, mode } => {
                ResponseBody::MemoryResized(self.resize_memory(name, memory, mode)?)
            }
            RequestBody::ResizeCores { name, change, cores, mode, .. } => {
                ResponseBody::CoresResized(self.resize_cores(&name, change, &cores, mode)?)
            }
            RequestBody::Borrow { name, lease_ms } => ResponseBody::Loan(self.borrow(&name, lease_ms)?),
            RequestBody::Renew { name, core, lease_ms } => {
                ResponseBody::Loan(self.renew(&name, core, lease_ms)?)
            }
            RequestBody::GiveBack { name } => ResponseBody::Loan(self.give_back(&name)?),
            RequestBody::BorrowMemory { name, memory, lease_ms } => {
                ResponseBody::MemoryLoan(self.borrow_memory(&name, memory, lease_ms)?)
            }
            RequestBody::GiveMemoryBack { name, memory } => {
                ResponseBody::MemoryLoan(self.give_memory_back(&name, memory)?)
            }
            RequestBody::Destroy { name } => {
                self.destroy(name)?;
                ResponseBody::Done
            }
            RequestBody::List { from } => ResponseBody::Cells(self.list(from)),
            RequestBody::Inspect { name } => ResponseBody::Cell(Box::new(self.inspect(&name)?)),
            RequestBody::Activities { name, from } => {
                self.cell(&name)?;
                ResponseBody::Activities(page(from))
            }
            RequestBody::Logs { name, from, max_bytes } => {
                ResponseBody::Logs(self.logs(&name, from, max_bytes)?)
            }
            RequestBody::Ask { name, line, query } => {
                if self.cell(&name)?.is_mute() {
                    return Ok(Some(ResponseBody::QueryNumber { number: 1 }));
                }
                let answering = self.answering.entry(name).or_insert_with(AnsweringCell::new);
                ResponseBody::QueryNumber { number: answering.ask(line, &query) }
            }
            RequestBody::Answers { name, line, number, from, max_bytes } => {
                let answering = self.answering.get(&name);
                ResponseBody::Answers(answering.map_or_else(
                    || AnswerPiece { state: QueryState::Open, from, bytes: vec![], end: from, lost: 0 },
                    |answering| answering.piece(line, number, from, max_bytes),
                ))
            }
            RequestBody::Sample { name, rate_hz } => {
                let state = self.cell(&name)?.info.state;
                if state != CellState::Running {
                    return Err(ManagementError::WrongState { name, state });
                }
                if rate_hz == 1000 {
                    return Err(ManagementError::OutOfLimits("at most 666 per core are left".into()));
                }
                self.answering.entry(name).or_insert_with(AnsweringCell::new).sample(rate_hz);
                ResponseBody::Done
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
}
