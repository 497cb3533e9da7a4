//! A machine with ordinary memory, for tests. It records actions, and fails on demand.

mod death;
mod owners;
mod restart;

pub(crate) use owners::every_chunk_has_one_owner;
pub(crate) use restart::go_wrong;

use crate::cells::{Boot, Cells, InventoryOf};
use crate::effects::{
    Admission, Blueprint, BuildError, BuildFailure, Effects, OutOfStackMemory, Pages, Reclaimed, SharedPages,
    Unplugged,
};
use crate::image::tests::Builder;
use crate::image::{ImagePlan, Source};
use crate::inventory::{CHUNK, Chunk, CoreToken, Cores, Devices, Memory};
use crate::report::tests::{Activities, blank, write};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use core::sync::atomic::Ordering;
use death::Death;
use isola_abi::core_slots::{CoreSlots, Order, OrderKind};
use isola_abi::descriptor::Core;
use isola_abi::growth::{Answer, MAX_PLUGGED_BLOCKS, PluggedMemory};
use isola_abi::id::{ApicId, CellId, CoreId, MAX_CORES, NodeId, PhysAddr, PhysRange};
use isola_abi::integrity::ImageDigest;
use isola_abi::ledger::{LEAST_SLOTS, Ledger};
use isola_abi::management::{
    CellSpec, CorePlacement, DeviceLocation, Fault, LendingSpec, NetworkSpec, RestartPolicy, Text,
};
use isola_abi::query::{Line, Queries};
use isola_abi::report::{CellPhase, CorePhase, CrashKind, Report};
use isola_abi::size::ByteSize;
use isola_abi::stage::Stage;
use isola_abi::topology::CoreSite;
use isola_abi::unplug::UnplugRequest;
use restart::FakeRecord;
use sha2::{Digest, Sha256};

pub(crate) const MIB: u64 = 1 << 20;

/// The memory of the machine.
const MEMORY: PhysRange = PhysRange::new(PhysAddr(16 * MIB), 64 * MIB);

/// The contents of all memory, and the amount of scrubbing.
#[derive(Debug, Default)]
struct Content {
    /// The numbers of pages that are not zero.
    pages: RefCell<BTreeSet<u64>>,
    /// The bytes scrubbed so far.
    scrubbed: Cell<u64>,
}

type Soiled = Rc<Content>;

/// A piece of memory, of which only the beginning is backed by bytes.
#[derive(Debug)]
pub(crate) struct FakeMemory {
    range: PhysRange,
    front: Vec<u8>,
    soiled: Soiled,
}

impl Chunk for FakeMemory {
    fn range(&self) -> PhysRange {
        self.range
    }

    fn split(mut self, len_bytes: u64) -> (Self, Self) {
        let PhysRange { start, len_bytes: all } = self.range;
        assert!(len_bytes > 0 && len_bytes < all);
        let behind = self.front.split_off(self.front.len().min(len_bytes as usize));
        self.range.len_bytes = len_bytes;
        let rest = PhysRange::new(PhysAddr(start.0 + len_bytes), all - len_bytes);
        let soiled = self.soiled.clone();
        (self, Self { range: rest, front: behind, soiled })
    }

    fn join(mut self, next: Self) -> Self {
        assert_eq!(self.range.end(), next.range.start);
        if !next.front.is_empty() {
            self.front.resize(self.range.len_bytes as usize, 0);
            self.front.extend(next.front);
        }
        self.range.len_bytes += next.range.len_bytes;
        self
    }

    fn scrub(&mut self, offset: u64, len_bytes: u64) {
        if offset == 0 && len_bytes == self.range.len_bytes {
            self.front.clear();
        }
        let first = (self.range.start.0 + offset) / 4096;
        self.soiled.scrubbed.set(self.soiled.scrubbed.get() + len_bytes);
        let mut soiled = self.soiled.pages.borrow_mut();
        let pages: Vec<u64> = soiled.range(first..first + len_bytes / 4096).copied().collect();
        for page in pages {
            soiled.remove(&page);
        }
        self.front.iter_mut().skip(offset as usize).take(len_bytes as usize).for_each(|byte| *byte = 0);
    }

