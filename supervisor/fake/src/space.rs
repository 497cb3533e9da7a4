//! A cell's address space on the fake machine, and the tokens of cores and devices.

use crate::machine::{Action, FakeState, SpaceEntry, State};
use crate::memory::{FakeMemory, FakeShared};
use crate::report::{Activities, blank, obeys, yields};
use crate::restart::FakeRecord;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell, RefMut};
use core::sync::atomic::Ordering;
use isola_abi::core_slots::{CoreSlots, Order, OrderKind};
use isola_abi::descriptor::Core;
use isola_abi::growth::{Answer, MAX_PLUGGED_BLOCKS, PluggedMemory};
use isola_abi::id::{ApicId, CellId, CoreId, MAX_CORES, NodeId, PhysAddr, PhysRange};
use isola_abi::layout::{LINK_PAGES, PAGE_SIZE};
use isola_abi::ledger::{LEAST_SLOTS, Ledger};
use isola_abi::links::{LEAST_LINKS, Link, LinkAccess, LinkTable, LinkWindow};
use isola_abi::management::DeviceLocation;
use isola_abi::query::{Line, Queries};
use isola_abi::report::Report;
use isola_abi::stage::Stage;
use isola_abi::topology::CoreSite;
use isola_abi::unplug::UnplugRequest;
use isola_supervisor_core::CellSpace;
use isola_supervisor_core::hardware::SharedPages;
use isola_supervisor_core::inventory::{CHUNK, Chunk, CoreToken};
use isola_supervisor_core::space::{Admission, OutOfStackMemory, Unplugged};

/// A core.
#[derive(Debug)]
pub struct FakeCore(pub(crate) CoreId);

impl CoreToken for FakeCore {
    fn id(&self) -> CoreId {
        self.0
    }
}

/// A device: network devices have the numbers below [`FIRST_DISK`], block devices those from there.
#[derive(Debug)]
pub struct FakeDevice(pub u8);

/// The number of the first block device.
pub const FIRST_DISK: u8 = 16;

impl FakeDevice {
    /// Returns the device's location.
    pub fn location(&self) -> DeviceLocation {
        DeviceLocation::Pci { bus: 0, device: self.0, function: 0 }
    }

    /// Returns the device's hardware address, if it is a network device.
    pub fn mac(&self) -> Option<[u8; 6]> {
        (!self.is_disk()).then_some([2, 0, 0, 0, 0, self.0])
    }

    /// Returns whether the device is a block device.
    pub fn is_disk(&self) -> bool {
        self.0 >= FIRST_DISK
    }
}

/// The words that a cell and its supervisor share. They survive a restart of the supervisor.
#[derive(Clone)]
pub(crate) struct SharedWords {
    pub(crate) report: Rc<Report>,
    pub(crate) activities: Rc<Activities>,
    pub(crate) grown: Rc<PluggedMemory>,
    pub(crate) unplug_request: Rc<UnplugRequest>,
    pub(crate) queries: Rc<Queries>,
    pub(crate) slots: Rc<CoreSlots>,
    /// The number of core slots with stacks, from the first on.
    pub(crate) slots_with_stacks: Rc<Cell<usize>>,
    pub(crate) links: Rc<LinkTable>,
    pub(crate) link_area: Rc<RefCell<LinkArea>>,
}

/// The pages of other cells that a cell can access, by page of its link area.
#[derive(Default)]
pub(crate) struct LinkArea {
    /// By its page tables; `None` for the cell's own page.
    mapped: BTreeMap<u32, Option<PhysAddr>>,
    /// By the TLBs of its cores.
    cached: BTreeSet<PhysAddr>,
}

impl LinkArea {
    /// Returns the memory of other cells in the page tables.
    pub(crate) fn mapped(&self) -> Vec<PhysAddr> {
        self.mapped.values().flatten().copied().collect()
    }
}

impl SharedWords {
    /// Returns the words of a cell that has just been built with `cores` cores.
    pub(crate) fn new(cores: usize) -> Self {
        Self {
            report: blank().into(),
            activities: Rc::new(Activities::new(LEAST_SLOTS)),
            grown: Rc::new(PluggedMemory::default()),
            unplug_request: Rc::new(UnplugRequest::default()),
            queries: Rc::new(Queries::default()),
            slots: Rc::new(CoreSlots::default()),
            slots_with_stacks: Rc::new(Cell::new(cores)),
            links: Rc::new(LinkTable::<[Link; LEAST_LINKS]>::default()),
            link_area: Rc::default(),
        }
    }
}

