//! The management protocol: what the host tool asks of the supervisor, and what it is answered.
//!
//! One request, one response of the same `sequence`, in the order in which they complete: a `Stop` that waits
//! for its cell does not hold up a `List`. The first request of a connection is a [`RequestBody::Hello`].
//! All types also serialise to JSON, which is what `isola -o json` prints.
//!
//! | file | what |
//! |---|---|
//! | this | requests, responses, limits |
//! | `spec` | what a cell shall be |
//! | `placement` | which cores it gets |
//! | `info` | what is told of cells and machine |
//! | `restart` | what becomes of a cell that has ended by itself |
//! | `journal` | what the supervisor did and saw |
//! | `lending` | cores that a cell has for a while |
//! | `resize` | how much of something a cell is to have |
//! | `error` | why a request, or an image, was refused |

mod error;
mod info;
mod journal;
mod lending;
mod placement;
mod resize;
mod restart;
mod spec;

pub use error::{ImageFault, ManagementError, TakenBy, TakenCore};
pub use info::{
    ActivityUsage, CellInfo, CellState, CoreInfo, CoreOwner, CoreUsage, Crash, DeviceLocation, Durations,
    ImageInfo, LogPiece, MachineInfo, MemoryUsage, NetworkUsage,
};
pub use journal::{Decision, JournalEntry, JournalEvent, MAX_DECISION_WORDS, RestartCause};
pub use lending::{LendingSpec, LoanInfo, MAX_LEASE_MS, ReturnReason};
pub use placement::{CorePlacement, NoSuchPolicy, PlacementPolicy};
pub use resize::{CORE_LIMIT_MS, Change, CoresResized, Kept, MemoryResized, Mode};
pub use restart::{NoRestartPolicy, RestartPolicy, Restarts};
pub use spec::{CellSpec, NetworkSpec, Text};

use crate::frame::MAX_CHUNK;
use crate::id::CoreId;
use crate::query::{AnswerPiece, Line};
use crate::size::ByteSize;
use alloc::string::String;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// Longest name of a cell, in bytes.
pub const MAX_NAME_LEN: usize = 63;

/// Most arguments of a cell, and the most bytes of all of them together.
pub const MAX_ARGUMENTS: usize = 64;

/// See [`MAX_ARGUMENTS`].
pub const MAX_ARGUMENT_BYTES: usize = 4096;

/// Most cells that a supervisor keeps, those that have ended included: so many that a list of all fits in a frame, and more
/// than can run, as each that runs has a core. One that is created when there are so many takes the place of the oldest one
/// that has ended and is not to be started again.
pub const MAX_CELLS: usize = 64;

/// Largest image that the supervisor takes, in bytes.
pub const MAX_IMAGE: u64 = 64 << 20;

/// A request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Request {
    /// Chosen by the asker; the response carries it.
    pub sequence: u32,
    /// What is asked.
    pub body: RequestBody,
}

