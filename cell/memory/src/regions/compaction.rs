//! Compaction: pages of regions migrate so that whole chunks of memory become free.
//!
//! ```text
//!   choose ──► begin ──► wait ──► finish ──► over
//!     ▲          ▲     (TLB flush         │
//!     │          └──────of every core)◄───┤ again if pages were touched, ROUNDS times in all;
//!     └───────────────────────────────────┘ then with other chunks in place of the touched ones
//! ```
//!
//! *Choose* looks at all movable pages and records the chunks with the fewest used pages. It holds back their free
//! pages, so that no allocation gets them. Among these chunks it takes the emptiest whose used pages are all movable.
//! *Begin* begins the migration of their pages; *finish* copies each page to a page of another chunk. A page that was
//! touched meanwhile stays, so its chunk does not become free; the pages that migrated do not return.
//!
//! It works in steps, one per pass of one core's loop, so that no event waits long: a step looks at no more than
//! [`ENTRIES`] pages and [`MAX_CHUNKS_READ`] chunks, and copies no more than [`COPIES`] pages. It allocates only the
//! pages to which others migrate.
//!
//! Why a step may read pages and tables of a region that another core may drop meanwhile: dropped pages become free
//! only after every core has passed its loop, and the calling core neither passes nor halts within a step.

use super::address_window::{Extent, Retirement};
use crate::pages::{ChunkNumber, PAGE_SIZE, Pages};
use core::ops::ControlFlow;
use core::ptr::NonNull;

/// The maximum number of pages that a step looks at.
const ENTRIES: usize = 2048;

/// The maximum number of chunks whose records a step reads.
const MAX_CHUNKS_READ: usize = 4;

/// The maximum number of pages that a step copies.
const COPIES: usize = 16;

/// The maximum number of chunks to consider.
const TARGETS: usize = 32;

/// The maximum number of used pages of a chunk to compact: three quarters. Its held pages ensure that a block
/// begins where the chunk does (see `pages::hold`).
const MAX_USED: u32 = 384;

/// How often the migration of touched pages is begun before other chunks are chosen.
const ROUNDS: u32 = 3;

/// The platform's page migration.
///
/// # Safety
/// The memory that [`Self::visit_movable`] passes must be a page of the page allocator, a run of its own, in use, and
/// not free before the calling core has passed its loop. After a successful [`Self::finish`], the page must be at its
/// new frame with its bytes, and no access may reach the old frame.
pub unsafe trait PageMover {
    /// Returns the first region of movable pages that ends behind `address`.
    fn region_from(&self, address: usize) -> Option<Extent>;

    /// Passes movable pages, with their memory, to `see`, from `address` on and before `end`, and looks at no more than
    /// `most` pages. Returns the address at which to continue: the page for which `see` breaks, or the first that it
    /// did not look at.
    fn visit_movable(
        &self,
        address: usize,
        end: usize,
        most: usize,
        see: &mut dyn FnMut(usize, NonNull<u8>) -> ControlFlow<()>,
    ) -> usize;

    /// Begins the migration of a page.
    fn begin(&self, address: usize, frame: NonNull<u8>);

    /// Records that migrations were begun.
    fn record_begun(&self) -> Retirement;

    /// Returns whether every core has flushed its TLB since that call of [`Self::record_begun`].
    fn is_over(&self, begun: Retirement) -> bool;

    /// Completes the migration of a page. Returns false if the page stays, because an access cancelled the migration.
    ///
    /// # Safety
    /// The migration was begun, [`Self::is_over`] holds for it, and the caller owns `to`.
    unsafe fn finish(&self, address: usize, from: NonNull<u8>, to: NonNull<u8>) -> bool;
}

/// The progress of a compaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompactionProgress {
    /// There is more to do, in another pass.
    InProgress,
    /// The compaction is over. The freed chunks are available until they are allocated again.
    Over,
}

#[derive(Clone, Copy)]
enum Stage {
    Choose,
    Begin,
    Wait(Retirement),
    Finish,
    Over,
}

/// A chunk that is to become free. Its free pages are held back.
#[derive(Clone, Copy)]
struct TargetChunk {
    chunk: ChunkNumber,
    used: u32,
    /// The number of its used pages that were found to be movable.
    movable: u32,
}

/// The state of a compaction.
pub struct Compaction {
    stage: Stage,
    /// The address at which to continue.
    next: usize,
    targets: [Option<TargetChunk>; TARGETS],
    /// The latest chunks that were found unsuitable.
    useless: [Option<ChunkNumber>; 4],
    /// Chunks with pages that are accessed all the time.
    hot: [Option<ChunkNumber>; TARGETS],
    /// The number of chunks to free.
    wanted: usize,
    rounds_left: u32,
    moved_pages: usize,
}

