//! A machine whose supervisor goes wrong: what is written down of cells, and what the next supervisor finds.

use super::{FakeCore, FakeDevice, FakeMachine, FakeMemory, FakeShared, FakeSpace, MEMORY, MIB};
use crate::cells::{Boot, Cells, Estate, InventoryOf};
use crate::effects::{Legacy, Pages, SharedPages, Survivor};
use crate::inventory::{CHUNK, Cores, Devices, Memory};
use alloc::rc::Rc;
use alloc::vec::Vec;
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
    keepsake: Vec<u8>,
    memory: Vec<PhysRange>,
    text: Option<PhysRange>,
    cores: Vec<CoreId>,
    has_device: bool,
    report: Rc<Report>,
    grown: Rc<Grown>,
    recall: Rc<Recall>,
    questions: Rc<Questions>,
    places: Rc<Places>,
    furnished: usize,
}

impl FakeDeed {
    /// Of that cell.
    pub(super) fn of(space: &FakeSpace, stage: Stage, keepsake: Vec<u8>) -> Self {
        let mut deed = Self {
            id: space.id,
            stage,
            keepsake,
            memory: Vec::new(),
            text: space.text.as_ref().map(SharedPages::range),
            cores: space.cores.clone(),
            has_device: space.has_device,
            report: space.report.clone(),
            grown: space.grown.clone(),
            recall: space.recall.clone(),
            questions: space.questions.clone(),
            places: space.places.clone(),
            furnished: space.furnished,
        };
        deed.hold(space);
        deed
    }

    /// The cell has other memory than before.
    pub(super) fn hold(&mut self, space: &FakeSpace) {
        self.furnished = space.furnished;
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

    /// Whether the cell outlives its supervisor.
    fn goes_on(&self) -> bool {
        !matches!(self.stage, Stage::Entering | Stage::Ending)
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
    let (mut machine, mut in_images) = cells.into_parts();
    let estate = Estate::decode(&machine.estate);
    let deeds = core::mem::take(&mut machine.deeds);
    let gone = deeds.values().filter(|deed| !deed.goes_on()).count() as u32;
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
    if machine.soils_images {
        in_images.iter_mut().for_each(|memory| memory.front.fill(0xa5));
    }
    let within = |at: PhysAddr| move |range: &PhysRange| range.contains(at);
    let mut withheld_bytes = 0;
    // As is the case in a machine: what is in memory stays. Images are where the estate says, and what cells stand on is
    // there, whatever the estate says.
    let mut shared: Vec<FakeShared> = in_images.into_iter().map(Pages::share).collect();
    let stands_on = |range: PhysRange| held.iter().any(|(_, deed)| deed.text == Some(range));
    let is_named = |range: PhysRange| estate.images.iter().any(|image| image.memory == range);
    shared.retain(|memory| stands_on(memory.range()) || is_named(memory.range()));
    for memory in &shared {
        inventory.memory.add_owned(memory.range(), NodeId(0));
    }
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
    for chunk in (MEMORY.start.0..MEMORY.end().0).step_by(CHUNK as usize) {
        let range = PhysRange::new(PhysAddr(chunk), CHUNK);
        let owners = held.iter().filter(|(_, deed)| deed.memory.iter().any(within(range.start))).count();
        let images = shared.iter().filter(|memory| within(range.start)(&memory.range())).count();
        assert!(owners + images <= 1, "a chunk has {owners} owners, and {images} images are there");
        if images == 1 {
            continue;
        }
        let was_void = void.iter().any(|(_, deed)| deed.memory.iter().any(within(range.start)));
        if owners == 1 || was_void && !all_back {
            withheld_bytes += if owners == 0 { CHUNK } else { 0 };
            inventory.memory.add_owned(range, NodeId(0));
        } else {
            let memory = FakeMemory { range, front: Vec::new(), soiled: machine.soiled.clone() };
            assert!(inventory.memory.add(memory, NodeId(0)).is_empty());
        }
    }
    let lent = held.iter().filter(|(_, deed)| deed.has_device).count();
    (0..2 - lent).for_each(|_| inventory.devices.add(FakeDevice));
    (0..lent).for_each(|_| inventory.devices.add_owned());
    let soiled = machine.soiled.clone();
    let survive = |(number, deed): (u64, FakeDeed)| {
        let text = text_of(&deed);
        let piece =
            |range: &PhysRange| FakeMemory { range: *range, front: Vec::new(), soiled: soiled.clone() };
        let (cores, core_ids) = (deed.cores(), deed.core_ids());
        let mut survivor = Survivor {
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
                has_device: deed.has_device,
            },
            cores: cores.into_iter().map(|core| core.map(FakeCore)).collect(),
            core_ids,
            lost: Vec::new(),
            device: deed.has_device.then_some(FakeDevice),
            memory: deed.memory,
            answered: deed.grown.answered.load(core::sync::atomic::Ordering::Relaxed),
            settled: deed.recall.settlement().number,
        };
        twist(&mut survivor.keepsake);
        survivor
    };
    let (images, texts): (Vec<_>, Vec<_>) =
        shared.iter().cloned().partition(|memory| image_in(memory).is_some());
    let images = images.into_iter().filter_map(|memory| Some((*image_in(&memory)?, memory))).collect();
    let survivors: Vec<Survivor<FakeMachine>> = held.into_iter().map(survive).collect();
    drop(shared);
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
    let legacy = Legacy {
        cause: RestartCause::Panic,
        number,
        ended_ns,
        survivors,
        gone,
        withheld_bytes,
        estate,
        images,
        texts,
    };
    Cells::recover(machine, inventory, boot, legacy)
}
