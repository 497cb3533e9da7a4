//! Single calls at the wrong time, or about resources of others.

use crate::bench::{Bench, NOW, block, spec};
use isola_abi::id::{CellId, CoreId, NodeId};
use isola_abi::management::CoreOwner;
use isola_supervisor_core::trusted_core::{
    BlockPlug, BuildRefusal, BuildRequest, CoreChange, Rejection, Released,
};
use isola_supervisor_fake::MIB;

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
