//! A policy that makes wrong calls: they are rejected, and no resource has two owners after any sequence of calls.

use isola_abi::growth::Answer;
use isola_abi::id::{CellId, CoreId, NodeId, PhysAddr, PhysRange};
use isola_abi::integrity::ImageDigest;
use isola_abi::links::{LinkAccess, LinkPart, LinkRefusal, LinkState, MAX_LINKS_TO_PEER};
use isola_abi::management::{
    CellSpec, CoreOwner, CorePlacement, LendingSpec, NetworkSpec, RestartPolicy, Text,
};
use isola_abi::network_service::NetworkService;
use isola_abi::size::ByteSize;
use isola_abi::unplug::Shortfall;
use isola_abi::volume::{VolumeAccess, VolumeMount};
use isola_supervisor_core::hardware::{Pages, SharedPages};
use isola_supervisor_core::image::ImagePlan;
use isola_supervisor_core::inventory::{BlockRequest, CHUNK, Scrub};
use isola_supervisor_core::trusted_core::{
    BlockPlug, BuildRefusal, BuildRequest, CoreChange, Recovery, Rejection, Released,
};
use isola_supervisor_core::{Hardware, TrustedCore};
use isola_supervisor_fake::image::Builder;
use isola_supervisor_fake::report::obeys;
use isola_supervisor_fake::{
    FIRST_DISK, FakeDevice, FakeMachine, FakeMemory, FakeShared, MEMORY, MIB, RestartedMachine,
    every_chunk_has_one_owner, every_core_has_one_owner, restart,
};
use proptest::prelude::*;

const CORES: u32 = 4;

/// The core, and the policy's own memory.
struct Bench {
    core: TrustedCore<FakeMachine>,
    plan: ImagePlan,
    /// The image; `None` if its memory is withheld after a restart.
    image: Option<FakeShared>,
    store: Vec<FakeMemory>,
    restarts: u32,
}

impl Bench {
    /// Returns a machine with an image in the store, and no dirty memory.
    fn new() -> Self {
        let (machine, inventory) = FakeMachine::new(CORES, 1);
        let mut core = TrustedCore::new(machine, inventory);
        let mut bytes = Builder::default().build();
        let plan = ImagePlan::check(&bytes).unwrap();
        bytes.resize(bytes.len().next_multiple_of(4096), 0);
        let mut memory = core.take_store_memory(bytes.len() as u64).unwrap();
        memory.write(0, &bytes);
        let mut bench = Self {
            core,
            plan: plan.sharing(&bytes),
            image: Some(memory.share()),
            store: Vec::new(),
            restarts: 0,
        };
        bench.scrub();
        bench
    }

    fn scrub(&mut self) {
        while self.core.scrub(CHUNK, None) == Scrub::Unfinished {}
    }

    fn build(&mut self, id: u32, spec: &CellSpec) -> Result<(), BuildRefusal> {
        let Self { core, plan, image, .. } = self;
        let Some(image) = image else { return Err(BuildRefusal::Memory) };
        let memory_bytes = spec.memory.0;
        let request = BuildRequest {
            id: CellId(id),
            spec,
            plan,
            memory_bytes,
            memory_max_bytes: memory_bytes,
            waiting: &[],
        };
        core.build(&request, |_, _| image.clone())
    }

    /// Builds and starts a cell.
    fn run(&mut self, id: u32, cores: u32) -> CellId {
        self.build(id, &spec(cores, 4)).unwrap();
        self.core.start(CellId(id), Vec::new()).unwrap();
        self.settle(CellId(id));
        CellId(id)
    }

    /// Acts on the acknowledgements of a cell's cores. Returns the changes.
    fn settle(&mut self, id: CellId) -> Vec<CoreChange> {
        std::iter::from_fn(|| self.core.next_core_event(id)).map(|event| event.change).collect()
    }

    /// Makes the supervisor fail. The next one adopts the cells in order under these ids, and dismantles those that it
    /// cannot adopt. If `ends` is set, it ends the first adopted cell at once.
    fn fail(self, ids: &[u32]) -> Self {
        self.fail_and(ids, false)
    }

    fn fail_and(mut self, ids: &[u32], ends: bool) -> Self {
        self.store.clear();
        self.restarts += 1;
        let (machine, ranges) = (self.core.into_hardware(), self.image.iter().map(SharedPages::range));
        let ranges: Vec<PhysRange> = ranges.collect();
        let numbers = (CORES, self.restarts);
        let RestartedMachine { inventory, recovered, shared } =
            restart(&machine, self.image.into_iter().collect(), &ranges, numbers, |_| {});
        let (mut core, Recovery { cells, .. }) = TrustedCore::recover(machine, inventory, recovered);
        for (cell, id) in cells.into_iter().zip(ids.iter().cycle()) {
            if let Err(cell) = core.adopt(cell, CellId(*id)) {
                core.give_up(cell);
            } else if ends {
                let _ = core.end(CellId(ids[0]), vec![3]);
                let _ = core.release(CellId(ids[0]));
            }
        }
        Self { core, image: shared.into_iter().next(), ..self }
    }

