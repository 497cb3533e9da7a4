//! The machine, and its state, which tests read and change.

use crate::death::Death;
use crate::memory::{FakeMemory, FakeShared, MEMORY, Soiled};
use crate::report::Activities;
use crate::restart::FakeRecord;
use crate::space::{FIRST_DISK, FakeCore, FakeDevice, FakeSpace, LinkArea, SharedWords};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell, RefMut};
use isola_abi::core_slots::CoreSlots;
use isola_abi::growth::PluggedMemory;
use isola_abi::id::{CellId, CoreId, NodeId, PhysAddr, PhysRange};
use isola_abi::links::LinkTable;
use isola_abi::management::{DeviceLocation, Fault, NetworkSpec};
use isola_abi::query::Queries;
use isola_abi::report::Report;
use isola_abi::topology::CoreSite;
use isola_abi::unplug::UnplugRequest;
use isola_supervisor_core::hardware::{
    Blueprint, BuildError, BuildFailure, Hardware, InventoryOf, Reclaimed, SharedPages,
};
use isola_supervisor_core::image::{ImagePlan, Source};
use isola_supervisor_core::inventory::{CoreToken, Cores, Devices, Disks, Inventory, Memory};

/// An action on the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// A cell was built.
    Build(CellId),
    /// A core entered the cell, at this core slot.
    Enter(CellId, usize),
    /// A cell was asked to stop.
    RequestStop(CellId),
    /// This core received an NMI, so that it records the interrupted instruction.
    Examine(CoreId),
    /// This core received an NMI, so that it yields.
    Force(CoreId),
    /// These cores received an NMI, so that they rotate.
    Rotation(Vec<CoreId>),
    /// These cores received an NMI, so that they sample their call stacks.
    Sample(Vec<CoreId>),
    /// These cores were reclaimed.
    Reclaim(Vec<CoreId>),
    /// A device was reset.
    Reset,
}

/// An address space, as the machine knows it.
pub(crate) struct SpaceEntry {
    pub(crate) id: CellId,
    /// The memory of the cell alone.
    pub(crate) ranges: Vec<PhysRange>,
    /// The memory from which the cell maps its text.
    pub(crate) text: Option<PhysRange>,
    pub(crate) is_quarantined: bool,
    pub(crate) slots: Rc<CoreSlots>,
    pub(crate) link_area: Rc<RefCell<LinkArea>>,
}

/// The state of the machine.
#[derive(Default)]
pub struct FakeState {
    /// All memory.
    pub(crate) all: PhysRange,
    /// The time, in ns.
    pub now: Cell<u64>,
    /// The actions so far.
    pub actions: Vec<Action>,
    /// The report of each cell, since it was last built.
    pub reports: BTreeMap<CellId, Rc<Report>>,
    /// The ledger of each cell, since it was last built.
    pub ledgers: BTreeMap<CellId, Rc<Activities>>,
    /// The image of each cell, from which it was last built.
    pub images: BTreeMap<CellId, Vec<u8>>,
    /// These cores do not come back from a reclaim.
    pub lost: BTreeSet<CoreId>,
    /// Devices cannot be reset.
    pub device_is_stuck: bool,
    /// No cell can be built.
    pub build_error: Option<BuildError>,
    /// The plugged memory of each cell, since it was last built.
    pub grown: BTreeMap<CellId, Rc<PluggedMemory>>,
    /// The queries to each cell, since it was last built.
    pub queries: BTreeMap<CellId, Rc<Queries>>,
    /// No memory can be plugged into cells.
    pub spaces_are_full: bool,
    /// The number of blocks that can still be plugged, though cells have room for more; `None`: any.
    pub blocks_left: Option<usize>,
    /// The reclaim requests to each cell, since it was last built.
    pub unplug_requests: BTreeMap<CellId, Rc<UnplugRequest>>,
    /// The cells cannot have more unplugged ranges.
    pub holes_are_full: bool,
    /// The core at this core slot does not acknowledge TLB shootdowns.
    pub stuck_core: Option<usize>,
    /// The core slots of each cell, since it was last built.
    pub slots: BTreeMap<CellId, Rc<CoreSlots>>,
    /// The cells' cores ignore orders.
    pub cells_are_deaf: bool,
    /// The cells' cores ignore orders to yield.
    pub cells_defy_force: bool,
    /// The number of times that a cell was made to flush its TLBs.
    pub flushes: u32,
    /// What was copied from windows of the link area: the pages, and to where.
    pub copies: Vec<(Vec<PhysRange>, PhysRange)>,
    /// The links of each cell, since it was last built.
    pub links: BTreeMap<CellId, Rc<LinkTable>>,
    /// The cores that were sent into a cell and not reclaimed since.
    pub(crate) inside: BTreeSet<CoreId>,
    /// The address spaces, by their number.
    pub(crate) spaces: BTreeMap<u64, SpaceEntry>,
    /// The ownership records.
    pub(crate) records: BTreeMap<u64, FakeRecord>,
    /// The supervisor checkpoint.
    pub checkpoint: Vec<u8>,
    /// The saved journal entries.
    pub journal: Vec<Vec<u8>>,
    /// The checkpoint does not fit.
    pub checkpoint_is_full: bool,
    /// A failure of the supervisor overwrites stored images.
    pub soils_images: bool,
    /// The write at which the supervisor fails.
    pub death: Death,
    /// The cells that are ending when the supervisor fails.
    pub ending: BTreeSet<CellId>,
    /// Memory of ending cells that stays out of use, as a lost core may still write to it.
    pub(crate) withheld: Vec<PhysRange>,
    /// Memory of images that stays out of use, as such a cell mapped it.
    pub(crate) leaked: Vec<PhysRange>,
    /// The number of cells built.
    built: u64,
    pub(crate) soiled: Soiled,
}

