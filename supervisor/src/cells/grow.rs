//! Memory requests of running cells: a cell writes a request into its report and notifies the supervisor, which grants
//! a block or refuses.
//!
//! A request costs little, whatever its contents: the supervisor searches the free blocks and maps one. Each
//! notification handles one request of a cell. No memory is scrubbed for a request. If a suitable block is not known to
//! be zero, the request stays open and is checked again after each slice of scrubbing. A cell keeps its blocks until it
//! ends or the operator unplugs them, so the number of blocks, and of journal entries, is bounded. A refusal is entered
//! in the journal only once between two grants.

use super::Cells;
use super::cell::{Body, Cell, Run};
use crate::effects::Effects;
use crate::inventory::{Block, BlockRequest, CHUNK, Chunk};
use crate::report::{self, Requested};
use isola_abi::growth::{Answer, LARGEST_BLOCK, Refusal};
use isola_abi::id::CellId;
use isola_abi::management::{CellSpec, JournalEvent};
use isola_abi::size::ByteSize;

/// The state of a cell's memory requests since the cell was built.
#[derive(Debug)]
pub(super) struct Growth {
    /// The number of the last request that was answered.
    answered: u32,
    /// Since when the current request has been open; `None` if there is none.
    open_since_ns: Option<u64>,
    /// The most memory that the cell may have, in bytes, after an unplug; `None`: the limit of its specification.
    pub(super) limit: Option<u64>,
    /// The number of the last reclaim request that is complete; 0: there was none.
    pub(super) settled: u32,
    /// Bytes of memory for the stacks of plugged cores. The cell owns this memory, but its pool does not contain it.
    pub(super) stack_bytes: u64,
    refusals: Refusals,
}

/// Whether the next refusal is entered in the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refusals {
    Untold,
    Told,
}

impl Growth {
    /// Returns the state of a cell that has just been built.
    pub(super) fn new() -> Self {
        Self {
            answered: 0,
            open_since_ns: None,
            limit: None,
            settled: 0,
            stack_bytes: 0,
            refusals: Refusals::Untold,
        }
    }

    /// Makes the next refusal be entered in the journal.
    pub(super) fn tell_refusals_again(&mut self) {
        self.refusals = Refusals::Untold;
    }

    /// Returns the state of a recovered cell, with the numbers of its last answered memory request and its last
    /// complete reclaim request.
    pub(super) fn resume(answered: u32, settled: u32, limit: Option<u64>, stack_bytes: u64) -> Self {
        Self { answered, settled, limit, stack_bytes, ..Self::new() }
    }

    /// Returns whether a request is open: the cell then legitimately makes no progress.
    pub(super) fn is_open(&self) -> bool {
        self.open_since_ns.is_some()
    }
}

/// Returns the most memory that a cell may have by its specification, in bytes: whole chunks.
pub(super) fn memory_max_bytes(spec: &CellSpec, memory_bytes: u64) -> u64 {
    spec.memory_max.map_or(memory_bytes, |most| (most.0 / CHUNK * CHUNK).max(memory_bytes))
}

