//! Loans of cores and memory between cells.

use super::Supervisor;
use super::cells::Cell;
use isola_abi::id::CoreId;
use isola_abi::management::*;
use isola_abi::size::ByteSize;
use std::time::{Duration, Instant};

impl Supervisor {
    /// Lends a free core, or one of the first cell that lends.
    pub(super) fn borrow(&mut self, name: &str, lease_ms: u32) -> Result<LoanInfo, ManagementError> {
        let priority = self.cell(name)?.info.spec.lending.priority;
        let none = || ManagementError::OutOfLimits(format!("no cell lends a core to {name:?}"));
        let from = match self.free_cores() {
            0 => Some(self.lender(priority).ok_or_else(none)?),
            _ => None,
        };
        if let Some(from) = &from {
            self.resize_cores(from, Change::Less(1), &[], Mode::Apply)?;
        }
        let core = self.resize_cores(name, Change::More(1), &[], Mode::Apply)?.cores[0];
        let end = Instant::now() + Duration::from_millis(lease_ms.into());
        self.leases.insert(core, end);
        let loan = LoanInfo { core, from: from.clone(), left_ns: u64::from(lease_ms) * 1_000_000 };
        self.cell(name)?.info.loans.push(loan.clone());
        self.note(Some(name), JournalEvent::Borrow { core, from, lease_ns: loan.left_ns });
        Ok(loan)
    }

    /// Extends the lease of a borrowed core.
    pub(super) fn renew(
        &mut self,
        name: &str,
        core: CoreId,
        lease_ms: u32,
    ) -> Result<LoanInfo, ManagementError> {
        let over = || ManagementError::OutOfLimits(format!("{name:?} has no loan of core {core}"));
        let loans = self.cell(name)?.info.loans.clone();
        let loan = loans.into_iter().find(|loan| loan.core == core).ok_or_else(over)?;
        let end = self.leases.get_mut(&core).ok_or_else(over)?;
        *end = (*end).max(Instant::now() + Duration::from_millis(lease_ms.into()));
        Ok(LoanInfo { left_ns: left_ns(*end), ..loan })
    }

    /// Takes the core of the latest loan back.
    pub(super) fn give_back(&mut self, name: &str) -> Result<LoanInfo, ManagementError> {
        let nothing = || ManagementError::OutOfLimits(format!("{name:?} has no borrowed core to give back"));
        let loan = self.cell(name)?.info.loans.last().cloned().ok_or_else(nothing)?;
        self.send_back(loan.core, ReturnReason::GivenBack);
        Ok(loan)
    }

    /// Lends memory of the first cell of lower priority that keeps less than it has.
    pub(super) fn borrow_memory(
        &mut self,
        name: &str,
        memory: ByteSize,
        lease_ms: u32,
    ) -> Result<MemoryLoanInfo, ManagementError> {
        let priority = self.cell(name)?.info.spec.lending.priority;
        let can_lend = |cell: &&mut Cell| {
            let lending = &cell.info.spec.lending;
            let spare = lending.memory_low.map(|low| cell.info.memory.0.saturating_sub(low.0));
            lending.priority < priority && spare >= Some(memory.0)
        };
        let none = || ManagementError::OutOfLimits(format!("cells of lower priority lend less to {name:?}"));
        let lender = self.cells.iter_mut().find(can_lend).ok_or_else(none)?;
        lender.info.memory.0 -= memory.0;
        lender.info.memory_lent.0 += memory.0;
        let (from, left_ns) = (Some(lender.info.spec.name.clone()), u64::from(lease_ms) * 1_000_000);
        let loan = MemoryLoanInfo { memory, from: from.clone(), left_ns, renews: false };
        let borrower = self.cell(name)?;
        borrower.info.memory.0 += memory.0;
        borrower.info.memory_loans.push(loan.clone());
        self.note(Some(name), JournalEvent::BorrowMemory { memory, from, lease_ns: left_ns });
        Ok(loan)
    }

    /// Takes the memory of the latest loan back.
    pub(super) fn give_memory_back(
        &mut self,
        name: &str,
        memory: ByteSize,
    ) -> Result<MemoryLoanInfo, ManagementError> {
        let nothing =
            || ManagementError::OutOfLimits(format!("{name:?} has no borrowed memory to give back"));
        let borrower = self.cell(name)?;
        let loan = borrower.info.memory_loans.pop().ok_or_else(nothing)?;
        assert_eq!(loan.memory, memory);
        borrower.info.memory.0 -= memory.0;
        let lender = self.cell(loan.from.as_ref().unwrap())?;
        lender.info.memory.0 += memory.0;
        lender.info.memory_lent.0 -= memory.0;
        let why = ReturnReason::GivenBack;
        self.note(Some(name), JournalEvent::ReturnMemory { memory, to: loan.from.clone(), why });
        Ok(loan)
    }

    /// Returns the cores whose leases have ended.
    pub(super) fn end_leases(&mut self) {
        while let Some(core) =
            self.leases.iter().find(|(_, end)| **end <= Instant::now()).map(|(core, _)| *core)
        {
            self.send_back(core, ReturnReason::LeaseOver);
        }
    }

    /// Returns a cell's record, with the rest of each lease.
    pub(super) fn inspect(&mut self, name: &str) -> Result<CellInfo, ManagementError> {
        let leases = self.leases.clone();
        let cell = self.cell(name)?;
        cell.serve();
        cell.info.loans.iter_mut().for_each(|loan| loan.left_ns = left_ns(leases[&loan.core]));
        Ok(cell.info.clone())
    }

    /// Returns a cell of lower priority that has a core to lend.
    fn lender(&self, priority: u8) -> Option<String> {
        let loans: Vec<&LoanInfo> = self.cells.iter().flat_map(|cell| &cell.info.loans).collect();
        let can_lend = |cell: &&Cell| {
            let spec = &cell.info.spec;
            let lent = loans.iter().filter(|loan| loan.from.as_ref() == Some(&spec.name)).count() as u32;
            cell.info.state == CellState::Running
                && spec.lending.priority < priority
                && lent < spec.lending.lends
                && cell.info.cores.len() > 1
        };
        self.cells.iter().find(can_lend).map(|cell| cell.info.spec.name.clone())
    }

    /// Returns a borrowed core to its lender.
    fn send_back(&mut self, core: CoreId, why: ReturnReason) {
        self.leases.remove(&core);
        let has = |cell: &&mut Cell| cell.info.loans.iter().any(|loan| loan.core == core);
        let borrower = self.cells.iter_mut().find(has).unwrap();
        let loan = borrower.info.loans.extract_if(.., |loan| loan.core == core).next().unwrap();
        // The last core is the one that leaves.
        borrower.info.cores.sort_by_key(|usage| usage.id == core);
        let name = borrower.info.spec.name.clone();
        self.resize_cores(&name, Change::Less(1), &[], Mode::Apply).unwrap();
        if let Some(lender) = &loan.from {
            self.resize_cores(lender, Change::More(1), &[core], Mode::Apply).unwrap();
        }
        self.note(Some(&name), JournalEvent::Return { core, to: loan.from, why });
    }
}

fn left_ns(end: Instant) -> u64 {
    end.saturating_duration_since(Instant::now()).as_nanos() as u64
}