    fn is_zero(&self) -> bool {
        false
    }

    fn declare_zero(&mut self) {
        assert!(self.holds_nothing());
    }
}

impl FakeMemory {
    fn pages(&self) -> core::ops::Range<u64> {
        self.range.start.0 / 4096..self.range.end().0 / 4096
    }

    fn holds_nothing(&self) -> bool {
        self.soiled.pages.borrow().range(self.pages()).next().is_none()
    }

    /// Writes to the first and to the last page.
    fn soil(&self) {
        self.soiled.pages.borrow_mut().extend([self.pages().start, self.pages().end - 1]);
    }
}

/// Shared, read-only fake memory.
#[derive(Clone, Debug)]
pub(crate) struct FakeShared(Rc<FakeMemory>);

impl SharedPages for FakeShared {
    type Memory = FakeMemory;

    fn range(&self) -> PhysRange {
        self.0.range
    }

    fn read(&self, len_bytes: usize) -> &[u8] {
        self.0.read(len_bytes)
    }

    fn is_shared(&self) -> bool {
        Rc::strong_count(&self.0) > 1
    }

    fn into_memory(self) -> Result<FakeMemory, Self> {
        Rc::try_unwrap(self.0).map_err(Self)
    }
}

impl Pages for FakeMemory {
    type Shared = FakeShared;

    fn share(self) -> FakeShared {
        FakeShared(Rc::new(self))
    }

    fn read(&self, len_bytes: usize) -> &[u8] {
        &self.front[..len_bytes]
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) {
        let end = offset as usize + bytes.len();
        assert!(end as u64 <= self.range.len_bytes);
        self.front.resize(self.front.len().max(end), 0);
        self.front[offset as usize..end].copy_from_slice(bytes);
    }
}

#[derive(Debug)]
pub(crate) struct FakeCore(CoreId);

impl CoreToken for FakeCore {
    fn id(&self) -> CoreId {
        self.0
    }
}

#[derive(Debug)]
pub(crate) struct FakeDevice(pub u8);

pub(crate) struct FakeSpace {
    /// The number of this space among all that were built.
    number: u64,
    id: CellId,
    report: Rc<Report>,
    activities: Rc<Activities>,
    grown: Rc<PluggedMemory>,
    unplug_request: Rc<UnplugRequest>,
    queries: Rc<Queries>,
    places: Rc<CoreSlots>,
    /// The number of core slots with stacks, from the first on.
    cores_with_stacks: Rc<Cell<usize>>,
    has_stacks: bool,
    /// The pieces of memory. The first contains image and tables, which cannot be unplugged.
    memory: Vec<FakeMemory>,
    unplugged: Vec<FakeMemory>,
    /// The memory from which the cell maps its text.
    text: Option<FakeShared>,
    cores: Vec<CoreId>,
    device: Option<u8>,
}

/// An action on the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Build(CellId),
    /// A core entered the cell, at this core slot.
    Enter(CellId, usize),
    RequestStop(CellId),
    Examine(CoreId),
    Force(CoreId),
    Rotation(Vec<CoreId>),
    Reclaim(Vec<CoreId>),
    Reset,
}

