//! A machine whose supervisor fails: the cells' ownership records, and the state that the next supervisor finds.

use crate::machine::FakeMachine;
use crate::memory::{FakeMemory, FakeShared};
use crate::space::{FIRST_DISK, FakeCore, FakeDevice, FakeSpace, SharedWords};
use alloc::vec::Vec;
use isola_abi::id::{CellId, CoreId, MAX_CORES, NodeId, PhysAddr, PhysRange};
use isola_abi::management::RestartCause;
use isola_abi::stage::Stage;
use isola_abi::topology::CoreSite;
use isola_supervisor_core::hardware::{
    CellDevices, InventoryOf, Pages, RecoveredCell, RecoveredState, SharedPages,
};
use isola_supervisor_core::inventory::{CHUNK, Cores, Devices, Disks, Inventory, Memory};

/// A cell's ownership record.
pub(crate) struct FakeRecord {
    id: CellId,
    stage: Stage,
    /// A restarted supervisor has rejected the record and counted the cell as lost.
    is_counted: bool,
    saved_state: Vec<u8>,
    memory: Vec<PhysRange>,
    text: Option<PhysRange>,
    cores: Vec<CoreId>,
    devices: Vec<u8>,
    words: SharedWords,
}

impl FakeRecord {
    /// Returns the record of a cell.
    pub(crate) fn of(space: &FakeSpace, stage: Stage, saved_state: Vec<u8>) -> Self {
        let mut record = Self {
            id: space.id,
            stage,
            is_counted: false,
            saved_state,
            memory: Vec::new(),
            text: space.text.as_ref().map(SharedPages::range),
            cores: space.cores.clone(),
            devices: space.devices.clone(),
            words: space.words.clone(),
        };
        record.hold(space);
        record
    }

    /// Updates the record after a change of the cell's memory.
    pub(crate) fn hold(&mut self, space: &FakeSpace) {
        self.memory = space.memory.iter().chain(&space.unplugged).map(|memory| memory.range).collect();
    }

    /// Returns, by core slot, its core.
    fn cores(&self) -> Vec<Option<CoreId>> {
        match self.stage {
            Stage::Built => self.cores.iter().copied().map(Some).collect(),
            Stage::Quarantined => Vec::new(),
            _ => (0..MAX_CORES).map(|slot| self.words.slots.core(slot).map(|core| core.id)).collect(),
        }
    }

    /// Returns, by core slot as far as slots were ever occupied, its core or the last one.
    fn core_ids(&self) -> Vec<CoreId> {
        match self.stage {
            Stage::Built => self.cores.clone(),
            _ => (0..MAX_CORES).map_while(|slot| self.words.slots.last(slot)).collect(),
        }
    }

    /// Converts the record to one that a supervisor has rejected, for the next one.
    fn into_gone(mut self) -> Self {
        self.stage = Stage::Ending;
        self.is_counted = true;
        self.devices.clear();
        self.cores.clear();
        self
    }

    /// Returns whether the cell survives its supervisor.
    fn goes_on(&self) -> bool {
        !matches!(self.stage, Stage::Entering | Stage::Ending)
    }
}

impl FakeSpace {
    /// Answers an offer that is still unanswered, by the blocks that were unplugged.
    fn settle_open_offer(&self) {
        let unplug_request = &self.words.unplug_request;
        if unplug_request.asked().0 == unplug_request.settlement().number {
            return;
        }
        let has = |block: &PhysRange| self.memory.iter().any(|piece| piece.range.contains(block.start));
        let (blocks, _) = self.words.report.offer.read();
        let taken = (0..u32::BITS).zip(blocks).filter(|(_, block)| block.len_bytes > 0 && !has(block));
        unplug_request.settle(taken.fold(0, |taken, (bit, _)| taken | 1 << bit));
    }
}

/// The state that the next supervisor of a machine finds.
pub struct RestartedMachine {
    /// The resources without an owner among the recovered cells.
    pub inventory: InventoryOf<FakeMachine>,
    /// The cells, and the cause of the restart.
    pub recovered: RecoveredState<FakeMachine>,
    /// Memory of stored images, and text that recovered cells map.
    pub shared: Vec<FakeShared>,
}

