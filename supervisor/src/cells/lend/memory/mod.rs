//! Memory loans: borrowing, transfers, and returns (RainForest 4.1, 5.3).
//!
//! [`crate::lending::memory`] decides which cells are asked for memory. A reclaim request unplugs it, as for a resize,
//! and it is plugged once it is zero. Between the two, the inventory *reserves* its bytes, so no other request gets them.
//!
//! ```text
//!   memory request, or an operator's   ── lender's memory is unplugged ──▶ reserved, scrubbed ──▶ plugged into the borrower
//!   lease over, given back, recalled   ── borrower's is unplugged ───────▶ reserved, scrubbed ──▶ plugged into the lender
//! ```
//!
//! | file | contents |
//! |---|---|
//! | this | the state; requests for loans and for returns |
//! | `claims` | memory for new and restarted cells |
//! | `deliver` | unplugged memory: its way to borrower or lender, and the ends of cells |
//! | `debts` | loans in ownership records, and recovery |
//!
//! A memory request stays open meanwhile, for at most [`ASK_NS`] and the time of one lender and of scrubbing: a core
//! waits no longer than five seconds for the answer ([`isola_abi::growth`]).

mod claims;
mod debts;
mod deliver;

use super::transfers::AfterEnd;
use super::{Cells, ReturnReason, lease_end_ns, shorten};
use crate::cells::cell::Cell;
use crate::lending::memory::{MAX_LOANS, MemoryLending, MemoryLoan, MemoryParty, Renewal, unused_bytes};
use crate::report;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
pub(super) use debts::SavedMemory;
use isola_abi::id::CellId;
use isola_abi::management::{ManagementError, MemoryLoanInfo};
use isola_abi::size::ByteSize;
use isola_supervisor_core::Hardware;
use isola_supervisor_core::inventory::{BlockRequest, CHUNK};

/// The lease of memory that a cell requested, in ns.
pub(in crate::cells) const REQUEST_LEASE_NS: u64 = 1_000_000_000;

/// The time after which no further lender is asked for a request, in ns.
const ASK_NS: u64 = 2_000_000_000;

/// How long a lender may take for a reclaim request, in ns.
const LENDER_PATIENCE_NS: u64 = 2_000_000_000;

/// How long a borrower may take for a reclaim request, or a cell to acknowledge its last one, in ns.
const PATIENCE_NS: u64 = 5_000_000_000;

/// The memory loans, and the memory on its way.
#[derive(Debug)]
pub(in crate::cells) struct MemoryLoans {
    pub(super) lending: MemoryLending,
    /// The reclaim requests in progress, at most one for each cell.
    reclaims: Vec<Reclaim>,
    /// The requests for loans in progress, at most one for each borrower.
    requests: Vec<LoanRequest>,
    /// The request whose memory the cell may use that is being built.
    claim: Option<LoanRequest>,
    /// The memory on its way back.
    pub(super) returns: Vec<MemoryReturn>,
    /// The saved loans of recovered cells, until all cells are recovered.
    pub(super) saved: Vec<(CellId, SavedMemory)>,
    /// Whether the next tick has memory to plug after a restart of the supervisor.
    pub(super) is_unsettled: bool,
}

/// A reclaim request in progress.
#[derive(Clone, Copy, Debug)]
struct Reclaim {
    from: CellId,
    purpose: Purpose,
    since_ns: u64,
}

/// The purpose of a reclaim request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    /// A loan to this cell.
    LoanTo(CellId),
    /// The return of this loan.
    Return(MemoryLoan, ReturnReason),
}

/// A request for a loan in progress.
#[derive(Clone, Debug)]
struct LoanRequest {
    borrower: CellId,
    priority: u8,
    renewal: Renewal,
    lease_ns: u64,
    /// The bytes that no lender has returned yet.
    missing_bytes: u64,
    /// The bytes of a memory request's smallest block.
    least_bytes: u64,
    /// The reserved bytes, by lender; `None`: free memory.
    came: Vec<(Option<CellId>, u64)>,
    since_ns: u64,
}