#[derive(Default)]
pub(crate) struct FakeMachine {
    pub(crate) now: Cell<u64>,
    pub(crate) actions: Vec<Action>,
    pub(crate) reports: BTreeMap<CellId, Rc<Report>>,
    /// The ledger of each cell, since it was last built.
    pub(crate) ledgers: BTreeMap<CellId, Rc<Activities>>,
    /// The image of each cell, from which it was last built.
    pub(crate) images: BTreeMap<CellId, Vec<u8>>,
    /// These cores do not come back from a reclaim.
    pub(crate) lost: BTreeSet<CoreId>,
    pub(crate) device_is_stuck: bool,
    pub(crate) build_error: Option<BuildError>,
    /// The plugged memory of each cell, since it was last built.
    pub(crate) grown: BTreeMap<CellId, Rc<PluggedMemory>>,
    /// The queries to each cell, since it was last built.
    pub(crate) queries: BTreeMap<CellId, Rc<Queries>>,
    /// No memory can be plugged into cells.
    pub(crate) spaces_are_full: bool,
    /// The number of blocks that can still be plugged, though cells have places for more; `None`: any.
    pub(crate) blocks_left: Option<usize>,
    /// The reclaim requests to each cell, since it was last built.
    pub(crate) unplug_requests: BTreeMap<CellId, Rc<UnplugRequest>>,
    /// The cells cannot have more unplugged ranges.
    pub(crate) holes_are_full: bool,
    /// The core at this core slot does not acknowledge TLB shootdowns.
    pub(crate) stuck_core: Option<usize>,
    /// The core slots of each cell, since it was last built.
    pub(crate) places: BTreeMap<CellId, Rc<CoreSlots>>,
    /// The cells' cores ignore orders.
    pub(crate) cells_are_deaf: bool,
    /// The cells' cores ignore orders to yield.
    pub(crate) cells_defy_force: bool,
    /// The ownership records.
    records: BTreeMap<u64, FakeRecord>,
    /// The supervisor checkpoint.
    checkpoint: Vec<u8>,
    /// The saved journal entries.
    pub(crate) journal: Vec<Vec<u8>>,
    /// The checkpoint does not fit.
    pub(crate) checkpoint_is_full: bool,
    /// A failure of the supervisor overwrites stored images.
    pub(crate) soils_images: bool,
    /// The write at which the supervisor fails.
    pub(crate) death: Death,
    /// The cells that are ending when the supervisor fails.
    pub(crate) ending: BTreeSet<CellId>,
    /// Memory of ending cells that stays out of use, as a lost core may still write to it.
    withheld: Vec<PhysRange>,
    /// Memory of images that stays out of use, as such a cell mapped it.
    leaked: Vec<PhysRange>,
    /// The number of cells built.
    built: u64,
    soiled: Soiled,
}

impl FakeMachine {
    /// Returns the bytes scrubbed so far.
    pub(crate) fn scrubbed(&self) -> u64 {
        self.soiled.scrubbed.get()
    }

    /// Makes the core at a core slot carry out its order, unless the cells ignore orders.
    fn answer_order(&self, space: &FakeSpace, place: usize) {
        if !self.cells_are_deaf {
            obeys(&space.report, &space.places, place);
        }
    }
}

impl Effects for FakeMachine {
    type Memory = FakeMemory;
    type Core = FakeCore;
    type Device = FakeDevice;
    type Space = FakeSpace;

    fn now_ns(&self) -> u64 {
        self.now.set(self.now.get() + 1000);
        self.now.get()
    }

    fn least_memory(&self, plan: &ImagePlan, cores: usize, _: usize) -> u64 {
        plan.memory_bytes(Source::Copied) + 0x40000 * cores as u64 + 0x80000
    }

