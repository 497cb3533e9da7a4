//! A stream of records from a running cell: captured frames, a trace, or a profile.
//!
//! The cell writes records into a ring. A stream reads the ring in short turns at the cell's machine, so that other
//! commands get theirs.

use super::follow::INTERVAL;
use super::{Context, Failure, failure};
use crate::cellctl::look_up;
use crate::client::{Client, ClientError};
use crate::hosted_cells;
use crate::machine::LockedMachine;
use crate::output::view::is_running;
use isola_abi::management::ManagementError;
use isola_abi::query::{Line, Query, QueryState, Records};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The pause between two turns.
const PAUSE: Duration = Duration::from_millis(20);

/// How long a cell may take to begin.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// The time between two renewals of the supervisor's lease for samples.
const RENEWAL: Duration = Duration::from_millis(500);

/// The samples that the supervisor requests of the cell while the stream runs.
struct Sampling {
    rate_hz: u32,
    /// The last renewal.
    renewed: Instant,
}

/// A stream that a cell writes.
pub(super) struct Stream<'a> {
    context: &'a Context,
    cell: &'a str,
    /// The user's word for the stream: `capture`.
    kind: &'static str,
    began: Instant,
    location: CellLocation,
    /// The query's number.
    number: u32,
    records: Records,
    /// Records that the cell lost, and the part of them that `taken` accounts for.
    lost: u64,
    accounted: u64,
    /// Records that were read and not yet taken, each with the number of records lost before it.
    taken: Vec<(Vec<u8>, u64)>,
    state: QueryState,
    sampling: Option<Sampling>,
}

/// The location of the cell.
#[derive(Clone, Copy)]
enum CellLocation {
    Hosted,
    Machine,
}

/// Whether the stream continues after a turn.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    /// It continues.
    Continues,
    /// It has ended.
    Ended,
}

impl<'a> Stream<'a> {
    /// Sends the query, which begins the stream, to a running cell.
    pub(super) fn begin(
        context: &'a Context,
        cell: &'a str,
        query: &Query,
        kind: &'static str,
    ) -> Result<Self, Failure> {
        let (location, number) = match hosted_cells::find(&context.root, cell)? {
            Some(mut client) => (CellLocation::Hosted, client.query(cell, Line::Frames, query)?),
            None => {
                let locked = LockedMachine::take_supervised(&context.root, &context.dir())?;
                let mut client = locked.client()?;
                let info = look_up(&locked, &mut client, cell)?;
                if !is_running(&info) {
                    let what = format!("{cell:?} is {}: a {kind} needs a cell that runs", info.state);
                    return Err(Failure::new(failure::REFUSED, what));
                }
                (CellLocation::Machine, client.query(cell, Line::Frames, query)?)
            }
        };
        Ok(Self {
            context,
            cell,
            kind,
            began: Instant::now(),
            location,
            number,
            records: Records::default(),
            lost: 0,
            accounted: 0,
            taken: Vec::new(),
            state: QueryState::Open,
            sampling: None,
        })
    }

    /// Makes the supervisor sample the cell's cores at this rate, until the stream ends; 0 ends the samples now.
    pub(super) fn sample(&mut self, rate_hz: u32) -> Result<Progress, Failure> {
        let Some((_held, mut client)) = self.connect()? else { return Ok(Progress::Ended) };
        let sampled = client.sample(self.cell, rate_hz);
        self.sampling = (rate_hz > 0).then(|| Sampling { rate_hz, renewed: Instant::now() });
        self.checked(sampled)
    }