impl FakeState {
    /// Returns the bytes scrubbed so far.
    pub fn scrubbed(&self) -> u64 {
        self.soiled.scrubbed.get()
    }

    /// Returns the memory of a cell's address spaces.
    pub fn ranges_of(&self, id: CellId) -> Vec<PhysRange> {
        let spaces = self.spaces.values().filter(|space| space.id == id && !space.is_quarantined);
        spaces.flat_map(|space| space.ranges.iter().copied()).collect()
    }

    /// Returns the memory of other cells that a cell maps.
    pub fn mapped_by(&self, id: CellId) -> Vec<PhysAddr> {
        let spaces = self.spaces.values().filter(|space| space.id == id && !space.is_quarantined);
        spaces.flat_map(|space| space.link_area.borrow().mapped()).collect()
    }

    /// Returns a report, any of those of all cells by `number`.
    pub fn any_report(&self, number: usize) -> Option<Rc<Report>> {
        self.reports.values().nth(number % self.reports.len().max(1)).cloned()
    }

    /// Returns a cell's report and core slots, since it was last built.
    ///
    /// # Panics
    /// Panics if the cell was never built.
    pub fn report_and_slots(&self, id: CellId) -> (Rc<Report>, Rc<CoreSlots>) {
        (self.reports[&id].clone(), self.slots[&id].clone())
    }
}

/// The state, which the machine shares with its cells' address spaces.
pub(crate) type State = Rc<RefCell<FakeState>>;

/// A machine of ordinary memory.
#[derive(Clone)]
pub struct FakeMachine(pub(crate) State);

impl FakeMachine {
    /// Returns a machine with `cores` cores besides the supervisor's, 64 MiB of dirty memory, two network devices and
    /// two block devices, with cores and memory divided among `nodes` nodes; and its inventory.
    pub fn new(cores: u32, nodes: u32) -> (Self, InventoryOf<Self>) {
        Self::with_memory(cores, nodes, MEMORY)
    }

    /// Returns such a machine with that memory.
    pub fn with_memory(cores: u32, nodes: u32, all: PhysRange) -> (Self, InventoryOf<Self>) {
        let mut inventory: InventoryOf<Self> = Inventory {
            cores: Cores::new(),
            memory: Memory::new(),
            devices: Devices::new(),
            disks: Disks::new(),
        };
        let site = |id| CoreSite::alone(CoreId(id));
        inventory.cores.add_supervisor(CoreId(0), NodeId(0), site(0));
        for id in 1..=cores {
            inventory.cores.add(FakeCore(CoreId(id)), NodeId((id - 1) * nodes / cores), site(id));
        }
        let soiled = Soiled::default();
        soiled.pages.borrow_mut().extend((all.start.0 / 4096..all.end().0 / 4096).step_by(512));
        let len_bytes = all.len_bytes / u64::from(nodes);
        for node in 0..nodes {
            let range = PhysRange::new(PhysAddr(all.start.0 + u64::from(node) * len_bytes), len_bytes);
            let memory = FakeMemory { range, front: Vec::new(), soiled: soiled.clone() };
            assert!(inventory.memory.add(memory, NodeId(node)).is_empty());
        }
        (0..2).for_each(|number| inventory.devices.add(FakeDevice(number)));
        for disk in (FIRST_DISK..FIRST_DISK + 2).map(FakeDevice) {
            inventory.disks.add(disk.location(), disk);
        }
        let state = FakeState { all, soiled, ..FakeState::default() };
        (Self(Rc::new(RefCell::new(state))), inventory)
    }

