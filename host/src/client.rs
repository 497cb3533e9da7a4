//! The client side of the management protocol.
//!
//! A connection lasts for one command's turn (see [`crate::machine::lock`]). An earlier command may have left half a
//! frame or an unread answer on the line. Sequence numbers, which start at a random value, separate such remains from
//! this connection's answers.

use crate::image::CellImage;
use crate::machine::qmp::Qmp;
use crate::machine::socket;
use isola_abi::frame::{Decoder, FrameError, MAX_PART_BYTES, encode};
use isola_abi::id::CoreId;
use isola_abi::management::{
    CellInfo, CellSpec, Change, CoresResized, Decision, ImageInfo, JournalEntry, LoanInfo, LogPiece,
    MachineInfo, ManagementError, MemoryLoanInfo, MemoryResized, Mode, Request, RequestBody, Response,
    ResponseBody,
};
use isola_abi::query::{AnswerPiece, Line, Query};
use isola_abi::size::ByteSize;
use std::io::{self, Read, Write};
use std::ops::ControlFlow;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use thiserror::Error;

/// Name of the socket in a machine's folder.
pub const SOCKET: &str = "management.sock";

/// How long a supervisor may take to answer. It is almost always idle, but an emulated one on a loaded host is slow.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// The interval at which the client repeats an unanswered `Hello` while a supervisor starts.
const HELLO_INTERVAL: Duration = Duration::from_millis(200);

/// How long a supervisor may be silent before the client sends it an NMI. At the NMI a hung supervisor restarts; one
/// that makes progress is not disturbed.
const SILENCE: Duration = Duration::from_secs(3);

/// A connection to a supervisor.
#[derive(Debug)]
pub struct Client {
    stream: UnixStream,
    decoder: Decoder,
    /// Received bytes that are not decoded yet.
    input: Vec<u8>,
    /// The sequence number of the latest request.
    sequence: u32,
    /// The folder of the machine, for the NMI to its supervisor.
    machine: Option<PathBuf>,
    /// The start of the current wait, or of the last NMI.
    silent_since: Instant,
}

