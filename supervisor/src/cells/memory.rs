//! Plug and unplug of a running cell's memory by request.
//!
//! **Plugging** is all or nothing, as soon as enough memory is zero (`pending`).
//!
//! **Unplugging** needs the cell's help, see [`isola_abi::unplug`]: it offers blocks, which the supervisor validates.
//! It unmaps them and completes a TLB shootdown on all the cell's cores before the blocks have another owner. If a core
//! does not acknowledge the shootdown, the cell is ended. The steps:
//!
//! ```text
//!              reclaim request       offer: unplug, answer            acknowledged
//!    (request) -------------> Asked ---------------------> Settled --------------> ask again while memory is missing,
//!                               |                            |                     else (done)
//!                               | deadline: answer "nothing" | deadline
//!                               +----------------------------+--> (done; no memory is plugged before acknowledgement)
//! ```

use super::Cells;
use super::cell::{Body, Cell, End, Run};
use super::grow::memory_max_bytes;
use super::pending::{Job, Need, Obstacle};
use super::ticket::Ticket;
use crate::effects::{Effects, Unplugged};
use crate::inventory::{CHUNK, Chunk, CoreToken};
use crate::report::{self, Offered};
use alloc::vec::Vec;
use isola_abi::id::{CellId, NodeId, PhysRange};
use isola_abi::management::{Change, JournalEvent, ManagementError, MemoryResized, Mode, ReclaimShortfall};
use isola_abi::size::ByteSize;
use isola_abi::unplug::Shortfall;

/// How long a cell may take for a reclaim request, in ns. Generous: the cell answers between two events.
const PATIENCE_NS: u64 = 5_000_000_000;

/// If a cell's cores are still returning cached memory, the time until the cell is asked again, in ns.
const SOON_NS: u64 = 1_000_000;

/// How often the cell is asked again for that reason.
const SOON_TIMES: u32 = 5;

/// The result of a request to resize a cell's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resize {
    /// The memory is resized.
    Done(MemoryResized),
    /// The cell was asked to unplug, or memory is being scrubbed; [`Cells::take_resized`] will have the answer.
    Asked(Ticket),
}

/// The answer to a request that had to wait.
pub type Resized = (Ticket, Result<MemoryResized, ManagementError>);

/// An unplug of memory in progress.
#[derive(Debug)]
pub(super) struct Shrink {
    ticket: Ticket,
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
    Asked(u32),
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

impl<E: Effects> Cell<E> {
    /// Returns the most memory that the cell may have by requests, in bytes: at least its present memory.
    pub(super) fn limit_bytes(&self) -> u64 {
        let limit = self.growth.limit.unwrap_or_else(|| memory_max_bytes(&self.spec, self.memory_bytes));
        limit.max(self.memory_bytes)
    }

    /// Returns the limit without stack memory, which the cell does not count.
    pub(super) fn told_limit_bytes(&self) -> u64 {
        self.limit_bytes().saturating_sub(self.growth.stack_bytes)
    }

    fn resized(&self, had: u64, wanted: u64, took_ns: u64) -> MemoryResized {
        MemoryResized {
            had: ByteSize(had),
            wanted: ByteSize(wanted),
            has: ByteSize(self.memory_bytes),
            limit: ByteSize(self.limit_bytes()),
            moved: ByteSize(0),
            kept: None,
            took_ns,
        }
    }
}

impl<E: Effects> Cells<E> {
    /// Plugs memory into a running cell, begins to unplug some, or reports whether that is possible.
    ///
    /// # Errors
    /// Returns [`ManagementError::NoSuchCell`]; [`ManagementError::WrongState`] if the cell does not run;
    /// [`ManagementError::BeingResized`]; [`ManagementError::CoreAtLarge`]; and the errors about limits and exhausted
    /// resources. The state is unchanged then; but if a block cannot be plugged although the cell has a place for it
    /// ([`ManagementError::MemoryScattered`]), the blocks before it stay with the cell.
    pub fn resize_memory(
        &mut self,
        name: &str,
        memory: Change<ByteSize>,
        mode: Mode,
    ) -> Result<Resize, ManagementError> {
        let began = self.effects.now_ns();
        let id = self.find(name)?;
        self.poll(id);
        let cell = self.cells.get(&id).ok_or_else(|| ManagementError::NoSuchCell(super::shorten(name)))?;
        if !matches!(cell.run, Run::Running { .. }) {
            return Err(cell.wrong_state());
        }
        if cell.shrink.is_some() || !self.is_settled(cell) || self.is_pending(id) {
            return Err(ManagementError::BeingResized(super::shorten(name)));
        }
        let had = cell.memory_bytes;
        let wanted = memory
            .of(had)
            .filter(|&bytes| bytes > 0)
            .and_then(|bytes| bytes.checked_next_multiple_of(CHUNK))
            .ok_or_else(|| out_of_limits(memory, had))?;
        if wanted > had {
            self.check_growth(cell, wanted - had)?;
        } else {
            if wanted < had && cell.moves.has_lost() {
                return Err(ManagementError::CoreAtLarge(super::shorten(name)));
            }
            self.check_shrink(cell, wanted)?;
        }
        match mode {
            Mode::DryRun => {
                let took_ns = self.effects.now_ns().saturating_sub(began);
                let has = ByteSize(wanted);
                Ok(Resize::Done(MemoryResized { has, ..cell.resized(had, wanted, took_ns) }))
            }
            Mode::Apply if wanted > had => match self.give(id, wanted, began) {
                Ok(resized) => Ok(Resize::Done(resized)),
                Err(Obstacle::Refused(error)) => Err(error),
                Err(Obstacle::Needs(need)) => {
                    Ok(Resize::Asked(self.put_off(Job::Give(id, wanted), began, need)))
                }
            },
            Mode::Apply if wanted < had => {
                let ticket = self.tickets.next();
                self.begin_shrink(id, ticket, wanted, began);
                Ok(Resize::Asked(ticket))
            }
            Mode::Apply => Ok(Resize::Done(cell.resized(had, wanted, 0))),
        }
    }

