//! Pages of regions go elsewhere, so that whole granules of memory become free.
//!
//! ```text
//!   choose ──► begin ──► wait ──► finish ──► over
//!     ▲          ▲     (every core        │
//!     │          └──────has forgotten)◄───┤ some were touched: again, ROUNDS times in all
//!     └───────────────────────────────────┘ and then others instead of them
//! ```
//!
//! *Choose* looks at all pages that can move, and keeps the granules in mind in which the least is in use: what is free in
//! them is held from then on, so that nothing new comes there. Of these it takes the emptiest of which all that is in use
//! can move. *Begin* begins the migration of the pages; *finish* copies each to a page of another granule. A page that was touched
//! in between has stayed, and its granule is not free; what has moved has moved all the same.
//!
//! It is done in steps, one a pass of a core's loop, that no event waits for long: a step looks at no more than [`ENTRIES`]
//! pages and [`GRANULES`] granules, and copies no more than [`COPIES`] pages. Nothing is allocated.
//!
//! Why pages and tables may be looked at though their region can be dropped on another core meanwhile: what is dropped is
//! free when every core has passed its loop since, and that of the caller is in the middle of a pass. It does not halt, nor
//! does it pass, within a step.

use super::window::{Extent, Retired};
use crate::pages::{Granule, PAGE_SIZE, Pages};
use core::ops::ControlFlow;
use core::ptr::NonNull;

/// Pages that a step looks at.
const ENTRIES: usize = 2048;

/// Granules of which a step looks at every record.
const GRANULES: usize = 4;

/// Pages that a step copies.
const COPIES: usize = 16;

/// Granules that are kept in mind.
const TARGETS: usize = 32;

/// Pages in use beyond which a granule is not worth it: three quarters. What is free of it holds its place.
const MOST_USED: u32 = 384;

/// How often pages are put into migration that were touched when they had been, before others are.
const ROUNDS: u32 = 3;

/// What moves pages: the platform.
///
/// # Safety
/// Implementors promise that the memory which [`Self::look`] passes is a page of the page allocator, a run of its own, in
/// use, and not free before the calling core has passed its loop; and that a page whose migration was finished is at the new
/// place, with its bytes, and nobody gets at the old one any more.
pub unsafe trait Mover {
    /// The first region of pages that can move which ends behind `address`.
    fn region_from(&self, address: usize) -> Option<Extent>;

    /// Passes pages that can move to `see`, from `address` on and before `end`, with their memory. Looks at `most` at the
    /// most. Returns where to go on: at the page for which `see` breaks, or behind what it looked at.
    fn look(
        &self,
        address: usize,
        end: usize,
        most: usize,
        see: &mut dyn FnMut(usize, NonNull<u8>) -> ControlFlow<()>,
    ) -> usize;

    /// Begins the migration of a page.
    fn begin(&self, address: usize, frame: NonNull<u8>);

    /// Notes that pages were put into migration.
    fn begun(&self) -> Retired;

    /// Whether every core has forgotten where pages were that were put into migration before then.
    fn is_over(&self, begun: Retired) -> bool;

    /// Moves a page that is migrating, with its bytes. Whether it has moved: it stays where somebody has touched it.
    ///
    /// # Safety
    /// The page was put into migration, that is over, and `to` is the caller's.
    unsafe fn finish(&self, address: usize, from: NonNull<u8>, to: NonNull<u8>) -> bool;
}

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// There is more to do: in another pass.
    GoesOn,
    /// It is over. What has become free can be had until somebody else has it.
    Over,
}

#[derive(Clone, Copy)]
enum Stage {
    Choose,
    Begin,
    Wait(Retired),
    Finish,
    Over,
}

/// A granule that is to become free. What is free of it is held.
#[derive(Clone, Copy)]
struct Target {
    granule: Granule,
    used: u32,
    /// How many of those in use were seen that can move.
    movable: u32,
}

/// The way of some pages elsewhere.
pub struct Compaction {
    stage: Stage,
    /// Where to go on.
    next: usize,
    targets: [Option<Target>; TARGETS],
    /// Granules that were looked at last and are of no use.
    useless: [Option<Granule>; 4],
    /// Granules of which some is used all the time.
    hot: [Option<Granule>; TARGETS],
    /// How many granules are wanted.
    wanted: usize,
    rounds_left: u32,
    moved_pages: usize,
}

