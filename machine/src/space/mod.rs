//! The address space of a cell, from the supervisor's side: it is built, entered, inspected, changed and dissolved
//! here.
//!
//! `isola_abi::layout` defines its addresses. The space consists of the memory that the cell was given: image, tables,
//! descriptor and report; the rest is its pool. More can be plugged while it runs. Only the read-only segments of the
//! image may be elsewhere, in memory that cells share ([`Plan::text`]).
//!
//! While a core is in a cell, or a device works for it, no other owner gets the cell's memory: each [`AwayCore`] and
//! each [`Device`](crate::device::Device) in use holds a share of the space, and gives it up when the core was
//! reclaimed, or the device was reset. [`CellSpace::dissolve`] returns the memory if only the caller's share is left.

mod build;
mod hot_plug;
mod layout;
mod links;
mod pool;
mod ranges;
mod record;
mod shootdown;

pub(crate) use layout::{map_stacks, stack_tops};

pub use build::{BuildError, BuildFailure, InPlace, LINE_VECTORS, Plan, Segment, SegmentBytes, needed_bytes};
pub use hot_plug::OutOfStackMemory;

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
use isola_abi::core_slots::{CoreSlots, Order, OrderKind};
use isola_abi::descriptor::{LINKS_OFFSET, LiveWords, REQUEST_VECTOR, Request};
use isola_abi::id::{ApicId, PhysAddr, PhysRange};
use isola_abi::layout::{PAGE_SIZE, STACK_SIZE, TABLES};
use isola_abi::ledger::Ledger;
use isola_abi::links::LinkTable;
use isola_abi::query::Line;
use isola_abi::report::Report;

/// A cell's address space.
#[derive(Debug)]
pub struct CellSpace {
    share: Share,
    hot_plug: HotPlug,
    /// The ownership record, for a supervisor that restarts; none if there is no supervisor.
    record: Option<Box<Record>>,
}

/// A reference that protects a cell's memory from any other use.
pub(crate) type Share = Arc<Built>;

/// The fixed parts of a space.
#[derive(Debug)]
pub(crate) struct Built {
    root: PhysAddr,
    entry: u64,
    /// The number of core slots.
    core_slots: usize,
    /// The number of activity slots of the ledger.
    activity_slots: usize,
    /// The number of slots for links.
    link_slots: usize,
    /// The core at the first slot, which never leaves.
    first_apic: ApicId,
    /// The core slots' pages of descriptor tables, in their order.
    core_pages: PhysAddr,
    descriptor: PhysAddr,
    report: PhysAddr,
    /// The shared text. Held while any core or device of the cell can access it.
    text: Option<SharedRegion>,
    /// The number of cores that were sent in and are not back.
    cores_inside: AtomicUsize,
}

/// A failure to enter a cell. It returns the core.
#[derive(Debug)]
pub enum EnterError {
    /// The core slot does not exist, has no stacks, or is not vacant.
    NoPlace(ParkedCore),
    /// The core has not returned from a call yet.
    Busy(ParkedCore),
}

impl CellSpace {
    /// Returns the cell's report.
    pub fn report(&self) -> &Report {
        // SAFETY: `build` has made a zeroed, page-aligned area for that many core slots there, which is in the direct
        // map and stays as long as the space does. A report consists of atomic integers, for which zero is a valid
        // value, so the cell may write to it at the same time.
        unsafe { &*Report::at(direct(self.share.report), self.share.core_slots) }
    }