    fn build(
        &mut self,
        blueprint: Blueprint<'_, Self>,
        memory: Vec<FakeMemory>,
    ) -> Result<FakeSpace, BuildFailure<FakeMemory>> {
        assert!(memory.iter().all(FakeMemory::holds_nothing), "memory is not zeroed");
        assert_eq!(blueprint.cores.len(), blueprint.spec.cores as usize);
        assert_eq!(blueprint.device.is_some(), blueprint.spec.network != NetworkSpec::None);
        memory.iter().for_each(FakeMemory::soil);
        if let Some(cause) = self.build_error {
            return Err(BuildFailure { memory, cause });
        }
        let report: Rc<Report> = blank().into();
        let activities = Rc::new(Activities::new(LEAST_SLOTS));
        let shares = blueprint.plan.memory_bytes(Source::Shared) > 0;
        let (grown, unplug_request) = (Rc::new(PluggedMemory::default()), Rc::new(UnplugRequest::default()));
        let (queries, places) = (Rc::new(Queries::default()), Rc::new(CoreSlots::default()));
        if !self.death.has_come() {
            self.actions.push(Action::Build(blueprint.id));
            let len = blueprint.plan.segments.iter().map(|segment| segment.file.end).max().unwrap_or(0);
            self.images.insert(blueprint.id, blueprint.image.read(len).to_vec());
            self.reports.insert(blueprint.id, report.clone());
            self.ledgers.insert(blueprint.id, activities.clone());
            self.grown.insert(blueprint.id, grown.clone());
            self.unplug_requests.insert(blueprint.id, unplug_request.clone());
            self.queries.insert(blueprint.id, queries.clone());
            self.places.insert(blueprint.id, places.clone());
        }
        self.built += 1;
        Ok(FakeSpace {
            number: self.built,
            id: blueprint.id,
            report,
            activities,
            grown,
            unplug_request,
            queries,
            places,
            cores_with_stacks: Rc::new(Cell::new(blueprint.cores.len())),
            has_stacks: false,
            memory,
            unplugged: Vec::new(),
            text: shares.then(|| blueprint.image.clone()),
            cores: blueprint.cores.iter().map(FakeCore::id).collect(),
            device: blueprint.device.as_ref().map(|device| device.0),
        })
    }

    fn dismantle(&mut self, space: FakeSpace) -> Vec<FakeMemory> {
        if self.death.lets_write() {
            self.records.remove(&space.number);
        }
        space.memory.into_iter().chain(space.unplugged).collect()
    }

    fn keep(&mut self, space: &mut FakeSpace, stage: Stage, saved_state: Vec<u8>) {
        if !self.death.lets_write() {
            return;
        }
        self.records.insert(space.number, FakeRecord::of(space, stage, saved_state));
    }

    fn save_checkpoint(&mut self, bytes: &[u8]) -> bool {
        if !self.death.lets_write() {
            return true;
        }
        self.checkpoint = if self.checkpoint_is_full { Vec::new() } else { bytes.to_vec() };
        !self.checkpoint_is_full
    }

    fn save_journal_entry(&mut self, bytes: &[u8]) {
        if !self.death.has_come() {
            self.journal.push(bytes.to_vec());
        }
    }

    fn text(&self, space: &FakeSpace) -> Option<PhysRange> {
        space.text.as_ref().map(SharedPages::range)
    }