    fn check(&self) {
        let mut images: Vec<PhysRange> =
            self.store.iter().map(isola_supervisor_core::inventory::Chunk::range).collect();
        images.extend(self.image.iter().map(SharedPages::range));
        every_chunk_has_one_owner(&self.core, &images, &images, self.core.quarantined_bytes());
        every_core_has_one_owner(&self.core);
    }
}

fn spec(cores: u32, mib: u64) -> CellSpec {
    CellSpec {
        name: "cell".into(),
        image_name: "image".into(),
        image: ImageDigest([0; 32]),
        requirement: Box::default(),
        cores,
        placement: CorePlacement::default(),
        memory: ByteSize(mib * MIB),
        memory_max: None,
        arguments: Vec::new(),
        network: NetworkSpec::None,
        restart: RestartPolicy::No,
        watchdog_ms: 0,
        lending: LendingSpec::default(),
        text: Text::Shared,
        grid: isola_abi::grid::GridSetup::default(),
        volumes: Vec::new(),
        accept: Vec::new(),
        loop_with: Vec::new(),
        served_volumes: Vec::new(),
        network_service: NetworkService::None,
    }
}

const NOW: (u64, u64) = (0, 1_000_000);

#[test]
fn a_cell_is_built_started_ended_and_released_in_this_order_only() {
    let mut bench = Bench::new();
    let id = CellId(1);
    assert_eq!(bench.core.start(id, Vec::new()), Err(Rejection::NoSuchCell));
    assert_eq!(bench.core.release(id), Err(Rejection::NoSuchCell));
    bench.build(1, &spec(2, 4)).unwrap();
    assert_eq!(bench.build(1, &spec(1, 4)), Err(BuildRefusal::IdInUse));
    assert_eq!(bench.core.end(id, Vec::new()), Err(Rejection::WrongStage));
    bench.core.start(id, Vec::new()).unwrap();
    assert_eq!(bench.core.start(id, Vec::new()), Err(Rejection::WrongStage));
    assert_eq!(bench.core.release(id), Err(Rejection::WrongStage), "its cores run");
    bench.core.end(id, Vec::new()).unwrap();
    assert_eq!(bench.core.end(id, Vec::new()), Err(Rejection::WrongStage));
    assert_eq!(bench.core.plug_block(id, block(2)), Err(Rejection::WrongStage));
    let released = Released { memory_bytes: 4 * MIB, lost: Vec::new(), devices_are_back: true };
    assert_eq!(bench.core.release(id), Ok(released));
    bench.check();
}

#[test]
fn a_cell_that_is_built_while_another_gets_its_id_gives_its_resources_back() {
    let mut bench = Bench::new();
    let (mine, free) = (spec(1, 4), bench.core.inventory().memory.free());
    let Bench { core, plan, image, .. } = &mut bench;
    let image = image.as_ref().unwrap();
    let request = |spec| BuildRequest {
        id: CellId(1),
        spec,
        plan,
        memory_bytes: 4 * MIB,
        memory_max_bytes: 4 * MIB,
        waiting: &[],
    };
    let built = core.build(&request(&mine), |core, _| {
        core.build(&request(&mine), |_, _| image.clone()).unwrap();
        image.clone()
    });
    assert_eq!(built, Err(BuildRefusal::IdInUse));
    assert_eq!(core.inventory().memory.free(), free - 4 * MIB);
    bench.check();
}

#[test]
fn a_core_of_another_cell_or_at_an_occupied_slot_is_not_plugged() {
    let mut bench = Bench::new();
    let (one, other) = (bench.run(1, 1), bench.run(2, 1));
    assert!(bench.core.add_stack_memory(one, NodeId(0)) > 0);
    bench.core.allocate_stacks(one, 2).unwrap();
    let of_other = bench.core.cell(other).unwrap().first_core().unwrap();
    assert_eq!(bench.core.plug_core(one, of_other, 1, NOW), Err(Rejection::WrongCore));
    assert_eq!(bench.core.plug_core(one, CoreId(0), 1, NOW), Err(Rejection::WrongCore), "the supervisor's");
    assert_eq!(bench.core.plug_core(one, CoreId(3), 0, NOW), Err(Rejection::WrongSlot), "it is occupied");
    assert_eq!(bench.core.plug_core(one, CoreId(3), 3, NOW), Err(Rejection::WrongSlot), "it has no stacks");
    bench.core.reserve_cores(&[(CoreId(3), one)]);
    assert_eq!(bench.core.plug_core(one, CoreId(3), 1, NOW), Err(Rejection::WrongCore), "it is reserved");
    bench.core.unreserve_core(CoreId(3));
    bench.core.plug_core(one, CoreId(3), 1, NOW).unwrap();
    assert_eq!(bench.core.plug_core(one, CoreId(3), 2, NOW), Err(Rejection::WrongCore));
    assert_eq!(bench.settle(one), [CoreChange::Arrived]);
    bench.check();
}

