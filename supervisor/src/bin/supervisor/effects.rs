//! [`Effects`] on real hardware, with `isola-machine`.

use crate::faults::Faults;
use crate::life;
use crate::memory::Piece;
use crate::serve::vector;
use crate::time::Time;
use alloc::vec::Vec;
use isola_abi::core_slots::{Order, OrderKind};
use isola_abi::descriptor::{Descriptor, HaltMode, InterruptMode, NotificationTarget, Request};
use isola_abi::growth::Answer;
use isola_abi::id::{CoreId, NodeId, PhysRange};
use isola_abi::ledger::Ledger;
use isola_abi::management::{DeviceLocation, Fault, NetworkSpec};
use isola_abi::query::Line;
use isola_abi::report::Report;
use isola_abi::stage::Stage;
use isola_machine::apic::io::InterruptLines;
use isola_machine::apic::local;
use isola_machine::authority::Authority;
use isola_machine::boot::{Machine, OwnSpace};
use isola_machine::cpu::Features;
use isola_machine::device::Device;
use isola_machine::memory::Region;
use isola_machine::paging;
use isola_machine::power::PowerSwitch;
use isola_machine::restart;
use isola_machine::smp::{AwayCore, LostCore, ParkedCore};
use isola_machine::space::{self, CellSpace, EnterError, Plan, SegmentBytes, needed_bytes};
use isola_supervisor::effects::{
    Admission, Blueprint, BuildError, BuildFailure, Effects, OutOfStackMemory, Reclaimed, SharedPages,
    Unplugged,
};
use isola_supervisor::image::{ImagePlan, Rights, Segment, Source};
use isola_supervisor::inventory::{CHUNK, Chunk, CoreToken};

/// The machine, without the resources in the inventory.
#[derive(Debug)]
pub struct Hardware {
    time: Time,
    doorbell: NotificationTarget,
    mode: InterruptMode,
    halt_mode: HaltMode,
    lines: InterruptLines,
    space: OwnSpace,
    /// The lost cores, kept for good: the resources that they could reach stay out of use.
    lost: Vec<LostCore>,
    /// The total time spent waiting for reclaimed cores, in ns.
    waited_ns: u64,
    faults: Faults,
    power: PowerSwitch,
    authority: Authority,
}

/// A core, parked or in a cell.
#[derive(Debug)]
pub enum Core {
    /// The core is parked.
    Parked(ParkedCore),
    /// The core is in a cell.
    Away(AwayCore),
}

impl CoreToken for Core {
    fn id(&self) -> CoreId {
        match self {
            Self::Parked(core) => core.core().id,
            Self::Away(core) => core.core().id,
        }
    }
}

impl Hardware {
    /// Returns the hardware of `machine`, whose resources are in the inventory already.
    pub fn new(time: Time, machine: Machine) -> Self {
        Self {
            time,
            doorbell: NotificationTarget { apic: machine.boot_core.apic, vector: vector::DOORBELL },
            mode: local::mode(),
            halt_mode: Features::read().halt_mode(machine.command_line.halt_mode),
            lines: machine.lines,
            space: machine.space,
            lost: machine.lost,
            waited_ns: 0,
            faults: Faults::allowed(&machine.command_line),
            power: machine.power,
            authority: machine.authority,
        }
    }

    /// Returns the authority over the machine's hardware.
    pub fn authority(&self) -> Authority {
        self.authority
    }

    fn pieces(&self, regions: Vec<Region>) -> Vec<Piece> {
        regions.into_iter().map(|region| Piece(region, self.authority)).collect()
    }

    /// Returns the ticks of this core's timer in `ns` nanoseconds.
    pub fn timer_ticks(&self, ns: u64) -> u64 {
        self.time.timer_ticks(ns)
    }

    /// Returns the total time spent waiting for reclaimed cores, in ns.
    pub fn waited_ns(&self) -> u64 {
        self.waited_ns
    }

    /// Returns the descriptor of a cell, without its memory and devices.
    fn descriptor(&self, blueprint: &Blueprint<'_, Self>) -> Descriptor {
        let spec = blueprint.spec;
        let cores = blueprint.cores.iter().filter_map(|core| match core {
            Core::Parked(core) => Some(core.core()),
            Core::Away(_) => None,
        });
        Descriptor {
            version: isola_abi::VERSION,
            cell: blueprint.id,
            name: spec.name.clone(),
            arguments: spec.arguments.clone(),
            cores: cores.collect(),
            core_slot_count: blueprint.places as u32,
            core_request_ns: u64::from(spec.lending.borrow_above_us) * 1_000,
            pool: Vec::new(),
            memory_bytes: 0,
            memory_max_bytes: blueprint.memory_max_bytes,
            region_tables: PhysRange::default(),
            image: Vec::new(),
            devices: Vec::new(),
            clock: self.time.clock(),
            address: match spec.network {
                NetworkSpec::Static(address) => Some(address),
                NetworkSpec::None | NetworkSpec::Dhcp => None,
            },
            supervisor: Some(self.doorbell),
            interrupt_mode: self.mode,
            halt_mode: self.halt_mode,
        }
    }
}