impl Compaction {
    /// Returns a compaction that is over.
    pub const fn new() -> Self {
        Self {
            stage: Stage::Over,
            next: 0,
            targets: [None; TARGETS],
            useless: [None; 4],
            hot: [None; TARGETS],
            wanted: 0,
            rounds_left: 0,
            moved_pages: 0,
        }
    }

    /// Starts a compaction to free `wanted` chunks. To be called when the previous one is over.
    pub fn start(&mut self, wanted: usize) {
        let stage = if wanted > 0 { Stage::Choose } else { Stage::Over };
        *self = Self { stage, wanted: wanted.min(TARGETS), ..Self::new() };
    }

    /// Returns whether the compaction is over.
    pub fn is_over(&self) -> bool {
        matches!(self.stage, Stage::Over)
    }

    /// Returns the migrated bytes.
    pub fn moved_bytes(&self) -> usize {
        self.moved_pages * PAGE_SIZE
    }

    /// Does one step.
    pub fn step(&mut self, pages: &Pages, mover: &impl PageMover) -> CompactionProgress {
        let stage = self.stage;
        self.stage = match stage {
            Stage::Choose if self.look(pages, mover) => self.choose(pages),
            Stage::Begin if self.begin(mover) => {
                self.targets().for_each(|target| hold(pages, target.chunk));
                Stage::Wait(mover.record_begun())
            }
            Stage::Wait(begun) if mover.is_over(begun) => self.begin_walk(Stage::Finish),
            Stage::Finish => match self.finish(pages, mover) {
                FinishOutcome::NotYet => Stage::Finish,
                FinishOutcome::All
                    if self.rounds_left > 0 && self.targets().any(|target| is_used(pages, target)) =>
                {
                    self.begin_walk(Stage::Begin)
                }
                FinishOutcome::All => self.sort_out(pages),
                FinishOutcome::OutOfMemory => Stage::Over,
            },
            stage => stage,
        };
        if self.is_over() {
            self.end(pages);
            return CompactionProgress::Over;
        }
        CompactionProgress::InProgress
    }

    /// Ends the compaction in its present state. An access to a page that is still migrating cancels that migration.
    pub fn end(&mut self, pages: &Pages) {
        self.stage = Stage::Over;
        self.targets.iter_mut().filter_map(Option::take).for_each(|target| release_held(pages, target));
    }

    fn begin_walk(&mut self, stage: Stage) -> Stage {
        self.next = 0;
        stage
    }

    fn targets(&self) -> impl Iterator<Item = TargetChunk> {
        self.targets.iter().flatten().copied()
    }

    fn is_target(&self, frame: NonNull<u8>) -> bool {
        let chunk = ChunkNumber::of(frame);
        self.targets().any(|target| target.chunk == chunk)
    }

    /// Looks at some pages and their chunks. Returns true after the last page.
    fn look(&mut self, pages: &Pages, mover: &impl PageMover) -> bool {
        let (mut next, mut chunks_left) = (self.next, MAX_CHUNKS_READ);
        let is_done = walk(&mut next, mover, &mut |_, frame| {
            let chunk = ChunkNumber::of(frame);
            let mut targets = self.targets.iter_mut().flatten();
            if let Some(target) = targets.find(|target| target.chunk == chunk) {
                target.movable += 1;
            } else if !self.useless.contains(&Some(chunk)) && !self.hot.contains(&Some(chunk)) {
                if chunks_left == 0 {
                    return ControlFlow::Break(());
                }
                chunks_left -= 1;
                self.consider(pages, chunk);
            }
            ControlFlow::Continue(())
        });
        self.next = next;
        is_done
    }

    /// Records a chunk, of which a page was just seen, if it is suitable.
    fn consider(&mut self, pages: &Pages, chunk: ChunkNumber) {
        // More chunks than wanted, because some will have pages that cannot move.
        let entries = self.targets.get_mut(..(2 * self.wanted + 2).min(TARGETS)).unwrap_or_default();
        // SAFETY: the page that was seen is a run of its own, and in use until this core passes its loop.
        let used = unsafe { pages.used_in(chunk) }.filter(|used| *used <= MAX_USED);
        // A vacant entry counts as fuller than any chunk.
        let fullest = entries.iter_mut().max_by_key(|entry| entry.map_or(u32::MAX, |target| target.used));
        match (used, fullest) {
            (Some(used), Some(entry)) if entry.is_none_or(|target| target.used > used) => {
                hold(pages, chunk);
                let before = entry.replace(TargetChunk { chunk, used, movable: 1 });
                before.into_iter().for_each(|target| release_held(pages, target));
            }
            _ => {
                self.useless.rotate_right(1);
                self.useless[0] = Some(chunk);
            }
        }
    }