#[test]
fn the_first_core_and_cores_of_others_do_not_leave() {
    let mut bench = Bench::new();
    let (one, other) = (bench.run(1, 2), bench.run(2, 2));
    let cores = |bench: &Bench, id| bench.core.cell(id).unwrap().cores().flatten().collect::<Vec<_>>();
    let (mine, theirs) = (cores(&bench, one), cores(&bench, other));
    assert_eq!(bench.core.unplug_core(one, mine[0], NOW), Err(Rejection::WrongCore));
    assert_eq!(bench.core.unplug_core(one, theirs[1], NOW), Err(Rejection::WrongCore));
    bench.core.unplug_core(one, mine[1], NOW).unwrap();
    assert_eq!(bench.settle(one), [CoreChange::Left]);
    assert_eq!(bench.core.inventory().cores.owner(mine[1]), Some(CoreOwner::Free));
    bench.check();
}

#[test]
fn memory_is_unplugged_only_for_the_open_request_and_plugged_only_once_that_is_settled() {
    let mut bench = Bench::new();
    let id = bench.run(1, 1);
    assert_eq!(bench.core.plug_block(id, block(2)), Ok(BlockPlug::Plugged(2 * MIB)));
    let (chunk, _) = bench.core.hardware().state().grown[&id].iter().next().unwrap();
    assert_eq!(bench.core.unplug_memory(id, 0, &[chunk]), Err(Rejection::NoSuchRequest));
    let number = bench.core.request_unplug(id, 2 * MIB).unwrap();
    assert_eq!(bench.core.unplug_memory(id, number + 1, &[chunk]), Err(Rejection::NoSuchRequest));
    assert_eq!(bench.core.unplug_memory(id, number, &[chunk]).unwrap().len_bytes, 2 * MIB);
    assert_eq!(bench.core.unplug_memory(id, number, &[chunk]), Err(Rejection::NoSuchRequest));
    // The cell might still offer the block that it would get now.
    assert_eq!(bench.core.plug_block(id, block(2)), Err(Rejection::NotSettled));
    assert_eq!(bench.core.request_unplug(id, 2 * MIB), Err(Rejection::NotSettled));
    bench.core.cell(id).unwrap().report().offer.acknowledge(number);
    bench.scrub();
    assert_eq!(bench.core.plug_block(id, block(2)), Ok(BlockPlug::Plugged(2 * MIB)));
    bench.check();
}

#[test]
fn the_memory_of_a_cell_with_a_lost_core_is_neither_unplugged_nor_freed() {
    let mut bench = Bench::new();
    let id = bench.run(1, 2);
    let core = bench.core.cell(id).unwrap().movable_cores().next().unwrap();
    bench.core.plug_block(id, block(2)).unwrap();
    let (chunk, _) = bench.core.hardware().state().grown[&id].iter().next().unwrap();
    let number = bench.core.request_unplug(id, 2 * MIB).unwrap();
    bench.core.hardware().state().lost.insert(core);
    bench.core.unplug_core(id, core, NOW).unwrap();
    assert_eq!(bench.settle(id), [CoreChange::Lost]);
    assert_eq!(bench.core.unplug_memory(id, number, &[chunk]), Err(Rejection::CoreAtLarge));
    bench.core.end(id, Vec::new()).unwrap();
    bench.core.release(id).unwrap();
    assert_eq!(bench.core.quarantined_bytes(), 6 * MIB);
    bench.check();
}

fn block(mib: u64) -> BlockRequest {
    BlockRequest { least_bytes: mib * MIB, largest_bytes: mib * MIB, node: NodeId(0) }
}

