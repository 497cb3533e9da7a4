//! The management protocol: requests of the host tool, and responses of the supervisor.
//!
//! Each request has one response with the same `sequence`. Responses come in the order of completion: a `Stop` that
//! waits for its cell does not delay a `List`. The first request of a connection is a [`RequestBody::Hello`]. All types
//! also serialise to JSON, the output of `isola -o json`.
//!
//! | file | contents |
//! |---|---|
//! | this | requests, responses, limits |
//! | `spec` | the specification of a cell |
//! | `placement` | the choice of a cell's cores |
//! | `info` | the state of cells and machine |
//! | `restart` | the restart policy |
//! | `journal` | the supervisor's event log |
//! | `lending` | loans of cores and memory |
//! | `resize` | changes of a running cell's cores and memory |
//! | `error` | the reasons for refusals |

mod error;
mod info;
mod journal;
mod lending;
mod placement;
mod resize;
mod restart;
mod spec;
mod state;

pub use crate::id::DeviceLocation;
pub use error::{ImageFault, ManagementError, TakenCore, TakenCoreOwner};
pub use info::{
    ACTIVITIES_PER_PAGE, ActivityPage, ActivityUsage, CellInfo, CellPage, CoreInfo, CoreOwner, CoreUsage,
    Crash, Durations, ImageInfo, LogPiece, MachineInfo, MemoryUsage, NetworkUsage,
};
pub use journal::{Decision, JournalEntry, JournalEvent, MAX_DECISION_WORDS, RestartCause};
pub use lending::{LendingSpec, LoanInfo, MAX_LEASE_MS, MemoryLoanInfo, ReturnReason};
pub use placement::{CorePlacement, NoSuchPolicy, PlacementPolicy};
pub use resize::{CORE_LIMIT_MS, Change, CoresResized, MemoryResized, Mode, ReclaimShortfall};
pub use restart::{NoRestartPolicy, RestartPolicy, Restarts};
pub use spec::{CellSpec, NetworkSpec, Text};
pub use state::CellState;

use crate::frame::MAX_PART_BYTES;
use crate::id::{CellId, CoreId, MAX_MACHINE_CORES};
use crate::query::{AnswerPiece, Line};
use crate::size::ByteSize;
use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// The maximum length of a cell's name, in bytes.
pub const MAX_NAME_LEN: usize = 63;

/// The maximum number of a cell's arguments.
pub const MAX_ARGUMENTS: usize = 64;

/// The maximum length of a cell's arguments in all, one separator byte for each included, in bytes.
pub const MAX_ARGUMENT_BYTES: usize = 4096;

/// The maximum number of cells that a supervisor records on the largest machine: see [`max_cells`].
pub const MAX_CELLS: usize = max_cells(MAX_MACHINE_CORES);

/// Returns the maximum number of cells that the supervisor of a machine with `cores` cores records, ended ones included:
/// 64, or one for each core if there are more. Each cell with resources has a core, and so has the supervisor, so such
/// cells never fill the records. At this number, a new cell replaces the oldest one that has ended and will not be
/// restarted.
pub const fn max_cells(cores: usize) -> usize {
    match cores {
        0..=64 => 64,
        65..=MAX_MACHINE_CORES => cores,
        _ => MAX_MACHINE_CORES,
    }
}

/// The maximum size of an image, in bytes.
pub const MAX_IMAGE: u64 = 64 << 20;

/// The maximum rate of samples, per second and core.
pub const MAX_SAMPLE_HZ: u32 = 1_000;

/// The maximum rate of samples of all cores of the machine, per second. It bounds the supervisor's work for profiles:
/// sending an NMI takes it about a microsecond under a hypervisor.
pub const MAX_SAMPLES_A_SECOND: u32 = 20_000;

/// The time in ms for which a [`RequestBody::Sample`] is valid.
pub const SAMPLE_LEASE_MS: u32 = 2_000;

/// A request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Request {
    /// A number that the client chooses and the response repeats.
    pub sequence: u32,
    /// The request itself.
    pub body: RequestBody,
}

