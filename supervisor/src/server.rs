//! The management protocol: bytes from the console in, bytes for the console out.
//!
//! The console does not signal a connecting or disconnecting peer. A new peer announces itself by
//! [`RequestBody::Hello`], which discards the state of the previous one: an incomplete upload and pending answers. The
//! response to an invalid frame has sequence 0.
//!
//! If a peer sends and never reads, its answers accumulate; from [`MAX_UNSENT`] bytes on, [`Server::receive`] accepts
//! no more of its bytes.

use crate::cells::{Cells, CoresResize, CoresWanted, Created, Detail, Resize, Stop, Ticket};
use alloc::string::String;
use alloc::vec::Vec;
use isola_abi::frame::{Decoder, MAX_FRAME, MAX_PART_BYTES, encode};
use isola_abi::id::CellId;
use isola_abi::management::{
    CellInfo, CellPage, JournalEntry, JournalEvent, ManagementError, Request, RequestBody, Response,
    ResponseBody,
};
use isola_supervisor_core::Hardware;
use isola_supervisor_core::inventory::Scrub;

/// The number of unsent bytes from which no more requests are accepted.
pub const MAX_UNSENT: usize = 4 * MAX_FRAME;

/// The most stop requests with a pending answer.
const MAX_DUE: usize = 256;

/// The most bytes of journal entries in one response.
const MAX_EVENTS_BYTES: usize = MAX_FRAME / 2;

/// The most bytes of full information on cells in one response.
const MAX_LIST_BYTES: usize = MAX_FRAME / 2;

/// The server, for one peer at a time.
pub struct Server<H: Hardware> {
    cells: Cells<H>,
    decoder: Decoder,
    greeted: Greeting,
    /// Stop requests whose cells have not stopped yet: sequence number and cell.
    due: Vec<(u32, CellId)>,
    /// Other requests that wait: for a cell to be created, memory to be plugged or unplugged, or cores to move. At most
    /// a few per cell.
    pending: Vec<(u32, Ticket)>,
    unsent: Vec<u8>,
    power_off: bool,
}

/// Whether the peer has sent a greeting with this version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Greeting {
    Awaited,
    Given,
}

/// The outcome of a request.
enum Outcome {
    Answer(ResponseBody),
    /// The answer is sent when the cell has stopped.
    Due(CellId),
    /// The answer is sent when the request is completed.
    Pending(Ticket),
}

type Answer = Result<Outcome, ManagementError>;

impl<H: Hardware> Server<H> {
    /// Returns a server without a peer.
    pub fn new(cells: Cells<H>) -> Self {
        Self {
            cells,
            decoder: Decoder::new(),
            greeted: Greeting::Awaited,
            due: Vec::new(),
            pending: Vec::new(),
            unsent: Vec::new(),
            power_off: false,
        }
    }

    /// Returns the server of a restarted supervisor. Its first response reports the restart to a peer that waits for an
    /// answer of the failed one.
    pub fn after_another(cells: Cells<H>) -> Self {
        let mut server = Self::new(cells);
        server.respond(0, Err(ManagementError::Restarted));
        server
    }

    /// Returns the cells.
    pub fn cells(&mut self) -> &mut Cells<H> {
        &mut self.cells
    }

    /// Takes bytes from the front of `bytes`, up to the end of the first request, and serves it. Takes none while too
    /// many answers are unsent, or an upload is not hashed.
    pub fn receive(&mut self, bytes: &mut &[u8]) {
        if self.unsent.len() >= MAX_UNSENT || self.cells.is_measuring() {
            return;
        }
        match self.decoder.next::<Request>(bytes) {
            None => {}
            Some(Ok(Request { sequence, body })) => self.serve(sequence, body),
            Some(Err(_)) => self.respond(0, Err(ManagementError::Malformed)),
        }
    }

    /// Handles a notification of a cell.
    pub fn on_notification(&mut self) {
        self.cells.on_notification();
        self.settle();
    }

    /// Acts on the deadlines that have passed.
    pub fn tick(&mut self) {
        self.cells.tick();
        self.settle();
    }

    /// Does a slice of the work for which a request waits, or scrubs free memory. Returns whether there is more to do.
    pub fn work(&mut self) -> Scrub {
        let more = self.cells.work();
        self.settle();
        more
    }