/// A call of the policy, or an action of a cell or the machine.
#[derive(Clone, Debug)]
enum Call {
    Build { id: u32, cores: u32, mib: u64, network: bool, disk: Option<u8> },
    Start(u32),
    Save(u32),
    End(u32),
    Release(u32),
    AllocateStacks(u32, usize),
    AddStackMemory(u32),
    PlugCore { id: u32, core: u32, slot: usize },
    UnplugCore(u32, u32),
    Settle(u32),
    Expire(u32, u64),
    Obey(u32, usize),
    PlugBlock(u32, u64),
    PlugMemory(u32, u64),
    Answer(u32, u32),
    RequestUnplug(u32, u64),
    Unplug { id: u32, number: u32, own: bool, chunk: u64 },
    Withdraw(u32),
    Acknowledge(u32),
    Examine(u32, usize),
    ReserveCore(u32, u32),
    UnreserveCore(u32),
    ReserveMemory(u64),
    UnreserveMemory(u64),
    TakeStore(u64),
    PutStore,
    Scrub,
    Deaf(bool, bool),
    Lose(u32),
    StickDevices(bool),
    StickCore(bool),
    Fail(Vec<u32>),
    OpenLink { from: u32, to: u32, page: u64 },
    AcceptLink { id: u32, slot: usize, page: u64 },
    Share { id: u32, slot: usize, page: u64 },
    Unshare(u32, usize),
    CloseLink(u32, usize),
    FillSpaces(bool),
    FailAndEnd(Vec<u32>),
}

fn any_call() -> impl Strategy<Value = Call> {
    let id = || 1u32..4;
    let slot = || 0usize..7;
    let core = || 0..=CORES + 1;
    // The machine has two.
    let disk = proptest::option::of(0u8..3);
    prop_oneof![
        (id(), 0u32..4, 0u64..9, any::<bool>(), disk)
            .prop_map(|(id, cores, mib, network, disk)| Call::Build { id, cores, mib, network, disk }),
        id().prop_map(Call::Start),
        id().prop_map(Call::Start),
        id().prop_map(Call::Save),
        id().prop_map(Call::End),
        id().prop_map(Call::Release),
        (id(), slot()).prop_map(|(id, slot)| Call::AllocateStacks(id, slot)),
        id().prop_map(Call::AddStackMemory),
        (id(), core(), slot()).prop_map(|(id, core, slot)| Call::PlugCore { id, core, slot }),
        (id(), core()).prop_map(|(id, core)| Call::UnplugCore(id, core)),
        id().prop_map(Call::Settle),
        (id(), 0u64..20_000_000).prop_map(|(id, ns)| Call::Expire(id, ns)),
        (id(), slot()).prop_map(|(id, slot)| Call::Obey(id, slot)),
        (id(), 0u32..3).prop_map(|(id, order)| Call::PlugBlock(id, 2 << order)),
        (id(), 0u64..9).prop_map(|(id, mib)| Call::PlugMemory(id, mib)),
        (id(), 0u32..3).prop_map(|(id, number)| Call::Answer(id, number)),
        (id(), 0u64..9).prop_map(|(id, mib)| Call::RequestUnplug(id, mib)),
        (id(), 0u32..4, any::<bool>(), 0u64..32).prop_map(|(id, number, own, chunk)| Call::Unplug {
            id,
            number,
            own,
            chunk
        }),
        id().prop_map(Call::Withdraw),
        id().prop_map(Call::Acknowledge),
        (id(), slot()).prop_map(|(id, slot)| Call::Examine(id, slot)),
        (core(), id()).prop_map(|(core, id)| Call::ReserveCore(core, id)),
        core().prop_map(Call::UnreserveCore),
        prop_oneof![0u64..20 * MIB, Just(u64::MAX)].prop_map(Call::ReserveMemory),
        prop_oneof![0u64..20 * MIB, Just(u64::MAX)].prop_map(Call::UnreserveMemory),
        (0u64..5).prop_map(Call::TakeStore),
        Just(Call::PutStore),
        Just(Call::Scrub),
        (any::<bool>(), any::<bool>()).prop_map(|(deaf, defiant)| Call::Deaf(deaf, defiant)),
        core().prop_map(Call::Lose),
        any::<bool>().prop_map(Call::StickDevices),
        any::<bool>().prop_map(Call::StickCore),
        proptest::collection::vec(id(), 1..4).prop_map(Call::Fail),
    ]
}

