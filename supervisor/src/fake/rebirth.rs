//! A machine whose supervisor goes wrong: what is written down of cells, and what the next supervisor finds.

use super::{FakeCore, FakeDevice, FakeMachine, FakeMemory, FakeShared, FakeSpace, MEMORY, MIB};
use crate::cells::{Boot, Cells, Estate, InventoryOf};
use crate::effects::{Legacy, Pages, SharedPages, Survivor};
use crate::inventory::{CHUNK, Cores, Devices, Memory};
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::Cell;
use isola_abi::growth::Grown;
use isola_abi::id::{CellId, CoreId, MAX_CORES, NodeId, PhysAddr, PhysRange};
use isola_abi::inquiry::Questions;
use isola_abi::management::RestartCause;
use isola_abi::places::Places;
use isola_abi::rebirth::Stage;
use isola_abi::recall::Recall;
use isola_abi::report::Report;
use isola_abi::topology::CoreSite;

/// What is written down of a cell.
pub(super) struct FakeDeed {
    id: CellId,
    stage: Stage,
    /// A supervisor has found it not to hold, and counted it.
    is_counted: bool,
    keepsake: Vec<u8>,
    memory: Vec<PhysRange>,
    text: Option<PhysRange>,
    cores: Vec<CoreId>,
    device: Option<u8>,
    report: Rc<Report>,
    grown: Rc<Grown>,
    recall: Rc<Recall>,
    questions: Rc<Questions>,
    places: Rc<Places>,
    furnished: Rc<Cell<usize>>,
}

impl FakeDeed {
    /// Of that cell.
    pub(super) fn of(space: &FakeSpace, stage: Stage, keepsake: Vec<u8>) -> Self {
        let mut deed = Self {
            id: space.id,
            stage,
            is_counted: false,
            keepsake,
            memory: Vec::new(),
            text: space.text.as_ref().map(SharedPages::range),
            cores: space.cores.clone(),
            device: space.device,
            report: space.report.clone(),
            grown: space.grown.clone(),
            recall: space.recall.clone(),
            questions: space.questions.clone(),
            places: space.places.clone(),
            furnished: space.furnished.clone(),
        };
        deed.hold(space);
        deed
    }

    /// The cell has other memory than before.
    pub(super) fn hold(&mut self, space: &FakeSpace) {
        self.memory = space.memory.iter().chain(&space.retracted).map(|memory| memory.range).collect();
    }

    /// By place: the core that is there.
    fn cores(&self) -> Vec<Option<CoreId>> {
        match self.stage {
            Stage::Built => self.cores.iter().copied().map(Some).collect(),
            Stage::Quarantined => Vec::new(),
            _ => (0..MAX_CORES).map(|place| self.places.core(place).map(|core| core.id)).collect(),
        }
    }

    /// By place that ever had one: the core that is there, or was there last.
    fn core_ids(&self) -> Vec<CoreId> {
        match self.stage {
            Stage::Built => self.cores.clone(),
            _ => (0..MAX_CORES).map_while(|place| self.places.last(place)).collect(),
        }
    }

    /// The deed as one that a supervisor has found not to hold, for the next one.
    fn of_what_is_gone(mut self) -> Self {
        self.stage = Stage::Ending;
        self.is_counted = true;
        self.device = None;
        self.cores.clear();
        self
    }

    /// Whether the cell outlives its supervisor.
    fn goes_on(&self) -> bool {
        !matches!(self.stage, Stage::Entering | Stage::Ending)
    }
}

impl FakeSpace {
    /// Tells the cell what became of an offer that it was not answered: what has gone has gone.
    fn settle_what_is_open(&self) {
        if self.recall.asked().0 == self.recall.settlement().number {
            return;
        }
        let has = |block: &PhysRange| self.memory.iter().any(|piece| piece.range.contains(block.start));
        let (blocks, _) = self.report.offer.read();
        let taken = (0..u32::BITS).zip(blocks).filter(|(_, block)| block.len_bytes > 0 && !has(block));
        self.recall.settle(taken.fold(0, |taken, (bit, _)| taken | 1 << bit));
    }
}

