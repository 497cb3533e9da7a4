//! The address space of a cell, as the supervisor has it: built, entered, looked into, taken apart.
//!
//! Where things are in it says `isola_abi::layout`. All of it is made of the memory that the cell was given:
//! its pages, its tables, its descriptor, its report; what is left over is its pool. It can get more while it runs. Only what
//! it cannot write to of its image may stand elsewhere, in memory that it shares with others ([`Plan::text`]).
//!
//! While a core is in a cell, or a device works for it, the cell's memory belongs to nobody else: each
//! [`AwayCore`] and each [`Device`](crate::device::Device) in use holds a share of the space, which it gives up
//! when the core was reclaimed, or the device was reset. [`CellSpace::dissolve`] returns the memory when no
//! share is left but the caller's.

mod build;
mod hot_plug;
mod layout;
mod pool;
mod ranges;
mod record;
mod shootdown;

pub(crate) use layout::{map_stacks, stack_tops};

pub use build::{BuildError, BuildFailure, InPlace, LINE_VECTORS, Plan, Segment, SegmentBytes, needed_bytes};
pub use hot_plug::NoStacks;

use self::hot_plug::HotPlug;
use self::record::Record;
use crate::apic::local;
use crate::authority::Authority;
use crate::memory::{Contents, Region, SharedRegion, direct};
use crate::smp::{AwayCore, Entry, ParkedCore};
use crate::{switch, tables};
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicUsize, Ordering};
use isola_abi::descriptor::{LiveWords, REQUEST_VECTOR, Request};
use isola_abi::id::{ApicId, PhysAddr, PhysRange};
use isola_abi::layout::{PAGE_SIZE, STACK_SIZE, TABLES};
use isola_abi::ledger::Ledger;
use isola_abi::places::{Order, OrderKind, Places};
use isola_abi::query::Line;
use isola_abi::report::Report;

/// A cell's address space.
#[derive(Debug)]
pub struct CellSpace {
    share: Share,
    hot_plug: HotPlug,
    /// What of it is written down for a supervisor that restarts; none where there is no supervisor.
    record: Option<Box<Record>>,
}

/// What keeps a cell's memory from being used for anything else.
pub(crate) type Share = Arc<Built>;

/// What was built.
#[derive(Debug)]
pub(crate) struct Built {
    root: PhysAddr,
    entry: u64,
    /// How many places it has for cores.
    places: usize,
    /// How many slots its ledger has.
    slots: usize,
    /// The core at the first place, which stays there.
    first_apic: ApicId,
    /// The places' pages of descriptor tables, in their order.
    core_pages: PhysAddr,
    descriptor: PhysAddr,
    report: PhysAddr,
    /// What it only reads and executes, beside others. Held as long as anything of the cell can get at it.
    text: Option<SharedRegion>,
    /// How many cores have been sent in and did not come back.
    cores_inside: AtomicUsize,
}

/// Why a core cannot enter a cell. It comes back.
#[derive(Debug)]
pub enum EnterError {
    /// There is no such place, or it is not given stacks, or there is a core.
    NoPlace(ParkedCore),
    /// It has not returned from a call yet.
    Busy(ParkedCore),
}

impl CellSpace {
    /// What the cell says of itself.
    pub fn report(&self) -> &Report {
        // SAFETY: `build` has made a zeroed, page-aligned area for that many places there, which is in the direct
        // map and stays as long as the space does. A report is atomic integers, for which zero is a value; so
        // the cell may write to it while it is looked at.
        unsafe { &*Report::at(direct(self.share.report), self.share.places) }
    }

