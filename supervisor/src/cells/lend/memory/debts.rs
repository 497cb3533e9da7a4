//! Memory loans in ownership records, and their recovery after a restart of the supervisor.
//!
//! The core's record of a cell says how much memory the cell has. The notes of a party say beside that how much memory
//! it *owns*, written before the first change; lending changes only the memory that it has. A restarted supervisor
//! therefore derives the rest: what a borrower has beyond its own is borrowed, and what a lender lacks is lent, or was on
//! its way and returns.

use super::{MemoryLoans, MemoryReturn};
use crate::cells::cell::Cell;
use crate::cells::lend::transfers::AfterEnd;
use crate::cells::table::CellTable;
use crate::lending::memory::{MemoryLoan, Renewal};
use alloc::vec::Vec;
use core::cmp::Reverse;
use isola_abi::id::CellId;
use isola_abi::management::{MAX_LEASE_MS, ReturnReason};
use isola_supervisor_core::inventory::CHUNK;
use isola_supervisor_core::{Hardware, TrustedCore};
use serde::{Deserialize, Serialize};

/// The memory loans of one cell, in its saved state.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(in crate::cells) struct SavedMemory {
    /// The memory that the cell owns, in bytes, if it is a party to a loan.
    own_bytes: Option<u64>,
    /// The borrowed memory, also that on its way: at most [`MAX_LOANS`](crate::lending::memory::MAX_LOANS) and those of
    /// one request.
    borrowed: Vec<SavedMemoryLoan>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct SavedMemoryLoan {
    lender: Option<CellId>,
    len_bytes: u64,
    renews: bool,
    lease_ns: u64,
    until_ns: u64,
}

impl SavedMemoryLoan {
    fn of(loan: &MemoryLoan) -> Self {
        let MemoryLoan { lender, len_bytes, renewal, lease_ns, until_ns, .. } = *loan;
        Self { lender, len_bytes, renews: renewal == Renewal::ByUse, lease_ns, until_ns }
    }

    /// Returns the loan to `borrower`. Its times are bounded, as those of core loans are.
    fn of_borrower(self, borrower: CellId, now: u64) -> MemoryLoan {
        let Self { lender, len_bytes, renews, lease_ns, until_ns } = self;
        let longest_ns = u64::from(MAX_LEASE_MS) * 1_000_000;
        let until_ns = until_ns.min(now.saturating_add(longest_ns));
        MemoryLoan {
            lender: lender.filter(|lender| *lender != borrower),
            borrower,
            len_bytes,
            renewal: if renews { Renewal::ByUse } else { Renewal::None },
            lease_ns: lease_ns.clamp(1_000_000, longest_ns),
            until_ns,
            due_ns: until_ns,
        }
    }
}

impl MemoryLoans {
    /// Returns the memory loans of a cell that has `memory_bytes`, for its saved state.
    pub(in crate::cells) fn saved(&self, id: CellId, memory_bytes: u64) -> SavedMemory {
        let own_bytes =
            memory_bytes + self.lent_bytes(id) - self.lending.borrowed_bytes(id).min(memory_bytes);
        let loans = self.lending.borrowed(id).chain(self.expected(id));
        SavedMemory {
            own_bytes: self.is_party(id).then_some(own_bytes),
            borrowed: loans.map(|loan| SavedMemoryLoan::of(&loan)).collect(),
        }
    }

    /// Keeps the saved loans of a recovered cell until all cells are recovered.
    pub(in crate::cells) fn resume(&mut self, id: CellId, saved: &SavedMemory) {
        self.saved.push((id, saved.clone()));
    }

    /// Restores the loans from before a supervisor restart, and returns to lenders the memory that no borrower has,
    /// after all cells were recovered.
    pub(in crate::cells) fn resume_debts<H: Hardware>(
        &mut self,
        core: &mut TrustedCore<H>,
        table: &CellTable,
    ) {
        let now = core.now_ns();
        let mut saved = core::mem::take(&mut self.saved);
        // What a cell has lent follows from the loans of cells of higher priority.
        saved.sort_by_key(|(id, _)| Reverse(table.get(*id).map(|cell| cell.spec.lending.priority)));
        for (id, SavedMemory { own_bytes, borrowed }) in saved {
            let (Some(own_bytes), Some(owned)) = (own_bytes, core.cell(id)) else { continue };
            let there = owned.memory_bytes().saturating_add(self.lending.lent_bytes(id));
            let mut left = there.saturating_sub(own_bytes) / CHUNK * CHUNK;
            for loan in borrowed {
                let len_bytes = loan.len_bytes.min(left) / CHUNK * CHUNK;
                left -= len_bytes;
                self.lending.enter(SavedMemoryLoan { len_bytes, ..loan }.of_borrower(id, now));
            }
            let owed = own_bytes.saturating_add(self.lending.borrowed_bytes(id)).saturating_sub(there);
            let len_bytes = owed.min(core.inventory().memory.available()) / CHUNK * CHUNK;
            if len_bytes > 0 {
                core.reserve_memory(len_bytes);
                let (borrower, why, since_ns) = (id, ReturnReason::Lost, now);
                self.returns.push(MemoryReturn { lender: id, borrower, len_bytes, why, since_ns });
                self.is_unsettled = true;
            }
        }
        let lenders: Vec<CellId> = self.lending.loans().iter().filter_map(|loan| loan.lender).collect();
        for id in lenders.into_iter().filter(|id| !table.get(*id).is_some_and(Cell::is_live)) {
            let is_due = table.get(id).is_some_and(|cell| cell.restarting.next_ns().is_some());
            self.lender_ended(id, if is_due { AfterEnd::Restart } else { AfterEnd::Nothing }, now);
        }
    }
}