/// Returns a call about links, or one that ends, moves or endangers a cell with links.
fn any_link_call() -> impl Strategy<Value = Call> {
    let id = || 1u32..4;
    let slot = || 0usize..4;
    let page = || 0u64..1500;
    let stuck = prop_oneof![4 => Just(false), 1 => Just(true)];
    let full = prop_oneof![4 => Just(false), 1 => Just(true)];
    prop_oneof![
        4 => id().prop_map(|id| Call::Build { id, cores: 1, mib: 6, network: false, disk: None }),
        4 => id().prop_map(Call::Start),
        4 => id().prop_map(Call::Save),
        6 => (id(), id(), page()).prop_map(|(from, to, page)| Call::OpenLink { from, to, page }),
        8 => (id(), slot(), page()).prop_map(|(id, slot, page)| Call::AcceptLink { id, slot, page }),
        4 => (id(), slot(), page()).prop_map(|(id, slot, page)| Call::Share { id, slot, page }),
        2 => (id(), slot()).prop_map(|(id, slot)| Call::Unshare(id, slot)),
        3 => (id(), slot()).prop_map(|(id, slot)| Call::CloseLink(id, slot)),
        2 => id().prop_map(Call::End),
        2 => id().prop_map(Call::Release),
        1 => Just(Call::Scrub),
        1 => id().prop_map(|id| Call::RequestUnplug(id, 2)),
        2 => (id(), 1u32..3, 0u64..16).prop_map(|(id, number, chunk)| Call::Unplug { id, number, own: false, chunk }),
        1 => id().prop_map(Call::Acknowledge),
        1 => (1..=CORES).prop_map(Call::Lose),
        1 => stuck.prop_map(Call::StickCore),
        1 => full.prop_map(Call::FillSpaces),
        1 => proptest::collection::vec(id(), 1..4).prop_map(Call::Fail),
        2 => Just(Call::Fail(vec![1, 2, 3])),
        1 => Just(Call::FailAndEnd(vec![1, 2, 3])),
    ]
}

/// Returns a page of a cell's memory, counted from its start, or a page that it may not have.
fn page_of(core: &TrustedCore<FakeMachine>, id: u32, page: u64) -> PhysRange {
    let ranges = core.hardware().state().ranges_of(CellId(id));
    let start = ranges.first().map_or(MEMORY.start.0, |range| range.start.0);
    PhysRange::new(PhysAddr(start + page * 4096), 4096)
}

fn apply(mut bench: Bench, call: &Call) -> Bench {
    let core = &mut bench.core;
    match *call {
        Call::Build { id, cores, mib, network, disk } => {
            let network = if network { NetworkSpec::Dhcp } else { NetworkSpec::None };
            let device = |disk: u8| FakeDevice(FIRST_DISK + disk).location();
            let volume = |disk| VolumeMount {
                device: device(disk),
                name: "data".into(),
                path: "/data".into(),
                access: VolumeAccess::ReadWrite,
            };
            let volumes = disk.map(volume).into_iter().collect();
            let _ = bench.build(id, &CellSpec { network, volumes, ..spec(cores, mib) });
        }
        Call::Start(id) => _ = core.start(CellId(id), vec![1]),
        Call::Save(id) => core.save(CellId(id), vec![2]),
        Call::End(id) => _ = core.end(CellId(id), vec![3]),
        Call::Release(id) => _ = core.release(CellId(id)),
        Call::AllocateStacks(id, slot) => _ = core.allocate_stacks(CellId(id), slot),
        Call::AddStackMemory(id) => _ = core.add_stack_memory(CellId(id), NodeId(0)),
        Call::PlugCore { id, core: plugged, slot } => {
            let _ = core.plug_core(CellId(id), CoreId(plugged), slot, (0, u64::from(plugged) * 1_000_000));
        }
        Call::UnplugCore(id, unplugged) => _ = core.unplug_core(CellId(id), CoreId(unplugged), NOW),
        Call::Settle(id) => _ = bench.settle(CellId(id)),
        Call::Expire(id, now) => _ = core.expire_core_moves(CellId(id), now),
        Call::Obey(id, slot) => {
            if let Some(cell) = core.cell(CellId(id)) {
                let slots = core.hardware().state().slots.get(&CellId(id)).cloned();
                slots.into_iter().for_each(|slots| obeys(cell.report(), &slots, slot));
            }
        }
        Call::PlugBlock(id, mib) => _ = core.plug_block(CellId(id), block(mib)),
        Call::PlugMemory(id, mib) => _ = core.plug_memory(CellId(id), mib * MIB, NodeId(0)),
        Call::Answer(id, number) => core.answer_memory_request(CellId(id), number, Answer::Given),
        Call::RequestUnplug(id, mib) => _ = core.request_unplug(CellId(id), mib * MIB),
        Call::Unplug { id, number, own, chunk } => {
            let any = PhysRange::new(PhysAddr(MEMORY.start.0 + chunk * CHUNK), CHUNK);
            let plugged = core.hardware().state().ranges_of(CellId(id)).last().copied();
            let blocks = [if own { plugged.unwrap_or(any) } else { any }];
            if let Some(cell) = core.cell(CellId(id)) {
                cell.report().offer.make(number, &blocks, 0, Shortfall::None);
            }
            let _ = core.unplug_memory(CellId(id), number, &blocks);
        }
        Call::Withdraw(id) => core.withdraw_unplug(CellId(id)),
        Call::Acknowledge(id) => {
            if let Some(cell) = core.cell(CellId(id)) {
                let state = core.hardware().state();
                // A cell that was adopted with another id has none.
                let request = state.unplug_requests.get(&CellId(id));
                cell.report().offer.acknowledge(request.map_or(0, |request| request.settlement().number));
            }
        }
        Call::Examine(id, slot) => core.cell(CellId(id)).into_iter().for_each(|cell| cell.examine(slot)),
        Call::ReserveCore(reserved, id) => core.reserve_cores(&[(CoreId(reserved), CellId(id))]),
        Call::UnreserveCore(reserved) => core.unreserve_core(CoreId(reserved)),
        Call::ReserveMemory(len_bytes) => core.reserve_memory(len_bytes),
        Call::UnreserveMemory(len_bytes) => core.unreserve_memory(len_bytes),
        Call::TakeStore(mib) => {
            let taken = core.take_store_memory(mib * MIB);
            bench.store.extend(taken);
        }
        Call::PutStore => bench.store.pop().into_iter().for_each(|memory| core.put_store_memory(memory)),
        Call::Scrub => bench.scrub(),
        Call::Deaf(deaf, defiant) => {
            let mut state = core.hardware().state();
            (state.cells_are_deaf, state.cells_defy_force) = (deaf, defiant);
        }
        Call::Lose(lost) => _ = core.hardware().state().lost.insert(CoreId(lost)),
        Call::StickDevices(stick) => core.hardware().state().device_is_stuck = stick,
        Call::StickCore(stick) => core.hardware().state().stuck_core = stick.then_some(0),
        Call::OpenLink { from, to, page } => {
            let memory = page_of(core, from, page);
            let _ = core.open_link(1, (CellId(from), memory), CellId(to), &[0; 24]);
        }
        Call::AcceptLink { id, slot, page } => {
            let memory = page_of(core, id, page);
            let _ = core.accept_link(CellId(id), slot, memory);
        }
        Call::Share { id, slot, page } => {
            let memory = page_of(core, id, page);
            let _ = core.share_over_link(CellId(id), slot, memory, LinkAccess::ReadWrite);
        }
        Call::Unshare(id, slot) => _ = core.unshare_over_link(CellId(id), slot),
        Call::CloseLink(id, slot) => _ = core.close_link(CellId(id), slot),
        Call::FillSpaces(full) => core.hardware().state().spaces_are_full = full,
        Call::Fail(ref ids) => return bench.fail(ids),
        Call::FailAndEnd(ref ids) => return bench.fail_and(ids, true),
    }
    bench
}