/// Makes the supervisor of a machine with `cores` cores besides its own fail, after which the next one can begin.
/// `store` is the memory of its image store, and `images` the ranges of the images in its checkpoint. `twist` may
/// change the saved states meanwhile.
///
/// # Panics
/// Panics if a core or a chunk has two owners.
pub fn restart(
    machine: &FakeMachine,
    store: Vec<FakeShared>,
    images: &[PhysRange],
    (cores, number): (u32, u32),
    twist: impl Fn(&mut Vec<u8>),
) -> RestartedMachine {
    let shared_state = &machine.0;
    let mut machine = machine.state();
    let mut records = core::mem::take(&mut machine.records);
    let ending = core::mem::take(&mut machine.ending);
    let is_ending = |record: &&mut FakeRecord| ending.contains(&record.id) && record.stage == Stage::Entered;
    records.values_mut().filter(is_ending).for_each(|record| record.stage = Stage::Ending);
    let gone = records.values().filter(|record| !record.goes_on() && !record.is_counted).count() as u32;
    let (held, void): (Vec<_>, Vec<_>) = records.into_iter().partition(|(_, record)| record.goes_on());
    let mut inventory: InventoryOf<FakeMachine> = Inventory {
        cores: Cores::new(),
        memory: Memory::new(),
        devices: Devices::new(),
        disks: Disks::new(),
    };
    let site = |id| CoreSite::alone(CoreId(id));
    inventory.cores.add_supervisor(CoreId(0), NodeId(0), site(0));
    let mut all_back = true;
    for id in 1..=cores {
        let token = FakeCore(CoreId(id));
        let owners = held.iter().filter(|(_, record)| record.cores().contains(&Some(token.0))).count();
        assert!(owners <= 1, "a core has {owners} owners");
        if owners == 1 {
            inventory.cores.add_owned(token.0, NodeId(0), site(id));
        } else if machine.lost.contains(&token.0) {
            inventory.cores.add_failed(token.0, NodeId(0), site(id));
            all_back = false;
        } else {
            inventory.cores.add(token, NodeId(0), site(id));
        }
    }
    let within = |at: PhysAddr| move |range: &PhysRange| range.contains(at);
    // A lost core may access all memory of the cells that do not survive.
    let of_gone: Vec<PhysRange> = match all_back {
        true => Vec::new(),
        false => {
            void.iter().flat_map(|(_, record)| record.memory.iter().chain(&record.text).copied()).collect()
        }
    };
    let is_of_gone = |range: &PhysRange| of_gone.iter().any(within(range.start));
    // Memory keeps its contents, as on a real machine. Images are where the checkpoint says, unless that memory is
    // withheld. Text that a cell maps is kept regardless of the checkpoint.
    let stands_on = |range: PhysRange| held.iter().any(|(_, record)| record.text == Some(range));
    let is_named = |range: PhysRange| images.contains(&range);
    let mut shared: Vec<FakeShared> = store;
    shared.retain(|memory| {
        let range = memory.range();
        stands_on(range) || is_named(range) && !is_of_gone(&range)
    });
    for memory in &mut shared {
        let FakeMemory { range, ref front, ref soiled } = *memory.0;
        let front = if machine.soils_images { alloc::vec![0xa5; front.len()] } else { front.clone() };
        *memory = FakeMemory { range, front, soiled: soiled.clone() }.share();
        inventory.memory.add_owned(range, NodeId(0));
    }
    // Text that a surviving cell maps as well stays in use for good.
    let leaked: Vec<&FakeShared> = shared.iter().filter(|memory| is_of_gone(&memory.range())).collect();
    machine.leaked = leaked.iter().map(|memory| memory.range()).collect();
    leaked.into_iter().cloned().for_each(core::mem::forget);
    let text_of = |record: &FakeRecord| {
        let text = record.text?;
        Some(
            shared
                .iter()
                .find(|memory| memory.range() == text)
                .expect("the text of a surviving cell is kept")
                .clone(),
        )
    };
    let mut withheld = Vec::new();
    for chunk in (machine.all.start.0..machine.all.end().0).step_by(CHUNK as usize) {
        let range = PhysRange::new(PhysAddr(chunk), CHUNK);
        let owners = held.iter().filter(|(_, record)| record.memory.iter().any(within(range.start))).count();
        let images = shared.iter().filter(|memory| within(range.start)(&memory.range())).count();
        assert!(owners + images <= 1, "a chunk has {owners} owners, and {images} images are there");
        if images == 1 {
            continue;
        }
        if owners == 1 || is_of_gone(&range) {
            withheld.extend((owners == 0).then_some(range));
            inventory.memory.add_owned(range, NodeId(0));
        } else {
            let memory = FakeMemory { range, front: Vec::new(), soiled: machine.soiled.clone() };
            assert!(inventory.memory.add(memory, NodeId(0)).is_empty());
        }
    }
    let lent: Vec<u8> = held.iter().flat_map(|(_, record)| record.devices.clone()).collect();
    for device in (0..2).chain(FIRST_DISK..FIRST_DISK + 2).map(FakeDevice) {
        match (device.is_disk(), lent.contains(&device.0)) {
            (false, false) => inventory.devices.add(device),
            (false, true) => inventory.devices.add_owned(),
            (true, false) => inventory.disks.add(device.location(), device),
            (true, true) => inventory.disks.add_owned(),
        }
    }
    let soiled = machine.soiled.clone();
    let survive = |(number, record): (u64, FakeRecord)| {
        let text = text_of(&record);
        let piece =
            |range: &PhysRange| FakeMemory { range: *range, front: Vec::new(), soiled: soiled.clone() };
        let (cores, core_ids) = (record.cores(), record.core_ids());
        let own = record.devices.iter().copied().map(FakeDevice);
        let (disks, network): (Vec<_>, Vec<_>) = own.partition(FakeDevice::is_disk);
        let mut recovered_cell = RecoveredCell::<FakeMachine> {
            stage: record.stage,
            saved_state: record.saved_state,
            space: FakeSpace {
                machine: shared_state.clone(),
                number,
                id: record.id,
                words: record.words.clone(),
                unplugged: Vec::new(),
                text,
                memory: record.memory.iter().map(piece).collect(),
                has_stacks: false,
                cores: record.cores,
                devices: record.devices,
            },
            cores: cores.into_iter().map(|core| core.map(FakeCore)).collect(),
            core_ids,
            lost: Vec::new(),
            devices: CellDevices { network: network.into_iter().next(), disks },
            memory: record.memory,
            answered: record.words.grown.answered.load(core::sync::atomic::Ordering::Relaxed),
            settled: 0,
        };
        recovered_cell.space.settle_open_offer();
        recovered_cell.settled = recovered_cell.space.words.unplug_request.settlement().number;
        twist(&mut recovered_cell.saved_state);
        recovered_cell
    };
    let recovered_cells: Vec<RecoveredCell<FakeMachine>> = held.into_iter().map(survive).collect();
    machine.withheld = withheld;
    if !all_back {
        machine.records = void.into_iter().map(|(number, record)| (number, record.into_gone())).collect();
    }
    machine.spaces.clear();
    for RecoveredCell { space, stage, saved_state, .. } in &recovered_cells {
        machine.records.insert(space.number, FakeRecord::of(space, *stage, saved_state.clone()));
    }
    drop(machine);
    for RecoveredCell { space, stage, .. } in &recovered_cells {
        space.register(*stage == Stage::Quarantined);
    }
    let machine = shared_state.borrow_mut();
    let ended_ns = machine.now.get();
    machine.death.begin();
    let recovered = RecoveredState {
        cause: RestartCause::Panic,
        number,
        ended_ns,
        recovered_cells,
        gone,
        withheld_bytes: machine.withheld.iter().map(|range| range.len_bytes).sum(),
    };
    RestartedMachine { inventory, recovered, shared }
}