    /// Returns the delayed answers since the last call.
    pub fn take_resized(&mut self) -> Vec<Resized> {
        core::mem::take(&mut self.resized)
    }

    /// Returns whether the cell has acknowledged the answer to its last offer.
    pub(super) fn is_settled(&self, cell: &Cell<E>) -> bool {
        cell.growth.settled == 0
            || cell
                .report(&self.effects)
                .is_none_or(|report| report.offer.acknowledged() == cell.growth.settled)
    }

    fn check_growth(&self, cell: &Cell<E>, more: u64) -> Result<(), ManagementError> {
        // Idle images are evicted if needed.
        let free = self.inventory.memory.available() + self.images.idle_bytes();
        if more > free {
            return Err(ManagementError::MemoryExhausted { wanted: ByteSize(more), free: ByteSize(free) });
        }
        let places = cell.held().map_or(0, |held| self.effects.places(&held.space));
        if places == 0 { Err(ManagementError::MemoryScattered { pieces: 1, places: 0 }) } else { Ok(()) }
    }

    /// Checks, by the cell's report, whether the wanted memory leaves a sixteenth of the cell's pool free, so that
    /// there is no memory pressure.
    fn check_shrink(&self, cell: &Cell<E>, wanted: u64) -> Result<(), ManagementError> {
        let Some(report) = cell.report(&self.effects) else { return Ok(()) };
        let usage = report::memory(report);
        let (total, used) = (usage.total.0.min(cell.memory_bytes), usage.used.0.min(usage.total.0));
        let used = used.min(total);
        // Plugged memory that the cell's page allocator has not added yet counts as unused.
        let least = cell.image_bytes.saturating_add(used).saturating_add(used / 15);
        let least = least.next_multiple_of(CHUNK).min(cell.memory_bytes);
        if wanted < least {
            return Err(ManagementError::MemoryInUse { wanted: ByteSize(wanted), least: ByteSize(least) });
        }
        Ok(())
    }