fn state(bench: &Bench, id: CellId, slot: usize) -> LinkState {
    bench.core.hardware().state().links[&id].get(slot).unwrap().state()
}

/// Returns a machine with two cells, 1 and 2, that have an open link at slot 0.
fn linked() -> (Bench, CellId, CellId) {
    let mut bench = Bench::new();
    let (one, other) = (bench.run(1, 1), bench.run(2, 1));
    let memory = page_of(&bench.core, 1, 600);
    assert_eq!(
        bench.core.open_link(7, (one, memory), other, b"echo\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"),
        Ok(0)
    );
    assert_eq!((state(&bench, one, 0), state(&bench, other, 0)), (LinkState::Waiting, LinkState::Invited));
    let memory = page_of(&bench.core, 2, 600);
    assert_eq!(bench.core.accept_link(other, 0, memory), Ok(0));
    assert_eq!((state(&bench, one, 0), state(&bench, other, 0)), (LinkState::Open, LinkState::Open));
    (bench, one, other)
}

#[test]
fn each_cell_of_a_link_maps_the_memory_that_the_other_gave_and_loses_it_at_the_end() {
    let (mut bench, one, other) = linked();
    let mapped = |bench: &Bench, id| bench.core.hardware().state().mapped_by(id);
    let (first, second) = (page_of(&bench.core, 1, 600).start, page_of(&bench.core, 2, 600).start);
    assert_eq!((mapped(&bench, one), mapped(&bench, other)), (vec![second], vec![first]));
    let shared = page_of(&bench.core, 1, 700);
    bench.core.share_over_link(one, 0, shared, LinkAccess::ReadWrite).unwrap();
    assert_eq!(mapped(&bench, other), [first, shared.start]);
    bench.core.unshare_over_link(one, 0).unwrap();
    assert_eq!(mapped(&bench, other), [first]);
    bench.core.end(one, Vec::new()).unwrap();
    assert_eq!(mapped(&bench, other), []);
    assert_eq!(state(&bench, other, 0), LinkState::Closed);
    bench.core.release(one).unwrap();
    assert_eq!(bench.core.quarantined_bytes(), 0);
    assert_eq!(bench.core.accept_link(other, 0, second_page()), Err(LinkRefusal::WrongState));
    assert_eq!(bench.core.close_link(other, 0), Ok(0));
    assert_eq!(bench.core.close_link(other, 0), Err(LinkRefusal::WrongState));
    bench.check();
}

