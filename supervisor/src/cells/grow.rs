//! Cells that grow while they run: a cell writes a request into its report and rings, and is told yes or no.
//!
//! The supervisor does little for a request, whatever it says: it looks through the free blocks, and maps one. It looks at
//! one request of a cell for each bell. Memory is never scrubbed for a request: where there is a block that is not known to
//! be zero, the request is left open, and looked at again behind each slice of scrubbing, which goes on anyway. What a
//! cell gets stays its own until it ends, or somebody asks for it back, so the number of chunks, and of entries in the
//! journal, is bounded; and a refusal is entered once, until the cell gets something.

use super::Cells;
use super::cell::{Body, Cell, Run};
use crate::effects::Effects;
use crate::inventory::{Block, BlockRequest, CHUNK, Chunk};
use crate::report::{self, Requested};
use isola_abi::growth::{Answer, LARGEST_CHUNK, Refusal};
use isola_abi::id::CellId;
use isola_abi::management::{CellSpec, JournalEvent};
use isola_abi::size::ByteSize;

/// How far a cell's requests have been looked after since it was built.
#[derive(Debug)]
pub(super) struct Growth {
    /// The number of the last request that was answered.
    answered: u32,
    /// Since when a request has been left open; none where all were answered at first sight.
    open_since_ns: Option<u64>,
    /// The most memory that the cell may have after some was taken from it on request, in bytes; `None`: what its
    /// specification says.
    pub(super) limit: Option<u64>,
    /// The number of the last request for memory that is done with; 0: there was none.
    pub(super) settled: u32,
    /// What it was given for the stacks of cores that came later, in bytes: the cell's memory, of which it knows nothing.
    pub(super) stack_bytes: u64,
    refusals: Refusals,
}

/// Whether the next refusal is worth an entry in the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refusals {
    Untold,
    Told,
}

impl Growth {
    /// Of a cell that has just been built.
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

    /// The next refusal is worth an entry in the journal.
    pub(super) fn tell_refusals_again(&mut self) {
        self.refusals = Refusals::Untold;
    }

    /// Of a cell that has been answered its requests and its offers up to these numbers.
    pub(super) fn resume(answered: u32, settled: u32, limit: Option<u64>, stack_bytes: u64) -> Self {
        Self { answered, settled, limit, stack_bytes, ..Self::new() }
    }

    /// Whether a request is open: the cell stands still, and does right to.
    pub(super) fn is_open(&self) -> bool {
        self.open_since_ns.is_some()
    }
}

/// The most memory that a cell may have, in bytes: whole chunks.
pub(super) fn memory_max_bytes(spec: &CellSpec, memory_bytes: u64) -> u64 {
    spec.memory_max.map_or(memory_bytes, |most| (most.0 / CHUNK * CHUNK).max(memory_bytes))
}

impl<E: Effects> Cells<E> {
    /// Looks at a live cell's request, where there is a new one.
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
            // What it offered, and has not seen the end of, must not be what it gets.
            cell.growth.open_since_ns = Some(since_ns);
            return;
        }
        let places = self.effects.places(&held.space);
        let block = match block_request(&requested, room, places) {
            Ok(request) => loop {
                let memory = &mut self.inventory.memory;
                match memory.take_block(request) {
                    // Images that nobody uses give way, where that is of use.
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

    /// Looks at the requests that were left open, as there is more memory now that is known to be zero.
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
        // Who was answered at once did not stand still for it, and is judged as before.
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

/// Which block a cell is to have that requests this, and may have so many bytes more, in so many chunks.
fn block_request(requested: &Requested, room: u64, places_left: usize) -> Result<BlockRequest, Refusal> {
    if places_left == 0 || requested.least_bytes > room {
        return Err(Refusal::Limit);
    }
    if requested.least_bytes > LARGEST_CHUNK {
        return Err(Refusal::Exhausted);
    }
    let largest = requested.largest_bytes.min(LARGEST_CHUNK).min(room).max(CHUNK);
    let largest_bytes = (1 << largest.ilog2()).max(requested.least_bytes);
    Ok(BlockRequest { least_bytes: requested.least_bytes, largest_bytes, node: requested.node })
}
