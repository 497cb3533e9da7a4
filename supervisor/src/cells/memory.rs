//! Plug and unplug of a running cell's memory, by request or for a loan.
//!
//! **Plugging** is all or nothing, as soon as enough memory is zero (`pending`).
//!
//! **Unplugging** needs the cell's help, see [`isola_abi::unplug`]: it offers blocks, which the core validates and
//! unplugs. If a core does not acknowledge the TLB shootdown, the cell is ended. The steps:
//!
//! ```text
//!              reclaim request       offer: unplug, answer            acknowledged
//!    (request) ---------> Requested ---------------------> Settled --------------> ask again while memory is missing,
//!                               |                            |                     else (done)
//!                               | deadline: answer "nothing" | deadline
//!                               +----------------------------+--> (done; no memory is plugged before acknowledgement)
//! ```

use super::Parts;
use super::cell::Cell;
use super::grow::memory_max_bytes;
use super::pending::{Need, Obstacle};
use super::ticket::Ticket;
use crate::report;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use isola_abi::id::{NodeId, PhysRange};
use isola_abi::management::{Change, JournalEvent, ManagementError, MemoryResized, ReclaimShortfall};
use isola_abi::size::ByteSize;
use isola_abi::unplug::Shortfall;
use isola_supervisor_core::Hardware;
use isola_supervisor_core::inventory::CHUNK;
use isola_supervisor_core::report::{MemoryOffer, memory_offer};
use isola_supervisor_core::trusted_core::{OwnedCell, Scattered, UnpluggedBlocks};

/// How long a cell may take for a reclaim request, in ns. Generous: the cell answers between two events.
const PATIENCE_NS: u64 = 5_000_000_000;

/// How long all reclaim requests for one resize may take together, in ns: a cell that returns something, or says that it
/// will soon, has the time of [`PATIENCE_NS`] for the rest.
const ALL_PATIENCE_NS: u64 = 4 * PATIENCE_NS;

/// If a cell will have more free memory soon, the time until the cell is asked again, in ns.
const SOON_NS: u64 = 1_000_000;

/// How often the cell is asked again for that reason.
const SOON_TIMES: u32 = 5;

/// The result of a request to resize a cell's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resize {
    /// The memory is resized.
    Done(MemoryResized),
    /// The cell was asked to unplug, or memory is being scrubbed; [`Cells::take_resized`](super::Cells::take_resized) will have the answer.
    Pending(Ticket),
}

/// The purpose of an unplug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    /// The request with this ticket.
    Request(Ticket),
    /// A loan. The unplugged bytes so far are reserved for their next owner.
    Loan(u64),
}

/// An unplug of memory in progress.
#[derive(Debug)]
pub(super) struct Shrink {
    purpose: Purpose,
    since_ns: u64,
    deadline_ns: u64,
    had: u64,
    wanted: u64,
    step: Step,
    /// How often the cell may still be asked again because its cores are returning cached memory.
    soon_left: u32,
    /// Bytes that the cell reports as migrated to free chunks.
    moved_bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// The reclaim request with this number is open.
    Requested(u32),
    /// An offer was answered. Once the cell has acknowledged the answer, and not before `again_ns`, it is asked again.
    Settled { again_ns: u64 },
    /// The last offer was answered. The request is answered once the cell has acknowledged that; then the cell can be
    /// resized again.
    Acknowledging { kept: Option<ReclaimShortfall> },
}

impl Shrink {
    /// Returns when to check the cell at the latest.
    pub(super) fn next_ns(&self) -> u64 {
        match self.step {
            Step::Settled { again_ns } if again_ns > 0 => again_ns.min(self.deadline_ns),
            _ => self.deadline_ns,
        }
    }
}

/// The result of a step of an unplug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ShrinkStep {
    /// The cell runs on.
    Done,
    /// An unplug for a loan has ended.
    Reclaimed {
        /// The unplugged bytes, which are reserved.
        len_bytes: u64,
        /// Whether that is all requested memory.
        is_complete: bool,
    },
    /// A core did not acknowledge the TLB shootdown.
    CoreIsStuck,
}