/// Interrupts a core of a cell by NMI, unless the core is still entering: an NMI must not arrive in the entry code.
fn interrupt_by_force(space: &CellSpace, core: &Core, place: usize) {
    if let Core::Away(core) = core
        && space.is_inside(place)
    {
        core.interrupt_by_force();
    }
}

impl Effects for Hardware {
    type Memory = Piece;
    type Core = Core;
    type Device = Device;
    type Space = CellSpace;

    fn now_ns(&self) -> u64 {
        self.time.now_ns()
    }

    fn least_memory(&self, plan: &ImagePlan, cores: usize, places: usize) -> u64 {
        let (own_bytes, shared_bytes) =
            (plan.memory_bytes(Source::Copied), plan.memory_bytes(Source::Shared));
        needed_bytes(own_bytes, shared_bytes, cores, places)
    }

    fn build(
        &mut self,
        blueprint: Blueprint<'_, Self>,
        memory: Vec<Piece>,
    ) -> Result<CellSpace, BuildFailure<Piece>> {
        let given: u64 = memory.iter().map(|piece| piece.range().len_bytes).sum();
        let descriptor = self.descriptor(&blueprint);
        let segment = |segment: &Segment| space::Segment {
            virt: segment.virt,
            memory_bytes: segment.memory_len,
            rights: match segment.rights {
                Rights::Read => paging::Rights::Read,
                Rights::ReadWrite => paging::Rights::ReadWrite,
                Rights::ReadExecute => paging::Rights::Execute,
            },
            bytes: match segment.source {
                Source::Copied => {
                    let bytes = blueprint.image.read(segment.file.end).get(segment.file.clone());
                    SegmentBytes::Copied(bytes.unwrap_or_default())
                }
                Source::Shared => SegmentBytes::Shared { offset: segment.file_pages().start as u64 },
            },
        };
        let shares = blueprint.plan.memory_bytes(Source::Shared) > 0;
        let plan = Plan {
            text: shares.then(|| blueprint.image.region()),
            segments: blueprint.plan.segments.iter().map(segment).collect(),
            entry: blueprint.plan.entry,
            vectors: blueprint.plan.vectors,
            memory: memory.into_iter().map(|piece| piece.0).collect(),
            devices: blueprint.device.into_iter().collect(),
            descriptor,
        };
        CellSpace::build(plan, &self.space, &mut self.lines).map_err(|failure| {
            log::warn!("{}: {}", blueprint.spec.name, failure.error);
            let cause = match failure.error {
                space::BuildError::Descriptor(_) => BuildError::DescriptorTooLong,
                // The given memory has just turned out to be too little, so the least is more.
                _ => BuildError::TooSmall { least_bytes: given.saturating_add(CHUNK) },
            };
            BuildFailure { memory: self.pieces(failure.memory), cause }
        })
    }

    fn dismantle(&mut self, space: CellSpace) -> Vec<Piece> {
        match space.dissolve() {
            Ok(memory) => self.pieces(memory),
            Err(space) => {
                log::error!("a cell is still in use, and its memory is lost: {space:?}");
                Vec::new()
            }
        }
    }

    fn keep(&mut self, space: &mut CellSpace, stage: Stage, saved_state: Vec<u8>) {
        if !space.save_record(stage, saved_state) {
            log::error!("a cell cannot be written down, and would end with this supervisor");
        }
    }

    fn save_checkpoint(&mut self, bytes: &[u8]) -> bool {
        restart::save_checkpoint(bytes)
    }

    fn save_journal_entry(&mut self, bytes: &[u8]) {
        // An entry that is too long is lost at a restart; this supervisor's journal has it.
        let _ = restart::save_journal_entry(bytes);
    }

    fn text(&self, space: &CellSpace) -> Option<PhysRange> {
        space.text()
    }