    fn report<'a>(&self, space: &'a FakeSpace) -> &'a Report {
        &space.report
    }

    fn ledger<'a>(&self, space: &'a FakeSpace) -> Ledger<'a> {
        space.activities.ledger()
    }

    fn allocate_stacks(&mut self, space: &mut FakeSpace, place: usize) -> Result<(), OutOfStackMemory> {
        assert!(place < MAX_CORES, "there is no such core slot");
        let more = if space.has_stacks { place + 1 } else { 0 };
        space.cores_with_stacks.set(space.cores_with_stacks.get().max(more));
        if place < space.cores_with_stacks.get() { Ok(()) } else { Err(OutOfStackMemory) }
    }

    fn allocate_stacks_from(&mut self, space: &mut FakeSpace, memory: FakeMemory) -> Result<(), FakeMemory> {
        if !self.death.lets_write() {
            return Ok(());
        }
        assert!(memory.holds_nothing(), "memory is not zeroed");
        memory.soil();
        space.memory.push(memory);
        space.has_stacks = true;
        if let Some(record) = self.records.get_mut(&space.number) {
            record.hold(space);
        }
        Ok(())
    }

    fn admit(&mut self, space: &mut FakeSpace, core: FakeCore, place: usize) -> (FakeCore, Admission) {
        if !self.death.lets_write() {
            return (core, Admission::Entered);
        }
        assert!(place < space.cores_with_stacks.get() && space.places.at(place).kind == OrderKind::Vacant);
        self.actions.push(Action::Enter(space.id, place));
        let (id, node) = (core.0, NodeId(0));
        space.report.cores[place].vcore_runner.store(place as u32, Ordering::Relaxed);
        space.report.cores[place].yielded.store(0, Ordering::Relaxed);
        space.report.cores[place].order.store(0, Ordering::Relaxed);
        space.places.give(place, Core { id, apic: ApicId(id.0), node, site: CoreSite::alone(id) });
        self.answer_order(space, place);
        (core, Admission::Entered)
    }

    fn order(&mut self, space: &FakeSpace, place: usize, kind: OrderKind) -> Order {
        if !self.death.lets_write() {
            let last = space.places.at(place);
            return Order { kind, number: last.number + 1 };
        }
        let order = space.places.order(place, kind);
        self.answer_order(space, place);
        order
    }

    fn last_order(&self, space: &FakeSpace, place: usize) -> Order {
        space.places.at(place)
    }

    fn vacate(&mut self, space: &FakeSpace, place: usize) {
        if !self.death.lets_write() {
            return;
        }
        space.places.order(place, OrderKind::Vacant);
    }

    fn extend(&mut self, space: &mut FakeSpace, memory: FakeMemory, node: NodeId) -> Result<(), FakeMemory> {
        if !self.death.lets_write() {
            return Ok(());
        }
        assert!(memory.holds_nothing(), "memory is not zeroed");
        let range = memory.range;
        assert!(range.len_bytes.is_power_of_two() && range.start.0.is_multiple_of(range.len_bytes));
        if self.spaces_are_full || self.blocks_left == Some(0) || !space.grown.push(range, node) {
            return Err(memory);
        }
        self.blocks_left = self.blocks_left.map(|left| left - 1);
        memory.soil();
        space.memory.push(memory);
        if let Some(record) = self.records.get_mut(&space.number) {
            record.hold(space);
        }
        Ok(())
    }

    fn places(&self, space: &FakeSpace) -> usize {
        if self.spaces_are_full { 0 } else { MAX_PLUGGED_BLOCKS - space.grown.iter().count() }
    }

    fn set_limit(&self, space: &FakeSpace, limit_bytes: u64) {
        if !self.death.lets_write() {
            return;
        }
        space.grown.limit_bytes.store(limit_bytes, Ordering::Relaxed);
    }

    fn request_unplug(&self, space: &FakeSpace, len_bytes: u64) -> u32 {
        if !self.death.lets_write() {
            return 0;
        }
        space.unplug_request.ask(len_bytes)
    }

    fn unplug(
        &mut self,
        space: &mut FakeSpace,
        _: &[Option<FakeCore>],
        blocks: &[PhysRange],
    ) -> Unplugged<FakeMemory> {
        if !self.death.lets_write() {
            return Unplugged { taken: 0, memory: Vec::new(), stuck: None };
        }
        let mut taken = 0;
        for (bit, block) in blocks.iter().enumerate() {
            let is_whole = block.len_bytes > 0
                && block.start.0.is_multiple_of(CHUNK)
                && block.len_bytes.is_multiple_of(CHUNK);
            if is_whole && !self.holes_are_full && space.cut_out(*block) {
                taken |= 1 << bit;
            }
        }
        let memory =
            if self.stuck_core.is_some() { Vec::new() } else { core::mem::take(&mut space.unplugged) };
        if let Some(record) = self.records.get_mut(&space.number) {
            record.hold(space);
        }
        Unplugged { taken, memory, stuck: self.stuck_core }
    }

    fn settle(&self, space: &FakeSpace, taken: u32) {
        if !self.death.lets_write() {
            return;
        }
        space.unplug_request.settle(taken);
    }

    fn answer(&self, space: &FakeSpace, number: u32, answer: Answer) {
        if !self.death.lets_write() {
            return;
        }
        space.grown.reply(number, answer);
    }

    fn request_stop(&mut self, space: &FakeSpace) {
        if !self.death.lets_write() {
            return;
        }
        self.actions.push(Action::RequestStop(space.id));
    }

    fn ask(&mut self, space: &FakeSpace, line: Line, query: &[u8]) -> Option<u32> {
        space.queries.put(line, query)
    }

    fn asked(&self, space: &FakeSpace, line: Line) -> u32 {
        space.queries.number(line)
    }

    fn empty(&mut self, space: &FakeSpace, place: usize) {
        if !self.death.lets_write() {
            return;
        }
        space.places.take(place);
    }

    fn force(&mut self, space: &FakeSpace, core: &FakeCore, place: usize) {
        if !self.death.lets_write() {
            return;
        }
        self.actions.push(Action::Force(core.0));
        if !self.cells_defy_force {
            yields(&space.report, &space.places, place);
        }
    }

    fn rotate(&mut self, space: &FakeSpace, cores: &[Option<FakeCore>]) {
        if !self.death.lets_write() {
            return;
        }
        space.places.rotate();
        self.actions.push(Action::Rotation(cores.iter().flatten().map(|core| core.0).collect()));
    }

    fn examine(&mut self, _: &FakeSpace, cores: &[Option<FakeCore>], place: usize) {
        let suspect = cores.get(place).and_then(Option::as_ref);
        let examined = suspect.or_else(|| cores.iter().flatten().next());
        self.actions.extend(examined.map(|core| Action::Examine(core.0)));
    }

    fn reclaim(&mut self, cores: Vec<FakeCore>) -> Reclaimed<FakeCore> {
        if !self.death.lets_write() {
            return Reclaimed { back: cores, lost: Vec::new() };
        }
        self.actions.push(Action::Reclaim(cores.iter().map(FakeCore::id).collect()));
        let (lost, back): (Vec<_>, Vec<_>) = cores.into_iter().partition(|core| self.lost.contains(&core.0));
        Reclaimed { back, lost: lost.iter().map(FakeCore::id).collect() }
    }

    fn location(device: &FakeDevice) -> DeviceLocation {
        DeviceLocation::Pci { bus: 0, device: device.0, function: 0 }
    }

    fn reset(&mut self, _: &mut FakeDevice) -> bool {
        if !self.death.lets_write() {
            return true;
        }
        self.actions.push(Action::Reset);
        !self.device_is_stuck
    }

    fn go_wrong(&mut self, _: Fault) -> bool {
        false
    }

    fn power_off(&mut self) {}
}