/// Memory on its way back to its lender.
#[derive(Clone, Copy, Debug)]
pub(super) struct MemoryReturn {
    pub(super) lender: CellId,
    pub(super) borrower: CellId,
    /// The reserved bytes.
    pub(super) len_bytes: u64,
    pub(super) why: ReturnReason,
    pub(super) since_ns: u64,
}

impl LoanRequest {
    /// Returns a request for `missing` bytes beside `free` bytes of free memory, which are reserved.
    fn new(
        (borrower, priority): (CellId, u8),
        (renewal, lease_ns): (Renewal, u64),
        (missing_bytes, least_bytes, free): (u64, u64, u64),
        since_ns: u64,
    ) -> Self {
        let came = Vec::from_iter((free > 0).then_some((None, free)));
        Self { borrower, priority, renewal, lease_ns, missing_bytes, least_bytes, came, since_ns }
    }

    fn came_bytes(&self) -> u64 {
        self.came.iter().map(|(_, bytes)| bytes).sum()
    }

    fn needs_more(&self) -> bool {
        match self.renewal {
            Renewal::ByUse => self.came_bytes() < self.least_bytes,
            Renewal::None => self.missing_bytes > 0,
        }
    }

    fn loan(&self, lender: Option<CellId>, len_bytes: u64) -> MemoryLoan {
        self.loan_until(self.borrower, lender, len_bytes, self.since_ns)
    }

    /// Returns a loan whose lease begins at `from_ns`.
    fn loan_until(
        &self,
        borrower: CellId,
        lender: Option<CellId>,
        len_bytes: u64,
        from_ns: u64,
    ) -> MemoryLoan {
        let Self { renewal, lease_ns, .. } = *self;
        let until_ns = from_ns.saturating_add(lease_ns);
        MemoryLoan { lender, borrower, len_bytes, renewal, lease_ns, until_ns, due_ns: until_ns }
    }
}

impl MemoryLoans {
    pub(super) const fn new() -> Self {
        Self {
            lending: MemoryLending::new(),
            reclaims: Vec::new(),
            requests: Vec::new(),
            claim: None,
            returns: Vec::new(),
            saved: Vec::new(),
            is_unsettled: false,
        }
    }

    /// Returns the next time at which there is something to do.
    pub(in crate::cells) fn deadline_ns(&self, now: u64) -> Option<u64> {
        let limits = self.requests.iter().map(|coming| coming.since_ns.saturating_add(PATIENCE_NS));
        let limits = limits.filter(|limit| *limit > now);
        let next = limits.chain(self.lending.next_deadline_ns()).min();
        if self.is_unsettled { Some(0) } else { next }
    }

    /// Returns whether the cell has lent or borrowed memory, or some is on its way.
    pub(in crate::cells) fn is_party(&self, id: CellId) -> bool {
        self.lending.borrowed(id).next().is_some()
            || self.lent_bytes(id) > 0
            || self.reclaims.iter().any(|reclaim| reclaim.from == id)
            || self.requests.iter().any(|coming| coming.borrower == id)
    }

    /// Returns whether a lender has yet to answer for a loan to that borrower.
    fn asks_for(&self, borrower: CellId) -> bool {
        self.reclaims.iter().any(|reclaim| reclaim.purpose == Purpose::LoanTo(borrower))
    }

    /// Returns the bytes that a cell owns and does not have.
    pub(in crate::cells) fn lent_bytes(&self, id: CellId) -> u64 {
        let came = self.requests.iter().flat_map(|coming| &coming.came);
        let coming: u64 = came.filter(|(lender, _)| *lender == Some(id)).map(|(_, bytes)| bytes).sum();
        let returning = self.returns.iter().filter(|returning| returning.lender == id);
        coming + returning.map(|returning| returning.len_bytes).sum::<u64>() + self.lending.lent_bytes(id)
    }

    /// Returns the loans to a cell whose memory is reserved and not plugged yet.
    pub(super) fn expected(&self, id: CellId) -> impl Iterator<Item = MemoryLoan> {
        let coming = self.requests.iter().filter(move |coming| coming.borrower == id);
        coming.flat_map(|coming| coming.came.iter().map(|(lender, bytes)| coming.loan(*lender, *bytes)))
    }