impl Cell {
    /// Returns the most memory that the cell may have by requests, in bytes: at least its present `memory_bytes`.
    pub(super) fn limit_bytes(&self, memory_bytes: u64) -> u64 {
        let limit = self.growth.limit.unwrap_or_else(|| memory_max_bytes(&self.spec, memory_bytes));
        // What a cell has lent comes back without a request.
        if self.growth.lends { memory_bytes } else { limit.max(memory_bytes) }
    }

    /// Returns the bytes that an unplug in progress has reclaimed for a loan.
    pub(super) fn reclaimed_bytes(&self) -> u64 {
        match self.shrink {
            Some(Shrink { purpose: Purpose::Loan(len_bytes), .. }) => len_bytes,
            _ => 0,
        }
    }

    /// Returns the limit without stack memory, which the cell does not count.
    pub(super) fn pool_limit_bytes(&self, memory_bytes: u64) -> u64 {
        self.limit_bytes(memory_bytes).saturating_sub(self.growth.stack_bytes)
    }

    /// Returns the answer to a request that has led to `memory_bytes`.
    pub(super) fn resized(
        &self,
        memory_bytes: u64,
        (had, wanted): (u64, u64),
        took_ns: u64,
    ) -> MemoryResized {
        MemoryResized {
            had: ByteSize(had),
            wanted: ByteSize(wanted),
            has: ByteSize(memory_bytes),
            limit: ByteSize(self.limit_bytes(memory_bytes)),
            moved: ByteSize(0),
            kept: None,
            took_ns,
        }
    }

    /// Checks a request to resize the cell's memory. Returns the bytes that it has, and those that it should have.
    pub(super) fn check_resize<H: Hardware>(
        &self,
        parts: &Parts<'_, H>,
        memory: Change<ByteSize>,
        is_pending: bool,
    ) -> Result<(u64, u64), ManagementError> {
        let Some(owned) = parts.owned(self).filter(|_| self.is_running()) else {
            return Err(self.wrong_state());
        };
        if self.shrink.is_some() || !owned.is_settled() || is_pending {
            return Err(ManagementError::BeingResized(self.spec.name.clone()));
        }
        if parts.loans.memory.is_party(self.id) {
            let what = "a cell that has memory on loan is not resized: wait until the loan is over, or end it by \
                        `isola borrow --memory`, of the lender or with --give-back";
            return Err(ManagementError::OutOfLimits(what.into()));
        }
        let had = owned.memory_bytes();
        let wanted = memory
            .of(had)
            .filter(|&bytes| bytes > 0)
            .and_then(|bytes| bytes.checked_next_multiple_of(CHUNK))
            .ok_or_else(|| out_of_limits(memory, had))?;
        if wanted > had {
            check_growth(parts, owned, wanted - had)?;
        } else {
            if wanted < had && owned.has_lost_core() {
                return Err(ManagementError::CoreAtLarge(self.spec.name.clone()));
            }
            self.check_shrink(owned, wanted)?;
        }
        Ok((had, wanted))
    }

    /// Checks, by the cell's report, whether the wanted memory leaves a sixteenth of the cell's pool free, so that
    /// there is no memory pressure. A cell with holders of memory that it could do without is asked for more: then a
    /// sixteenth of its pool is the least.
    fn check_shrink<H: Hardware>(&self, owned: &OwnedCell<H>, wanted: u64) -> Result<(), ManagementError> {
        let (usage, memory_bytes) = (report::memory(owned.report()), owned.memory_bytes());
        let (total, used) = (usage.total.0.min(memory_bytes), usage.used.0.min(usage.total.0));
        let used = used.min(total);
        // Plugged memory that the cell's page allocator has not added yet counts as unused.
        let has_holders = owned.report().memory.holders.load(Ordering::Relaxed) > 0;
        let needed = if has_holders { total / 16 } else { used.saturating_add(used / 15) };
        let least = self.image.copied.saturating_add(needed);
        let least = least.next_multiple_of(CHUNK).min(memory_bytes);
        if wanted < least {
            return Err(ManagementError::MemoryInUse { wanted: ByteSize(wanted), least: ByteSize(least) });
        }
        Ok(())
    }