impl Compaction {
    /// None: it is over.
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

    /// Begins anew, for so many granules. To be called when it is over.
    pub fn start(&mut self, wanted: usize) {
        let stage = if wanted > 0 { Stage::Choose } else { Stage::Over };
        *self = Self { stage, wanted: wanted.min(TARGETS), ..Self::new() };
    }

    /// Whether it is over.
    pub fn is_over(&self) -> bool {
        matches!(self.stage, Stage::Over)
    }

    /// How much it has moved, in bytes.
    pub fn moved_bytes(&self) -> usize {
        self.moved_pages * PAGE_SIZE
    }

    /// A step.
    pub fn step(&mut self, pages: &Pages, mover: &impl Mover) -> Progress {
        let stage = self.stage;
        self.stage = match stage {
            Stage::Choose if self.look(pages, mover) => self.choose(pages),
            Stage::Begin if self.begin(mover) => {
                self.targets().for_each(|target| hold(pages, target.granule));
                Stage::Wait(mover.begun())
            }
            Stage::Wait(begun) if mover.is_over(begun) => self.begin_walk(Stage::Finish),
            Stage::Finish => match self.finish(pages, mover) {
                Finished::NotYet => Stage::Finish,
                Finished::All
                    if self.rounds_left > 0 && self.targets().any(|target| is_used(pages, target)) =>
                {
                    self.begin_walk(Stage::Begin)
                }
                Finished::All => self.sort_out(pages),
                Finished::OutOfMemory => Stage::Over,
            },
            stage => stage,
        };
        if self.is_over() {
            self.end(pages);
            return Progress::Over;
        }
        Progress::GoesOn
    }

    /// Ends it as it is. Pages that are migrating are present again when they are touched.
    pub fn end(&mut self, pages: &Pages) {
        self.stage = Stage::Over;
        self.targets.iter_mut().filter_map(Option::take).for_each(|target| let_go(pages, target));
    }

    fn begin_walk(&mut self, stage: Stage) -> Stage {
        self.next = 0;
        stage
    }

    fn targets(&self) -> impl Iterator<Item = Target> {
        self.targets.iter().flatten().copied()
    }

    fn is_target(&self, frame: NonNull<u8>) -> bool {
        let granule = Granule::of(frame);
        self.targets().any(|target| target.granule == granule)
    }

    /// Looks at some pages, and at the granules that they are in. True where that were the last.
    fn look(&mut self, pages: &Pages, mover: &impl Mover) -> bool {
        let (mut next, mut granules_left) = (self.next, GRANULES);
        let is_done = walk(&mut next, mover, &mut |_, frame| {
            let granule = Granule::of(frame);
            let mut targets = self.targets.iter_mut().flatten();
            if let Some(target) = targets.find(|target| target.granule == granule) {
                target.movable += 1;
            } else if !self.useless.contains(&Some(granule)) && !self.hot.contains(&Some(granule)) {
                if granules_left == 0 {
                    return ControlFlow::Break(());
                }
                granules_left -= 1;
                self.consider(pages, granule);
            }
            ControlFlow::Continue(())
        });
        self.next = next;
        is_done
    }

    /// Keeps a granule in mind, a page of which was just seen, if it is worth it.
    fn consider(&mut self, pages: &Pages, granule: Granule) {
        // More than are wanted, as of some not all will be seen to move.
        let places = self.targets.get_mut(..(2 * self.wanted + 2).min(TARGETS)).unwrap_or_default();
        // SAFETY: the page that was seen is a run of its own, and in use until this core passes its loop.
        let used = unsafe { pages.used_in(granule) }.filter(|used| *used <= MOST_USED);
        // One that is free is fuller than any.
        let fullest = places.iter_mut().max_by_key(|place| place.map_or(u32::MAX, |target| target.used));
        match (used, fullest) {
            (Some(used), Some(place)) if place.is_none_or(|target| target.used > used) => {
                hold(pages, granule);
                let before = place.replace(Target { granule, used, movable: 1 });
                before.into_iter().for_each(|target| let_go(pages, target));
            }
            _ => {
                self.useless.rotate_right(1);
                self.useless[0] = Some(granule);
            }
        }
    }

