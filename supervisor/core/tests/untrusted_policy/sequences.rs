//! Sequences of any calls.

use crate::bench::{Bench, CORES, NOW, block, page_of, spec};
use isola_abi::growth::Answer;
use isola_abi::id::{CellId, CoreId, NodeId, PhysAddr, PhysRange};
use isola_abi::links::{LinkAccess, Survival};
use isola_abi::management::{CellSpec, NetworkSpec};
use isola_abi::unplug::Shortfall;
use isola_abi::volume::{VolumeAccess, VolumeMount};
use isola_supervisor_core::Hardware;
use isola_supervisor_core::inventory::CHUNK;
use isola_supervisor_fake::report::obeys;
use isola_supervisor_fake::{FIRST_DISK, FakeDevice, MEMORY, MIB};
use proptest::prelude::*;

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
    ShareSurviving { id: u32, slot: usize, page: u64 },
    Keep { id: u32, slot: usize, page: u64 },
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
        4 => (id(), slot(), page()).prop_map(|(id, slot, page)| Call::ShareSurviving { id, slot, page }),
        4 => (id(), slot(), page()).prop_map(|(id, slot, page)| Call::Keep { id, slot, page }),
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
            let _ = core.share_over_link(CellId(id), slot, memory, LinkAccess::ReadWrite, Survival::Revoked);
        }
        Call::ShareSurviving { id, slot, page } => {
            let (memory, survival) = (page_of(core, id, page), Survival::Permitted);
            let _ = core.share_over_link(CellId(id), slot, memory, LinkAccess::Read, survival);
        }
        Call::Keep { id, slot, page } => {
            let memory = page_of(core, id, page);
            let _ = core.keep_over_link(CellId(id), slot, memory);
        }
        Call::Unshare(id, slot) => _ = core.unshare_over_link(CellId(id), slot),
        Call::CloseLink(id, slot) => _ = core.close_link(CellId(id), slot),
        Call::FillSpaces(full) => core.hardware().state().spaces_are_full = full,
        Call::Fail(ref ids) => return bench.fail(ids),
        Call::FailAndEnd(ref ids) => return bench.fail_and(ids, true),
    }
    bench
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