    /// Removes the cell as the lender of its loans. If it is to restart, their leases end at once.
    pub(super) fn lender_ended(&mut self, id: CellId, then: AfterEnd, now: u64) {
        if then == AfterEnd::Restart {
            self.lending.recall_all(id, now);
        }
        self.lending.lender_ended(id);
        for reclaim in &mut self.reclaims {
            if let Purpose::Return(loan, _) = &mut reclaim.purpose
                && loan.lender == Some(id)
            {
                loan.lender = None;
                loan.renewal = if then == AfterEnd::Restart { Renewal::None } else { loan.renewal };
            }
        }
        for (lender, _) in self.requests.iter_mut().flat_map(|coming| &mut coming.came) {
            *lender = lender.filter(|lender| *lender != id);
        }
    }
}

impl<H: Hardware> Cells<H> {
    /// Begins to borrow memory for the memory request of a running cell that wants this block, if cells can lend as
    /// much. Returns whether memory is on its way.
    pub(in crate::cells) fn borrow_for_growth(&mut self, id: CellId, block: BlockRequest) -> bool {
        if self.loans.memory.requests.iter().any(|coming| coming.borrower == id) {
            return true;
        }
        let Some(priority) = self.table.get(id).map(|cell| cell.spec.lending.priority) else { return false };
        let since_ns = self.core.now_ns();
        let spare: u64 = self.memory_lenders((id, priority), since_ns).iter().map(|(_, bytes)| bytes).sum();
        if spare < block.least_bytes {
            return false;
        }
        let lease = (Renewal::ByUse, REQUEST_LEASE_NS);
        let bytes = (block.largest_bytes, block.least_bytes, 0);
        self.loans.memory.requests.push(LoanRequest::new((id, priority), lease, bytes, since_ns));
        let is_asked = self.ask_lender(id);
        if !is_asked {
            self.loans.memory.requests.retain(|coming| coming.borrower != id);
        }
        is_asked
    }

    /// Begins to borrow memory for a running cell.
    ///
    /// # Errors
    /// Returns [`ManagementError::NoSuchCell`]; [`ManagementError::WrongState`]; and [`ManagementError::OutOfLimits`] if
    /// there is less free and lent memory. The state is unchanged then.
    pub fn borrow_memory(
        &mut self,
        name: &str,
        memory: ByteSize,
        lease_ms: u32,
    ) -> Result<MemoryLoanInfo, ManagementError> {
        let since_ns = self.core.now_ns();
        let id = self.find(name)?;
        self.poll(id);
        let lease_ns = lease_end_ns(since_ns, lease_ms)? - since_ns;
        let wanted = whole_chunks(memory)?;
        let cell = self.table.get(id).ok_or_else(|| ManagementError::NoSuchCell(shorten(name)))?;
        if !cell.is_running() {
            return Err(cell.wrong_state());
        }
        let priority = cell.spec.lending.priority;
        let refused = |what: String| Err(ManagementError::OutOfLimits(what));
        if self.loans.memory.requests.iter().any(|coming| coming.borrower == id) {
            return refused(format!("memory is on its way to {name:?} already: wait for it"));
        }
        if self.loans.memory.lent_bytes(id) > 0 {
            let lent = self.loans.memory.lending.loans().iter().filter(|loan| loan.lender == Some(id));
            for loan in lent.copied().collect::<Vec<_>>() {
                if self.ask_back(&loan, wanted, ReturnReason::Recalled) {
                    return Ok(
                        self.memory_loan_info(&MemoryLoan { len_bytes: wanted.min(loan.len_bytes), ..loan })
                    );
                }
            }
            return refused(format!("the memory that {name:?} has lent is returning already, or is in use"));
        }
        let idle = self.images.idle_bytes();
        let free = wanted.min((self.core.inventory().memory.available() + idle) / CHUNK * CHUNK);
        let lenders = self.memory_lenders((id, priority), since_ns);
        let spare: u64 = lenders.iter().map(|(_, bytes)| bytes).sum();
        if free + spare < wanted {
            return refused(format!(
                "cells of lower priority lend at most {} to {name:?} now, and {} is free: borrow less",
                ByteSize(spare),
                ByteSize(free)
            ));
        }
        let Self { images, core, .. } = self;
        images.make_room(free, None, core);
        let free = wanted.min(self.core.inventory().memory.available() / CHUNK * CHUNK);
        self.core.reserve_memory(free);
        let (lease, bytes) = ((Renewal::None, lease_ns), (wanted - free, CHUNK, free));
        let coming = LoanRequest::new((id, priority), lease, bytes, since_ns);
        let from = lenders.first().map(|(lender, _)| *lender).filter(|_| free < wanted);
        let loan = coming.loan(from, wanted);
        self.loans.memory.requests.push(coming);
        self.settle_memory();
        Ok(self.memory_loan_info(&loan))
    }