    /// Plugs memory into a running cell until it has `wanted` bytes.
    pub(super) fn give(&mut self, id: CellId, wanted: u64, began: u64) -> Result<MemoryResized, Obstacle> {
        let gone = || ManagementError::NoSuchCell(alloc::string::String::new());
        let cell = self.cells.get(&id).ok_or_else(gone)?;
        let had = cell.memory_bytes;
        if !matches!(cell.run, Run::Running { .. }) {
            return Err(cell.wrong_state().into());
        }
        // The cell may have grown by its own requests while this request waited.
        let more = wanted.saturating_sub(had);
        self.check_growth(cell, more)?;
        let Some(cell) = self.cells.get_mut(&id) else { return Err(gone().into()) };
        let Body::Held(held) = &mut cell.body else { return Err(gone().into()) };
        let first = held.cores.first().and_then(Option::as_ref);
        let node = first.and_then(|core| self.inventory.cores.node(core.id())).unwrap_or(NodeId(0));
        self.images.make_room(more, None, &mut self.inventory.memory);
        if !self.inventory.memory.is_ready(more, node) {
            return Err(Obstacle::Needs(Need::Memory(more, node)));
        }
        let blocks = self.inventory.memory.take(more, node).unwrap_or_default();
        let places = self.effects.places(&held.space);
        if blocks.len() > places {
            let (pieces, places) = (blocks.len() as u32, places as u32);
            self.inventory.memory.put(blocks);
            return Err(ManagementError::MemoryScattered { pieces, places }.into());
        }
        let (pieces, mut plugged) = (blocks.len() as u32, 0);
        for block in blocks {
            let range = block.range();
            let node = self.inventory.memory.node_of(range.start).unwrap_or(NodeId(0));
            match self.effects.extend(&mut held.space, block, node) {
                Ok(()) => (cell.memory_bytes, plugged) = (cell.memory_bytes + range.len_bytes, plugged + 1),
                // Not expected, as the number of blocks was checked.
                Err(block) => self.inventory.memory.put(alloc::vec![block]),
            }
        }
        let missing = ManagementError::MemoryScattered { pieces, places: plugged };
        if plugged == 0 && pieces > 0 {
            return Err(missing.into());
        }
        // The limit after an earlier unplug no longer applies.
        cell.growth.limit = None;
        cell.growth.tell_refusals_again();
        let limit_bytes = cell.told_limit_bytes();
        if let Body::Held(held) = &cell.body {
            self.effects.set_limit(&held.space, limit_bytes);
        }
        self.keep_up(id);
        let resized = self.enter_resized(id, had, wanted, began, None);
        if plugged < pieces { Err(missing.into()) } else { Ok(resized) }
    }

    fn begin_shrink(&mut self, id: CellId, ticket: Ticket, wanted: u64, began: u64) {
        let Some(cell) = self.cells.get_mut(&id) else { return };
        let Body::Held(held) = &cell.body else { return };
        let number = self.effects.request_unplug(&held.space, cell.memory_bytes - wanted);
        cell.shrink = Some(Shrink {
            ticket,
            since_ns: began,
            deadline_ns: began.saturating_add(PATIENCE_NS),
            had: cell.memory_bytes,
            wanted,
            step: Step::Asked(number),
            soon_left: SOON_TIMES,
            moved_bytes: 0,
        });
    }

    /// Advances an unplug in progress as far as the cell has answered.
    pub(super) fn shrink(&mut self, id: CellId) {
        let now = self.effects.now_ns();
        let Some(cell) = self.cells.get(&id) else { return };
        let Some(Shrink { step, deadline_ns, wanted, .. }) = cell.shrink else { return };
        match step {
            Step::Asked(number) => {
                let offered = cell.report(&self.effects).and_then(|report| report::offer(report, number));
                match offered {
                    Some(offered) => self.accept(id, &offered, now),
                    None if now >= deadline_ns => {
                        self.settle(id, 0);
                        self.end_shrink(id, Some(ReclaimShortfall::NotInTime));
                    }
                    None => {}
                }
            }
            Step::Settled { again_ns } if self.is_settled(cell) && now >= again_ns => {
                let missing = cell.memory_bytes.saturating_sub(wanted);
                let Some(cell) = self.cells.get_mut(&id) else { return };
                let (Body::Held(held), Some(shrink)) = (&cell.body, &mut cell.shrink) else { return };
                shrink.step = Step::Asked(self.effects.request_unplug(&held.space, missing));
            }
            Step::Settled { .. } if now >= deadline_ns => {
                self.end_shrink(id, Some(ReclaimShortfall::NotInTime))
            }
            // From here on the supervisor waits for the cell's notification.
            Step::Settled { again_ns } if now >= again_ns => {
                let shrink = self.cells.get_mut(&id).and_then(|cell| cell.shrink.as_mut());
                shrink.into_iter().for_each(|shrink| shrink.step = Step::Settled { again_ns: 0 });
            }
            Step::Settled { .. } => {}
            Step::Acknowledging { kept } if self.is_settled(cell) || now >= deadline_ns => {
                self.end_shrink(id, kept);
            }
            Step::Acknowledging { .. } => {}
        }
    }