fn second_page() -> PhysRange {
    PhysRange::new(PhysAddr(MEMORY.start.0 + 4096), 4096)
}

#[test]
fn a_cell_lends_only_its_own_memory_and_has_a_bounded_number_of_links() {
    let (mut bench, one, other) = linked();
    let foreign = page_of(&bench.core, 2, 600);
    assert_eq!(bench.core.open_link(1, (one, foreign), other, &[0; 24]), Err(LinkRefusal::BadMemory));
    assert_eq!(bench.core.share_over_link(one, 0, foreign, LinkAccess::Read), Err(LinkRefusal::BadMemory));
    let own = page_of(&bench.core, 1, 601);
    assert_eq!(bench.core.open_link(1, (one, own), one, &[0; 24]), Err(LinkRefusal::NoSuchCell));
    assert_eq!(bench.core.open_link(1, (one, own), CellId(9), &[0; 24]), Err(LinkRefusal::NoSuchCell));
    for _ in 1..MAX_LINKS_TO_PEER {
        bench.core.open_link(1, (one, own), other, &[0; 24]).unwrap();
    }
    assert_eq!(bench.core.open_link(1, (one, own), other, &[0; 24]), Err(LinkRefusal::NoSlot));
    assert_eq!(bench.core.close_link(other, 3), Ok(3), "it refuses the invitation");
    assert_eq!(state(&bench, one, 3), LinkState::Closed);
    bench.check();
}

#[test]
fn memory_that_a_lost_core_of_a_peer_may_access_is_never_free() {
    let (mut bench, one, other) = linked();
    let lost = bench.core.cell(other).unwrap().first_core().unwrap();
    bench.core.hardware().state().lost.insert(lost);
    bench.core.end(other, Vec::new()).unwrap();
    bench.core.release(other).unwrap();
    assert_eq!(bench.core.quarantined_bytes(), 4 * MIB);
    let exposed = page_of(&bench.core, 1, 600);
    bench.core.close_link(one, 0).unwrap();
    let again = bench.run(3, 1);
    assert_eq!(bench.core.open_link(1, (one, exposed), again, &[0; 24]), Err(LinkRefusal::BadMemory));
    bench.core.end(one, Vec::new()).unwrap();
    bench.core.release(one).unwrap();
    assert_eq!(bench.core.quarantined_bytes(), 8 * MIB, "the owner's memory stays out of use");
    bench.check();
}

#[test]
fn memory_that_a_core_does_not_give_back_is_reported_until_it_does() {
    let (mut bench, one, other) = linked();
    let shared = page_of(&bench.core, 1, 700);
    bench.core.share_over_link(one, 0, shared, LinkAccess::ReadWrite).unwrap();
    bench.core.hardware().state().stuck_core = Some(0);
    assert_eq!(bench.core.unshare_over_link(one, 0), Err(LinkRefusal::Exposed));
    assert_eq!(bench.core.close_link(other, 0), Err(LinkRefusal::Exposed), "its window stays reserved");
    assert_eq!([one, other].map(|id| state(&bench, id, 0)), [LinkState::Closed; 2]);
    bench.core.hardware().state().stuck_core = None;
    for id in [one, other] {
        assert_eq!(bench.core.close_link(id, 0), Ok(0));
        assert!(bench.core.hardware().state().mapped_by(id).is_empty());
    }
    bench.check();
}

#[test]
fn a_cell_without_memory_for_tables_gets_no_link() {
    let mut bench = Bench::new();
    let (one, other) = (bench.run(1, 1), bench.run(2, 1));
    let memory = page_of(&bench.core, 1, 600);
    let two = PhysRange::new(memory.start, 8192);
    bench.core.open_link(7, (one, two), other, &[0; 24]).unwrap();
    bench.core.hardware().state().spaces_are_full = true;
    let own = page_of(&bench.core, 2, 600);
    assert_eq!(bench.core.accept_link(other, 0, own), Err(LinkRefusal::NoTables));
    assert_eq!((state(&bench, one, 0), state(&bench, other, 0)), (LinkState::Closed, LinkState::Free));
    assert!(bench.core.hardware().state().mapped_by(other).is_empty());
}