    /// Selects the wanted number of chunks, the emptiest of those whose used pages are all movable.
    fn choose(&mut self, pages: &Pages) -> Stage {
        let of_use = |target: &TargetChunk| target.movable >= target.used;
        self.targets
            .sort_unstable_by_key(|entry| entry.filter(of_use).map_or(u32::MAX, |target| target.used));
        let kept = self.targets().take(self.wanted).take_while(of_use).count();
        let others = self.targets.get_mut(kept..).unwrap_or_default();
        others.iter_mut().filter_map(Option::take).for_each(|target| release_held(pages, target));
        if self.targets().all(|target| target.used == 0) {
            return Stage::Over;
        }
        self.rounds_left = ROUNDS;
        self.begin_walk(Stage::Begin)
    }

    /// Keeps the chunks that are free now, and starts another search to replace the others.
    fn sort_out(&mut self, pages: &Pages) -> Stage {
        let mut stage = Stage::Over;
        for entry in &mut self.targets {
            let Some(target) = entry else { continue };
            (target.used, target.movable) = (0, 0);
            if is_used(pages, *target) {
                let Some(hot) = self.hot.iter_mut().find(|hot| hot.is_none()) else { return Stage::Over };
                *hot = Some(target.chunk);
                entry.take().into_iter().for_each(|target| release_held(pages, target));
                stage = Stage::Choose;
            }
        }
        self.begin_walk(stage)
    }

    /// Begins the migration of some pages. Returns true after the last page.
    fn begin(&mut self, mover: &impl PageMover) -> bool {
        let mut next = self.next;
        let is_done = walk(&mut next, mover, &mut |address, frame| {
            if self.is_target(frame) {
                mover.begin(address, frame);
            }
            ControlFlow::Continue(())
        });
        self.next = next;
        if is_done {
            self.rounds_left -= 1;
        }
        is_done
    }

    /// Copies some pages.
    fn finish(&mut self, pages: &Pages, mover: &impl PageMover) -> FinishOutcome {
        let (mut next, mut copies_left) = (self.next, COPIES);
        let mut is_short = false;
        let is_done = walk(&mut next, mover, &mut |address, frame| {
            if !self.is_target(frame) {
                return ControlFlow::Continue(());
            }
            if copies_left == 0 {
                return ControlFlow::Break(());
            }
            copies_left -= 1;
            let Some(to) = self.migration_target(pages, frame) else {
                is_short = true;
                return ControlFlow::Break(());
            };
            // SAFETY: if the page is migrating, its migration was begun in this round, and the wait for that is over.
            // `to` was just allocated.
            let has_moved = unsafe { mover.finish(address, frame, to) };
            if has_moved {
                self.moved_pages += 1;
                // SAFETY: the page was in use as a run of its own, and no access reaches it after its migration.
                unsafe { pages.free_and_hold(frame) };
            } else {
                // SAFETY: allocated above and unused.
                unsafe { pages.free(to, 1) };
            }
            ControlFlow::Continue(())
        });
        self.next = next;
        match is_done {
            _ if is_short => FinishOutcome::OutOfMemory,
            true => FinishOutcome::All,
            false => FinishOutcome::NotYet,
        }
    }

    /// Allocates a page to which `frame` can migrate, outside all chunks that are to become free.
    fn migration_target(&self, pages: &Pages, frame: NonNull<u8>) -> Option<NonNull<u8>> {
        loop {
            let page = pages.allocate_migration_target(frame)?;
            if !self.is_target(page) {
                return Some(page);
            }
            // SAFETY: just allocated.
            unsafe { pages.free_and_hold(page) };
        }
    }
}

impl Default for Compaction {
    fn default() -> Self {
        Self::new()
    }
}

/// The result of a step that copies.
enum FinishOutcome {
    NotYet,
    All,
    /// There is no page to migrate to.
    OutOfMemory,
}

/// Looks at some pages from `next` on. Returns true after the last page.
fn walk(
    next: &mut usize,
    mover: &impl PageMover,
    see: &mut dyn FnMut(usize, NonNull<u8>) -> ControlFlow<()>,
) -> bool {
    let mut left = ENTRIES;
    while let Some(region) = mover.region_from(*next) {
        let start = region.start.max(*next);
        *next = mover.visit_movable(start, region.end(), left, see);
        left = left.saturating_sub(((*next - start) / PAGE_SIZE).max(1));
        if *next < region.end() || left == 0 {
            return false;
        }
    }
    true
}

fn hold(pages: &Pages, chunk: ChunkNumber) {
    // SAFETY: a page of the chunk was just seen in use, or some of it is held.
    unsafe { pages.hold_free(chunk) };
}

fn release_held(pages: &Pages, target: TargetChunk) {
    // SAFETY: part of the chunk is held, as at most three quarters of it were in use.
    unsafe { pages.release_held(target.chunk) };
}

fn is_used(pages: &Pages, target: TargetChunk) -> bool {
    // SAFETY: as for `release_held`.
    let used = unsafe { pages.used_in(target.chunk) };
    used != Some(0)
}