    /// Returns that the stream has ended if the supervisor refused a request for that reason, and says so.
    fn checked(&self, answer: Result<(), ClientError>) -> Result<Progress, Failure> {
        match answer {
            Ok(()) => Ok(Progress::Continues),
            Err(ClientError::Refused(ManagementError::WrongState { state, .. })) => {
                self.context.output.note(&format!("the cell has ended: it is {state}, see `isola inspect`"));
                Ok(Progress::Ended)
            }
            Err(ClientError::Refused(ManagementError::NoSuchCell(_))) => {
                self.context.output.note("the cell has ended");
                Ok(Progress::Ended)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Returns the time since the stream began.
    pub(super) fn age(&self) -> Duration {
        self.began.elapsed()
    }

    /// Returns the number of records that the cell lost.
    pub(super) fn lost(&self) -> u64 {
        self.lost
    }

    /// Returns the records that were read since the last call, each with the number of records lost before it.
    pub(super) fn take(&mut self) -> Vec<(Vec<u8>, u64)> {
        std::mem::take(&mut self.taken)
    }

    /// Waits between two turns. Fails if the cell has not begun in time.
    pub(super) fn pause(&self) -> Result<(), Failure> {
        if self.state == QueryState::Open && self.age() > ANSWER_TIMEOUT {
            let what = format!("cell {:?} does not answer: see `isola inspect`", self.cell);
            return Err(Failure::new(failure::REFUSED, what));
        }
        // Other commands try the machine's lock every few milliseconds.
        sleep(PAUSE);
        Ok(())
    }

    /// Connects for a turn; returns `None` if a hosted cell has ended.
    fn connect(&self) -> Result<Option<(Option<LockedMachine>, Client)>, Failure> {
        match self.location {
            CellLocation::Hosted => {
                Ok(hosted_cells::find(&self.context.root, self.cell)?.map(|client| (None, client)))
            }
            CellLocation::Machine => {
                let locked = LockedMachine::take_supervised(&self.context.root, &self.context.dir())?;
                let client = locked.client()?;
                Ok(Some((Some(locked), client)))
            }
        }
    }

    /// Reads new records in one turn, and then releases the machine.
    pub(super) fn turn(&mut self) -> Result<Progress, Failure> {
        let note = |text: &str| self.context.output.note(text);
        let Some((_held, mut client)) = self.connect()? else {
            note("the cell has ended");
            return Ok(Progress::Ended);
        };
        let due = self.sampling.as_mut().filter(|sampling| sampling.renewed.elapsed() >= RENEWAL);
        if let Some(sampling) = due {
            sampling.renewed = Instant::now();
            let renewed = client.sample(self.cell, sampling.rate_hz);
            if self.checked(renewed)? == Progress::Ended {
                return Ok(Progress::Ended);
            }
        }
        let end = Instant::now() + INTERVAL;
        loop {
            let piece = match client.answers(self.cell, Line::Frames, self.number, self.records.end()) {
                Ok(piece) => piece,
                Err(error) => return self.checked(Err(error)),
            };
            match (self.state, piece.state) {
                (_, QueryState::Replaced) => {
                    self.state = QueryState::Replaced;
                    note(
                        "another capture, trace or profile of the cell has begun, or the cell has restarted",
                    );
                    return Ok(Progress::Ended);
                }
                (QueryState::Answered, QueryState::Open) => {
                    let kind = self.kind;
                    note(&format!("the cell has ended the {kind}, as its ring was not read for long"));
                    return Ok(Progress::Ended);
                }
                // The cell has not begun: the position of its first record is not known.
                (_, QueryState::Open) => return Ok(Progress::Continues),
                (_, state) => self.state = state,
            }
            self.lost = piece.lost;
            self.records.add(&piece)?;
            while let Some(record) = self.records.next_record()? {
                self.taken.push((record.to_vec(), self.lost.saturating_sub(self.accounted)));
                self.accounted = self.lost;
            }
            if piece.bytes.is_empty() || Instant::now() >= end {
                return Ok(Progress::Continues);
            }
        }
    }

    /// Ends the stream in the cell, if it still runs for this command.
    pub(super) fn end(&mut self) {
        if self.state == QueryState::Replaced {
            return;
        }
        // An ended cell writes nothing; a cell that is out of reach ends the stream by itself when its ring is not read.
        if let Ok(Some((_held, mut client))) = self.connect()
            && let Ok(piece) = client.answers(self.cell, Line::Frames, self.number, self.records.end())
            && piece.state != QueryState::Replaced
        {
            // Also if the cell has not begun yet: it would begin a stream without a reader.
            self.lost = self.lost.max(piece.lost);
            if self.sampling.take().is_some() {
                let _ = client.sample(self.cell, 0);
            }
            let _ = client.query(self.cell, Line::Frames, &Query::EndCapture);
        }
    }
}