    /// Plugs memory into the cell, which runs, until it has `wanted` bytes.
    pub(super) fn give<H: Hardware>(
        &mut self,
        parts: &mut Parts<'_, H>,
        wanted: u64,
        began: u64,
    ) -> Result<MemoryResized, Obstacle> {
        let Some(owned) = parts.owned(self).filter(|_| self.is_running()) else {
            return Err(self.wrong_state().into());
        };
        let had = owned.memory_bytes();
        // The cell may have grown by its own requests while this request waited.
        let more = wanted.saturating_sub(had);
        check_growth(parts, owned, more)?;
        let inventory = parts.core.inventory();
        let first = owned.first_core();
        let node = first.and_then(|core| inventory.cores.node(core)).unwrap_or(NodeId(0));
        parts.images.make_room(more, None, parts.core);
        if !parts.core.inventory().memory.is_ready(more, node) {
            return Err(Obstacle::Needs(Need::Memory(more, node)));
        }
        let Ok(plugged) = parts.core.plug_memory(self.id, more, node) else {
            return Err(ManagementError::BeingResized(self.spec.name.clone()).into());
        };
        let plugged = plugged.map_err(|Scattered { pieces, room }| ManagementError::MemoryScattered {
            pieces: pieces as u32,
            places: room as u32,
        });
        if parts.owned(self).is_none_or(|owned| owned.memory_bytes() == had) {
            plugged.clone()?;
        }
        // The limit after an earlier unplug no longer applies.
        self.growth.limit = None;
        self.growth.log_next_refusal();
        self.set_limit(parts);
        parts.save(self);
        let resized = self.record_resize(parts, (had, wanted), began, None);
        plugged?;
        Ok(resized)
    }

    /// Reports to the cell the limit of its requests.
    pub(super) fn set_limit<H: Hardware>(&self, parts: &Parts<'_, H>) {
        if let Some(owned) = parts.owned(self) {
            owned.set_limit(self.pool_limit_bytes(owned.memory_bytes()));
        }
    }

    /// Begins to unplug memory until the cell, which runs, has `wanted` bytes.
    pub(super) fn begin_shrink<H: Hardware>(
        &mut self,
        parts: &mut Parts<'_, H>,
        wanted: u64,
        began: u64,
    ) -> Ticket {
        let ticket = parts.answers.tickets.next();
        self.begin_unplug(
            parts,
            Purpose::Request(ticket),
            wanted,
            (began, began.saturating_add(PATIENCE_NS)),
        );
        ticket
    }

    /// Begins to unplug `len_bytes` bytes from the cell, which runs, for a loan. Returns whether that is possible now.
    pub(super) fn begin_reclaim<H: Hardware>(
        &mut self,
        parts: &mut Parts<'_, H>,
        len_bytes: u64,
        times_ns: (u64, u64),
    ) -> bool {
        let Some(owned) = parts.owned(self).filter(|owned| self.is_running() && !owned.has_lost_core())
        else {
            return false;
        };
        let wanted = owned.memory_bytes().saturating_sub(len_bytes);
        self.shrink.is_none() && self.begin_unplug(parts, Purpose::Loan(0), wanted, times_ns)
    }

    /// Sends the first reclaim request of an unplug, with the times of the beginning and the deadline. Returns whether
    /// the cell can answer it.
    fn begin_unplug<H: Hardware>(
        &mut self,
        parts: &mut Parts<'_, H>,
        purpose: Purpose,
        wanted: u64,
        (since_ns, deadline_ns): (u64, u64),
    ) -> bool {
        let had = parts.owned(self).map_or(0, OwnedCell::memory_bytes);
        let Ok(number) = parts.core.request_unplug(self.id, had.saturating_sub(wanted)) else { return false };
        let (step, soon_left, moved_bytes) = (Step::Requested(number), SOON_TIMES, 0);
        self.shrink =
            Some(Shrink { purpose, since_ns, deadline_ns, had, wanted, step, soon_left, moved_bytes });
        true
    }