    /// Returns whether a request waits for [`Self::work`].
    pub fn is_waited_for(&self) -> bool {
        self.cells.is_waited_for()
    }

    /// Returns when [`Self::tick`] is due; `None` if there is no deadline.
    pub fn next_deadline_ns(&self) -> Option<u64> {
        self.cells.next_deadline_ns()
    }

    /// Returns the bytes to send.
    pub fn take_unsent(&mut self) -> Vec<u8> {
        core::mem::take(&mut self.unsent)
    }

    /// Returns whether the peer has requested a power-off.
    pub fn wants_power_off(&self) -> bool {
        self.power_off
    }

    fn serve(&mut self, sequence: u32, body: RequestBody) {
        let began = self.cells.core().now_ns();
        let about = subject(&body);
        match self.answer(body) {
            Ok(Outcome::Answer(body)) => self.respond(sequence, Ok(body)),
            Ok(Outcome::Due(cell)) => self.due.push((sequence, cell)),
            Ok(Outcome::Pending(ticket)) => self.pending.push((sequence, ticket)),
            Err(error) => {
                if let Some(name) = about {
                    let event = JournalEvent::Refused(error.clone());
                    self.cells.record(began, (!name.is_empty()).then_some(&name), event);
                }
                self.respond(sequence, Err(error));
            }
        }
        self.settle();
    }

    fn answer(&mut self, body: RequestBody) -> Answer {
        if self.greeted == Greeting::Awaited && !matches!(body, RequestBody::Hello { .. }) {
            return Err(ManagementError::Version { supervisor: isola_abi::VERSION });
        }
        match body {
            RequestBody::Hello { version } => self.hello(version),
            RequestBody::Machine => answer(ResponseBody::Machine(self.cells.machine())),
            RequestBody::Images => answer(ResponseBody::Images(self.cells.images())),
            RequestBody::ImageBegin { len_bytes } => {
                self.cells.begin_image(len_bytes)?;
                answer(ResponseBody::Done)
            }
            RequestBody::ImageChunk { offset, bytes } => {
                self.cells.append_image(offset, &bytes)?;
                answer(ResponseBody::Done)
            }
            RequestBody::Create(spec) => {
                let created = self.cells.create(*spec)?;
                self.created(created)
            }
            RequestBody::Recreate { name } => {
                let created = self.cells.recreate(&name)?;
                self.created(created)
            }
            RequestBody::Start { name } => {
                let id = self.cells.start(&name)?;
                self.info(id)
            }
            RequestBody::Stop { .. } if self.due.len() >= MAX_DUE => {
                let what = "too many answers are due: wait for some of them";
                Err(ManagementError::OutOfLimits(what.into()))
            }
            RequestBody::Stop { name, timeout_ms } => match self.cells.stop(&name, timeout_ms)? {
                Stop::Stopped(id) => self.info(id),
                Stop::Requested(id) => Ok(Outcome::Due(id)),
            },
            RequestBody::ResizeMemory { name, memory, mode } => {
                match self.cells.resize_memory(&name, memory, mode)? {
                    Resize::Done(resized) => answer(ResponseBody::MemoryResized(resized)),
                    // At most one for each cell at a time.
                    Resize::Pending(ticket) => Ok(Outcome::Pending(ticket)),
                }
            }
            RequestBody::ResizeCores { name, change, cores, limit_ms, mode } => {
                let wanted = CoresWanted { change, ids: &cores, limit_ms };
                match self.cells.resize_cores(&name, &wanted, mode)? {
                    CoresResize::Done(resized) => answer(ResponseBody::CoresResized(resized)),
                    CoresResize::Pending(ticket) => Ok(Outcome::Pending(ticket)),
                }
            }
            RequestBody::Borrow { name, lease_ms } => {
                answer(ResponseBody::Loan(self.cells.borrow(&name, lease_ms)?))
            }
            RequestBody::Renew { name, core, lease_ms } => {
                answer(ResponseBody::Loan(self.cells.renew(&name, core, lease_ms)?))
            }
            RequestBody::GiveBack { name } => answer(ResponseBody::Loan(self.cells.give_back(&name)?)),
            RequestBody::BorrowMemory { name, memory, lease_ms } => {
                answer(ResponseBody::MemoryLoan(self.cells.borrow_memory(&name, memory, lease_ms)?))
            }
            RequestBody::GiveMemoryBack { name, memory } => {
                answer(ResponseBody::MemoryLoan(self.cells.give_memory_back(&name, memory)?))
            }
            RequestBody::Destroy { name } => {
                self.cells.destroy(&name)?;
                answer(ResponseBody::Done)
            }
            RequestBody::List { from } => answer(ResponseBody::Cells(self.list(from))),
            RequestBody::Inspect { name } => answer(ResponseBody::Cell(self.cells.inspect(&name)?)),
            RequestBody::Activities { name, from } => {
                answer(ResponseBody::Activities(self.cells.activities(&name, from)?))
            }
            RequestBody::Logs { name, from, max_bytes } => {
                let max_bytes = (max_bytes as usize).min(MAX_PART_BYTES);
                answer(ResponseBody::Logs(self.cells.logs(&name, from, max_bytes)?))
            }
            RequestBody::Ask { name, line, query } => {
                answer(ResponseBody::QueryNumber { number: self.cells.ask(&name, line, &query)? })
            }
            RequestBody::Answers { name, line, number, from, max_bytes } => {
                let max_bytes = (max_bytes as usize).min(MAX_PART_BYTES);
                answer(ResponseBody::Answers(self.cells.answers(&name, line, number, from, max_bytes)?))
            }
            RequestBody::Sample { name, rate_hz } => {
                self.cells.sample(&name, rate_hz)?;
                answer(ResponseBody::Done)
            }
            RequestBody::Events { from, max_entries } => {
                answer(ResponseBody::Events(self.events(from, max_entries)))
            }
            RequestBody::Note { cell, duration_ns, decision } => {
                self.cells.note(cell.as_deref(), duration_ns, decision)?;
                answer(ResponseBody::Done)
            }
            RequestBody::GoWrong(fault) => {
                if !self.cells.core().inject(fault) {
                    return Err(ManagementError::NotForTests);
                }
                answer(ResponseBody::Done)
            }
            RequestBody::PowerOff => {
                self.power_off = true;
                answer(ResponseBody::Done)
            }
        }
    }