impl FakeSpace {
    /// Unplugs a block from the cell's memory, if it is within one piece and not in the cell's first chunk. Returns
    /// whether it was unplugged.
    fn cut_out(&mut self, block: PhysRange) -> bool {
        let first = self.memory.iter().map(|piece| piece.range.start).next();
        let has = |piece: &FakeMemory| piece.range.start <= block.start && block.end() <= piece.range.end();
        let Some(index) = self.memory.iter().position(has) else { return false };
        let reserved = first.map(|start| PhysRange::new(start, CHUNK));
        if reserved.is_some_and(|reserved| reserved.contains(block.start)) {
            return false;
        }
        let mut piece = self.memory.remove(index);
        let mut place = index;
        if piece.range.start < block.start {
            let len_bytes = block.start.0 - piece.range.start.0;
            let (before, rest) = piece.split(len_bytes);
            self.memory.insert(place, before);
            place += 1;
            piece = rest;
        }
        if block.end() < piece.range.end() {
            let (rest, behind) = piece.split(block.len_bytes);
            self.memory.insert(place, behind);
            piece = rest;
        }
        self.unplugged.push(piece);
        let memory = &self.memory;
        let is_gone = |chunk: &PhysRange| {
            !memory.iter().any(|at| at.range.start < chunk.end() && chunk.start < at.range.end())
        };
        let gone: Vec<PhysRange> = self.grown.iter().map(|(chunk, _)| chunk).filter(is_gone).collect();
        gone.iter().for_each(|chunk| self.grown.vacate(chunk.start));
        true
    }
}

/// Returns memory that belongs to no machine.
pub(crate) fn memory(len_bytes: u64) -> FakeMemory {
    let range = PhysRange::new(PhysAddr(16 * MIB), len_bytes);
    FakeMemory { range, front: Vec::new(), soiled: Soiled::default() }
}

/// Returns a machine with `cores` cores besides the supervisor's, 64 MiB of dirty memory, and two network devices.
pub(crate) fn machine(cores: u32) -> Cells<FakeMachine> {
    machine_of_nodes(cores, 1)
}