    /// Unplugs the offered blocks, up to the wanted number of bytes.
    fn accept(&mut self, id: CellId, offered: &Offered, now: u64) {
        let Some(cell) = self.cells.get_mut(&id) else { return };
        if cell.moves.has_lost() {
            // A core was lost after the reclaim request, and would not acknowledge a shootdown.
            self.settle(id, 0);
            return self.end_shrink(id, Some(ReclaimShortfall::CoreAtLarge));
        }
        let (Body::Held(held), Some(shrink)) = (&mut cell.body, &mut cell.shrink) else { return };
        shrink.moved_bytes = shrink.moved_bytes.saturating_add(offered.moved_bytes);
        let mut missing = cell.memory_bytes.saturating_sub(shrink.wanted);
        // The supervisor unplugs no more than the wanted bytes; an empty range replaces each block beyond them.
        let wanted = |block: &PhysRange| {
            let fits = block.len_bytes <= missing;
            missing -= if fits { block.len_bytes } else { 0 };
            if fits { *block } else { PhysRange::default() }
        };
        let blocks: Vec<PhysRange> = offered.blocks.iter().map(wanted).collect();
        let Unplugged { taken, memory, stuck } = self.effects.unplug(&mut held.space, &held.cores, &blocks);
        let took: u64 = memory.iter().map(|block| block.range().len_bytes).sum();
        self.inventory.memory.put(memory);
        cell.memory_bytes = cell.memory_bytes.saturating_sub(took);
        let missing = cell.memory_bytes.saturating_sub(shrink.wanted);
        let again_ns = match offered.rest {
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
        if let Some(again_ns) = again_ns {
            shrink.step = Step::Settled { again_ns };
        }
        self.settle(id, taken);
        if stuck.is_some() {
            let since_ns = now;
            self.end_shrink(id, Some(ReclaimShortfall::NotInTime));
            self.finish(id, End::Crashed, since_ns);
        } else if again_ns.is_none() {
            let kept = match offered.rest {
                _ if missing == 0 => None,
                _ if was_refused => Some(ReclaimShortfall::TooManyPlaces),
                Shortfall::Scattered => Some(ReclaimShortfall::Scattered),
                _ => Some(ReclaimShortfall::InUse),
            };
            if let Some(shrink) = self.cells.get_mut(&id).and_then(|cell| cell.shrink.as_mut()) {
                shrink.step = Step::Acknowledging { kept };
            }
            self.shrink(id);
        }
    }

    /// Answers the cell's offer, or withdraws the reclaim request if there is none.
    fn settle(&mut self, id: CellId, taken: u32) {
        let Some(cell) = self.cells.get_mut(&id) else { return };
        let Some(Shrink { step, .. }) = &cell.shrink else { return };
        if let Step::Asked(number) = step {
            cell.growth.settled = *number;
        } else if let Some(report) = cell.report(&self.effects) {
            cell.growth.settled = report.offer.number();
        }
        if let Body::Held(held) = &cell.body {
            self.effects.settle(&held.space, taken);
        }
    }

    fn end_shrink(&mut self, id: CellId, kept: Option<ReclaimShortfall>) {
        let Some(cell) = self.cells.get_mut(&id) else { return };
        let Some(Shrink { ticket, since_ns, had, wanted, moved_bytes, .. }) = cell.shrink.take() else {
            return;
        };
        // The cell may not take the unplugged memory back by a request.
        cell.growth.limit = Some(cell.memory_bytes);
        if let Body::Held(held) = &cell.body {
            self.effects.set_limit(&held.space, cell.told_limit_bytes());
        }
        self.keep_up(id);
        let resized = self.enter_resized(id, had, wanted, since_ns, kept);
        self.resized.push((ticket, Ok(MemoryResized { moved: ByteSize(moved_bytes), ..resized })));
    }

    /// Ends an unplug in progress, as the cell ends or is stopped.
    pub(super) fn forget_shrink(&mut self, id: CellId) {
        let Some(cell) = self.cells.get_mut(&id) else { return };
        if let Some(shrink) = cell.shrink.take() {
            self.resized.push((shrink.ticket, Err(cell.wrong_state())));
        }
    }

    fn enter_resized(
        &mut self,
        id: CellId,
        had: u64,
        wanted: u64,
        since_ns: u64,
        kept: Option<ReclaimShortfall>,
    ) -> MemoryResized {
        let took_ns = self.effects.now_ns().saturating_sub(since_ns);
        let size = ByteSize;
        let mut resized = MemoryResized {
            had: size(had),
            wanted: size(wanted),
            has: size(wanted),
            limit: size(wanted),
            moved: size(0),
            kept,
            took_ns,
        };
        if let Some(cell) = self.cells.get(&id) {
            resized = MemoryResized { kept, ..cell.resized(had, wanted, took_ns) };
        }
        let event = JournalEvent::ResizeMemory { from: resized.had, to: resized.has, wanted: resized.wanted };
        self.enter(id, since_ns, event);
        resized
    }
}

fn out_of_limits(memory: Change<ByteSize>, had: u64) -> ManagementError {
    ManagementError::OutOfLimits(alloc::format!(
        "{memory} is no size for a cell that has {}: leave it something, and ask for no more than there is",
        ByteSize(had)
    ))
}