    /// Advances an unplug in progress as far as the cell has answered.
    pub(super) fn shrink<H: Hardware>(&mut self, parts: &mut Parts<'_, H>, now: u64) -> ShrinkStep {
        let (Some(shrink), Some(owned)) = (&mut self.shrink, parts.core.cell(self.id)) else {
            return ShrinkStep::Done;
        };
        let deadline_ns = shrink.deadline_ns;
        match shrink.step {
            Step::Requested(number) => match memory_offer(owned.report(), number) {
                Some(offer) => return self.accept(parts, number, &offer, now),
                None if now >= deadline_ns => {
                    parts.core.withdraw_unplug(self.id);
                    return self.end_shrink(parts, Some(ReclaimShortfall::NotInTime));
                }
                None => {}
            },
            Step::Settled { again_ns } if owned.is_settled() && now >= again_ns => {
                let missing = owned.memory_bytes().saturating_sub(shrink.wanted);
                if let Ok(number) = parts.core.request_unplug(self.id, missing) {
                    shrink.step = Step::Requested(number);
                }
            }
            Step::Settled { .. } if now >= deadline_ns => {
                return self.end_shrink(parts, Some(ReclaimShortfall::NotInTime));
            }
            // From here on the supervisor waits for the cell's notification.
            Step::Settled { again_ns } if now >= again_ns => shrink.step = Step::Settled { again_ns: 0 },
            Step::Settled { .. } => {}
            Step::Acknowledging { kept } if owned.is_settled() || now >= deadline_ns => {
                return self.end_shrink(parts, kept);
            }
            Step::Acknowledging { .. } => {}
        }
        ShrinkStep::Done
    }

    /// Unplugs the offered blocks, up to the wanted number of bytes.
    fn accept<H: Hardware>(
        &mut self,
        parts: &mut Parts<'_, H>,
        number: u32,
        offer: &MemoryOffer,
        now: u64,
    ) -> ShrinkStep {
        let (Some(shrink), Some(owned)) = (&mut self.shrink, parts.core.cell(self.id)) else {
            return ShrinkStep::Done;
        };
        shrink.moved_bytes = shrink.moved_bytes.saturating_add(offer.moved_bytes);
        let memory_bytes = owned.memory_bytes();
        let mut missing = memory_bytes.saturating_sub(shrink.wanted);
        // The supervisor unplugs no more than the wanted bytes; an empty range replaces each block beyond them.
        let wanted = |block: &PhysRange| {
            let fits = block.len_bytes <= missing;
            missing -= if fits { block.len_bytes } else { 0 };
            if fits { *block } else { PhysRange::default() }
        };
        let blocks: Vec<PhysRange> = offer.blocks.iter().map(wanted).collect();
        let unplugged = parts.core.unplug_memory(self.id, number, &blocks);
        let Ok(UnpluggedBlocks { taken, len_bytes: took, has_stuck_core }) = unplugged else {
            // A core was lost after the reclaim request, and would not acknowledge a shootdown.
            parts.core.withdraw_unplug(self.id);
            return self.end_shrink(parts, Some(ReclaimShortfall::CoreAtLarge));
        };
        if let Purpose::Loan(reclaimed) = &mut shrink.purpose {
            *reclaimed += took;
            parts.core.reserve_memory(took);
        }
        if has_stuck_core {
            if let Purpose::Request(_) = shrink.purpose {
                self.end_shrink(parts, Some(ReclaimShortfall::NotInTime));
            }
            return ShrinkStep::CoreIsStuck;
        }
        let missing = memory_bytes.saturating_sub(took).saturating_sub(shrink.wanted);
        let again_ns = match offer.rest {
            _ if missing == 0 => None,
            Shortfall::More if took > 0 => Some(0),
            Shortfall::Soon if shrink.soon_left > 0 => {
                shrink.soon_left -= 1;
                Some(now.saturating_add(SOON_NS))
            }
            _ => None,
        };
        let was_refused =
            blocks.iter().filter(|block| block.len_bytes > 0).count() as u32 != taken.count_ones();
        // A loan waits for a lender that frees nothing no longer than the first time.
        let is_request = matches!(shrink.purpose, Purpose::Request(_));
        if took > 0 || (is_request && again_ns.is_some()) {
            let latest = shrink.since_ns.saturating_add(ALL_PATIENCE_NS);
            shrink.deadline_ns = now.saturating_add(PATIENCE_NS).min(latest);
        }
        if let Some(again_ns) = again_ns {
            shrink.step = Step::Settled { again_ns };
            return ShrinkStep::Done;
        }
        let kept = match offer.rest {
            _ if missing == 0 => None,
            _ if was_refused => Some(ReclaimShortfall::TooManyPlaces),
            Shortfall::Scattered => Some(ReclaimShortfall::Scattered),
            _ => Some(ReclaimShortfall::InUse),
        };
        shrink.step = Step::Acknowledging { kept };
        self.shrink(parts, now)
    }