/// A cell's address space.
pub struct FakeSpace {
    pub(crate) machine: State,
    /// The number of this space among all that were built.
    pub(crate) number: u64,
    pub(crate) id: CellId,
    pub(crate) words: SharedWords,
    pub(crate) has_stacks: bool,
    /// The pieces of memory. The first contains image and tables, which cannot be unplugged.
    pub(crate) memory: Vec<FakeMemory>,
    pub(crate) unplugged: Vec<FakeMemory>,
    /// The memory from which the cell maps its text.
    pub(crate) text: Option<FakeShared>,
    pub(crate) cores: Vec<CoreId>,
    /// The numbers of the devices.
    pub(crate) devices: Vec<u8>,
}

impl FakeSpace {
    fn state(&self) -> RefMut<'_, FakeState> {
        self.machine.borrow_mut()
    }

    /// Panics if a core of another cell can access the memory, which is about to have another owner.
    pub(crate) fn assert_private(&self, memory: &[FakeMemory]) {
        let inside = self.state().inside.clone();
        for (number, space) in &self.state().spaces {
            let has_core =
                (0..MAX_CORES).filter_map(|slot| space.slots.core(slot)).any(|at| inside.contains(&at.id));
            if *number != self.number && has_core {
                let area = space.link_area.borrow();
                let mut pages = area.cached.iter().chain(area.mapped.values().flatten());
                let is_in = |page: &PhysAddr| memory.iter().any(|piece| piece.range.contains(*page));
                assert!(!pages.any(is_in), "a cell can access memory of another that becomes free");
            }
        }
    }

    /// Counts a write of the supervisor. Returns whether it takes effect.
    fn lets_write(&self) -> bool {
        self.state().death.lets_write()
    }

    /// Makes the core at a core slot carry out its order, unless the cells ignore orders.
    fn answer_order(&self, slot: usize) {
        if !self.state().cells_are_deaf {
            obeys(&self.words.report, &self.words.slots, slot);
        }
    }

    /// Enters the space in the machine's state.
    pub(crate) fn register(&self, is_quarantined: bool) {
        let ranges = self.memory.iter().chain(&self.unplugged).map(|memory| memory.range).collect();
        let (slots, link_area) = (self.words.slots.clone(), self.words.link_area.clone());
        let entry = SpaceEntry { id: self.id, ranges, text: self.text(), is_quarantined, slots, link_area };
        self.state().spaces.insert(self.number, entry);
    }

    /// Updates the ownership record after a change of the cell's memory.
    fn record_memory(&self) {
        self.register(false);
        if let Some(record) = self.state().records.get_mut(&self.number) {
            record.hold(self);
        }
    }

    /// Unplugs a block from the cell's memory, if it is within one piece and not in the cell's first chunk. Returns
    /// whether it was unplugged.
    fn cut_out(&mut self, block: PhysRange) -> bool {
        let first = self.memory.iter().map(|piece| piece.range.start).next();
        let has = |piece: &FakeMemory| piece.range.start <= block.start && block.end() <= piece.range.end();
        let Some(mut index) = self.memory.iter().position(has) else { return false };
        let reserved = first.map(|start| PhysRange::new(start, CHUNK));
        if reserved.is_some_and(|reserved| reserved.contains(block.start)) {
            return false;
        }
        let mut piece = self.memory.remove(index);
        if piece.range.start < block.start {
            let len_bytes = block.start.0 - piece.range.start.0;
            let (before, rest) = piece.split(len_bytes);
            self.memory.insert(index, before);
            index += 1;
            piece = rest;
        }
        if block.end() < piece.range.end() {
            let (rest, behind) = piece.split(block.len_bytes);
            self.memory.insert(index, behind);
            piece = rest;
        }
        self.unplugged.push(piece);
        let memory = &self.memory;
        let is_gone = |chunk: &PhysRange| {
            !memory.iter().any(|at| at.range.start < chunk.end() && chunk.start < at.range.end())
        };
        let grown = &self.words.grown;
        let gone: Vec<PhysRange> = grown.iter().map(|(chunk, _)| chunk).filter(is_gone).collect();
        gone.iter().for_each(|chunk| grown.vacate(chunk.start));
        true
    }
}

impl CellSpace for FakeSpace {
    type Memory = FakeMemory;
    type Core = FakeCore;

    fn save(&mut self, stage: Stage, saved_state: Vec<u8>) {
        self.register(stage == Stage::Quarantined);
        if self.lets_write() {
            let record = FakeRecord::of(self, stage, saved_state);
            self.state().records.insert(self.number, record);
        }
    }

    fn text(&self) -> Option<PhysRange> {
        self.text.as_ref().map(SharedPages::range)
    }

    fn report(&self) -> &Report {
        &self.words.report
    }