    /// Returns the cell's ledger.
    pub fn ledger(&self) -> Ledger<'_> {
        let Built { report, core_slots, activity_slots, .. } = &*self.share;
        let (records, counters) = Ledger::parts(direct(*report), *core_slots, *activity_slots);
        // SAFETY: as for the report, behind which the area has room for that many activity slots. A ledger consists of
        // atomic integers, too.
        unsafe { Ledger::new(&*records, &*counters) }
    }

    /// Returns the memory of the shared text.
    pub fn text(&self) -> Option<PhysRange> {
        self.share.text.as_ref().map(SharedRegion::range)
    }

    /// Stores a request for the cell, and interrupts its first core.
    pub fn request(&self, request: Request) {
        self.live().request.store(request as u32, Ordering::Release);
        self.interrupt();
    }

    /// Interrupts the cell's first core, which then checks its live words.
    pub fn interrupt(&self) {
        local::send(Authority::OWN, self.share.first_apic, REQUEST_VECTOR);
    }

    /// Sends the cell a query, and interrupts its first core. Returns the query's number; `None` if it is too long.
    pub fn ask(&self, line: Line, query: &[u8]) -> Option<u32> {
        let number = self.live().queries.put(line, query)?;
        self.interrupt();
        Some(number)
    }

    /// Returns the number of the last query.
    pub fn asked(&self, line: Line) -> u32 {
        self.live().queries.number(line)
    }

    /// Returns the live words of the cell.
    fn live(&self) -> &LiveWords {
        self.share.live()
    }

    /// Sends a core into the cell, to a core slot. Does not wait for it.
    ///
    /// # Errors
    /// An [`EnterError`], which contains the core.
    pub fn enter(&self, core: ParkedCore, slot: usize) -> Result<AwayCore, EnterError> {
        let is_vacant = self.core_slots().at(slot).kind == OrderKind::Vacant;
        if slot >= self.share.core_slots || !self.hot_plug.has_stacks(slot) || !is_vacant {
            return Err(EnterError::NoPlace(core));
        }
        let (entry, identity) = (self.share.entry(slot as u64), core.core());
        if let Some(words) = self.report().cores.get(slot) {
            words.flushed_generation.store(0, Ordering::Release);
            words.yielded.store(0, Ordering::Release);
            words.order.store(0, Ordering::Release);
        }
        self.share.note_entry(slot, self.live().unplug_request.generation());
        self.core_slots().give(slot, identity);
        // SAFETY: `build` and `allocate_stacks` have mapped the entry's parts in the space; the share keeps the space
        // until the core was reclaimed. No other core is at the slot: it was vacant, and a slot becomes vacant only
        // when its core is back.
        let entered = unsafe { core.enter(entry, self.share.clone()) };
        match entered {
            Ok(away) => {
                self.share.cores_inside.fetch_add(1, Ordering::AcqRel);
                Ok(away)
            }
            Err(core) => {
                self.vacate(slot);
                Err(EnterError::Busy(core))
            }
        }
    }

    /// Gives the core at a slot the next order, and interrupts it. Returns the order.
    pub fn order(&self, slot: usize, kind: OrderKind) -> Order {
        let core = self.core_slots().core(slot);
        let order = self.core_slots().order(slot, kind);
        if let Some(core) = core {
            local::send(Authority::OWN, core.apic, REQUEST_VECTOR);
        }
        order
    }

    /// Marks a core slot as vacant: its core was reclaimed.
    pub fn vacate(&self, slot: usize) {
        self.core_slots().order(slot, OrderKind::Vacant);
    }

    /// Removes the core from a slot whose context has not ended: the core was reclaimed, but the slot is not vacant
    /// yet.
    pub fn empty(&self, slot: usize) {
        self.core_slots().take(slot);
    }

    /// Returns whether the core at a slot can be sent a non-maskable interrupt: it has set its handler.
    pub fn is_inside(&self, slot: usize) -> bool {
        self.report().cores.get(slot).is_some_and(|core| core.flushed_generation.load(Ordering::Acquire) != 0)
    }

    /// Makes the cell's cores rotate at the next non-maskable interrupt: to a suspended context, or back to their own.
    pub fn rotate(&self) {
        self.core_slots().rotate();
    }

    /// Makes the cell stop at the next non-maskable interrupt of the core at a slot, and report the place in its code.
    pub fn examine(&self, slot: usize) {
        self.live().stop_at_nmi.store(u32::try_from(slot + 1).unwrap_or(0), Ordering::Release);
    }

    /// Makes the cell's cores store samples of their call stacks at the next non-maskable interrupt.
    pub fn sample(&self) {
        self.live().samples.fetch_add(1, Ordering::Release);
    }

    /// Returns the last order of a core slot.
    pub fn last_order(&self, slot: usize) -> Order {
        self.core_slots().at(slot)
    }

    fn core_slots(&self) -> &CoreSlots {
        &self.live().core_slots
    }

    /// Enters the cell with the calling core, at core slot `index`.
    pub(crate) fn enter_here(self, index: usize) -> ! {
        let entry = self.share.entry(index as u64);
        core::mem::forget(self.share);
        // SAFETY: as for `enter`; the share is leaked, so the space stays for good.
        unsafe {
            tables::load(entry.core_page_here, entry.core_page, entry.interrupt_table);
            switch::enter(entry.root, entry.stack_top, entry.entry, entry.argument)
        }
    }

    /// Dissolves the space, and returns its memory, from the build and from later plugs, with the contents that the
    /// cell left.
    ///
    /// # Errors
    /// The space, if a core is still in it, or was lost there, or a device that works for it was not reset.
    pub fn dissolve(self) -> Result<Vec<Region>, Self> {
        let Self { share, hot_plug, record } = self;
        if let Err(share) = Arc::try_unwrap(share) {
            return Err(Self { share, hot_plug, record });
        }
        // The memory is free from here on, so its ownership record must be removed first.
        drop(record);
        // SAFETY: the ranges are those of the regions that `build` and `extend` took and that were not unplugged, and
        // no share is left, so no core or device uses them.
        Ok(hot_plug.owned().map(|range| unsafe { Region::new(range, Contents::Unknown) }).collect())
    }
}

impl Built {
    /// Returns the cell's links.
    fn links(&self) -> &LinkTable {
        let table = direct(PhysAddr(self.descriptor.0 + LINKS_OFFSET as u64));
        // SAFETY: as for the live words, of which the table is a few pages behind, with room for that many slots; it
        // consists of atomics, too, and its offset is a multiple of its alignment.
        unsafe { &*LinkTable::at(table, self.link_slots) }
    }

    /// Returns the live words.
    fn live(&self) -> &LiveWords {
        // SAFETY: `build` has made a zeroed, page-aligned area there, which stays as long as the space does. Its first
        // words are atomic integers, for which zero is a valid value.
        unsafe { &*direct(self.descriptor).cast::<LiveWords>() }
    }

    /// Returns the generation of the page tables for which the core at a slot has flushed its TLB. The cell cannot
    /// write this record.
    fn generation_at(&self, slot: usize) -> Option<u32> {
        // SAFETY: `build` has made a page for each core slot there, which stays as long as the space does.
        (slot < self.core_slots).then(|| unsafe { shootdown::noted(self.core_pages, slot) })
    }

    /// Records that a core is about to enter a slot, with page tables of that generation.
    fn note_entry(&self, slot: usize, generation: u32) {
        if slot < self.core_slots {
            // SAFETY: as for `generation_at`.
            unsafe { shootdown::note_entry(self.core_pages, slot, generation) }
        }
    }

    /// Counts a core that is back.
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
