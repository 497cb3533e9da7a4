//! Samples for profiles: NMIs to a cell's cores at a rate, for as long as the host tool renews the request.
//!
//! The state is not saved: a restarted supervisor sends no such NMIs until the host tool renews the request. A late tick
//! is not made up for, so the rate only falls if the supervisor is busy.

use super::cell::{Cell, Run};
use super::{Cells, shorten};
use alloc::format;
use isola_abi::id::CellId;
use isola_abi::management::{MAX_SAMPLE_HZ, MAX_SAMPLES_A_SECOND, ManagementError, SAMPLE_LEASE_MS};
use isola_supervisor_core::Hardware;

const NS_A_SECOND: u64 = 1_000_000_000;

/// The sampling of a running cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sampling {
    rate_hz: u32,
    /// The time of the next samples.
    next_ns: u64,
    /// The end of the lease.
    until_ns: u64,
}

impl Sampling {
    fn period_ns(self) -> u64 {
        NS_A_SECOND / u64::from(self.rate_hz.max(1))
    }

    /// Returns the state after samples at the time `now`.
    fn after(self, now: u64) -> Self {
        // From the last due time, so that the rate is exact; from now on after a delay.
        let next = self.next_ns.saturating_add(self.period_ns());
        let next_ns = if next > now { next } else { now.saturating_add(self.period_ns()) };
        Self { next_ns, ..self }
    }

    /// Returns when the next samples or the end are due.
    fn deadline_ns(self) -> u64 {
        self.next_ns.min(self.until_ns)
    }
}

impl Cell {
    /// Returns whether the cell's cores can be sampled: a cell that was examined stops at its next NMI.
    fn can_be_sampled(&self) -> bool {
        matches!(self.run, Run::Running { .. } | Run::Stopping { .. })
    }
}

impl<H: Hardware> Cells<H> {
    /// Begins to sample the cores of a running cell, or renews the lease; ends the sampling at rate 0.
    ///
    /// # Errors
    /// Returns [`ManagementError::NoSuchCell`]; [`ManagementError::WrongState`] if the cell does not run;
    /// [`ManagementError::OutOfLimits`] if the rate is too high, alone or together with those of other cells.
    pub fn sample(&mut self, name: &str, rate_hz: u32) -> Result<(), ManagementError> {
        let id = self.find(name)?;
        self.poll(id);
        let now = self.core.now_ns();
        let others = self.table.iter().filter(|cell| cell.id != id);
        let used: u64 = others.map(|cell| self.samples_a_second(cell)).sum();
        let cores = self.core.cell(id).map_or(0, |owned| owned.core_count()) as u64;
        let cell = self.table.get_mut(id).ok_or_else(|| ManagementError::NoSuchCell(shorten(name)))?;
        if !cell.can_be_sampled() {
            return Err(cell.wrong_state());
        }
        if rate_hz > MAX_SAMPLE_HZ {
            return Err(ManagementError::OutOfLimits(format!(
                "{rate_hz} samples per second and core are too many: at most {MAX_SAMPLE_HZ}"
            )));
        }
        let left = u64::from(MAX_SAMPLES_A_SECOND).saturating_sub(used);
        if u64::from(rate_hz) * cores > left {
            let most = left / cores.max(1);
            return Err(ManagementError::OutOfLimits(format!(
                "{rate_hz} samples per second on {cores} cores exceed the machine's limit of {MAX_SAMPLES_A_SECOND} \
                 for all cells: at most {most} per core are left"
            )));
        }
        let until_ns = now.saturating_add(u64::from(SAMPLE_LEASE_MS) * 1_000_000);
        let before = cell.sampling.filter(|sampling| sampling.rate_hz == rate_hz);
        let next_ns = before.map_or(now, |sampling| sampling.next_ns);
        cell.sampling = (rate_hz > 0).then_some(Sampling { rate_hz, next_ns, until_ns });
        self.find_next_samples();
        Ok(())
    }

    /// Sends the NMIs for samples that are due, and ends the sampling whose lease or whose cell has ended.
    pub(super) fn send_samples(&mut self, now: u64) {
        if self.samples_due_ns.is_none_or(|due| due > now) {
            return;
        }
        for cell in self.table.iter_mut() {
            let Some(sampling) = cell.sampling.filter(|sampling| sampling.deadline_ns() <= now) else {
                continue;
            };
            let is_over = sampling.until_ns <= now || !cell.can_be_sampled();
            cell.sampling = (!is_over).then(|| sampling.after(now));
            if let Some(owned) = self.core.cell(cell.id).filter(|_| !is_over) {
                owned.sample();
            }
        }
        self.find_next_samples();
    }

    /// Ends the sampling of a cell that has ended.
    pub(super) fn end_sampling(&mut self, id: CellId) {
        if self.table.get_mut(id).and_then(|cell| cell.sampling.take()).is_some() {
            self.find_next_samples();
        }
    }

    /// Finds when [`Self::send_samples`] is due, after a change of a cell's sampling. The time is kept, as the supervisor
    /// asks for its next deadline after each request and notification.
    fn find_next_samples(&mut self) {
        let cells = self.table.iter();
        self.samples_due_ns = cells.filter_map(|cell| cell.sampling).map(Sampling::deadline_ns).min();
    }

    fn samples_a_second(&self, cell: &Cell) -> u64 {
        let cores = self.core.cell(cell.id).map_or(0, |owned| owned.core_count()) as u64;
        cell.sampling.map_or(0, |sampling| u64::from(sampling.rate_hz)) * cores
    }
}