/// The kinds of requests.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum RequestBody {
    /// Announces the client's version, and discards the partial image of an earlier connection.
    Hello {
        /// The client's [`crate::VERSION`].
        version: u32,
    },
    /// Returns the machine's resources and the free part of each.
    Machine,
    /// Returns the images in the image store.
    Images,
    /// Begins the upload of an image. The supervisor stores the image when it is complete: see [`ImageInfo`].
    ImageBegin {
        /// The image's length in bytes, at most [`MAX_IMAGE`].
        len_bytes: u64,
    },
    /// Uploads the next bytes of the image.
    ImageChunk {
        /// The offset of the bytes in the image, equal to the number of bytes uploaded before.
        offset: u64,
        /// The bytes, at most [`MAX_PART_BYTES`].
        bytes: Vec<u8>,
    },
    /// Creates a cell from a stored image.
    Create(Box<CellSpec>),
    /// Creates an ended cell again, with the resources of its specification and from the same image. Its id and its log
    /// continue. A refusal leaves the cell unchanged.
    Recreate {
        /// The cell's name.
        name: String,
    },
    /// Starts a cell that was created, or created again.
    Start {
        /// The cell's name.
        name: String,
    },
    /// Requests that a cell stop, and ends it by force after the timeout. The response comes when the cell's resources
    /// are free.
    Stop {
        /// The cell's name.
        name: String,
        /// The timeout in ms; 0 ends the cell by force at once.
        timeout_ms: u32,
    },
    /// Plugs memory into a running cell, or unplugs memory from it. A plug is all or nothing. An unplug depends on the
    /// memory that the cell offers and may be partial; the response comes when the result is known.
    ResizeMemory {
        /// The cell's name.
        name: String,
        /// The new amount, rounded up to whole chunks.
        memory: Change<ByteSize>,
        /// Whether the supervisor makes the change.
        mode: Mode,
    },
    /// Plugs cores into a running cell, or unplugs cores from it. The response comes when all of them have entered or
    /// left.
    ResizeCores {
        /// The cell's name.
        name: String,
        /// The new number of cores.
        change: Change<u32>,
        /// The cores that enter or leave; if empty, the supervisor chooses.
        cores: Vec<CoreId>,
        /// The time in ms within which a core has to leave, after which the supervisor takes it by force.
        /// [`CORE_LIMIT_MS`] is the default.
        limit_ms: u32,
        /// Whether the supervisor makes the change.
        mode: Mode,
    },
    /// Borrows a core for a running cell: one of its own that it has lent, a free core, or a core of a lending cell
    /// with lower priority. The response comes when the core transfer has begun; the journal has the outcome.
    Borrow {
        /// The cell's name.
        name: String,
        /// The lease in ms, at most [`MAX_LEASE_MS`].
        lease_ms: u32,
    },
    /// Extends a loan: its lease then ends the given time after this request, or at its present end if that is later. A
    /// loan that has ended or whose core is returning is refused. The journal has no entry, as the return has one.
    Renew {
        /// The borrower's name.
        name: String,
        /// The core.
        core: CoreId,
        /// The lease in ms, at most [`MAX_LEASE_MS`].
        lease_ms: u32,
    },
    /// Returns the core that a cell borrowed last. The response comes when the core transfer has begun.
    GiveBack {
        /// The cell's name.
        name: String,
    },
    /// Borrows memory for a running cell: its own that it has lent, free memory, or memory of lending cells with lower
    /// priority. The response comes when the transfer has begun, with the first lender; the journal has the outcome.
    BorrowMemory {
        /// The cell's name.
        name: String,
        /// The memory, rounded up to whole chunks.
        memory: ByteSize,
        /// The lease in ms, at most [`MAX_LEASE_MS`].
        lease_ms: u32,
    },
    /// Returns memory of the latest loan to a cell, as far as the cell does not use it. The response comes when the cell
    /// was asked for it.
    GiveMemoryBack {
        /// The cell's name.
        name: String,
        /// The memory, rounded up to whole chunks; at most all of that loan is returned.
        memory: ByteSize,
    },
    /// Removes the record of a cell that does not run. A cell that was created and not started returns its resources.
    Destroy {
        /// The cell's name.
        name: String,
    },
    /// Lists the cells by id, from an id on: a page of them.
    List {
        /// The least id.
        from: CellId,
    },
    /// Returns the state of one cell in full.
    Inspect {
        /// The cell's name.
        name: String,
    },
    /// Returns the usage of a cell's activities beyond the first page of [`CellInfo::activities`]. Not available for a
    /// cell that has ended.
    Activities {
        /// The cell's name.
        name: String,
        /// The first activity slot of the page.
        from: u32,
    },
    /// Returns console output of a cell.
    Logs {
        /// The cell's name.
        name: String,
        /// The position of the first byte, counted from the start of the cell's output.
        from: u64,
        /// The maximum number of bytes, at most [`MAX_PART_BYTES`].
        max_bytes: u32,
    },
    /// Sends a query to a running cell: see [`crate::query`].
    Ask {
        /// The cell's name.
        name: String,
        /// The line, on which this query replaces the previous one.
        line: Line,
        /// The encoded query, at most [`crate::query::MAX_QUERY`] bytes.
        query: Vec<u8>,
    },
    /// Returns the cell's answer so far. Releases the answer's bytes before `from`.
    Answers {
        /// The cell's name.
        name: String,
        /// The query's line.
        line: Line,
        /// The query's number.
        number: u32,
        /// The position of the first byte; 0 for the start of the answer.
        from: u64,
        /// The maximum number of bytes, at most [`MAX_PART_BYTES`].
        max_bytes: u32,
    },
    /// Interrupts the cores of a running cell by NMI, at this rate and for [`SAMPLE_LEASE_MS`], so that the cell samples
    /// their call stacks: see [`crate::query::Query::Profile`]. Replaces the previous such request for the cell.
    Sample {
        /// The cell's name.
        name: String,
        /// The samples per second and core, at most [`MAX_SAMPLE_HZ`]; 0 ends the sampling.
        rate_hz: u32,
    },
    /// Returns journal entries.
    Events {
        /// The number of the first entry.
        from: u64,
        /// The maximum number of entries.
        max_entries: u32,
    },
    /// Enters a decision of another program into the journal.
    Note {
        /// The cell that the decision concerns, existing or not; at most [`MAX_NAME_LEN`] bytes.
        cell: Option<String>,
        /// The duration of the decision and its execution, in ns.
        duration_ns: u64,
        /// The decision.
        decision: Decision,
    },
    /// Injects a fault into the supervisor. Refused unless the machine was booted for tests.
    GoWrong(Fault),
    /// Powers the machine off.
    PowerOff,
}

