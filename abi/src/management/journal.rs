//! What the supervisor did and saw.

use super::{MAX_NAME_LEN, ManagementError, ReturnReason};
use crate::growth::Refusal;
use crate::id::CoreId;
use crate::report::CrashKind;
use crate::size::ByteSize;
use alloc::format;
use alloc::string::String;
use serde::{Deserialize, Serialize};

/// Something that the supervisor did or saw.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JournalEntry {
    /// Number of the entry, from 0.
    pub number: u64,
    /// Time of day, in ns since 1970-01-01 UTC.
    pub unix_ns: u64,
    /// How long it took, in ns.
    pub duration_ns: u64,
    /// The cell's name, where it was about one.
    pub cell: Option<String>,
    /// What it was.
    pub event: JournalEvent,
}

/// What the journal records.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum JournalEvent {
    /// The machine came up.
    Boot,
    /// A cell was created.
    Create,
    /// A cell that had ended was created once more.
    Recreate,
    /// A cell was started.
    Start,
    /// A cell asked for more memory, and got it. It took from the moment at which the supervisor saw the request.
    Grow {
        /// How much more.
        by: ByteSize,
        /// How much it has now.
        to: ByteSize,
    },
    /// A cell's memory was resized, as asked. It took from the request.
    ResizeMemory {
        /// How much it had.
        from: ByteSize,
        /// How much it has now.
        to: ByteSize,
        /// How much it was to have.
        wanted: ByteSize,
    },
    /// A cell asked for more memory, and gets none: entered once, until it gets some.
    GrowthRefused {
        /// The least that would have done.
        wanted: ByteSize,
        /// Why.
        refusal: Refusal,
    },
    /// A core has come to a cell that runs. It took from the request until the core said so.
    CoreCame {
        /// Which.
        core: CoreId,
        /// How many the cell has now.
        cores: u32,
    },
    /// A core has left a cell that runs, and is free.
    CoreLeft {
        /// Which.
        core: CoreId,
        /// How many the cell has now.
        cores: u32,
    },
    /// A core was taken by force from a cell that runs, and is free. What it was in the middle of is gone on with by others.
    CoreTaken {
        /// Which.
        core: CoreId,
        /// How many the cell has now.
        cores: u32,
    },
    /// A cell has borrowed a core. It took from the request until the core was sent to it.
    Borrow {
        /// Which.
        core: CoreId,
        /// The lender; `None` where nobody had it.
        from: Option<String>,
        /// For how long, in ns.
        lease_ns: u64,
    },
    /// A borrowed core has left its borrower.
    Return {
        /// Which.
        core: CoreId,
        /// To whom it goes; `None`: to nobody.
        to: Option<String>,
        /// Why.
        why: ReturnReason,
    },
    /// No core could be borrowed, or a loan did not come about.
    NotBorrowed {
        /// Which, where one was on its way.
        core: Option<CoreId>,
    },
    /// A cell's application returned with this code, and what it held is back.
    Exit(i32),
    /// A cell went wrong, and what it held is back.
    Crash(CrashKind),
    /// A cell was stopped by force, and what it held is back.
    Kill,
    /// A cell that has ended is going to be started again, as its policy says.
    RestartDue {
        /// How many of its ends stand in a row, none having come after it ran for a while.
        ends_in_row: u32,
        /// How long from now.
        after_ns: u64,
    },
    /// A cell was to be started again, and could not be.
    RestartRefused {
        /// Why not.
        error: ManagementError,
        /// How long it takes until the next try; `None`: there is none.
        after_ns: Option<u64>,
    },
    /// A cell that has ended is not started again, as it was as often as its policy allows.
    RestartsUsedUp {
        /// How many of its ends stand in a row.
        ends_in_row: u32,
    },
    /// A cell that waited to be started again was asked to stop.
    RestartCancelled,
    /// A cell was forgotten, with what it still held given back.
    Destroy,
    /// A core did not come back; the memory of the cell that it was in is kept out of use.
    CoreLost(CoreId),
    /// A cell's device could not be reset; it and the cell's memory are kept out of use.
    DeviceLost,
    /// The supervisor had gone wrong, and began anew; the cells that ran still do. It took from there to the first request
    /// that it could answer. What it had recorded before is in the journal as far as there was room for it.
    Restart {
        /// What had gone wrong.
        cause: RestartCause,
        /// How often it has begun anew by now.
        number: u32,
        /// Cells that it found again.
        found: u32,
        /// Cells that it found, but could not tell what they hold, or that were just beginning or ending: they are gone.
        gone: u32,
    },
    /// The supervisor has been interrupted with vectors that it does not use, by a cell or a device: entered again each time
    /// that there were twice as many.
    StrayInterrupts {
        /// How many since this supervisor began.
        count: u32,
    },
    /// A request was refused.
    Refused(ManagementError),
    /// Somebody outside of the supervisor decided something.
    Decision(Decision),
}

/// Why the supervisor began anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[repr(u32)]
pub enum RestartCause {
    /// It found out itself that something is wrong.
    Panic = 1,
    /// The processor found that out.
    Exception = 2,
    /// It stood still.
    Hang = 3,
}

impl RestartCause {
    /// What people call it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Panic => "panic",
            Self::Exception => "exception",
            Self::Hang => "hang",
        }
    }

    /// The cause of that number.
    pub const fn from_u32(value: u32) -> Option<Self> {
        match value {
            1 => Some(Self::Panic),
            2 => Some(Self::Exception),
            3 => Some(Self::Hang),
            _ => None,
        }
    }
}

/// Most bytes of what a [`Decision`] says, and most of why.
pub const MAX_DECISION_WORDS: usize = 200;

/// What somebody outside of the supervisor decided, such as a controller that moves cores between cells.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decision {
    /// Who made it: at most [`MAX_NAME_LEN`] bytes.
    pub by: String,
    /// What is done, or is not: at most [`MAX_DECISION_WORDS`] bytes.
    pub what: String,
    /// The figures or the rule that led to it: at most as many.
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