    fn end_shrink<H: Hardware>(
        &mut self,
        parts: &mut Parts<'_, H>,
        kept: Option<ReclaimShortfall>,
    ) -> ShrinkStep {
        let Some(Shrink { purpose, since_ns, had, wanted, moved_bytes, .. }) = self.shrink.take() else {
            return ShrinkStep::Done;
        };
        let ticket = match purpose {
            Purpose::Request(ticket) => ticket,
            Purpose::Loan(len_bytes) => {
                return ShrinkStep::Reclaimed { len_bytes, is_complete: kept.is_none() };
            }
        };
        // The cell may not take the unplugged memory back by a request.
        self.growth.limit = parts.owned(self).map(OwnedCell::memory_bytes);
        self.set_limit(parts);
        parts.save(self);
        let resized = self.record_resize(parts, (had, wanted), since_ns, kept);
        parts.answers.resized.push((ticket, Ok(MemoryResized { moved: ByteSize(moved_bytes), ..resized })));
        ShrinkStep::Done
    }

    /// Ends an unplug in progress, as the cell has ended.
    pub(super) fn drop_shrink<H: Hardware>(&mut self, parts: &mut Parts<'_, H>) {
        match self.shrink.take().map(|shrink| shrink.purpose) {
            Some(Purpose::Request(ticket)) => {
                parts.answers.resized.push((ticket, Err(self.wrong_state())));
            }
            Some(Purpose::Loan(len_bytes)) => parts.core.unreserve_memory(len_bytes),
            None => {}
        }
    }

    /// Enters a resize in the journal. Returns the answer to the request.
    fn record_resize<H: Hardware>(
        &self,
        parts: &mut Parts<'_, H>,
        bytes: (u64, u64),
        since_ns: u64,
        kept: Option<ReclaimShortfall>,
    ) -> MemoryResized {
        let took_ns = parts.core.now_ns().saturating_sub(since_ns);
        let memory_bytes = parts.owned(self).map_or(0, OwnedCell::memory_bytes);
        let resized = MemoryResized { kept, ..self.resized(memory_bytes, bytes, took_ns) };
        let event = JournalEvent::ResizeMemory { from: resized.had, to: resized.has, wanted: resized.wanted };
        parts.record(self, since_ns, event);
        resized
    }
}

fn check_growth<H: Hardware>(
    parts: &Parts<'_, H>,
    owned: &OwnedCell<H>,
    more: u64,
) -> Result<(), ManagementError> {
    // Idle images are evicted if needed.
    let free = parts.core.inventory().memory.available() + parts.images.idle_bytes();
    if more > free {
        return Err(ManagementError::MemoryExhausted { wanted: ByteSize(more), free: ByteSize(free) });
    }
    match owned.block_room() {
        0 => Err(ManagementError::MemoryScattered { pieces: 1, places: 0 }),
        _ => Ok(()),
    }
}

fn out_of_limits(memory: Change<ByteSize>, had: u64) -> ManagementError {
    ManagementError::OutOfLimits(alloc::format!(
        "{memory} is no size for a cell that has {}: leave it something, and ask for no more than there is",
        ByteSize(had)
    ))
}