    /// The cell's ledger.
    pub fn ledger(&self) -> Ledger<'_> {
        let Built { report, places, slots, .. } = &*self.share;
        let (records, counters) = Ledger::parts(direct(*report), *places, *slots);
        // SAFETY: as for the report, behind which the area has room for that many slots. A ledger is atomic integers, too.
        unsafe { Ledger::new(&*records, &*counters) }
    }

    /// Where the memory is that it only reads and executes, beside others.
    pub fn text(&self) -> Option<PhysRange> {
        self.share.text.as_ref().map(SharedRegion::range)
    }

    /// Asks the cell for something, and interrupts its first core.
    pub fn request(&self, request: Request) {
        self.live().request.store(request as u32, Ordering::Release);
        self.interrupt();
    }

    /// Interrupts the cell's first core, to look at its live words.
    pub fn interrupt(&self) {
        local::send(Authority::OWN, self.share.first_apic, REQUEST_VECTOR);
    }

    /// Puts a question to the cell, and interrupts its first core. Returns the question's number; `None` where it is too
    /// long.
    pub fn ask(&self, line: Line, question: &[u8]) -> Option<u32> {
        let number = self.live().questions.put(line, question)?;
        self.interrupt();
        Some(number)
    }

    /// The number of the question that the cell was asked last.
    pub fn asked(&self, line: Line) -> u32 {
        self.live().questions.number(line)
    }

    /// What of the descriptor's area changes while the cell runs.
    fn live(&self) -> &LiveWords {
        self.share.live()
    }

    /// Sends a core into the cell, to a place. Does not wait for it.
    ///
    /// # Errors
    /// An [`EnterError`], which has the core.
    pub fn enter(&self, core: ParkedCore, place: usize) -> Result<AwayCore, EnterError> {
        let is_vacant = self.places().at(place).kind == OrderKind::Vacant;
        if place >= self.share.places || !self.hot_plug.has_stacks(place) || !is_vacant {
            return Err(EnterError::NoPlace(core));
        }
        let (entry, identity) = (self.share.entry(place as u64), core.core());
        if let Some(words) = self.report().cores.get(place) {
            words.forgotten.store(0, Ordering::Release);
            words.yielded.store(0, Ordering::Release);
            words.order.store(0, Ordering::Release);
        }
        self.share.note_entry(place, self.live().unplug_request.generation());
        self.places().give(place, identity);
        // SAFETY: `build` and `allocate_stacks` have put into the space what the entry names; the share keeps it until the core was
        // reclaimed. No other core is at the place: it was vacant, which it becomes when its core is back.
        let entered = unsafe { core.enter(entry, self.share.clone()) };
        match entered {
            Ok(away) => {
                self.share.cores_inside.fetch_add(1, Ordering::AcqRel);
                Ok(away)
            }
            Err(core) => {
                self.vacate(place);
                Err(EnterError::Busy(core))
            }
        }
    }

    /// Gives the core at a place the next order, and interrupts it. Returns the order.
    pub fn order(&self, place: usize, kind: OrderKind) -> Order {
        let core = self.places().core(place);
        let order = self.places().order(place, kind);
        if let Some(core) = core {
            local::send(Authority::OWN, core.apic, REQUEST_VECTOR);
        }
        order
    }

    /// Says that there is no core at a place any more: it was reclaimed.
    pub fn vacate(&self, place: usize) {
        self.places().order(place, OrderKind::Vacant);
    }

    /// Says that there is no core at a place any more, where something is still to be finished: it was reclaimed.
    pub fn empty(&self, place: usize) {
        self.places().take(place);
    }

    /// Whether the core at a place has come so far that it may be interrupted by force.
    pub fn is_inside(&self, place: usize) -> bool {
        self.report().cores.get(place).is_some_and(|core| core.forgotten.load(Ordering::Acquire) != 0)
    }

    /// Has the cell's cores change, at the next non-maskable interrupt, to what was suspended, or back.
    pub fn rotate(&self) {
        self.places().rotate();
    }

    /// Has the cell stop at the next non-maskable interrupt, and say where it stands.
    pub fn examine(&self) {
        self.live().examined.store(1, Ordering::Release);
    }

    /// The last order of a place.
    pub fn last_order(&self, place: usize) -> Order {
        self.places().at(place)
    }

    fn places(&self) -> &Places {
        &self.live().places
    }

    /// Enters the cell with the core that calls, at its place `index`.
    pub(crate) fn enter_here(self, index: usize) -> ! {
        let entry = self.share.entry(index as u64);
        core::mem::forget(self.share);
        // SAFETY: as for `enter`; the space stays for good.
        unsafe {
            tables::load(entry.core_page_here, entry.core_page, entry.interrupt_table);
            switch::enter(entry.root, entry.stack_top, entry.entry, entry.argument)
        }
    }

    /// Takes the space apart, and returns the memory that it was built from and has got since, as it was given, with
    /// whatever the cell left in it.
    ///
    /// # Errors
    /// The space, where a core is in it, or was and is lost, or a device that works for it was not reset.
    pub fn dissolve(self) -> Result<Vec<Region>, Self> {
        let Self { share, hot_plug, record } = self;
        if let Err(share) = Arc::try_unwrap(share) {
            return Err(Self { share, hot_plug, record });
        }
        // The memory is free from here on; so the ownership record must be nobody's before that.
        drop(record);
        // SAFETY: the ranges are those of the regions that `build` and `extend` took in and that did not leave, and nothing
        // has a share any more.
        Ok(hot_plug.owned().map(|range| unsafe { Region::new(range, Contents::Unknown) }).collect())
    }
}

impl Built {
    /// What of the descriptor's area changes while the cell runs.
    fn live(&self) -> &LiveWords {
        // SAFETY: `build` has made a zeroed, page-aligned area there, which stays as long as the space does. Its first words
        // are atomic integers, for which zero is a value.
        unsafe { &*direct(self.descriptor).cast::<LiveWords>() }
    }

    /// Which generation of the page tables the core at a place has seen. The cell cannot write what says so.
    fn generation_at(&self, place: usize) -> Option<u32> {
        // SAFETY: `build` has made a page for each place there, which stays as long as the space does.
        (place < self.places).then(|| unsafe { shootdown::noted(self.core_pages, place) })
    }

    /// A core is about to enter a place, with page tables of that generation.
    fn note_entry(&self, place: usize, generation: u32) {
        if place < self.places {
            // SAFETY: as for `generation_at`.
            unsafe { shootdown::note_entry(self.core_pages, place, generation) }
        }
    }

    /// A core has come back.
    pub(crate) fn leave(&self) {
        self.cores_inside.fetch_sub(1, Ordering::AcqRel);
    }

    fn entry(&self, index: u64) -> Entry {
        let offset = index * PAGE_SIZE;
        Entry {
            root: self.root.0,
            stack_top: stack_tops(index, STACK_SIZE).0,
            entry: self.entry,
            argument: index,
            core_page_here: direct(self.core_pages) as u64 + offset,
            core_page: TABLES + PAGE_SIZE + offset,
            interrupt_table: TABLES,
        }
    }
}
