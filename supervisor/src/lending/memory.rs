//! The rules for memory loans (RainForest 4.1). As for cores, they use only priorities, memory to keep, and a clock.
//!
//! A loan is an amount of memory, not a set of blocks: borrower and lender may return and get any blocks. Invariants: a
//! cell lends only to cells of higher priority, and keeps its low mark; borrowed memory is not lent on, and a cell that
//! has lent memory borrows none. A lease ends as follows:
//!
//! | loan | at the end of its lease |
//! |---|---|
//! | by a memory request of the cell | the cell returns the memory that it does not use; the lease of the rest begins again |
//! | by request of an operator | the cell is asked for all of the memory, again after each [`RequestDelay`] |
//!
//! Memory in use cannot be taken from a running cell. A cell that returned less than requested is asked again after a
//! delay that doubles.

use alloc::vec::Vec;
use isola_abi::id::CellId;
use isola_abi::unplug::CHUNK;

/// The most loans of a borrower, from different lenders or of different kinds.
pub const MAX_LOANS: usize = 8;

/// The first and the longest delay after which a cell is asked again that returned less than requested, in ns.
const FIRST_DELAY_NS: u64 = 1_000_000_000;
const LONGEST_DELAY_NS: u64 = 64_000_000_000;

/// Whether a lease begins again while the borrower uses the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// It does.
    ByUse,
    /// It ends.
    None,
}

/// A cell that can be asked for memory now, or that wants some, as a party to lending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryParty {
    /// The cell.
    pub id: CellId,
    /// Its priority.
    pub priority: u8,
    /// Its memory, in bytes.
    pub has_bytes: u64,
    /// The memory that it keeps, in bytes.
    pub low_bytes: u64,
}

/// A loan of memory. A borrower has at most one from each lender and of each kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryLoan {
    /// The cell that owns the memory; `None` if it was free, or its owner has ended.
    pub lender: Option<CellId>,
    /// The cell that has the memory.
    pub borrower: CellId,
    /// The memory, in bytes.
    pub len_bytes: u64,
    /// The kind of loan.
    pub renewal: Renewal,
    /// The length of the lease, in ns.
    pub lease_ns: u64,
    /// The end of the lease, in ns.
    pub until_ns: u64,
    /// The time at which the supervisor requests the memory, in ns: the end of the lease, and later times if the
    /// borrower uses the memory.
    pub due_ns: u64,
}

impl MemoryLoan {
    /// Returns whether both are of the same cells and kind.
    pub fn is_like(&self, other: &Self) -> bool {
        (self.lender, self.borrower, self.renewal) == (other.lender, other.borrower, other.renewal)
    }
}

/// A cell that returned less than requested, and is asked again after a delay.
#[derive(Clone, Copy, Debug)]
struct RequestDelay {
    cell: CellId,
    delay_ns: u64,
    until_ns: u64,
}

/// The memory loans.
#[derive(Clone, Debug, Default)]
pub struct MemoryLending {
    loans: Vec<MemoryLoan>,
    reluctant: Vec<RequestDelay>,
}

impl MemoryLending {
    /// Returns no loans.
    pub const fn new() -> Self {
        Self { loans: Vec::new(), reluctant: Vec::new() }
    }

    /// Returns all loans, the oldest first.
    pub fn loans(&self) -> &[MemoryLoan] {
        &self.loans
    }

    /// Returns the cells that can lend memory to a borrower, in the order in which they are asked, and the bytes that
    /// each can lend: the lowest priority first, among equals the most memory. `lent` says whether a cell has lent
    /// memory or some is on its way from it.
    pub fn lenders(
        &self,
        borrower: (CellId, u8),
        parties: &[MemoryParty],
        now_ns: u64,
        lent: impl Fn(CellId) -> bool,
    ) -> Vec<(CellId, u64)> {
        let (who, priority) = borrower;
        let is_full = self.borrowed(who).count() >= MAX_LOANS;
        if is_full || lent(who) || self.is_reluctant(who, now_ns) {
            return Vec::new();
        }
        let can_lend = |party: &&MemoryParty| {
            party.id != who && party.priority < priority && !self.is_reluctant(party.id, now_ns)
        };
        let spare = |party: &MemoryParty| {
            let kept = party.low_bytes.saturating_add(self.borrowed_bytes(party.id));
            party.has_bytes.saturating_sub(kept) / CHUNK * CHUNK
        };
        let mut lenders: Vec<&MemoryParty> = parties.iter().filter(can_lend).collect();
        lenders.sort_by_key(|party| (party.priority, u64::MAX - spare(party), party.id));
        let lenders = lenders.into_iter().map(|party| (party.id, spare(party)));
        lenders.filter(|(_, bytes)| *bytes > 0).collect()
    }

    /// Returns the loans to a borrower.
    pub fn borrowed(&self, borrower: CellId) -> impl DoubleEndedIterator<Item = MemoryLoan> {
        self.loans.iter().copied().filter(move |loan| loan.borrower == borrower)
    }

    /// Returns the bytes that a cell has lent and that its borrowers have.
    pub fn lent_bytes(&self, lender: CellId) -> u64 {
        self.loans.iter().filter(|loan| loan.lender == Some(lender)).map(|loan| loan.len_bytes).sum()
    }