/// The reasons why a request has no answer, or another answer than expected.
#[derive(Debug, Error)]
pub enum ClientError {
    /// The supervisor cannot be reached.
    #[error(
        "the supervisor cannot be reached: {0}; see `isola doctor`, or end the machine with `isola down`"
    )]
    Unreachable(io::Error),
    /// The machine ended.
    #[error("the machine ended before it answered: see `isola ps`")]
    Closed,
    /// No answer arrived in time.
    #[error("the supervisor has not answered within {} s: end the machine with `isola down`", .0.as_secs())]
    Timeout(Duration),
    /// The request does not fit in a frame.
    #[error("the request is too long: {0}")]
    Frame(#[from] FrameError),
    /// The answer has the wrong type.
    #[error("the supervisor's answer does not fit the query: build isola and the supervisor from one tree")]
    Unexpected,
    /// The supervisor rejected the request.
    #[error(transparent)]
    Refused(#[from] ManagementError),
    /// The user interrupted the command.
    #[error("interrupted")]
    Interrupted,
}

impl Client {
    /// Connects to the supervisor of the machine in the folder `dir`.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn connect(dir: &Path) -> Result<Self, ClientError> {
        let stream = socket::connect(dir, SOCKET).map_err(ClientError::Unreachable)?;
        let mut client = Self::of(stream, Some(dir.to_owned()))?;
        client.greet(ANSWER_TIMEOUT, &mut || ControlFlow::Continue(()))?;
        Ok(client)
    }

    /// Connects to the hosted cell that listens at the socket `name` in the folder `dir`. It supports queries only.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn connect_hosted(dir: &Path, name: &str) -> Result<Self, ClientError> {
        let stream = socket::connect(dir, name).map_err(ClientError::Unreachable)?;
        let mut client = Self::of(stream, None)?;
        client.greet(ANSWER_TIMEOUT, &mut || ControlFlow::Continue(()))?;
        Ok(client)
    }

    /// Connects to a supervisor that may still be starting: repeats `Hello` until it answers.
    ///
    /// Calls `waiting` between attempts, and gives up if it breaks.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn connect_within(
        dir: &Path,
        limit: Duration,
        waiting: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<Self, ClientError> {
        let stream = socket::connect(dir, SOCKET).map_err(ClientError::Unreachable)?;
        // A supervisor that is still starting does not handle the NMI yet.
        let mut client = Self::of(stream, None)?;
        client.greet(limit, waiting)?;
        client.machine = Some(dir.to_owned());
        Ok(client)
    }

    fn of(stream: UnixStream, machine: Option<PathBuf>) -> Result<Self, ClientError> {
        stream.set_write_timeout(Some(ANSWER_TIMEOUT)).map_err(ClientError::Unreachable)?;
        let (decoder, input, silent_since) = (Decoder::new(), Vec::new(), Instant::now());
        Ok(Self { stream, decoder, input, sequence: fastrand::u32(..), machine, silent_since })
    }

    /// Sends `Hello` until the peer answers with this protocol version.
    fn greet(
        &mut self,
        limit: Duration,
        waiting: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<(), ClientError> {
        let first = self.sequence;
        let end = Instant::now() + limit;
        self.silent_since = Instant::now();
        loop {
            self.send(RequestBody::Hello { version: isola_abi::VERSION })?;
            let sent = self.sequence.wrapping_sub(first);
            let mine = |sequence: u32| (1..=sent).contains(&sequence.wrapping_sub(first));
            match self.receive(mine, end.min(Instant::now() + HELLO_INTERVAL)) {
                Ok(ResponseBody::Hello { version }) if version == isola_abi::VERSION => return Ok(()),
                Ok(ResponseBody::Hello { version }) => {
                    return Err(ManagementError::Version { supervisor: version }.into());
                }
                Ok(_) => return Err(ClientError::Unexpected),
                Err(ClientError::Timeout(_)) if Instant::now() >= end => {
                    return Err(ClientError::Timeout(limit));
                }
                // A restarted supervisor sends this notice with the sequence number of an earlier command's request.
                Err(ClientError::Timeout(_) | ClientError::Refused(ManagementError::Restarted)) => {}
                Err(error) => return Err(error),
            }
            if waiting().is_break() {
                return Err(ClientError::Interrupted);
            }
        }
    }

    /// Sends a request and waits for the answer.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn ask(&mut self, body: RequestBody) -> Result<ResponseBody, ClientError> {
        self.ask_within(body, ANSWER_TIMEOUT)
    }

    /// Sends a request and waits at most `limit` for the answer. The request remains valid after a timeout. If the
    /// supervisor restarts meanwhile, the client repeats a request that changes nothing.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn ask_within(&mut self, body: RequestBody, limit: Duration) -> Result<ResponseBody, ClientError> {
        let again = is_read_only(&body).then(|| body.clone());
        match self.ask_once(body, limit) {
            Err(error @ ClientError::Refused(ManagementError::Restarted)) => {
                self.greet(ANSWER_TIMEOUT, &mut || ControlFlow::Continue(()))?;
                again.map_or(Err(error), |body| self.ask_once(body, limit))
            }
            other => other,
        }
    }

    fn ask_once(&mut self, body: RequestBody, limit: Duration) -> Result<ResponseBody, ClientError> {
        self.silent_since = Instant::now();
        self.send(body)?;
        let sequence = self.sequence;
        let end = Instant::now() + limit;
        match self.receive(|answered| answered == sequence, end) {
            Err(ClientError::Timeout(_)) => Err(ClientError::Timeout(limit)),
            other => other,
        }
    }

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
        match self.ask(RequestBody::List)? {
            ResponseBody::Cells(cells) => Ok(cells),
            _ => Err(ClientError::Unexpected),
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

    /// Sends an NMI to a supervisor that has been silent for long, so that a hung supervisor restarts.
    fn break_silence(&mut self) {
        if let Some(machine) = &self.machine
            && self.silent_since.elapsed() >= SILENCE
        {
            // A failure leaves the request as it was; the caller's timeout decides.
            let _ = Qmp::wake_supervisor(machine);
            self.silent_since = Instant::now();
        }
    }

    fn send(&mut self, body: RequestBody) -> Result<(), ClientError> {
        self.sequence = self.sequence.wrapping_add(1);
        let frame = encode(&Request { sequence: self.sequence, body })?;
        self.stream.write_all(&frame).map_err(broken)
    }

    /// Reads until an answer arrives whose sequence number is `wanted`, or until `end`. Drops all other answers, except
    /// the notice of a restart.
    fn receive(&mut self, wanted: impl Fn(u32) -> bool, end: Instant) -> Result<ResponseBody, ClientError> {
        let mut buffer = vec![0; MAX_PART_BYTES];
        loop {
            let mut bytes = &self.input[..];
            while let Some(message) = self.decoder.next::<Response>(&mut bytes) {
                if let Ok(response) = message
                    && (wanted(response.sequence) || response.body == Err(ManagementError::Restarted))
                {
                    self.input = bytes.to_vec();
                    return Ok(response.body?);
                }
            }
            self.input.clear();
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(ClientError::Timeout(left));
            }
            self.stream.set_read_timeout(Some(left.min(SILENCE))).map_err(ClientError::Unreachable)?;
            match self.stream.read(&mut buffer) {
                Ok(0) => return Err(ClientError::Closed),
                Ok(count) => self.input.extend_from_slice(&buffer[..count]),
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                    self.break_silence();
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(broken(error)),
            }
        }
    }
}

/// Returns whether the request can be repeated without effect.
fn is_read_only(body: &RequestBody) -> bool {
    matches!(
        body,
        RequestBody::Machine
            | RequestBody::Images
            | RequestBody::List
            | RequestBody::Inspect { .. }
            | RequestBody::Activities { .. }
            | RequestBody::Logs { .. }
            | RequestBody::Events { .. }
            | RequestBody::Renew { .. }
            | RequestBody::Sample { .. }
    )
}

fn broken(error: io::Error) -> ClientError {
    match error.kind() {
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => ClientError::Closed,
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => ClientError::Timeout(ANSWER_TIMEOUT),
        _ => ClientError::Unreachable(error),
    }
}