    /// Keeps as many as are wanted of those granules of which all can move: the emptiest.
    fn choose(&mut self, pages: &Pages) -> Stage {
        let of_use = |target: &Target| target.movable >= target.used;
        self.targets
            .sort_unstable_by_key(|place| place.filter(of_use).map_or(u32::MAX, |target| target.used));
        let kept = self.targets().take(self.wanted).take_while(of_use).count();
        let others = self.targets.get_mut(kept..).unwrap_or_default();
        others.iter_mut().filter_map(Option::take).for_each(|target| let_go(pages, target));
        if self.targets().all(|target| target.used == 0) {
            return Stage::Over;
        }
        self.rounds_left = ROUNDS;
        self.begin_walk(Stage::Begin)
    }

    /// Keeps the granules that are free by now, and has others chosen instead of those that are not.
    fn sort_out(&mut self, pages: &Pages) -> Stage {
        let mut stage = Stage::Over;
        for place in &mut self.targets {
            let Some(target) = place else { continue };
            (target.used, target.movable) = (0, 0);
            if is_used(pages, *target) {
                let Some(hot) = self.hot.iter_mut().find(|hot| hot.is_none()) else { return Stage::Over };
                *hot = Some(target.granule);
                place.take().into_iter().for_each(|target| let_go(pages, target));
                stage = Stage::Choose;
            }
        }
        self.begin_walk(stage)
    }

    /// Begins the migration of some pages. True where that were the last.
    fn begin(&mut self, mover: &impl Mover) -> bool {
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
    fn finish(&mut self, pages: &Pages, mover: &impl Mover) -> Finished {
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
            let Some(to) = self.place_for(pages, frame) else {
                is_short = true;
                return ControlFlow::Break(());
            };
            // SAFETY: it was put into migration in this round, if it is, and that is over; the place was just handed out.
            let has_moved = unsafe { mover.finish(address, frame, to) };
            if has_moved {
                self.moved_pages += 1;
                // SAFETY: the page was in use as a run of its own, and nobody gets at it any more.
                unsafe { pages.free_and_hold(frame) };
            } else {
                // SAFETY: handed out above, and used by nobody.
                unsafe { pages.free(to, 1) };
            }
            ControlFlow::Continue(())
        });
        self.next = next;
        match is_done {
            _ if is_short => Finished::OutOfMemory,
            true => Finished::All,
            false => Finished::NotYet,
        }
    }

    /// A page for what is at `frame`, which is in no granule that is to become free.
    fn place_for(&self, pages: &Pages, frame: NonNull<u8>) -> Option<NonNull<u8>> {
        loop {
            let page = pages.another_like(frame)?;
            if !self.is_target(page) {
                return Some(page);
            }
            // SAFETY: just handed out.
            unsafe { pages.free_and_hold(page) };
        }
    }
}

impl Default for Compaction {
    fn default() -> Self {
        Self::new()
    }
}

/// What came of a step that copies.
enum Finished {
    NotYet,
    All,
    /// There is no place for another.
    OutOfMemory,
}

/// Looks at some pages from `next` on. True where that were the last.
fn walk(
    next: &mut usize,
    mover: &impl Mover,
    see: &mut dyn FnMut(usize, NonNull<u8>) -> ControlFlow<()>,
) -> bool {
    let mut left = ENTRIES;
    while let Some(region) = mover.region_from(*next) {
        let start = region.start.max(*next);
        *next = mover.look(start, region.end(), left, see);
        left = left.saturating_sub(((*next - start) / PAGE_SIZE).max(1));
        if *next < region.end() || left == 0 {
            return false;
        }
    }
    true
}

fn hold(pages: &Pages, granule: Granule) {
    // SAFETY: a page of it was just seen, or some of it is held.
    unsafe { pages.hold_free(granule) };
}

fn let_go(pages: &Pages, target: Target) {
    // SAFETY: some of it is held: no more than three quarters were in use.
    unsafe { pages.let_go(target.granule) };
}

fn is_used(pages: &Pages, target: Target) -> bool {
    // SAFETY: as for `let_go`.
    let used = unsafe { pages.used_in(target.granule) };
    used != Some(0)
}