    /// Returns the state.
    pub fn state(&self) -> RefMut<'_, FakeState> {
        self.0.borrow_mut()
    }

    fn lets_write(&self) -> bool {
        self.state().death.lets_write()
    }
}

impl Hardware for FakeMachine {
    type Memory = FakeMemory;
    type Core = FakeCore;
    type Device = FakeDevice;
    type Space = FakeSpace;

    fn now_ns(&self) -> u64 {
        let state = self.state();
        state.now.set(state.now.get() + 1000);
        state.now.get()
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
        assert_eq!(blueprint.devices.network.is_some(), blueprint.spec.network != NetworkSpec::None);
        let disks = blueprint.devices.disks.iter().map(FakeDevice::location);
        assert!(disks.eq(blueprint.spec.volumes.iter().map(|volume| volume.device)));
        memory.iter().for_each(FakeMemory::soil);
        let mut state = self.0.borrow_mut();
        if let Some(cause) = state.build_error {
            return Err(BuildFailure { memory, cause });
        }
        let (id, words) = (blueprint.id, SharedWords::new(blueprint.cores.len()));
        if !state.death.has_come() {
            state.actions.push(Action::Build(id));
            let ends = blueprint.plan.segments().iter().map(|segment| segment.file.end);
            let len = ends.max().unwrap_or(0);
            state.images.insert(id, blueprint.image.read(len).to_vec());
            state.reports.insert(id, words.report.clone());
            state.ledgers.insert(id, words.activities.clone());
            state.grown.insert(id, words.grown.clone());
            state.unplug_requests.insert(id, words.unplug_request.clone());
            state.queries.insert(id, words.queries.clone());
            state.slots.insert(id, words.slots.clone());
            state.links.insert(id, words.links.clone());
        }
        state.built += 1;
        let shares = blueprint.plan.memory_bytes(Source::Shared) > 0;
        let number = state.built;
        drop(state);
        let space = FakeSpace {
            machine: self.0.clone(),
            number,
            id,
            words,
            has_stacks: false,
            memory,
            unplugged: Vec::new(),
            text: shares.then(|| FakeShared::clone(blueprint.image)),
            cores: blueprint.cores.iter().map(FakeCore::id).collect(),
            devices: blueprint.devices.iter_mut().map(|device| device.0).collect(),
        };
        space.register(false);
        Ok(space)
    }

    fn dismantle(&mut self, space: FakeSpace) -> Vec<FakeMemory> {
        if self.lets_write() {
            self.state().records.remove(&space.number);
        }
        if !self.state().death.has_come() {
            space.assert_private(&space.memory);
        }
        self.state().spaces.remove(&space.number);
        space.memory.into_iter().chain(space.unplugged).collect()
    }

    fn save_checkpoint(&mut self, bytes: &[u8]) -> bool {
        if !self.lets_write() {
            return true;
        }
        let mut state = self.state();
        state.checkpoint = if state.checkpoint_is_full { Vec::new() } else { bytes.to_vec() };
        !state.checkpoint_is_full
    }

    fn save_journal_entry(&mut self, bytes: &[u8]) {
        let mut state = self.state();
        if !state.death.has_come() {
            state.journal.push(bytes.to_vec());
        }
    }

    fn reclaim(&mut self, cores: Vec<FakeCore>) -> Reclaimed<FakeCore> {
        if !self.lets_write() {
            return Reclaimed { back: cores, lost: Vec::new() };
        }
        let mut state = self.state();
        state.actions.push(Action::Reclaim(cores.iter().map(FakeCore::id).collect()));
        let (lost, back): (Vec<_>, Vec<_>) = cores.into_iter().partition(|core| state.lost.contains(&core.0));
        back.iter().for_each(|core| {
            state.inside.remove(&core.0);
        });
        Reclaimed { back, lost: lost.iter().map(FakeCore::id).collect() }
    }

    fn location(device: &FakeDevice) -> DeviceLocation {
        device.location()
    }

    fn mac(device: &FakeDevice) -> Option<[u8; 6]> {
        device.mac()
    }

    fn reset(&mut self, _: &mut FakeDevice) -> bool {
        if !self.lets_write() {
            return true;
        }
        let mut state = self.state();
        state.actions.push(Action::Reset);
        !state.device_is_stuck
    }

    fn inject(&mut self, _: Fault) -> bool {
        false
    }

    fn power_off(&mut self) {}
}
