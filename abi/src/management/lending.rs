//! Lending: loans of cores and memory between cells.

use crate::id::CoreId;
use crate::size::ByteSize;
use alloc::string::String;
use core::fmt;
use serde::{Deserialize, Serialize};

/// A cell's rules for lending and borrowing cores and memory. By default it lends none, and has the lowest priority.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LendingSpec {
    /// The cell's priority. A cell borrows from cells of lower priority.
    pub priority: u8,
    /// The maximum number of cores lent at a time. The cell always keeps one.
    pub lends: u32,
    /// The queueing delay in us above which the cell borrows a core by itself; 0: it borrows only by request.
    pub borrow_above_us: u32,
    /// The memory that the cell keeps, image and stacks included: it lends free memory beyond that. `None`: it lends no
    /// memory.
    pub memory_low: Option<ByteSize>,
}

/// The maximum lease, in ms: one hour.
pub const MAX_LEASE_MS: u32 = 3_600_000;

/// A core that a cell has borrowed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoanInfo {
    /// The core.
    pub core: CoreId,
    /// The lender; `None` if the core was free, or if its lender has ended.
    pub from: Option<String>,
    /// The remaining lease, in ns.
    pub left_ns: u64,
}

/// Memory that a cell has borrowed. A loan is an amount of memory, not a set of blocks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryLoanInfo {
    /// The memory.
    pub memory: ByteSize,
    /// The lender; `None` if the memory was free, or if its lender has ended.
    pub from: Option<String>,
    /// The remaining lease, in ns.
    pub left_ns: u64,
    /// Whether the lease is renewed while the cell uses the memory.
    pub renews: bool,
}

/// The reason for the return of a borrowed core or of borrowed memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ReturnReason {
    /// The lease has ended.
    LeaseOver,
    /// The borrower released it, by itself or by request.
    GivenBack,
    /// The lender requested it, by itself or by request.
    Recalled,
    /// The borrower has ended, or lost it to another request, or could not take it.
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
