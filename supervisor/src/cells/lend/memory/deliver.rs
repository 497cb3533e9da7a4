//! Unplugged memory: its way to the borrower or the lender.

use super::claims::NEW_CELL;
use super::{LoanRequest, MemoryReturn, PATIENCE_NS, Purpose, Reclaim};
use crate::cells::Cells;
use crate::cells::cell::Cell;
use crate::cells::lend::transfers::AfterEnd;
use crate::lending::memory::{MemoryLoan, Renewal};
use alloc::vec::Vec;
use isola_abi::growth::LARGEST_BLOCK;
use isola_abi::id::{CellId, NodeId};
use isola_abi::management::{JournalEvent, ReturnReason};
use isola_abi::size::ByteSize;
use isola_supervisor_core::Hardware;
use isola_supervisor_core::inventory::{BlockRequest, CHUNK};
use isola_supervisor_core::trusted_core::{BlockPlug, OwnedCell, Rejection};

/// How far reserved memory could be plugged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Plugged {
    /// All of it, or as much as the cell can have.
    Done(u64),
    /// None yet: it is not zero, or the cell has not acknowledged its last reclaim request.
    Later,
}

impl<H: Hardware> Cells<H> {
    /// Handles the end of a reclaim request for a loan: `len_bytes` bytes are reserved.
    pub(in crate::cells) fn memory_reclaimed(&mut self, from: CellId, len_bytes: u64, is_complete: bool) {
        let now = self.core.now_ns();
        let memory = &mut self.loans.memory;
        memory.lending.note_outcome(from, is_complete, now);
        let reclaim = memory.reclaims.iter().position(|reclaim| reclaim.from == from);
        let Some(Reclaim { purpose, since_ns, .. }) = reclaim.map(|index| memory.reclaims.remove(index))
        else {
            return self.core.unreserve_memory(len_bytes);
        };
        match purpose {
            Purpose::LoanTo(borrower) => {
                match memory.requests.iter_mut().find(|coming| coming.borrower == borrower) {
                    Some(coming) if len_bytes > 0 => {
                        coming.came.push((Some(from), len_bytes));
                        coming.missing_bytes = coming.missing_bytes.saturating_sub(len_bytes);
                    }
                    Some(_) => {}
                    // The borrower has ended.
                    None => {
                        self.return_memory((Some(from), len_bytes), borrower, ReturnReason::Lost, since_ns)
                    }
                }
                self.update_lender(from);
            }
            Purpose::Return(loan, why) => {
                let removed = memory.lending.reduce(&loan, len_bytes);
                match loan.renewal {
                    Renewal::ByUse => memory.lending.renew(&loan, now),
                    Renewal::None => memory.lending.put_off(&loan, memory.lending.asked_again_ns(from)),
                }
                self.core.unreserve_memory(len_bytes - removed);
                self.return_memory((loan.lender, removed), from, why, since_ns);
                self.save(from);
            }
        }
        self.settle_memory();
    }

    /// Sends reserved memory back to its lender, or to the free memory if it has none.
    pub(super) fn return_memory(
        &mut self,
        (lender, len_bytes): (Option<CellId>, u64),
        borrower: CellId,
        why: ReturnReason,
        since_ns: u64,
    ) {
        if len_bytes == 0 {
            return;
        }
        if let Some(lender) = lender {
            let returning = MemoryReturn { lender, borrower, len_bytes, why, since_ns };
            return self.loans.memory.returns.push(returning);
        }
        self.core.unreserve_memory(len_bytes);
        let event = JournalEvent::ReturnMemory { memory: ByteSize(len_bytes), to: None, why };
        self.record_about(borrower, since_ns, event);
    }

    /// Asks further lenders, and plugs reserved memory that is zero.
    pub(in crate::cells) fn settle_memory(&mut self) {
        self.loans.memory.is_unsettled = false;
        let borrowers = self.loans.memory.requests.iter().map(|coming| coming.borrower);
        let borrowers: Vec<CellId> = borrowers.filter(|borrower| *borrower != NEW_CELL).collect();
        borrowers.into_iter().for_each(|borrower| self.deliver_loan(borrower));
        let mut index = 0;
        while index < self.loans.memory.returns.len() {
            index += usize::from(self.deliver_return(index) == Plugged::Later);
        }
    }

