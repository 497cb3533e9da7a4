//! The journal: the supervisor's event log.

use super::{MAX_NAME_LEN, ManagementError, ReturnReason};
use crate::growth::Refusal;
use crate::id::CoreId;
use crate::report::CrashKind;
use crate::size::ByteSize;
use alloc::format;
use alloc::string::String;
use serde::{Deserialize, Serialize};

/// An entry of the journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JournalEntry {
    /// The entry's number, from 0.
    pub number: u64,
    /// Time of day, in ns since 1970-01-01 UTC.
    pub unix_ns: u64,
    /// The duration in ns.
    pub duration_ns: u64,
    /// The name of the cell concerned, if there is one.
    pub cell: Option<String>,
    /// The event.
    pub event: JournalEvent,
}

/// The events that the journal records.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum JournalEvent {
    /// The machine booted.
    Boot,
    /// A cell was created.
    Create,
    /// An ended cell was created again.
    Recreate,
    /// A cell was started.
    Start,
    /// The supervisor granted a cell's memory request. The duration counts from the time at which the supervisor read
    /// the request.
    Grow {
        /// The size of the block.
        by: ByteSize,
        /// The cell's memory afterwards.
        to: ByteSize,
    },
    /// A cell's memory was resized by request. The duration counts from the request.
    ResizeMemory {
        /// The cell's memory before.
        from: ByteSize,
        /// The cell's memory afterwards.
        to: ByteSize,
        /// The requested memory.
        wanted: ByteSize,
    },
    /// The supervisor refused a cell's memory request. It records further refusals only after the next grant.
    GrowthRefused {
        /// The smallest acceptable block.
        wanted: ByteSize,
        /// The reason.
        refusal: Refusal,
    },
    /// A core has entered a running cell. The duration counts from the request until the core's echo.
    CoreCame {
        /// The core.
        core: CoreId,
        /// The cell's number of cores afterwards.
        cores: u32,
    },
    /// A core has left a running cell, and is free.
    CoreLeft {
        /// The core.
        core: CoreId,
        /// The cell's number of cores afterwards.
        cores: u32,
    },
    /// A core was taken by force from a running cell, and is free. The cell's other cores resume the suspended context.
    CoreTaken {
        /// The core.
        core: CoreId,
        /// The cell's number of cores afterwards.
        cores: u32,
    },
    /// A cell has borrowed a core. The duration counts from the request until the core was sent to the cell.
    Borrow {
        /// The core.
        core: CoreId,
        /// The lender; `None` if the core was free.
        from: Option<String>,
        /// The lease, in ns.
        lease_ns: u64,
    },
    /// A borrowed core has left its borrower.
    Return {
        /// The core.
        core: CoreId,
        /// The cell that gets the core; `None` if it becomes free.
        to: Option<String>,
        /// The reason.
        why: ReturnReason,
    },
    /// No core was available to borrow, or a loan failed.
    NotBorrowed {
        /// The core, if its transfer had begun.
        core: Option<CoreId>,
    },
    /// A cell has borrowed memory. The duration counts from the request until the cell had the memory.
    BorrowMemory {
        /// The memory.
        memory: ByteSize,
        /// The lender; `None` if the memory was free.
        from: Option<String>,
        /// The lease, in ns.
        lease_ns: u64,
    },
    /// A cell has returned borrowed memory. The duration counts from the request.
    ReturnMemory {
        /// The memory.
        memory: ByteSize,
        /// The cell that has the memory now; `None` if it is free.
        to: Option<String>,
        /// The reason.
        why: ReturnReason,
    },
    /// A requested loan of memory was not completed.
    MemoryNotBorrowed {
        /// The missing memory.
        memory: ByteSize,
    },
    /// A cell's application has returned this exit code, and the supervisor has taken the cell's resources back.
    Exit(i32),
    /// A cell has crashed, and the supervisor has taken its resources back.
    Crash(CrashKind),
    /// A cell was ended by force, and the supervisor has taken its resources back.
    Kill,
    /// An ended cell is due for a restart by its policy.
    RestartDue {
        /// The number of ends in a row, since the last longer run.
        ends_in_row: u32,
        /// The time until the restart, in ns.
        after_ns: u64,
    },
    /// A restart of a cell was due and failed.
    RestartRefused {
        /// The reason.
        error: ManagementError,
        /// The time until the next attempt, in ns; `None` if there is none.
        after_ns: Option<u64>,
    },
    /// An ended cell has used up the restarts that its policy allows.
    RestartsUsedUp {
        /// The number of ends in a row.
        ends_in_row: u32,
    },
    /// A stop request cancelled a cell's pending restart.
    RestartCancelled,
    /// A cell's record was removed, and its remaining resources were taken back.
    Destroy,
    /// A core did not come back. Its cell's memory is in quarantine.
    CoreLost(CoreId),
    /// A cell's device could not be reset. The device and the cell's memory are in quarantine.
    DeviceLost,
    /// The supervisor has restarted while cells kept running. The duration counts from the failure to the first request
    /// that it could answer. Earlier entries are in the journal as far as the checkpoint had room for them.
    Restart {
        /// The cause.
        cause: RestartCause,
        /// The number of restarts so far.
        number: u32,
        /// The number of recovered cells.
        found: u32,
        /// The number of cells that were not recovered: their ownership record was invalid, or they were starting or
        /// ending.
        gone: u32,
    },
    /// The supervisor received interrupts with unused vectors, from a cell or a device. It records them again each time
    /// that their number has doubled.
    StrayInterrupts {
        /// The number of these interrupts since the supervisor's start.
        count: u32,
    },
    /// A request was refused.
    Refused(ManagementError),
    /// Another program entered a decision.
    Decision(Decision),
}

/// The cause of a supervisor restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[repr(u32)]
pub enum RestartCause {
    /// The supervisor panicked.
    Panic = 1,
    /// The processor raised an exception.
    Exception = 2,
    /// The supervisor hung.
    Hang = 3,
}

impl RestartCause {
    /// Returns the cause's name, for users.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Panic => "panic",
            Self::Exception => "exception",
            Self::Hang => "hang",
        }
    }

    /// Decodes a cause; `None` for an unknown number.
    pub const fn from_u32(value: u32) -> Option<Self> {
        match value {
            1 => Some(Self::Panic),
            2 => Some(Self::Exception),
            3 => Some(Self::Hang),
            _ => None,
        }
    }
}

/// The maximum length of a [`Decision`]'s action, and of its reason, in bytes.
pub const MAX_DECISION_WORDS: usize = 200;

/// A decision of another program, for example of a controller that moves cores between cells.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decision {
    /// The decision's author, 1 to [`MAX_NAME_LEN`] bytes.
    pub by: String,
    /// The action, taken or not; at most [`MAX_DECISION_WORDS`] bytes.
    pub what: String,
    /// The reason: the figures or the rule; at most [`MAX_DECISION_WORDS`] bytes.
    pub why: String,
}

impl Decision {
    /// Checks the lengths.
    ///
    /// # Errors
    /// [`ManagementError::OutOfLimits`].
    pub fn validate(&self) -> Result<(), ManagementError> {
        let words = [&self.what, &self.why].into_iter().all(|text| text.len() <= MAX_DECISION_WORDS);
        if self.by.is_empty() || self.by.len() > MAX_NAME_LEN || !words {
            return Err(ManagementError::OutOfLimits(format!(
                "a decision names who made it in 1 to {MAX_NAME_LEN} bytes, and says what and why in at most \
                 {MAX_DECISION_WORDS} each"
            )));
        }
        Ok(())
    }
}