    fn hello(&mut self, version: u32) -> Answer {
        self.cells.discard_upload();
        self.cells.forget_requests();
        self.due.clear();
        self.pending.clear();
        self.greeted = Greeting::Awaited;
        if version != isola_abi::VERSION {
            return Err(ManagementError::Version { supervisor: isola_abi::VERSION });
        }
        self.greeted = Greeting::Given;
        answer(ResponseBody::Hello { version: isola_abi::VERSION })
    }

    /// Returns all cells if the full information on them fits in a frame. Stops as soon as it is certain that it does
    /// not; then, and for the following pages, returns a page of cells in brief.
    fn list(&mut self, from: CellId) -> CellPage {
        self.cells.on_notification();
        if from == CellId(0) {
            let mut room = MAX_LIST_BYTES;
            let fits = |cell: CellInfo| {
                let len = postcard::experimental::serialized_size(&cell).ok()?;
                room = room.checked_sub(len)?;
                Some(cell)
            };
            if let Some(cells) = self.cells.list(Detail::Full).map(fits).collect() {
                return CellPage { cells, next: None };
            }
        }
        let mut room = MAX_LIST_BYTES;
        let mut page = CellPage::default();
        for cell in self.cells.list(Detail::Brief).filter(|cell| cell.id >= from) {
            let len = postcard::experimental::serialized_size(&cell).unwrap_or(MAX_LIST_BYTES);
            // One cell in brief always fits.
            if len > room && !page.cells.is_empty() {
                page.next = Some(cell.id);
                break;
            }
            room = room.saturating_sub(len);
            page.cells.push(cell);
        }
        page
    }

    fn events(&self, from: u64, max_entries: u32) -> Vec<JournalEntry> {
        let mut room = MAX_EVENTS_BYTES;
        let entries = self.cells.journal().since(from).take(max_entries as usize);
        let fits = |entry: &&JournalEntry| {
            let len = postcard::experimental::serialized_size(entry).unwrap_or(usize::MAX);
            let rest = room.checked_sub(len);
            room = rest.unwrap_or(0);
            rest.is_some()
        };
        entries.take_while(fits).cloned().collect()
    }