    fn report<'a>(&self, space: &'a CellSpace) -> &'a Report {
        space.report()
    }

    fn ledger<'a>(&self, space: &'a CellSpace) -> Ledger<'a> {
        space.ledger()
    }

    fn allocate_stacks(&mut self, space: &mut CellSpace, place: usize) -> Result<(), OutOfStackMemory> {
        space.allocate_stacks(place).map_err(|_| OutOfStackMemory)
    }

    fn allocate_stacks_from(&mut self, space: &mut CellSpace, memory: Piece) -> Result<(), Piece> {
        space.allocate_stacks_from(memory.0).map_err(|region| Piece(region, self.authority))
    }

    fn admit(&mut self, space: &mut CellSpace, core: Core, place: usize) -> (Core, Admission) {
        let Core::Parked(parked) = core else { return (core, Admission::Refused) };
        match space.enter(parked, place) {
            Ok(away) => (Core::Away(away), Admission::Entered),
            Err(EnterError::NoPlace(parked) | EnterError::Busy(parked)) => {
                log::error!("core {} cannot enter its cell", parked.core().id);
                (Core::Parked(parked), Admission::Refused)
            }
        }
    }

    fn order(&mut self, space: &CellSpace, place: usize, kind: OrderKind) -> Order {
        space.order(place, kind)
    }

    fn last_order(&self, space: &CellSpace, place: usize) -> Order {
        space.last_order(place)
    }

    fn vacate(&mut self, space: &CellSpace, place: usize) {
        space.vacate(place);
    }

    fn extend(&mut self, space: &mut CellSpace, memory: Piece, node: NodeId) -> Result<(), Piece> {
        space.plug(memory.0, node).map_err(|region| Piece(region, self.authority))
    }

    fn places(&self, space: &CellSpace) -> usize {
        space.pluggable_blocks()
    }

    fn set_limit(&self, space: &CellSpace, limit_bytes: u64) {
        space.set_limit(limit_bytes);
        // The interrupt also makes the cell look for plugged memory.
        space.interrupt();
    }

    fn request_unplug(&self, space: &CellSpace, len_bytes: u64) -> u32 {
        space.request_unplug(len_bytes)
    }

    fn unplug(
        &mut self,
        space: &mut CellSpace,
        cores: &[Option<Core>],
        blocks: &[PhysRange],
    ) -> Unplugged<Piece> {
        let taken = space.unplug(blocks);
        if taken == 0 {
            return Unplugged { taken, memory: Vec::new(), stuck: None };
        }
        let inside = cores.iter().enumerate().filter_map(|(place, core)| match core {
            Some(Core::Away(core)) => Some((place, core)),
            Some(Core::Parked(_)) | None => None,
        });
        let inside: Vec<(usize, &AwayCore)> = inside.collect();
        let (memory, stuck) = match space.take_unplugged(&inside) {
            Ok(memory) => (memory, None),
            Err(place) => {
                log::error!("core {place} of a cell does not answer a non-maskable interrupt");
                (Vec::new(), Some(place))
            }
        };
        Unplugged { taken, memory: self.pieces(memory), stuck }
    }

    fn settle(&self, space: &CellSpace, taken: u32) {
        space.settle(taken);
    }

    fn answer(&self, space: &CellSpace, number: u32, answer: Answer) {
        space.answer(number, answer);
    }

    fn request_stop(&mut self, space: &CellSpace) {
        space.request(Request::Stop);
    }

    fn ask(&mut self, space: &CellSpace, line: Line, query: &[u8]) -> Option<u32> {
        space.ask(line, query)
    }

    fn asked(&self, space: &CellSpace, line: Line) -> u32 {
        space.asked(line)
    }

    fn empty(&mut self, space: &CellSpace, place: usize) {
        space.empty(place);
    }

    fn force(&mut self, space: &CellSpace, core: &Core, place: usize) {
        interrupt_by_force(space, core, place);
    }

    fn rotate(&mut self, space: &CellSpace, cores: &[Option<Core>]) {
        space.rotate();
        let there = cores.iter().enumerate().filter_map(|(place, core)| Some((place, core.as_ref()?)));
        there.for_each(|(place, core)| interrupt_by_force(space, core, place));
    }

    fn examine(&mut self, space: &CellSpace, cores: &[Option<Core>], place: usize) {
        space.examine();
        let places = core::iter::once(place).chain((0..cores.len()).filter(|other| *other != place));
        let mut there = places.filter_map(|place| Some((place, cores.get(place)?.as_ref()?)));
        if let Some((place, core)) = there.find(|(place, _)| space.is_inside(*place)) {
            interrupt_by_force(space, core, place);
        }
    }

    fn reclaim(&mut self, cores: Vec<Core>) -> Reclaimed<Core> {
        let mut reclaimed = Reclaimed { back: Vec::new(), lost: Vec::new() };
        let began = self.now_ns();
        for core in cores {
            life::sign();
            match core {
                Core::Away(away) => match away.reclaim() {
                    Ok(parked) => reclaimed.back.push(Core::Parked(parked)),
                    Err(lost) => {
                        log::error!("{lost}");
                        reclaimed.lost.push(lost.core().id);
                        self.lost.push(lost);
                    }
                },
                core => reclaimed.back.push(core),
            }
        }
        self.waited_ns += self.now_ns().saturating_sub(began);
        reclaimed
    }

    fn location(device: &Device) -> DeviceLocation {
        device.location()
    }

    fn reset(&mut self, device: &mut Device) -> bool {
        self.faults.at_end();
        if let Some(line) = device.interrupt_line()
            && let Err(error) = self.lines.mask(line)
        {
            log::error!("{error}");
        }
        device.reset().inspect_err(|error| log::error!("{error}")).is_ok()
    }

    fn go_wrong(&mut self, fault: Fault) -> bool {
        self.faults.commit(fault)
    }

    fn power_off(&mut self) {
        self.power.off()
    }
}
