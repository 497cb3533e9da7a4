//! Memory for new and restarted cells: one that finds too little free memory preempts that of less important cells, as the
//! memory request of a running cell does. What it gets is a loan, of which the unused part returns after a lease.
//!
//! The request to create or restart the cell is pending meanwhile. One of them at a time preempts; others are refused.

use super::{LoanRequest, REQUEST_LEASE_NS};
use crate::cells::Cells;
use crate::lending::memory::Renewal;
use isola_abi::id::{CellId, NodeId};
use isola_abi::management::{CellSpec, JournalEvent, ReturnReason};
use isola_abi::size::ByteSize;
use isola_supervisor_core::Hardware;
use isola_supervisor_core::inventory::CHUNK;

/// The borrower of a claim: no cell has this id.
pub(super) const NEW_CELL: CellId = CellId(u32::MAX);

impl<H: Hardware> Cells<H> {
    /// Begins to borrow memory for a cell that is to be built, if cells of lower priority can lend what it misses beside
    /// the free memory. Returns whether memory is on its way.
    pub(in crate::cells) fn claim_memory(&mut self, spec: &CellSpec, wanted: u64) -> bool {
        let memory = &self.loans.memory;
        let has_claim = memory.requests.iter().any(|claim| claim.borrower == NEW_CELL);
        // A lender may not have answered a claim that was dropped.
        if has_claim || memory.claim.is_some() || memory.asks_for(NEW_CELL) {
            return false;
        }
        let (since_ns, priority) = (self.core.now_ns(), spec.lending.priority);
        let spare: u64 =
            self.memory_lenders((NEW_CELL, priority), since_ns).iter().map(|(_, bytes)| bytes).sum();
        let Self { images, core, .. } = self;
        let idle = images.idle_bytes() - images.idle_bytes_of(&spec.image);
        if (core.inventory().memory.available() + idle) / CHUNK * CHUNK + spare < wanted {
            return false;
        }
        images.make_room(wanted, Some(&spec.image), core);
        let free = wanted.min(core.inventory().memory.available() / CHUNK * CHUNK);
        core.reserve_memory(free);
        let (lease, bytes) = ((Renewal::ByUse, REQUEST_LEASE_NS), (wanted - free, wanted, free));
        self.loans.memory.requests.push(LoanRequest::new((NEW_CELL, priority), lease, bytes, since_ns));
        let is_asked = self.ask_lender(NEW_CELL);
        if !is_asked {
            self.drop_claim();
        }
        is_asked
    }

    /// Returns whether the claim has got what it can, and enough of it is zero to build the cell.
    pub(in crate::cells) fn is_claim_ready(&mut self, wanted: u64, node: NodeId) -> bool {
        let is_asked = self.loans.memory.asks_for(NEW_CELL);
        let mut requests = self.loans.memory.requests.iter();
        let Some(claim) = requests.find(|claim| claim.borrower == NEW_CELL) else { return true };
        let (came, needs_more) = (claim.came_bytes(), claim.needs_more());
        if is_asked || needs_more && self.ask_lender(NEW_CELL) {
            return false;
        }
        self.core.unreserve_memory(came);
        let is_zero = self.core.inventory().memory.is_ready(wanted, node);
        self.core.reserve_memory(came);
        needs_more || is_zero
    }

    /// Makes the memory of the claim available to the attempt that follows.
    pub(in crate::cells) fn begin_claimed(&mut self) {
        let requests = &mut self.loans.memory.requests;
        let claim = requests.iter().position(|claim| claim.borrower == NEW_CELL);
        let claim = claim.map(|index| requests.remove(index));
        self.core.unreserve_memory(claim.as_ref().map_or(0, LoanRequest::came_bytes));
        self.loans.memory.claim = claim;
    }

    /// Enters the loans of a cell that was built with claimed memory.
    pub(in crate::cells) fn enter_claimed(&mut self, id: CellId, name: &str) {
        let Some(claim) = self.loans.memory.claim.take() else { return };
        for (lender, len_bytes) in claim.came.iter().filter(|(lender, _)| lender.is_some()) {
            let loan = claim.loan_until(id, *lender, *len_bytes, self.core.now_ns());
            self.loans.memory.lending.enter(loan);
            let from = lender.and_then(|lender| self.table.name_of(lender));
            let (memory, lease_ns) = (ByteSize(*len_bytes), claim.lease_ns);
            let event = JournalEvent::BorrowMemory { memory, from, lease_ns };
            self.record(claim.since_ns, Some(name), event);
        }
    }

    /// Returns the memory of a claim for which no cell was built.
    pub(in crate::cells) fn end_claimed(&mut self) {
        let Some(claim) = self.loans.memory.claim.take() else { return };
        self.core.reserve_memory(claim.came_bytes());
        for source in claim.came {
            self.return_memory(source, NEW_CELL, ReturnReason::Lost, claim.since_ns);
        }
        self.settle_memory();
    }

    /// Ends the claim of a request that was cancelled. Memory that comes later returns as well.
    pub(in crate::cells) fn drop_claim(&mut self) {
        self.begin_claimed();
        self.end_claimed();
    }
}