    fn info(&self, id: CellId) -> Answer {
        self.cell_info(id).map(Outcome::Answer)
    }

    fn created(&self, created: Created) -> Answer {
        match created {
            Created::Done(id) => self.info(id),
            Created::Pending(ticket) => Ok(Outcome::Pending(ticket)),
        }
    }

    /// Answers a request that has waited, unless its peer has disconnected.
    fn answer_pending(&mut self, ticket: Ticket, result: Result<ResponseBody, ManagementError>) {
        if let Some(index) = self.pending.iter().position(|(_, of)| *of == ticket) {
            let (sequence, _) = self.pending.swap_remove(index);
            self.respond(sequence, result);
        }
    }

    fn cell_info(&self, id: CellId) -> Result<ResponseBody, ManagementError> {
        let info = self.cells.info(id).ok_or_else(|| ManagementError::NoSuchCell(String::new()))?;
        Ok(ResponseBody::Cell(info))
    }

    /// Answers the requests that are completed: creations, resizes, stops and moves of cores.
    fn settle(&mut self) {
        for (ticket, result) in self.cells.take_created() {
            let info = result.and_then(|id| self.cell_info(id));
            self.answer_pending(ticket, info);
        }
        for (ticket, result) in self.cells.take_resized() {
            self.answer_pending(ticket, result.map(ResponseBody::MemoryResized));
        }
        let ended = self.cells.take_ended();
        let (settled, due) =
            core::mem::take(&mut self.due).into_iter().partition(|(_, id)| ended.contains(id));
        self.due = due;
        let settled: Vec<(u32, CellId)> = settled;
        for (sequence, id) in settled {
            let info = self.cell_info(id);
            self.respond(sequence, info);
        }
        for (ticket, result) in self.cells.take_cores_resized() {
            self.answer_pending(ticket, result.map(ResponseBody::CoresResized));
        }
    }

    fn respond(&mut self, sequence: u32, body: Result<ResponseBody, ManagementError>) {
        let response = encode(&Response { sequence, body }).or_else(|_| {
            let what = String::from("the answer does not fit in a frame");
            encode(&Response { sequence, body: Err(ManagementError::OutOfLimits(what)) })
        });
        self.unsent.extend(response.unwrap_or_default());
    }
}

fn answer(body: ResponseBody) -> Answer {
    Ok(Outcome::Answer(body))
}

/// Returns the cell that a request changes or notes something about, if a refusal is entered in the journal; the name
/// is empty if the request has none.
fn subject(body: &RequestBody) -> Option<String> {
    match body {
        RequestBody::Create(spec) => Some(crate::cells::shorten(&spec.name)),
        RequestBody::Note { cell, .. } => Some(crate::cells::shorten(cell.as_deref().unwrap_or_default())),
        RequestBody::Recreate { name }
        | RequestBody::Start { name }
        | RequestBody::Stop { name, .. }
        | RequestBody::ResizeMemory { name, .. }
        | RequestBody::ResizeCores { name, .. }
        | RequestBody::Borrow { name, .. }
        | RequestBody::GiveBack { name }
        | RequestBody::BorrowMemory { name, .. }
        | RequestBody::GiveMemoryBack { name, .. }
        | RequestBody::Destroy { name } => Some(crate::cells::shorten(name)),
        RequestBody::ImageBegin { .. } | RequestBody::ImageChunk { .. } => Some(String::new()),
        RequestBody::Hello { .. }
        | RequestBody::Machine
        | RequestBody::Images
        | RequestBody::List { .. }
        // The core's return has an entry.
        | RequestBody::Renew { .. }
        | RequestBody::Inspect { .. }
        | RequestBody::Activities { .. }
        | RequestBody::Logs { .. }
        | RequestBody::Ask { .. }
        | RequestBody::Answers { .. }
        | RequestBody::Sample { .. }
        | RequestBody::Events { .. }
        | RequestBody::GoWrong(_)
        | RequestBody::PowerOff => None,
    }
}

#[cfg(test)]
pub(crate) mod tests;