    /// Plugs the memory of a request for a loan into the borrower, once enough has come.
    fn deliver_loan(&mut self, id: CellId) {
        let memory = &mut self.loans.memory;
        let is_asked = memory.asks_for(id);
        let Some(index) = memory.requests.iter().position(|coming| coming.borrower == id) else { return };
        let needs_more = memory.requests.get(index).is_some_and(LoanRequest::needs_more);
        if is_asked || needs_more && self.ask_lender(id) {
            return;
        }
        // The record names the loan before the borrower can use the memory.
        self.save(id);
        let mut coming = self.loans.memory.requests.remove(index);
        let (Some(cell), Some(owned)) = (self.table.get(id), self.core.cell(id)) else { return };
        let memory_bytes = owned.memory_bytes();
        let request = owned.memory_request();
        let (least_bytes, room) = match (coming.renewal, &request) {
            (Renewal::None, _) => (CHUNK, u64::MAX),
            (Renewal::ByUse, Some(request)) => {
                (request.least_bytes, cell.limit_bytes(memory_bytes) - memory_bytes)
            }
            // Free memory has satisfied the request meanwhile.
            (Renewal::ByUse, None) => (CHUNK, 0),
        };
        let room = if cell.is_running() { room } else { 0 };
        let came = coming.came_bytes();
        let first = owned.first_core().and_then(|core| self.core.inventory().cores.node(core));
        let node = request.filter(|_| coming.renewal == Renewal::ByUse).map(|request| request.node).or(first);
        let plug = (came.min(room), least_bytes, node.unwrap_or(NodeId(0)));
        let until_ns = coming.since_ns.saturating_add(PATIENCE_NS);
        let Plugged::Done(mut plugged) = self.plug_reserved(id, plug, until_ns) else {
            return self.loans.memory.requests.insert(index, coming);
        };
        let total = plugged;
        let since_ns = coming.since_ns;
        for (lender, bytes) in core::mem::take(&mut coming.came) {
            let lent = bytes.min(plugged);
            plugged -= lent;
            if lent > 0 {
                self.loans.memory.lending.enter(coming.loan(lender, lent));
                let from = lender.and_then(|lender| self.table.name_of(lender));
                let (memory, lease_ns) = (ByteSize(lent), coming.lease_ns);
                self.record_about(id, since_ns, JournalEvent::BorrowMemory { memory, from, lease_ns });
            }
            self.return_memory((lender, bytes - lent), id, ReturnReason::Lost, since_ns);
        }
        let missing = coming.missing_bytes + came - total;
        match (coming.renewal, request) {
            (Renewal::None, _) if missing > 0 => {
                self.record_about(
                    id,
                    since_ns,
                    JournalEvent::MemoryNotBorrowed { memory: ByteSize(missing) },
                );
            }
            (Renewal::ByUse, Some(request)) => {
                let now = self.core.now_ns();
                self.loans.memory.lending.note_outcome(id, total > 0, now);
                match self.parts(id) {
                    Some((cell, mut parts)) if total > 0 => cell.grant(&mut parts, request.number),
                    // Memory may be free by now. If not, the request is refused, as the cell borrows none for a while.
                    _ => self.grow(id),
                }
            }
            _ => {}
        }
        self.save(id);
    }

    /// Plugs returned memory into its lender, as far as it can have it; the rest is free.
    fn deliver_return(&mut self, index: usize) -> Plugged {
        let Some(returning) = self.loans.memory.returns.get(index).copied() else { return Plugged::Done(0) };
        let MemoryReturn { lender, borrower, len_bytes, why, since_ns } = returning;
        let is_running = self.table.get(lender).is_some_and(Cell::is_running);
        let first = self.core.cell(lender).and_then(OwnedCell::first_core);
        let node = first.and_then(|core| self.core.inventory().cores.node(core)).unwrap_or(NodeId(0));
        let plug = (if is_running { len_bytes } else { 0 }, CHUNK, node);
        // The memory waits for its owner, however long that takes to acknowledge its last reclaim request.
        let Plugged::Done(plugged) = self.plug_reserved(lender, plug, u64::MAX) else {
            return Plugged::Later;
        };
        self.loans.memory.returns.remove(index);
        self.core.unreserve_memory(len_bytes - plugged);
        for (to, bytes) in [(self.table.name_of(lender), plugged), (None, len_bytes - plugged)] {
            if bytes > 0 {
                let event = JournalEvent::ReturnMemory { memory: ByteSize(bytes), to, why };
                self.record_about(borrower, since_ns, event);
            }
        }
        self.update_lender(lender);
        Plugged::Done(plugged)
    }

