//! The client side of the management protocol.
//!
//! A connection lasts for one command's turn (see [`crate::machine::lock`]). An earlier command may have left half a
//! frame or an unread answer on the line. Sequence numbers, which start at a random value, separate such remains from
//! this connection's answers.
//!
//! Here is the connection; `requests` has a method for each request.

mod requests;

use crate::machine::qmp::Qmp;
use crate::machine::socket;
use isola_abi::frame::{Decoder, FrameError, MAX_PART_BYTES, encode};
use isola_abi::management::{ManagementError, Request, RequestBody, Response, ResponseBody};
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
            | RequestBody::List { .. }
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