/// What can be asked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum RequestBody {
    /// Says which version the asker speaks; drops a half-sent image of an earlier connection.
    Hello {
        /// [`crate::VERSION`] of the asker.
        version: u32,
    },
    /// What the machine has, and how much of it is free.
    Machine,
    /// The images that the supervisor keeps.
    Images,
    /// Begins to send an image. Where it has come as a whole, the supervisor keeps it: see [`ImageInfo`].
    ImageBegin {
        /// Its length, in bytes; at most [`MAX_IMAGE`].
        len_bytes: u64,
    },
    /// The next bytes of the image.
    ImageChunk {
        /// Where in the image they belong: the number of bytes sent before.
        offset: u64,
        /// At most [`MAX_CHUNK`] of them.
        bytes: Vec<u8>,
    },
    /// Creates a cell from an image that the supervisor has.
    Create(CellSpec),
    /// Gives a cell that has ended what its specification says once more, built from the image that it was built
    /// from before. Its id and its log go on. A refusal leaves it as it was.
    Recreate {
        /// The cell's name.
        name: String,
    },
    /// Starts a cell that was created, or created once more.
    Start {
        /// The cell's name.
        name: String,
    },
    /// Asks a cell to stop, and ends it by force where it does not within the time. What it held is free when
    /// this is answered.
    Stop {
        /// The cell's name.
        name: String,
        /// How long it may take, in ms; 0 is by force at once.
        timeout_ms: u32,
    },
    /// Gives a running cell memory, or takes memory from it. What it is to get, it gets as a whole or not at all; what it is
    /// to give back it is asked for, and it may be less that comes back: that is answered when it is known.
    ResizeMemory {
        /// The cell's name.
        name: String,
        /// How much it is to have; in whole chunks, of which it has rather one more.
        memory: Change<ByteSize>,
        /// Whether that is done.
        mode: Mode,
    },
    /// Gives a running cell more cores, or takes some. Answered when they have come, or are back.
    ResizeCores {
        /// The cell's name.
        name: String,
        /// How many it is to have.
        change: Change<u32>,
        /// Which come, or leave; any, where there are none.
        cores: Vec<CoreId>,
        /// How long a core may take to come free, in ms: as a rule, [`CORE_LIMIT_MS`].
        limit_ms: u32,
        /// Whether it is done.
        mode: Mode,
    },
    /// Borrows a core for a running cell: one of its own that is lent, one that nobody has, or one of a cell of lower
    /// priority that lends. Answered when it is on its way; what comes of it is in the journal.
    Borrow {
        /// The cell's name.
        name: String,
        /// How long it may have the core, in ms; at most [`MAX_LEASE_MS`].
        lease_ms: u32,
    },
    /// Has a cell give back the core that it borrowed last. Answered when it is on its way.
    GiveBack {
        /// The cell's name.
        name: String,
    },
    /// Forgets a cell that is not running. One that was created and not started gives back what it holds.
    Destroy {
        /// The cell's name.
        name: String,
    },
    /// All cells.
    List,
    /// One cell, with all that is known of it.
    Inspect {
        /// The cell's name.
        name: String,
    },
    /// What a cell printed.
    Logs {
        /// The cell's name.
        name: String,
        /// From which byte on, counted from the cell's first.
        from: u64,
        /// At most so many bytes; at most [`MAX_CHUNK`].
        max_bytes: u32,
    },
    /// Puts a question to a running cell: see [`crate::query`].
    Ask {
        /// The cell's name.
        name: String,
        /// The question whose place it takes.
        line: Line,
        /// At most [`crate::query::MAX_QUESTION`] bytes.
        question: Vec<u8>,
    },
    /// What the cell answers, as far as it has. What was answered before `from` makes room for more.
    Answers {
        /// The cell's name.
        name: String,
        /// The question's line.
        line: Line,
        /// The question's number.
        number: u32,
        /// From which position on; 0 at the beginning.
        from: u64,
        /// At most so many bytes; at most [`MAX_CHUNK`].
        max_bytes: u32,
    },
    /// The journal.
    Events {
        /// From which entry on.
        from: u64,
        /// At most so many entries.
        max_entries: u32,
    },
    /// Enters a decision that was made outside of the supervisor in the journal.
    Note {
        /// The cell that it is about, whether there is such a cell or not; at most [`MAX_NAME_LEN`] bytes.
        cell: Option<String>,
        /// How long it took to make it, and to do what it says, in ns.
        duration_ns: u64,
        /// The decision.
        decision: Decision,
    },
    /// Has the supervisor go wrong, for a test. Refused where the machine was not booted for tests.
    GoWrong(Fault),
    /// Ends the machine.
    PowerOff,
}

/// How a supervisor can be made to go wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Fault {
    /// It panics.
    Panic,
    /// It writes where there is nothing.
    PageFault,
    /// It calls itself for ever.
    StackOverflow,
    /// It stands still, with interrupts off.
    Hang,
    /// It panics while a cell is taken apart: between its cores and its memory.
    PanicAtEnd,
    /// It panics, and what it has noted of images and of cells that have ended is lost.
    PanicWithoutCheckpoint,
}

/// A response.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Response {
    /// The request's.
    pub sequence: u32,
    /// The answer.
    pub body: Result<ResponseBody, ManagementError>,
}

/// What can be answered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ResponseBody {
    /// It is done.
    Done,
    /// Answers [`RequestBody::Hello`].
    Hello {
        /// [`crate::VERSION`] of the supervisor.
        version: u32,
    },
    /// Answers [`RequestBody::Machine`].
    Machine(MachineInfo),
    /// Answers [`RequestBody::Images`]: those that were used or sent last come last.
    Images(Vec<ImageInfo>),
    /// Answers [`RequestBody::Create`], [`RequestBody::Recreate`], [`RequestBody::Start`],
    /// [`RequestBody::Stop`] and [`RequestBody::Inspect`]: the cell as it is now.
    Cell(alloc::boxed::Box<CellInfo>),
    /// Answers [`RequestBody::ResizeMemory`].
    MemoryResized(MemoryResized),
    /// Answers [`RequestBody::Borrow`] and [`RequestBody::GiveBack`]: the core, and whose it is.
    Loan(LoanInfo),
    /// Answers [`RequestBody::ResizeCores`].
    CoresResized(CoresResized),
    /// Answers [`RequestBody::List`].
    Cells(Vec<CellInfo>),
    /// Answers [`RequestBody::Logs`].
    Logs(LogPiece),
    /// Answers [`RequestBody::Ask`].
    Asked {
        /// The question's number.
        number: u32,
    },
    /// Answers [`RequestBody::Answers`].
    Answers(AnswerPiece),
    /// Answers [`RequestBody::Events`].
    Events(Vec<JournalEntry>),
}

const _: () = assert!(MAX_CHUNK + 1024 < crate::frame::MAX_FRAME);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{Decoder, encode};
    use alloc::vec;

    #[test]
    fn a_largest_chunk_fits_in_a_frame() {
        let body = RequestBody::ImageChunk { offset: u64::MAX, bytes: vec![0xff; MAX_CHUNK] };
        let request = Request { sequence: u32::MAX, body };
        let bytes = encode(&request).unwrap();
        assert_eq!(Decoder::new().next::<Request>(&mut &bytes[..]), Some(Ok(request)));
    }
}