    /// Begins to return memory of a cell's latest loan.
    ///
    /// # Errors
    /// Returns [`ManagementError::NoSuchCell`]; [`ManagementError::OutOfLimits`] if the cell has borrowed no memory; and
    /// [`ManagementError::BeingResized`]. The state is unchanged then.
    pub fn give_memory_back(
        &mut self,
        name: &str,
        memory: ByteSize,
    ) -> Result<MemoryLoanInfo, ManagementError> {
        let id = self.find(name)?;
        self.poll(id);
        let wanted = whole_chunks(memory)?;
        let Some(loan) = self.loans.memory.lending.borrowed(id).next_back() else {
            let what = format!("{name:?} has no borrowed memory to give back");
            return Err(ManagementError::OutOfLimits(what));
        };
        if !self.ask_back(&loan, wanted, ReturnReason::GivenBack) {
            return Err(ManagementError::BeingResized(name.into()));
        }
        Ok(self.memory_loan_info(&MemoryLoan { len_bytes: wanted.min(loan.len_bytes), ..loan }))
    }

    /// Begins to return the memory whose leases are over.
    pub(in crate::cells) fn end_memory_leases(&mut self, now: u64) {
        while let Some(loan) = self.loans.memory.lending.due(now) {
            let free = self.core.inventory().memory.available() / CHUNK * CHUNK;
            if free > 0 && loan.renewal == Renewal::ByUse && loan.lender.is_some() {
                // The lender gets free memory, as the borrower could have by now, which owns its memory from here on.
                let len_bytes = self.loans.memory.lending.reduce(&loan, free);
                self.core.reserve_memory(len_bytes);
                self.return_memory((loan.lender, len_bytes), loan.borrower, ReturnReason::LeaseOver, now);
                self.save(loan.borrower);
                continue;
            }
            let unused = match loan.renewal {
                Renewal::ByUse => self.unused_of(loan.borrower).min(loan.len_bytes),
                Renewal::None => loan.len_bytes,
            };
            if unused == 0 {
                self.loans.memory.lending.renew(&loan, now);
                continue;
            }
            let again_ns = self.loans.memory.lending.asked_again_ns(loan.borrower);
            let again_ns = again_ns.max(now.saturating_add(REQUEST_LEASE_NS));
            self.loans.memory.lending.put_off(&loan, again_ns);
            if now >= self.loans.memory.lending.asked_again_ns(loan.borrower) {
                // A borrower with another reclaim request in progress is asked later.
                self.ask_back(&loan, unused, ReturnReason::LeaseOver);
            }
        }
    }

    /// Sends a reclaim request for memory of a loan to its borrower. Returns whether that is possible now.
    fn ask_back(&mut self, loan: &MemoryLoan, len_bytes: u64, why: ReturnReason) -> bool {
        let (now, id) = (self.core.now_ns(), loan.borrower);
        let times_ns = (now, now.saturating_add(PATIENCE_NS));
        let Some((cell, mut parts)) = self.parts(id) else { return false };
        let is_asked = cell.begin_reclaim(&mut parts, len_bytes.min(loan.len_bytes), times_ns);
        if is_asked {
            let purpose = Purpose::Return(*loan, why);
            self.loans.memory.reclaims.push(Reclaim { from: id, purpose, since_ns: now });
            self.loans.memory.lending.put_off(loan, times_ns.1.saturating_add(REQUEST_LEASE_NS));
        }
        is_asked
    }