    /// Returns the bytes that a cell has borrowed.
    pub fn borrowed_bytes(&self, borrower: CellId) -> u64 {
        self.borrowed(borrower).map(|loan| loan.len_bytes).sum()
    }

    /// Enters a loan whose memory the borrower has. The memory of an earlier one of the same cells and kind joins it,
    /// and its lease ends no earlier.
    pub fn enter(&mut self, mut loan: MemoryLoan) {
        if let Some(index) = self.loans.iter().position(|other| other.is_like(&loan)) {
            let other = self.loans.remove(index);
            loan.len_bytes += other.len_bytes;
            loan.until_ns = loan.until_ns.max(other.until_ns);
            loan.due_ns = loan.until_ns;
        }
        if loan.len_bytes > 0 {
            self.loans.push(loan);
        }
    }

    /// Removes returned memory from a loan, and the loan with its last memory. Returns the bytes removed.
    pub fn reduce(&mut self, like: &MemoryLoan, len_bytes: u64) -> u64 {
        let Some(loan) = self.loans.iter_mut().find(|loan| loan.is_like(like)) else { return 0 };
        let removed = len_bytes.min(loan.len_bytes);
        loan.len_bytes -= removed;
        self.loans.retain(|loan| loan.len_bytes > 0);
        removed
    }

    /// Begins the lease of a loan again.
    pub fn renew(&mut self, like: &MemoryLoan, now_ns: u64) {
        for loan in self.loans.iter_mut().filter(|loan| loan.is_like(like)) {
            loan.until_ns = now_ns.saturating_add(loan.lease_ns);
            loan.due_ns = loan.until_ns;
        }
    }

    /// Postpones the next request for memory whose lease has ended, and which cannot return yet.
    pub fn put_off(&mut self, like: &MemoryLoan, due_ns: u64) {
        let like = self.loans.iter_mut().filter(|loan| loan.is_like(like));
        like.for_each(|loan| loan.due_ns = due_ns.max(loan.until_ns));
    }

    /// Ends the leases of all memory that a cell has lent: it is requested at once, and no lease begins again.
    pub fn recall_all(&mut self, lender: CellId, now_ns: u64) {
        let mut recalled: Vec<MemoryLoan> = Vec::new();
        self.loans.retain(|loan| {
            let is_lent = loan.lender == Some(lender);
            recalled.extend(is_lent.then_some(*loan));
            !is_lent
        });
        for loan in recalled {
            self.enter(MemoryLoan { renewal: Renewal::None, until_ns: now_ns, due_ns: now_ns, ..loan });
        }
    }

    /// Removes a cell as the lender of its loans.
    pub fn lender_ended(&mut self, lender: CellId) {
        let loans = core::mem::take(&mut self.loans);
        for loan in loans {
            let lender = loan.lender.filter(|id| *id != lender);
            self.enter(MemoryLoan { lender, ..loan });
        }
    }

    /// Handles the end of a cell: removes and returns the loans to it.
    pub fn borrower_ended(&mut self, id: CellId) -> Vec<MemoryLoan> {
        let over = self.borrowed(id).collect();
        self.loans.retain(|loan| loan.borrower != id);
        self.reluctant.retain(|reluctance| reluctance.cell != id);
        over
    }

    /// Returns the loan whose memory has been due longest, if any is due.
    pub fn due(&self, now_ns: u64) -> Option<MemoryLoan> {
        self.loans.iter().copied().filter(|loan| loan.due_ns <= now_ns).min_by_key(|loan| loan.due_ns)
    }

    /// Returns the time at which the next memory is due.
    pub fn next_deadline_ns(&self) -> Option<u64> {
        self.loans.iter().map(|loan| loan.due_ns).min()
    }

    /// Returns the time before which a cell is not asked again.
    pub fn asked_again_ns(&self, cell: CellId) -> u64 {
        self.reluctant.iter().find(|reluctance| reluctance.cell == cell).map_or(0, |found| found.until_ns)
    }

    fn is_reluctant(&self, cell: CellId, now_ns: u64) -> bool {
        now_ns < self.asked_again_ns(cell)
    }

    /// Records whether a cell returned as much memory as requested, or a borrower could take the memory.
    pub fn note_outcome(&mut self, cell: CellId, is_complete: bool, now_ns: u64) {
        let before = self.reluctant.iter().position(|reluctance| reluctance.cell == cell);
        let before = before.map(|index| self.reluctant.remove(index));
        if !is_complete {
            let delay_ns =
                before.map_or(FIRST_DELAY_NS, |before| (2 * before.delay_ns).min(LONGEST_DELAY_NS));
            self.reluctant.push(RequestDelay { cell, delay_ns, until_ns: now_ns.saturating_add(delay_ns) });
        }
    }
}

/// Returns the bytes, whole chunks, that a borrower with a pool of `total_bytes` returns at the end of a lease: three
/// eighths of the rest stay free, as a cell requests memory when less than a quarter is free.
pub fn unused_bytes(total_bytes: u64, used_bytes: u64) -> u64 {
    let free = total_bytes.saturating_sub(used_bytes);
    free.saturating_mul(8).saturating_sub(total_bytes.saturating_mul(3)) / 5 / CHUNK * CHUNK
}

#[cfg(test)]
mod tests;