    /// Plugs reserved memory into a cell: a block of at least `least_bytes` first, in as few blocks as possible. What was
    /// plugged is no longer reserved. Waits until `until_ns` for the cell to acknowledge its last reclaim request.
    fn plug_reserved(
        &mut self,
        id: CellId,
        (len_bytes, mut least_bytes, node): (u64, u64, NodeId),
        until_ns: u64,
    ) -> Plugged {
        let memory = &self.core.inventory().memory;
        if memory.free() - memory.dirty() < len_bytes {
            return Plugged::Later;
        }
        self.core.unreserve_memory(len_bytes);
        let mut left = len_bytes;
        let mut end = Plugged::Done(0);
        while left >= least_bytes {
            let largest_bytes = 1 << left.min(LARGEST_BLOCK).ilog2();
            match self.core.plug_block(id, BlockRequest { least_bytes, largest_bytes, node }) {
                Ok(BlockPlug::Plugged(bytes)) => (left, least_bytes) = (left.saturating_sub(bytes), CHUNK),
                Err(Rejection::NotSettled) if self.core.now_ns() < until_ns => {
                    end = Plugged::Later;
                    break;
                }
                _ => break,
            }
        }
        self.core.reserve_memory(left);
        if end == Plugged::Later && left == len_bytes { end } else { Plugged::Done(len_bytes - left) }
    }

    /// Handles the end of a cell that may have lent or borrowed memory.
    pub(in crate::cells) fn memory_lending_ended(&mut self, id: CellId, then: AfterEnd) {
        let now = self.core.now_ns();
        let memory = &mut self.loans.memory;
        memory.reclaims.retain(|reclaim| reclaim.from != id);
        memory.lender_ended(id, then, now);
        let lost = memory.returns.extract_if(.., |returning| returning.lender == id);
        lost.for_each(|returning| self.core.unreserve_memory(returning.len_bytes));
        let over = memory.lending.borrower_ended(id);
        let coming: Vec<LoanRequest> =
            memory.requests.extract_if(.., |coming| coming.borrower == id).collect();
        for coming in coming {
            for source in coming.came {
                self.return_memory(source, id, ReturnReason::Lost, coming.since_ns);
            }
        }
        for MemoryLoan { lender, len_bytes, .. } in over {
            // Memory in quarantine does not return.
            let len_bytes = len_bytes.min(self.core.inventory().memory.available()) / CHUNK * CHUNK;
            if lender.is_some() {
                self.core.reserve_memory(len_bytes);
                self.return_memory((lender, len_bytes), id, ReturnReason::Lost, now);
            }
        }
        let borrowers: Vec<CellId> =
            self.loans.memory.lending.loans().iter().map(|loan| loan.borrower).collect();
        borrowers.into_iter().for_each(|borrower| self.save(borrower));
        self.settle_memory();
    }

    /// Updates a lender's limit and record after a change of the memory that it has lent.
    pub(super) fn update_lender(&mut self, id: CellId) {
        let lends = self.loans.memory.lent_bytes(id) > 0;
        if let Some((cell, mut parts)) = self.parts(id) {
            cell.growth.lends = lends;
            cell.set_limit(&parts);
            parts.save(cell);
        }
    }

    /// Updates the limits of all recovered lenders.
    pub(in crate::cells) fn resume_lenders(&mut self) {
        let lenders: Vec<CellId> = self.table.iter().map(|cell| cell.id).collect();
        let lenders = lenders.into_iter().filter(|id| self.loans.memory.lent_bytes(*id) > 0);
        lenders.collect::<Vec<_>>().into_iter().for_each(|id| self.update_lender(id));
    }
}