/// The supervisor of a machine of `cores` cores besides its own goes wrong, and another one begins. What keepsakes say by
/// then is what `twist` makes of it.
pub(crate) fn go_wrong(
    cells: Cells<FakeMachine>,
    cores: u32,
    number: u32,
    twist: impl Fn(&mut Vec<u8>),
) -> Cells<FakeMachine> {
    let (mut machine, in_images) = cells.into_parts();
    let estate = Estate::decode(&machine.estate);
    let mut deeds = core::mem::take(&mut machine.deeds);
    let ending = core::mem::take(&mut machine.ending);
    let is_ending = |deed: &&mut FakeDeed| ending.contains(&deed.id) && deed.stage == Stage::Entered;
    deeds.values_mut().filter(is_ending).for_each(|deed| deed.stage = Stage::Ending);
    let gone = deeds.values().filter(|deed| !deed.goes_on() && !deed.is_counted).count() as u32;
    let (held, void): (Vec<_>, Vec<_>) = deeds.into_iter().partition(|(_, deed)| deed.goes_on());
    let mut inventory: InventoryOf<FakeMachine> =
        InventoryOf::<FakeMachine> { cores: Cores::new(), memory: Memory::new(), devices: Devices::new() };
    let site = |id| CoreSite::alone(CoreId(id));
    inventory.cores.add_supervisor(CoreId(0), NodeId(0), site(0));
    let mut all_back = true;
    for id in 1..=cores {
        let token = FakeCore(CoreId(id));
        let owners = held.iter().filter(|(_, deed)| deed.cores().contains(&Some(token.0))).count();
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
    // What did not come back may get at all that cells had that are gone.
    let of_gone: Vec<PhysRange> = match all_back {
        true => Vec::new(),
        false => void.iter().flat_map(|(_, deed)| deed.memory.iter().chain(&deed.text).copied()).collect(),
    };
    let is_of_gone = |range: &PhysRange| of_gone.iter().any(within(range.start));
    // As is the case in a machine: what is in memory stays. Images are where the estate says, as far as that is not withheld;
    // and what cells stand on is there, whatever the estate says.
    let stands_on = |range: PhysRange| held.iter().any(|(_, deed)| deed.text == Some(range));
    let is_named = |range: PhysRange| estate.images.iter().any(|image| image.memory == range);
    let mut shared: Vec<FakeShared> = in_images;
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
    // What others stand on as well is in use for good.
    let leaked: Vec<&FakeShared> = shared.iter().filter(|memory| is_of_gone(&memory.range())).collect();
    machine.leaked = leaked.iter().map(|memory| memory.range()).collect();
    leaked.into_iter().cloned().for_each(core::mem::forget);
    let text_of = |deed: &FakeDeed| {
        let text = deed.text?;
        Some(
            shared
                .iter()
                .find(|memory| memory.range() == text)
                .expect("what a cell stands on is there")
                .clone(),
        )
    };
    let image_in = |memory: &FakeShared| estate.images.iter().find(|image| image.memory == memory.range());
    let mut withheld = Vec::new();
    for chunk in (MEMORY.start.0..MEMORY.end().0).step_by(CHUNK as usize) {
        let range = PhysRange::new(PhysAddr(chunk), CHUNK);
        let owners = held.iter().filter(|(_, deed)| deed.memory.iter().any(within(range.start))).count();
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
    let lent: Vec<u8> = held.iter().filter_map(|(_, deed)| deed.device).collect();
    (0..2)
        .filter(|number| !lent.contains(number))
        .for_each(|number| inventory.devices.add(FakeDevice(number)));
    lent.iter().for_each(|_| inventory.devices.add_owned());
    let soiled = machine.soiled.clone();
    let survive = |(number, deed): (u64, FakeDeed)| {
        let text = text_of(&deed);
        let piece =
            |range: &PhysRange| FakeMemory { range: *range, front: Vec::new(), soiled: soiled.clone() };
        let (cores, core_ids) = (deed.cores(), deed.core_ids());
        let mut survivor = Survivor::<FakeMachine> {
            stage: deed.stage,
            keepsake: deed.keepsake,
            space: FakeSpace {
                number,
                id: deed.id,
                report: deed.report,
                grown: deed.grown.clone(),
                recall: deed.recall.clone(),
                questions: deed.questions,
                retracted: Vec::new(),
                text,
                memory: deed.memory.iter().map(piece).collect(),
                places: deed.places,
                furnished: deed.furnished,
                has_furniture: false,
                cores: deed.cores,
                device: deed.device,
            },
            cores: cores.into_iter().map(|core| core.map(FakeCore)).collect(),
            core_ids,
            lost: Vec::new(),
            device: deed.device.map(FakeDevice),
            memory: deed.memory,
            answered: deed.grown.answered.load(core::sync::atomic::Ordering::Relaxed),
            settled: deed.recall.settlement().number,
        };
        survivor.space.settle_what_is_open();
        survivor.settled = survivor.space.recall.settlement().number;
        twist(&mut survivor.keepsake);
        survivor
    };
    let (images, texts): (Vec<_>, Vec<_>) =
        shared.iter().cloned().partition(|memory| image_in(memory).is_some());
    let images = images.into_iter().filter_map(|memory| Some((*image_in(&memory)?, memory))).collect();
    let survivors: Vec<Survivor<FakeMachine>> = held.into_iter().map(survive).collect();
    drop(shared);
    machine.withheld = withheld;
    if !all_back {
        machine.deeds = void.into_iter().map(|(number, deed)| (number, deed.of_what_is_gone())).collect();
    }
    for Survivor { space, stage, keepsake, .. } in &survivors {
        machine.deeds.insert(space.number, FakeDeed::of(space, *stage, keepsake.clone()));
    }
    let boot = Boot {
        unix_ns: 1_000_000,
        ready_ns: 500,
        tsc_hz: 1_000_000_000,
        memory_supervisor: 16 * MIB,
        restarts: number,
    };
    let ended_ns = machine.now.get();
    machine.death.begin();
    let legacy = Legacy {
        cause: RestartCause::Panic,
        number,
        ended_ns,
        survivors,
        gone,
        withheld_bytes: machine.withheld.iter().map(|range| range.len_bytes).sum(),
        estate,
        journal: machine.journal.clone(),
        images,
        texts,
    };
    Cells::recover(machine, inventory, boot, legacy)
}
