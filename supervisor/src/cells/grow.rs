//! Memory requests of running cells: a cell writes a request into its report and notifies the supervisor, which grants
//! a block or refuses.
//!
//! A request costs little, whatever its contents: the supervisor searches the free blocks and maps one. Each
//! notification handles one request of a cell. No memory is scrubbed for a request. If a suitable block is not known to
//! be zero, the request stays open and is checked again after each slice of scrubbing. If no block is free, the cell may
//! borrow memory (`lend`); the request stays open meanwhile. A cell keeps blocks that it has not borrowed until it ends
//! or the operator unplugs them, so the number of blocks, and of journal entries, is bounded. A refusal is entered
//! in the journal only once between two grants.

use super::Parts;
use super::cell::{Cell, Run};
use isola_abi::growth::{Answer, LARGEST_BLOCK, Refusal};
use isola_abi::management::{CellSpec, JournalEvent};
use isola_abi::size::ByteSize;
use isola_supervisor_core::Hardware;
use isola_supervisor_core::inventory::{BlockRequest, CHUNK};
use isola_supervisor_core::report::MemoryRequest;
use isola_supervisor_core::trusted_core::{BlockPlug, OwnedCell};

/// The state of a cell's memory requests since the cell was built.
#[derive(Debug)]
pub(super) struct Growth {
    /// Since when the current request has been open; `None` if there is none.
    open_since_ns: Option<u64>,
    /// The most memory that the cell may have, in bytes, after an unplug; `None`: the limit of its specification.
    pub(super) limit: Option<u64>,
    /// Whether the cell has lent memory.
    pub(super) lends: bool,
    /// Bytes of memory for the stacks of plugged cores. The cell owns this memory, but its pool does not contain it.
    pub(super) stack_bytes: u64,
    refusals: Refusals,
}

/// Whether the next refusal is entered in the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refusals {
    NotLogged,
    Logged,
}

impl Growth {
    /// Returns the state of a cell that has just been built.
    pub(super) fn new() -> Self {
        Self { open_since_ns: None, limit: None, lends: false, stack_bytes: 0, refusals: Refusals::NotLogged }
    }

    /// Makes the next refusal be entered in the journal.
    pub(super) fn log_next_refusal(&mut self) {
        self.refusals = Refusals::NotLogged;
    }

    /// Returns the state of a recovered cell.
    pub(super) fn resume(limit: Option<u64>, stack_bytes: u64) -> Self {
        Self { limit, stack_bytes, ..Self::new() }
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

impl Cell {
    /// Handles the running cell's memory request, if there is a new one. Returns the block to borrow, if the cell may
    /// have one and none is free; the request is neither answered nor open then.
    pub(super) fn grow<H: Hardware>(&mut self, parts: &mut Parts<'_, H>) -> Option<BlockRequest> {
        let now = parts.core.now_ns();
        let owned = parts.core.cell(self.id)?;
        if !matches!(self.run, Run::Running { .. } | Run::Stopping { .. }) {
            return None;
        }
        let request = owned.memory_request()?;
        let since_ns = self.growth.open_since_ns.unwrap_or(now);
        let memory_bytes = owned.memory_bytes();
        let room = self.limit_bytes(memory_bytes) - memory_bytes;
        let block = match block_request(&request, room, owned.block_room()) {
            _ if !owned.is_settled() => {
                self.growth.open_since_ns = Some(since_ns);
                return None;
            }
            Ok(block) => block,
            Err(refusal) => {
                self.refuse(parts, &request, refusal);
                return None;
            }
        };
        let plugged = loop {
            match parts.core.plug_block(self.id, block) {
                // Idle images are evicted, if that yields a block.
                Ok(BlockPlug::Exhausted) if parts.images.evict_for(block.least_bytes, parts.core) => {}
                plugged => break plugged,
            }
        };
        match plugged {
            Ok(BlockPlug::Plugged(len_bytes)) => {
                let to = ByteSize(memory_bytes + len_bytes);
                self.grant(parts, request.number);
                parts.record(self, since_ns, JournalEvent::Grow { by: ByteSize(len_bytes), to });
            }
            // The cell has not acknowledged the result of its last offer, or a block must be scrubbed first.
            Ok(BlockPlug::Later) | Err(_) => self.growth.open_since_ns = Some(since_ns),
            Ok(BlockPlug::Exhausted) => return Some(block),
            Ok(BlockPlug::NoRoom) => self.refuse(parts, &request, Refusal::Limit),
        }
        None
    }

    /// Answers the memory request with that number, as the cell has more memory.
    pub(super) fn grant<H: Hardware>(&mut self, parts: &mut Parts<'_, H>, number: u32) {
        self.growth.refusals = Refusals::NotLogged;
        self.answer(parts, number, Answer::Given);
    }

    /// Keeps the memory request open, as memory is borrowed for it.
    pub(super) fn await_loan(&mut self, now: u64) {
        self.growth.open_since_ns.get_or_insert(now);
    }

    /// Refuses the memory request, as neither free memory nor a loan satisfies it.
    pub(super) fn refuse_exhausted<H: Hardware>(&mut self, parts: &mut Parts<'_, H>) {
        if let Some(request) = parts.owned(self).and_then(OwnedCell::memory_request) {
            self.refuse(parts, &request, Refusal::Exhausted);
        }
    }

    fn refuse<H: Hardware>(&mut self, parts: &mut Parts<'_, H>, request: &MemoryRequest, refusal: Refusal) {
        let since_ns = self.growth.open_since_ns.unwrap_or_else(|| parts.core.now_ns());
        self.answer(parts, request.number, Answer::Refused(refusal));
        if core::mem::replace(&mut self.growth.refusals, Refusals::Logged) == Refusals::NotLogged {
            let wanted = ByteSize(request.least_bytes);
            parts.record(self, since_ns, JournalEvent::GrowthRefused { wanted, refusal });
        }
    }

    fn answer<H: Hardware>(&mut self, parts: &mut Parts<'_, H>, number: u32, answer: Answer) {
        let now = parts.core.now_ns();
        // Only an open request excuses missing progress from the watchdog.
        if self.growth.open_since_ns.take().is_some()
            && let Run::Running { watch: Some(watch) } = &mut self.run
        {
            watch.forgive(now);
        }
        parts.core.answer_memory_request(self.id, number, answer);
    }
}

/// Returns the block to grant for a request. `room` is the bytes that the cell may still get, `blocks_left` the number
/// of blocks.
fn block_request(requested: &MemoryRequest, room: u64, blocks_left: usize) -> Result<BlockRequest, Refusal> {
    if blocks_left == 0 || requested.least_bytes > room {
        return Err(Refusal::Limit);
    }
    if requested.least_bytes > LARGEST_BLOCK {
        return Err(Refusal::Exhausted);
    }
    let largest = requested.largest_bytes.min(LARGEST_BLOCK).min(room).max(CHUNK);
    let largest_bytes = (1 << largest.ilog2()).max(requested.least_bytes);
    Ok(BlockRequest { least_bytes: requested.least_bytes, largest_bytes, node: requested.node })
}
