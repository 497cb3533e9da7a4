//! Cores that a cell has for a while.

use crate::id::CoreId;
use alloc::string::String;
use core::fmt;
use serde::{Deserialize, Serialize};

/// How a cell lends and borrows cores. By default it lends none, and nobody less important than it is there to lend any.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LendingSpec {
    /// How important it is: it borrows from cells of lower priority.
    pub priority: u8,
    /// The most of its cores that are lent at a time. It keeps one in any case.
    pub lends: u32,
    /// How long its events may wait until it borrows a core by itself, in us; 0: it borrows when it is told to.
    pub borrow_above_us: u32,
}

/// The longest lease, in ms: an hour.
pub const MAX_LEASE_MS: u32 = 3_600_000;

/// A core that a cell has borrowed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoanInfo {
    /// Which.
    pub core: CoreId,
    /// The lender; `None` where nobody had it, or who had it has ended.
    pub from: Option<String>,
    /// For how much longer, in ns.
    pub left_ns: u64,
}

/// Why a borrowed core goes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ReturnReason {
    /// The lease is over.
    LeaseOver,
    /// The borrower, or somebody for it, gave it back.
    GivenBack,
    /// The lender, or somebody for it, asked for it.
    Recalled,
    /// The borrower has ended, or lost the core by another request.
    Lost,
}

impl fmt::Display for ReturnReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::LeaseOver => "the lease is over",
            Self::GivenBack => "given back",
            Self::Recalled => "the lender needs it",
            Self::Lost => "the borrower has it no longer",
        })
    }
}