/// The kinds of faults for injection into the supervisor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Fault {
    /// A panic.
    Panic,
    /// A store to an unmapped address.
    PageFault,
    /// An endless recursion.
    StackOverflow,
    /// An endless loop with interrupts off.
    Hang,
    /// A panic during the next end of a cell, after its cores and before its memory are taken back.
    PanicAtEnd,
    /// A panic, after which the supervisor checkpoint (stored images, ended cells) is lost.
    PanicWithoutCheckpoint,
}

/// A response.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Response {
    /// The request's sequence number.
    pub sequence: u32,
    /// The answer.
    pub body: Result<ResponseBody, ManagementError>,
}

/// The kinds of answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ResponseBody {
    /// The request has been carried out.
    Done,
    /// Answers [`RequestBody::Hello`].
    Hello {
        /// The supervisor's [`crate::VERSION`].
        version: u32,
    },
    /// Answers [`RequestBody::Machine`].
    Machine(MachineInfo),
    /// Answers [`RequestBody::Images`], the most recently used or uploaded image last.
    Images(Vec<ImageInfo>),
    /// Answers [`RequestBody::Create`], [`RequestBody::Recreate`], [`RequestBody::Start`], [`RequestBody::Stop`] and
    /// [`RequestBody::Inspect`] with the cell's present state.
    Cell(Box<CellInfo>),
    /// Answers [`RequestBody::ResizeMemory`].
    MemoryResized(MemoryResized),
    /// Answers [`RequestBody::Borrow`], [`RequestBody::Renew`] and [`RequestBody::GiveBack`] with the core, its lender
    /// and the remaining lease.
    Loan(LoanInfo),
    /// Answers [`RequestBody::BorrowMemory`] and [`RequestBody::GiveMemoryBack`] with the memory, its lender and the
    /// remaining lease.
    MemoryLoan(MemoryLoanInfo),
    /// Answers [`RequestBody::ResizeCores`].
    CoresResized(CoresResized),
    /// Answers [`RequestBody::List`].
    Cells(CellPage),
    /// Answers [`RequestBody::Activities`].
    Activities(ActivityPage),
    /// Answers [`RequestBody::Logs`].
    Logs(LogPiece),
    /// Answers [`RequestBody::Ask`].
    QueryNumber {
        /// The query's number.
        number: u32,
    },
    /// Answers [`RequestBody::Answers`].
    Answers(AnswerPiece),
    /// Answers [`RequestBody::Events`].
    Events(Vec<JournalEntry>),
}

const _: () = assert!(MAX_PART_BYTES + 1024 < crate::frame::MAX_FRAME);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{Decoder, encode};
    use alloc::vec;

    #[test]
    fn the_largest_image_chunk_fits_in_a_frame() {
        let body = RequestBody::ImageChunk { offset: u64::MAX, bytes: vec![0xff; MAX_PART_BYTES] };
        let request = Request { sequence: u32::MAX, body };
        let bytes = encode(&request).unwrap();
        assert_eq!(Decoder::new().next::<Request>(&mut &bytes[..]), Some(Ok(request)));
    }
}
