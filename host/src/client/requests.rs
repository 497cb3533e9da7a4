//! The requests of the management protocol: a method for each, which sends it and takes the answer apart.

use super::{ANSWER_TIMEOUT, Client, ClientError};
use crate::image::CellImage;
use isola_abi::frame::MAX_PART_BYTES;
use isola_abi::id::{CellId, CoreId};
use isola_abi::management::{
    CellInfo, CellSpec, Change, CoresResized, Decision, ImageInfo, JournalEntry, LoanInfo, LogPiece,
    MachineInfo, MemoryLoanInfo, MemoryResized, Mode, RequestBody, ResponseBody,
};
use isola_abi::query::{AnswerPiece, Line, Query};
use isola_abi::size::ByteSize;
use std::ops::ControlFlow;
use std::time::Duration;

impl Client {
    /// Returns the machine's resources.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn machine(&mut self) -> Result<MachineInfo, ClientError> {
        match self.ask(RequestBody::Machine)? {
            ResponseBody::Machine(info) => Ok(info),
            _ => Err(ClientError::Unexpected),
        }
    }

    /// Returns the images in the supervisor's store.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn images(&mut self) -> Result<Vec<ImageInfo>, ClientError> {
        match self.ask(RequestBody::Images)? {
            ResponseBody::Images(images) => Ok(images),
            _ => Err(ClientError::Unexpected),
        }
    }

    /// Uploads an image unless the supervisor has it. `progress` receives the number of bytes sent, and can cancel the
    /// upload.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn provide(
        &mut self,
        image: &CellImage,
        progress: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> Result<(), ClientError> {
        if self.images()?.iter().any(|stored| stored.digest == image.digest) {
            return Ok(());
        }
        self.upload(&image.bytes, progress)
    }

    /// Uploads an image. `progress` receives the number of bytes sent, and can cancel the upload.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn upload(
        &mut self,
        image: &[u8],
        progress: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> Result<(), ClientError> {
        self.done(RequestBody::ImageBegin { len_bytes: image.len() as u64 })?;
        let mut offset = 0;
        for chunk in image.chunks(MAX_PART_BYTES) {
            self.done(RequestBody::ImageChunk { offset, bytes: chunk.to_vec() })?;
            offset += chunk.len() as u64;
            if progress(offset).is_break() {
                return Err(ClientError::Interrupted);
            }
        }
        Ok(())
    }

    /// Creates a cell from an image that the supervisor has.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn create(&mut self, spec: CellSpec) -> Result<CellInfo, ClientError> {
        self.cell(RequestBody::Create(spec.into()))
    }

    /// Creates a cell that has ended again, with the same resources and from the same image.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn recreate(&mut self, name: &str) -> Result<CellInfo, ClientError> {
        self.cell(RequestBody::Recreate { name: name.to_owned() })
    }

    /// Starts a cell.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn start(&mut self, name: &str) -> Result<CellInfo, ClientError> {
        self.cell(RequestBody::Start { name: name.to_owned() })
    }

    /// Requests a cell to stop. Returns `None` if the cell has not stopped within `limit`; the supervisor then still
    /// enforces the request.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn stop(
        &mut self,
        name: &str,
        timeout_ms: u32,
        limit: Duration,
    ) -> Result<Option<CellInfo>, ClientError> {
        match self.ask_within(RequestBody::Stop { name: name.to_owned(), timeout_ms }, limit) {
            Ok(ResponseBody::Cell(cell)) => Ok(Some(*cell)),
            Ok(_) => Err(ClientError::Unexpected),
            Err(ClientError::Timeout(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Plugs memory into a running cell, or unplugs some.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn resize_memory(
        &mut self,
        name: &str,
        memory: Change<ByteSize>,
        mode: Mode,
    ) -> Result<MemoryResized, ClientError> {
        let request = RequestBody::ResizeMemory { name: name.to_owned(), memory, mode };
        match self.ask(request)? {
            ResponseBody::MemoryResized(resized) => Ok(resized),
            _ => Err(ClientError::Unexpected),
        }
    }

    /// Plugs cores into a running cell, or unplugs some: those in `cores`, unless that is empty. A core may take
    /// `limit_ms` to leave.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn resize_cores(
        &mut self,
        name: &str,
        change: Change<u32>,
        cores: Vec<CoreId>,
        limit_ms: u32,
        mode: Mode,
    ) -> Result<CoresResized, ClientError> {
        let limit = ANSWER_TIMEOUT + Duration::from_millis(limit_ms.into());
        let request = RequestBody::ResizeCores { name: name.to_owned(), change, cores, limit_ms, mode };
        match self.ask_within(request, limit)? {
            ResponseBody::CoresResized(resized) => Ok(resized),
            _ => Err(ClientError::Unexpected),
        }
    }

    /// Starts a loan of a core to a running cell.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn borrow_core(&mut self, name: &str, lease_ms: u32) -> Result<LoanInfo, ClientError> {
        self.loan(RequestBody::Borrow { name: name.to_owned(), lease_ms })
    }

    /// Extends the loan of a core to a cell; never shortens it.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn renew_loan(&mut self, name: &str, core: CoreId, lease_ms: u32) -> Result<LoanInfo, ClientError> {
        self.loan(RequestBody::Renew { name: name.to_owned(), core, lease_ms })
    }

    /// Starts the return of the core that a cell has borrowed last.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn give_core_back(&mut self, name: &str) -> Result<LoanInfo, ClientError> {
        self.loan(RequestBody::GiveBack { name: name.to_owned() })
    }

    /// Starts a loan of memory to a running cell.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn borrow_memory(
        &mut self,
        name: &str,
        memory: ByteSize,
        lease_ms: u32,
    ) -> Result<MemoryLoanInfo, ClientError> {
        self.memory_loan(RequestBody::BorrowMemory { name: name.to_owned(), memory, lease_ms })
    }

    /// Starts the return of memory that a cell has borrowed last.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn give_memory_back(&mut self, name: &str, memory: ByteSize) -> Result<MemoryLoanInfo, ClientError> {
        self.memory_loan(RequestBody::GiveMemoryBack { name: name.to_owned(), memory })
    }

    fn memory_loan(&mut self, request: RequestBody) -> Result<MemoryLoanInfo, ClientError> {
        match self.ask(request)? {
            ResponseBody::MemoryLoan(loan) => Ok(loan),
            _ => Err(ClientError::Unexpected),
        }
    }

    fn loan(&mut self, request: RequestBody) -> Result<LoanInfo, ClientError> {
        match self.ask(request)? {
            ResponseBody::Loan(loan) => Ok(loan),
            _ => Err(ClientError::Unexpected),
        }
    }

    /// Removes a cell that does not run.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn destroy(&mut self, name: &str) -> Result<(), ClientError> {
        self.done(RequestBody::Destroy { name: name.to_owned() })
    }

    /// Returns all cells.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn list(&mut self) -> Result<Vec<CellInfo>, ClientError> {
        let (mut cells, mut from) = (Vec::new(), CellId(0));
        loop {
            let ResponseBody::Cells(page) = self.ask(RequestBody::List { from })? else {
                return Err(ClientError::Unexpected);
            };
            cells.extend(page.cells);
            match page.next {
                None => return Ok(cells),
                Some(next) if next > from => from = next,
                Some(_) => return Err(ClientError::Unexpected),
            }
        }
    }

    /// Returns one cell.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn inspect(&mut self, name: &str) -> Result<CellInfo, ClientError> {
        self.cell(RequestBody::Inspect { name: name.to_owned() })
    }

    /// Adds the activities of a cell for which the answer to [`Self::inspect`] has no room.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn add_activities(&mut self, cell: &mut CellInfo) -> Result<(), ClientError> {
        let all = &mut cell.activities;
        while let Some(from) = all.next {
            let page = match self.ask(RequestBody::Activities { name: cell.spec.name.clone(), from })? {
                ResponseBody::Activities(page) => page,
                _ => return Err(ClientError::Unexpected),
            };
            all.activities.extend(page.activities);
            all.ended.cycles = all.ended.cycles.saturating_add(page.ended.cycles);
            all.ended.events = all.ended.events.saturating_add(page.ended.events);
            all.ended.memory_bytes = all.ended.memory_bytes.saturating_add(page.ended.memory_bytes);
            // Each page must begin after the one before it, so the loop terminates.
            all.next = page.next.filter(|next| *next > from);
        }
        Ok(())
    }

    /// Returns a piece of a cell's output, from byte `from` on.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn logs(&mut self, name: &str, from: u64) -> Result<LogPiece, ClientError> {
        let request = RequestBody::Logs { name: name.to_owned(), from, max_bytes: MAX_PART_BYTES as u32 };
        match self.ask(request)? {
            ResponseBody::Logs(piece) => Ok(piece),
            _ => Err(ClientError::Unexpected),
        }
    }

    /// Sends a query to a running cell. Returns its number.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn query(&mut self, name: &str, line: Line, query: &Query) -> Result<u32, ClientError> {
        let (name, query) = (name.to_owned(), query.encode());
        match self.ask(RequestBody::Ask { name, line, query })? {
            ResponseBody::QueryNumber { number } => Ok(number),
            _ => Err(ClientError::Unexpected),
        }
    }

    /// Returns a piece of a cell's answer, from position `from` on.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn answers(
        &mut self,
        name: &str,
        line: Line,
        number: u32,
        from: u64,
    ) -> Result<AnswerPiece, ClientError> {
        let (name, max_bytes) = (name.to_owned(), MAX_PART_BYTES as u32);
        match self.ask(RequestBody::Answers { name, line, number, from, max_bytes })? {
            ResponseBody::Answers(piece) => Ok(piece),
            _ => Err(ClientError::Unexpected),
        }
    }

    /// Begins to sample the call stacks of a cell's cores, or renews the request; ends the sampling at rate 0.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn sample(&mut self, name: &str, rate_hz: u32) -> Result<(), ClientError> {
        match self.ask(RequestBody::Sample { name: name.to_owned(), rate_hz })? {
            ResponseBody::Done => Ok(()),
            _ => Err(ClientError::Unexpected),
        }
    }

    /// Returns journal entries, from entry `from` on.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn events(&mut self, from: u64) -> Result<Vec<JournalEntry>, ClientError> {
        match self.ask(RequestBody::Events { from, max_entries: 256 })? {
            ResponseBody::Events(entries) => Ok(entries),
            _ => Err(ClientError::Unexpected),
        }
    }

    /// Enters a decision about `cell` in the journal, with the duration of its execution.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn note(
        &mut self,
        cell: Option<&str>,
        duration: Duration,
        decision: Decision,
    ) -> Result<(), ClientError> {
        let duration_ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        self.done(RequestBody::Note { cell: cell.map(str::to_owned), duration_ns, decision })
    }

    /// Ends the machine. If it ends before it answers, that is not an error.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn power_off(&mut self) -> Result<(), ClientError> {
        match self.ask_within(RequestBody::PowerOff, Duration::from_secs(2)) {
            Ok(_) | Err(ClientError::Closed) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn cell(&mut self, body: RequestBody) -> Result<CellInfo, ClientError> {
        match self.ask(body)? {
            ResponseBody::Cell(cell) => Ok(*cell),
            _ => Err(ClientError::Unexpected),
        }
    }

    fn done(&mut self, body: RequestBody) -> Result<(), ClientError> {
        match self.ask(body)? {
            ResponseBody::Done => Ok(()),
            _ => Err(ClientError::Unexpected),
        }
    }
}