#[test]
fn open_links_survive_a_restart_and_incomplete_ones_do_not() {
    let (mut bench, one, other) = linked();
    let shared = page_of(&bench.core, 1, 700);
    bench.core.share_over_link(one, 0, shared, LinkAccess::ReadWrite).unwrap();
    let more = page_of(&bench.core, 1, 601);
    bench.core.open_link(8, (one, more), other, &[0; 24]).unwrap();
    [one, other].into_iter().for_each(|id| bench.core.save(id, Vec::new()));
    let mapped = |bench: &Bench, id| bench.core.hardware().state().mapped_by(id);
    let before = [mapped(&bench, one), mapped(&bench, other)];
    let mut bench = bench.fail(&[1, 2]);
    assert_eq!([mapped(&bench, one), mapped(&bench, other)], before);
    for (slot, expected) in [(0, LinkState::Open), (1, LinkState::Closed)] {
        assert_eq!([one, other].map(|id| state(&bench, id, slot)), [expected; 2], "slot {slot}");
    }
    bench.core.unshare_over_link(one, 0).unwrap();
    assert_eq!(mapped(&bench, other), before[1][..1]);
    bench.core.end(one, Vec::new()).unwrap();
    bench.core.release(one).unwrap();
    assert_eq!((state(&bench, other, 0), bench.core.quarantined_bytes()), (LinkState::Closed, 0));
    assert!(mapped(&bench, other).is_empty());
    bench.check();
}

/// Each of these is the state after a failure in the middle of a change.
#[test]
fn a_restarted_supervisor_closes_links_that_were_in_the_middle_of_a_change() {
    type Change = fn(&Bench, &isola_abi::links::Link);
    let changes: [Change; 5] = [
        |_, link| link.set_state(LinkState::Closed),
        |_, link| link.set_shared(true),
        |bench, link| link.set_lent(LinkPart::Ring, page_of(&bench.core, 1, 601)),
        |bench, link| link.set_lent(LinkPart::Ring, page_of(&bench.core, 2, 600)),
        |bench, link| link.set_lent(LinkPart::Shared, page_of(&bench.core, 1, 601)),
    ];
    for (number, change) in changes.into_iter().enumerate() {
        let (mut bench, one, other) = linked();
        [one, other].into_iter().for_each(|id| bench.core.save(id, Vec::new()));
        let links = bench.core.hardware().state().links[&one].clone();
        change(&bench, links.get(0).unwrap());
        let mut bench = bench.fail(&[1, 2]);
        for id in [one, other] {
            let links = bench.core.hardware().state().links[&id].clone();
            let link = links.get(0).unwrap();
            assert_eq!((link.state(), link.is_shared()), (LinkState::Closed, false), "change {number}");
            assert_eq!(bench.core.close_link(id, 0), Ok(0));
        }
        bench.check();
    }
}

#[test]
fn memory_of_a_cell_that_ends_before_its_peer_is_adopted_is_not_free() {
    let (mut bench, one, other) = linked();
    [one, other].into_iter().for_each(|id| bench.core.save(id, Vec::new()));
    let bench = bench.fail_and(&[1, 2], true);
    assert_eq!(state(&bench, other, 0), LinkState::Closed);
    assert_eq!(bench.core.quarantined_bytes(), 4 * MIB);
    bench.check();
}

#[test]
fn a_recovered_cell_whose_peer_is_dismantled_loses_the_link() {
    for ids in [[9, 2], [1, 9]] {
        let (mut bench, one, other) = linked();
        [one, other].into_iter().for_each(|id| bench.core.save(id, Vec::new()));
        let mut bench = bench.fail(&ids);
        let left = if ids[0] == 9 { other } else { one };
        assert!(bench.core.cell(CellId(9)).is_none(), "its peer knows it by another id");
        assert_eq!(state(&bench, left, 0), LinkState::Closed);
        assert!(bench.core.hardware().state().mapped_by(left).is_empty());
        // The first was dismantled while the other, not adopted yet, could still read its memory.
        assert_eq!(bench.core.quarantined_bytes() > 0, ids[0] == 9);
        let gone = if left == one { other } else { one };
        bench.scrub();
        assert_eq!(bench.run(gone.0, 1), gone, "its id is free");
        bench.check();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// The fake machine checks whenever memory leaves a cell that no core of another cell can access it.
    #[test]
    fn no_sequence_of_calls_frees_memory_that_a_peer_can_access(
        calls in proptest::collection::vec(any_link_call(), 1..80),
    ) {
        let mut bench = Bench::new();
        for id in 1..=3 {
            bench.run(id, 1);
            bench.core.save(CellId(id), Vec::new());
        }
        for call in &calls {
            bench = apply(bench, call);
            bench.check();
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// The fake machine also checks each operation: memory is zero, and slots are vacant.
    #[test]
    fn no_sequence_of_calls_gives_a_resource_two_owners(
        calls in proptest::collection::vec(any_call(), 1..60),
    ) {
        let mut bench = Bench::new();
        for call in &calls {
            bench = apply(bench, call);
            bench.check();
        }
        prop_assert!(bench.core.now_ns() > 0 && bench.core.hardware().now_ns() > 0);
        let spaces = bench.core.cells().filter(|(_, cell)| cell.text().is_some()).count();
        prop_assert_eq!(spaces, bench.core.cells().count());
    }
}