/// Returns such a machine, with cores and memory divided among `nodes` nodes.
pub(crate) fn machine_of_nodes(cores: u32, nodes: u32) -> Cells<FakeMachine> {
    let mut inventory: InventoryOf<FakeMachine> =
        InventoryOf::<FakeMachine> { cores: Cores::new(), memory: Memory::new(), devices: Devices::new() };
    let site = |id| CoreSite::alone(CoreId(id));
    inventory.cores.add_supervisor(CoreId(0), NodeId(0), site(0));
    for id in 1..=cores {
        inventory.cores.add(FakeCore(CoreId(id)), NodeId((id - 1) * nodes / cores), site(id));
    }
    let soiled = Soiled::default();
    soiled.pages.borrow_mut().extend((4096..20480).step_by(512));
    let len_bytes = MEMORY.len_bytes / u64::from(nodes);
    for node in 0..nodes {
        let range = PhysRange::new(PhysAddr(MEMORY.start.0 + u64::from(node) * len_bytes), len_bytes);
        let memory = FakeMemory { range, front: Vec::new(), soiled: soiled.clone() };
        assert!(inventory.memory.add(memory, NodeId(node)).is_empty());
    }
    (0..2).for_each(|number| inventory.devices.add(FakeDevice(number)));
    let boot = Boot {
        unix_ns: 1_000_000,
        ready_ns: 500,
        tsc_hz: 1_000_000_000,
        memory_supervisor: 16 * MIB,
        restarts: 0,
    };
    Cells::new(FakeMachine { soiled, ..FakeMachine::default() }, inventory, boot)
}

/// Returns a valid image.
pub(crate) fn image() -> Vec<u8> {
    Builder::default().build()
}

/// Returns an image's digest.
pub(crate) fn digest(image: &[u8]) -> ImageDigest {
    ImageDigest(Sha256::digest(image).into())
}

/// Returns the specification of a cell with one core, 4 MiB and a network device.
pub(crate) fn spec(name: &str) -> CellSpec {
    CellSpec {
        name: name.into(),
        image_name: "image".into(),
        image: digest(&image()),
        requirement: alloc::boxed::Box::default(),
        cores: 1,
        placement: CorePlacement::default(),
        memory: ByteSize(4 * MIB),
        memory_max: None,
        arguments: Vec::new(),
        network: NetworkSpec::Dhcp,
        restart: RestartPolicy::No,
        watchdog_ms: 0,
        lending: LendingSpec::default(),
        text: Text::Shared,
    }
}

/// Sets the phase in a cell's report.
pub(crate) fn says(report: &Report, phase: CellPhase) {
    report.phase.store(phase as u32, Ordering::Release);
}

/// Makes the core at a core slot carry out its order.
pub(crate) fn obeys(report: &Report, places: &CoreSlots, place: usize) {
    let order = places.at(place);
    let echo = if matches!(order.kind, OrderKind::Yield) { order.left() } else { order };
    report.cores[place].order.store(echo.to_u32(), Ordering::Release);
}

/// Makes the core at a core slot yield: it reports its event as suspended.
pub(crate) fn yields(report: &Report, places: &CoreSlots, place: usize) {
    report.cores[place].yielded.store(places.at(place).to_u32(), Ordering::Release);
}

/// Sets a core's phase and number of passes in a cell's report.
pub(crate) fn signs(report: &Report, index: usize, phase: CorePhase, passes: u64) {
    report.cores[index].phase.store(phase as u32, Ordering::Relaxed);
    report.cores[index].passes.store(passes, Ordering::Relaxed);
}

/// Sets a crash in a cell's report.
pub(crate) fn crashes(report: &Report, kind: CrashKind, message: &str) {
    report.crash.claimed_by.store(1, Ordering::Relaxed);
    report.crash.kind.store(kind as u32, Ordering::Relaxed);
    write(&report.crash.message, message);
    says(report, CellPhase::Crashed);
}