impl<E: Effects> Cells<E> {
    /// Handles a running cell's memory request, if there is a new one.
    pub(super) fn grow(&mut self, id: CellId) {
        let now = self.effects.now_ns();
        let is_settled = self.cells.get(&id).is_some_and(|cell| self.is_settled(cell));
        let Some(cell) = self.cells.get_mut(&id) else { return };
        let room = cell.limit_bytes() - cell.memory_bytes;
        let (Body::Held(held), Run::Running { .. } | Run::Stopping { .. }) = (&mut cell.body, &cell.run)
        else {
            return;
        };
        let requested = report::request(self.effects.report(&held.space));
        if requested.number == cell.growth.answered {
            return;
        }
        let since_ns = cell.growth.open_since_ns.unwrap_or(now);
        if !is_settled {
            // The cell has not acknowledged the result of its last offer. No block may be both offered and granted.
            cell.growth.open_since_ns = Some(since_ns);
            return;
        }
        let places = self.effects.places(&held.space);
        let block = match block_request(&requested, room, places) {
            Ok(request) => loop {
                let memory = &mut self.inventory.memory;
                match memory.take_block(request) {
                    // Idle images are evicted, if that yields a block.
                    Block::Exhausted if self.images.drop_for(request.least_bytes, memory) => {}
                    block => break block,
                }
            },
            Err(Refusal::Limit) => return self.refuse(id, &requested, Refusal::Limit, since_ns),
            Err(Refusal::Exhausted) => Block::Exhausted,
        };
        let (block, node) = match block {
            Block::Given(block, node) => (block, node),
            Block::Later => {
                cell.growth.open_since_ns = Some(since_ns);
                return;
            }
            Block::Exhausted => return self.refuse(id, &requested, Refusal::Exhausted, since_ns),
        };
        let len_bytes = block.range().len_bytes;
        if let Err(block) = self.effects.extend(&mut held.space, block, node) {
            self.inventory.memory.put(alloc::vec![block]);
            return self.refuse(id, &requested, Refusal::Limit, since_ns);
        }
        cell.memory_bytes += len_bytes;
        cell.growth.refusals = Refusals::Untold;
        let event = JournalEvent::Grow { by: ByteSize(len_bytes), to: ByteSize(cell.memory_bytes) };
        self.answer(id, requested.number, Answer::Given);
        self.enter(id, since_ns, event);
    }

    /// Checks the open requests again, as there is more zero memory.
    pub(super) fn grow_waiting(&mut self) {
        let waiting = |cell: &&Cell<E>| cell.growth.is_open();
        let waiting: alloc::vec::Vec<CellId> =
            self.cells.values().filter(waiting).map(|cell| cell.id).collect();
        waiting.into_iter().for_each(|id| self.grow(id));
    }

    fn refuse(&mut self, id: CellId, requested: &Requested, refusal: Refusal, since_ns: u64) {
        self.answer(id, requested.number, Answer::Refused(refusal));
        let Some(cell) = self.cells.get_mut(&id) else { return };
        if core::mem::replace(&mut cell.growth.refusals, Refusals::Told) == Refusals::Untold {
            let wanted = ByteSize(requested.least_bytes);
            self.enter(id, since_ns, JournalEvent::GrowthRefused { wanted, refusal });
        }
    }

    fn answer(&mut self, id: CellId, number: u32, answer: Answer) {
        let now = self.effects.now_ns();
        let Some(cell) = self.cells.get_mut(&id) else { return };
        cell.growth.answered = number;
        // Only an open request excuses missing progress from the watchdog.
        if cell.growth.open_since_ns.take().is_some()
            && let Run::Running { watch: Some(watch) } = &mut cell.run
        {
            watch.forgive(now);
        }
        if let Body::Held(held) = &cell.body {
            self.effects.answer(&held.space, number, answer);
        }
    }

    pub(super) fn enter(&mut self, id: CellId, since_ns: u64, event: JournalEvent) {
        let name = self.cells.get(&id).map(|cell| cell.spec.name.clone());
        self.record(since_ns, name.as_deref(), event);
    }
}

/// Returns the block to grant for a request. `room` is the bytes that the cell may still get, `places_left` the number
/// of blocks.
fn block_request(requested: &Requested, room: u64, places_left: usize) -> Result<BlockRequest, Refusal> {
    if places_left == 0 || requested.least_bytes > room {
        return Err(Refusal::Limit);
    }
    if requested.least_bytes > LARGEST_BLOCK {
        return Err(Refusal::Exhausted);
    }
    let largest = requested.largest_bytes.min(LARGEST_BLOCK).min(room).max(CHUNK);
    let largest_bytes = (1 << largest.ilog2()).max(requested.least_bytes);
    Ok(BlockRequest { least_bytes: requested.least_bytes, largest_bytes, node: requested.node })
}