    /// Asks the next lender for the memory that a borrower is missing. Returns whether one is asked.
    fn ask_lender(&mut self, borrower: CellId) -> bool {
        let now = self.core.now_ns();
        let Some(coming) = self.loans.memory.requests.iter().find(|coming| coming.borrower == borrower)
        else {
            return false;
        };
        let (missing, since_ns, sources) = (coming.missing_bytes, coming.since_ns, coming.came.len());
        let party = (borrower, coming.priority);
        if now.saturating_sub(since_ns) > ASK_NS || sources >= MAX_LOANS {
            return false;
        }
        let times_ns = (now, now.saturating_add(LENDER_PATIENCE_NS));
        for (lender, spare) in self.memory_lenders(party, now) {
            let Some((cell, mut parts)) = self.parts(lender) else { continue };
            if cell.begin_reclaim(&mut parts, missing.min(spare), times_ns) {
                let purpose = Purpose::LoanTo(borrower);
                self.loans.memory.reclaims.push(Reclaim { from: lender, purpose, since_ns: now });
                // The record says what the lender owns before any of that is unplugged.
                self.save(lender);
                return true;
            }
        }
        false
    }

    /// Returns the cells that can be asked for memory for a borrower with that priority, and the bytes that each lends.
    fn memory_lenders(&self, borrower: (CellId, u8), now: u64) -> Vec<(CellId, u64)> {
        let party = |cell: &Cell| {
            let low_bytes = cell.spec.lending.memory_low?.0;
            let owned =
                self.core.cell(cell.id).filter(|owned| owned.is_settled() && !owned.has_lost_core())?;
            let is_free = cell.is_running() && cell.shrink.is_none() && !self.pending.is_about(cell.id);
            let is_free =
                is_free && !self.loans.memory.requests.iter().any(|request| request.borrower == cell.id);
            let priority = cell.spec.lending.priority;
            is_free.then_some(MemoryParty {
                id: cell.id,
                priority,
                has_bytes: owned.memory_bytes(),
                low_bytes,
            })
        };
        let parties: Vec<MemoryParty> = self.table.iter().filter_map(party).collect();
        let memory = &self.loans.memory;
        let lent = |id| memory.lent_bytes(id) > 0 || memory.reclaims.iter().any(|reclaim| reclaim.from == id);
        memory.lending.lenders(borrower, &parties, now, lent)
    }

    /// Returns the bytes of its pool that a borrower does not use, by its report.
    fn unused_of(&self, id: CellId) -> u64 {
        let Some(owned) = self.core.cell(id) else { return 0 };
        let usage = report::memory(owned.report());
        unused_bytes(usage.total.0.min(owned.memory_bytes()), usage.used.0)
    }

    /// Returns a cell's borrowed memory.
    pub(in crate::cells) fn memory_loans_of(&self, id: CellId) -> Vec<MemoryLoanInfo> {
        self.loans.memory.lending.borrowed(id).map(|loan| self.memory_loan_info(&loan)).collect()
    }

    fn memory_loan_info(&self, loan: &MemoryLoan) -> MemoryLoanInfo {
        MemoryLoanInfo {
            memory: ByteSize(loan.len_bytes),
            from: loan.lender.and_then(|id| self.table.name_of(id)),
            left_ns: loan.until_ns.saturating_sub(self.core.now_ns()),
            renews: loan.renewal == Renewal::ByUse,
        }
    }
}

fn whole_chunks(memory: ByteSize) -> Result<u64, ManagementError> {
    let bytes = memory.0.checked_next_multiple_of(CHUNK).filter(|bytes| *bytes > 0);
    bytes.ok_or_else(|| ManagementError::OutOfLimits(format!("{memory} is no amount of memory to borrow")))
}