    fn ledger(&self) -> Ledger<'_> {
        self.words.activities.ledger()
    }

    fn allocate_stacks(&mut self, slot: usize) -> Result<(), OutOfStackMemory> {
        assert!(slot < MAX_CORES, "there is no such core slot");
        let more = if self.has_stacks { slot + 1 } else { 0 };
        let count = &self.words.slots_with_stacks;
        count.set(count.get().max(more));
        if slot < count.get() { Ok(()) } else { Err(OutOfStackMemory) }
    }

    fn allocate_stacks_from(&mut self, memory: FakeMemory) -> Result<(), FakeMemory> {
        if !self.lets_write() {
            return Ok(());
        }
        assert!(memory.holds_nothing(), "memory is not zeroed");
        memory.soil();
        self.memory.push(memory);
        self.has_stacks = true;
        self.record_memory();
        Ok(())
    }

    fn admit(&mut self, core: FakeCore, slot: usize) -> (FakeCore, Admission) {
        if !self.lets_write() {
            return (core, Admission::Entered);
        }
        let slots = &self.words.slots;
        assert!(slot < self.words.slots_with_stacks.get() && slots.at(slot).kind == OrderKind::Vacant);
        self.state().actions.push(Action::Enter(self.id, slot));
        self.state().inside.insert(core.0);
        let (id, node) = (core.0, NodeId(0));
        let report = &self.words.report.cores[slot];
        report.vcore_runner.store(slot as u32, Ordering::Relaxed);
        report.yielded.store(0, Ordering::Relaxed);
        report.order.store(0, Ordering::Relaxed);
        slots.give(slot, Core { id, apic: ApicId(id.0), node, site: CoreSite::alone(id) });
        self.answer_order(slot);
        (core, Admission::Entered)
    }

    fn order(&self, slot: usize, kind: OrderKind) -> Order {
        if !self.lets_write() {
            let last = self.words.slots.at(slot);
            return Order { kind, number: last.number + 1 };
        }
        let order = self.words.slots.order(slot, kind);
        self.answer_order(slot);
        order
    }

    fn last_order(&self, slot: usize) -> Order {
        self.words.slots.at(slot)
    }

    fn vacate(&self, slot: usize) {
        if self.lets_write() {
            self.words.slots.order(slot, OrderKind::Vacant);
        }
    }

    fn empty(&self, slot: usize) {
        if self.lets_write() {
            self.words.slots.take(slot);
        }
    }

    fn force(&self, core: &FakeCore, slot: usize) {
        if !self.lets_write() {
            return;
        }
        self.state().actions.push(Action::Force(core.0));
        if !self.state().cells_defy_force {
            yields(&self.words.report, &self.words.slots, slot);
        }
    }

    fn rotate(&self, cores: &[Option<FakeCore>]) {
        if self.lets_write() {
            self.words.slots.rotate();
            self.state().actions.push(Action::Rotation(cores.iter().flatten().map(|core| core.0).collect()));
        }
    }

    fn examine(&self, cores: &[Option<FakeCore>], slot: usize) {
        let suspect = cores.get(slot).and_then(Option::as_ref);
        let examined = suspect.or_else(|| cores.iter().flatten().next());
        self.state().actions.extend(examined.map(|core| Action::Examine(core.0)));
    }

    fn sample(&self, cores: &[Option<FakeCore>]) {
        self.state().actions.push(Action::Sample(cores.iter().flatten().map(|core| core.0).collect()));
    }

    fn extend(&mut self, memory: FakeMemory, node: NodeId) -> Result<(), FakeMemory> {
        if !self.lets_write() {
            return Ok(());
        }
        assert!(memory.holds_nothing(), "memory is not zeroed");
        let range = memory.range;
        assert!(range.len_bytes.is_power_of_two() && range.start.0.is_multiple_of(range.len_bytes));
        let left = self.state().blocks_left;
        if self.state().spaces_are_full || left == Some(0) || !self.words.grown.push(range, node) {
            return Err(memory);
        }
        self.state().blocks_left = left.map(|left| left - 1);
        memory.soil();
        self.memory.push(memory);
        self.record_memory();
        Ok(())
    }

    fn block_room(&self) -> usize {
        if self.state().spaces_are_full { 0 } else { MAX_PLUGGED_BLOCKS - self.words.grown.iter().count() }
    }

    fn set_limit(&self, limit_bytes: u64) {
        if self.lets_write() {
            self.words.grown.limit_bytes.store(limit_bytes, Ordering::Relaxed);
        }
    }

    fn request_unplug(&self, len_bytes: u64) -> u32 {
        if self.lets_write() { self.words.unplug_request.ask(len_bytes) } else { 0 }
    }

    fn unplug(&mut self, _: &[Option<FakeCore>], blocks: &[PhysRange]) -> Unplugged<FakeMemory> {
        if !self.lets_write() {
            return Unplugged { taken: 0, memory: Vec::new(), stuck: None };
        }
        let mut taken = 0;
        let is_full = self.state().holes_are_full;
        let stuck = self.state().stuck_core;
        for (bit, block) in blocks.iter().enumerate() {
            let is_whole = block.len_bytes > 0
                && block.start.0.is_multiple_of(CHUNK)
                && block.len_bytes.is_multiple_of(CHUNK);
            if is_whole && !is_full && !self.words.links.lends(*block) && self.cut_out(*block) {
                taken |= 1 << bit;
            }
        }
        let memory = if stuck.is_some() { Vec::new() } else { core::mem::take(&mut self.unplugged) };
        self.assert_private(&memory);
        self.record_memory();
        Unplugged { taken, memory, stuck }
    }

    fn settle(&self, taken: u32) {
        if self.lets_write() {
            self.words.unplug_request.settle(taken);
        }
    }

    fn answer(&self, number: u32, answer: Answer) {
        if self.lets_write() {
            self.words.grown.reply(number, answer);
        }
    }

    fn request_stop(&self) {
        if self.lets_write() {
            self.state().actions.push(Action::RequestStop(self.id));
        }
    }

    fn send_query(&self, line: Line, query: &[u8]) -> Option<u32> {
        self.words.queries.put(line, query)
    }

    fn last_query(&self, line: Line) -> u32 {
        self.words.queries.number(line)
    }

    fn links(&self) -> &LinkTable {
        &self.words.links
    }

    fn can_lend(&self, memory: PhysRange) -> bool {
        let is_pages = memory.start.0.is_multiple_of(PAGE_SIZE) && memory.len_bytes.is_multiple_of(PAGE_SIZE);
        let is_in =
            |piece: &FakeMemory| piece.range.start <= memory.start && memory.end() <= piece.range.end();
        is_pages && memory.len_bytes > 0 && self.memory.iter().any(is_in)
    }

    fn find_window(&self, len_bytes: u64, access: LinkAccess) -> Option<LinkWindow> {
        let pages = u32::try_from(len_bytes / PAGE_SIZE).ok()?;
        Some(LinkWindow { page: self.words.links.find_room(pages, LINK_PAGES)?, pages, access })
    }

    fn map_peer(&mut self, window: LinkWindow, memory: PhysRange) -> Option<bool> {
        if !self.lets_write() {
            return Some(false);
        }
        let mut area = self.words.link_area.borrow_mut();
        let mut had_some = false;
        let room = if self.state().spaces_are_full { 1 } else { usize::MAX };
        let pages = (memory.start.0..memory.end().0).step_by(PAGE_SIZE as usize).map(PhysAddr);
        for (page, phys) in (window.page..).zip(pages.take(room)) {
            had_some |= area.mapped.insert(page, Some(phys)).is_some();
            area.cached.insert(phys);
        }
        (room > 1).then_some(had_some)
    }

    fn unmap_peer(&mut self, window: LinkWindow) {
        if self.lets_write() {
            let mut area = self.words.link_area.borrow_mut();
            area.mapped.range_mut(window.page..window.page + window.pages).for_each(|(_, phys)| *phys = None);
        }
    }

    fn copy_window(&mut self, window: LinkWindow, to: PhysRange) {
        assert!(self.can_lend(to) && to.len_bytes == window.len_bytes(), "the copy is in memory of the cell");
        if self.lets_write() {
            let from = self.peer_memory_in(window);
            self.state().copies.push((from, to));
        }
    }

    fn peer_memory_in(&self, window: LinkWindow) -> Vec<PhysRange> {
        let area = self.words.link_area.borrow();
        let pages = area.mapped.range(window.page..window.page + window.pages);
        pages.filter_map(|(_, phys)| *phys).map(|phys| PhysRange::new(phys, PAGE_SIZE)).collect()
    }

    fn flush(&self, cores: &[Option<FakeCore>]) -> bool {
        if !self.lets_write() {
            return true;
        }
        self.state().flushes += 1;
        let slots = &self.words.slots;
        let there = |id: CoreId| cores.iter().flatten().any(|core| core.0 == id);
        let inside = self.state().inside.clone();
        let mut active = (0..MAX_CORES).filter_map(|slot| slots.core(slot)).map(|core| core.id);
        let all = self.state().stuck_core.is_none() && active.all(|id| there(id) || !inside.contains(&id));
        if all {
            let mut area = self.words.link_area.borrow_mut();
            area.cached = area.mapped.values().flatten().copied().collect();
        }
        all
    }

    fn doorbell_target(&self) -> ApicId {
        self.words.slots.core(0).map_or(ApicId(0), |core| core.apic)
    }

    fn ring_doorbell(&self) {}
}
