//! The guarantees of the placement policies, on machines of many topologies; and exactly one owner for every core.

use super::*;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec;
use isola_abi::management::PlacementPolicy::{self, Compact, Siblings, Spread};
use isola_abi::topology::{CacheId, PackageId, PhysicalCoreId};
use proptest::prelude::*;

#[derive(Debug)]
struct Core(CoreId);

impl CoreToken for Core {
    fn id(&self) -> CoreId {
        self.0
    }
}

/// The threads of each physical core, by last-level cache, by node.
type Shape = Vec<Vec<Vec<u32>>>;

const FIRST: CellId = CellId(1);
const SECOND: CellId = CellId(2);

/// Returns a machine of that topology, whose core 0 is the supervisor's. Siblings have adjacent numbers.
fn machine(shape: &Shape) -> Cores<Core> {
    let mut cores = Cores::new();
    let (mut id, mut cache, mut physical) = (0, 0, 0);
    for (node, caches) in shape.iter().enumerate() {
        for threads in caches {
            for count in threads {
                for _ in 0..*count {
                    let site = CoreSite {
                        package: PackageId(node as u32),
                        cache: CacheId(cache),
                        physical: PhysicalCoreId(physical),
                    };
                    match id {
                        0 => cores.add_supervisor(CoreId(0), NodeId(0), site),
                        id => cores.add(Core(CoreId(id)), NodeId(node as u32), site),
                    }
                    id += 1;
                }
                physical += 1;
            }
            cache += 1;
        }
    }
    cores
}

/// Returns a machine with two nodes, each with a cache and four physical cores of two threads: 0 to 7, 8 to 15.
fn two_nodes() -> Cores<Core> {
    machine(&vec![vec![vec![2; 4]]; 2])
}

fn placed(policy: PlacementPolicy) -> CorePlacement {
    CorePlacement { policy, ..CorePlacement::default() }
}

fn named(ids: &[u32]) -> CorePlacement {
    CorePlacement { ids: ids.iter().copied().map(CoreId).collect(), ..CorePlacement::default() }
}

/// Gives cores to `cell`. Returns their ids.
fn take(
    cores: &mut Cores<Core>,
    count: usize,
    placement: &CorePlacement,
    cell: CellId,
) -> Result<Vec<u32>, CoreRefusal> {
    let taken = cores.take(&CoreRequest { count, placement }, cell)?;
    Ok(taken.iter().map(|core| core.0.0).collect())
}

#[test]
fn a_compact_cell_shares_a_node_and_its_siblings_are_together() {
    let mut cores = two_nodes();
    assert_eq!(take(&mut cores, 5, &placed(Compact), FIRST), Ok(vec![2, 3, 4, 5, 6]));
    assert_eq!(take(&mut cores, 4, &placed(Compact), SECOND), Ok(vec![8, 9, 10, 11]));
}

#[test]
fn a_compact_cell_that_grows_takes_its_own_siblings_first_and_stays_on_its_node() {
    let mut cores = two_nodes();
    assert_eq!(take(&mut cores, 1, &placed(Compact), FIRST), Ok(vec![2]));
    assert_eq!(take(&mut cores, 1, &placed(Compact), FIRST), Ok(vec![3]));
    assert_eq!(take(&mut cores, 5, &placed(Compact), FIRST), Ok(vec![4, 5, 6, 7, 1]));
    assert_eq!(take(&mut cores, 1, &placed(Compact), FIRST), Ok(vec![8]));
}

#[test]
fn a_small_cell_prefers_a_sibling_of_the_supervisor_to_one_of_another_cell() {
    let mut cores = machine(&vec![vec![vec![2, 2]]]);
    assert_eq!(take(&mut cores, 1, &placed(Compact), FIRST), Ok(vec![2]));
    assert_eq!(take(&mut cores, 1, &placed(Compact), SECOND), Ok(vec![1]));
    assert_eq!(take(&mut cores, 1, &placed(Compact), CellId(3)), Ok(vec![3]));
}

#[test]
fn a_small_cell_leaves_the_emptier_node_and_cache_to_larger_ones() {
    let mut cores = machine(&vec![vec![vec![1; 2]], vec![vec![1; 3], vec![1; 2]]]);
    assert_eq!(take(&mut cores, 1, &placed(Compact), FIRST), Ok(vec![1]));
    assert_eq!(take(&mut cores, 2, &placed(Compact), SECOND), Ok(vec![5, 6]));
}

#[test]
fn a_spread_cell_gets_physical_cores_across_nodes_before_siblings() {
    let mut cores = two_nodes();
    assert_eq!(take(&mut cores, 4, &placed(Spread), FIRST), Ok(vec![2, 8, 4, 10]));
    assert_eq!(take(&mut cores, 4, &placed(Spread), FIRST), Ok(vec![6, 12, 14, 1]));
    assert_eq!(take(&mut cores, 2, &placed(Spread), FIRST), Ok(vec![3, 9]));
}

#[test]
fn a_cell_with_whole_physical_cores_shares_none() {
    let mut cores = two_nodes();
    assert_eq!(take(&mut cores, 1, &placed(Compact), FIRST), Ok(vec![2]));
    assert_eq!(take(&mut cores, 4, &placed(Siblings), SECOND), Ok(vec![4, 5, 6, 7]));
    let refused = |wanted, below, above| Err(CoreRefusal::NotWhole { wanted, below, above });
    assert_eq!(take(&mut cores, 3, &placed(Siblings), SECOND), refused(3, 2, Some(4)));
    assert_eq!(take(&mut cores, 10, &placed(Siblings), SECOND), refused(10, 8, None));
}

#[test]
fn physical_cores_of_one_and_of_two_threads_are_combined_to_the_wanted_number() {
    let mut cores = machine(&vec![vec![vec![1, 2, 2, 2, 1]]]);
    assert_eq!(take(&mut cores, 3, &placed(Siblings), FIRST), Ok(vec![1, 2, 7]));
}

#[test]
fn named_cores_are_given_or_the_refusal_names_their_owners() {
    let mut cores = two_nodes();
    assert_eq!(
        take(&mut cores, 3, &named(&[5, 12, 7]), FIRST).map(BTreeSet::from_iter),
        Ok([5, 7, 12].into())
    );
    let taken = vec![(CoreId(0), CoreOwner::Supervisor), (CoreId(5), CoreOwner::Cell(FIRST))];
    assert_eq!(take(&mut cores, 3, &named(&[0, 5, 6]), SECOND), Err(CoreRefusal::Taken { wanted: 3, taken }));
    assert_eq!(
        take(&mut cores, 1, &named(&[0, 5, 6]), SECOND),
        Ok(vec![6]),
        "one of the named cores is free"
    );
    assert_eq!(
        take(&mut cores, 1, &named(&[16]), SECOND),
        Err(CoreRefusal::NoSuchCore { id: CoreId(16), cores: 16 })
    );
}

#[test]
fn a_cell_that_has_all_named_cores_gets_a_refusal_without_owners() {
    let mut cores = two_nodes();
    take(&mut cores, 2, &named(&[4, 5]), FIRST).unwrap();
    let taken = CoreRefusal::Taken { wanted: 1, taken: Vec::new() };
    assert_eq!(take(&mut cores, 1, &named(&[4, 5]), FIRST), Err(taken));
}

#[test]
fn all_cores_are_on_the_named_node() {
    let mut cores = two_nodes();
    let on = |node, ids: &[u32]| CorePlacement { node: Some(NodeId(node)), ..named(ids) };
    assert_eq!(take(&mut cores, 2, &on(0, &[]), FIRST), Ok(vec![2, 3]));
    let exhausted = CoreRefusal::NodeExhausted { node: NodeId(0), wanted: 6, free: 5 };
    assert_eq!(take(&mut cores, 6, &on(0, &[]), SECOND), Err(exhausted));
    assert_eq!(
        take(&mut cores, 1, &on(2, &[]), SECOND),
        Err(CoreRefusal::NoSuchNode { node: NodeId(2), nodes: 2 })
    );
    let elsewhere = CoreRefusal::NotOnNode { id: CoreId(4), node: NodeId(0) };
    assert_eq!(take(&mut cores, 1, &on(1, &[4]), SECOND), Err(elsewhere));
}

#[test]
fn the_remaining_cores_of_a_shrunk_cell_have_the_best_placement() {
    let mut cores = two_nodes();
    take(&mut cores, 4, &placed(Compact), FIRST).unwrap();
    take(&mut cores, 4, &placed(Compact), FIRST).unwrap();
    let leave = |cores: &Cores<Core>, count, policy| {
        let placement = placed(policy);
        let left = cores.choose_to_leave(&CoreRequest { count, placement: &placement }, FIRST);
        left.map(|left| left.iter().map(|id| id.0).collect::<Vec<u32>>())
    };
    assert_eq!(leave(&cores, 1, Compact), Ok(vec![9]), "from the node with the fewest of the cell's cores");
    let refused = CoreRefusal::NotWhole { wanted: 7, below: 6, above: Some(8) };
    assert_eq!(leave(&cores, 1, Siblings), Err(refused));
    assert_eq!(leave(&cores, 6, Spread).map(|left| left.len()), Ok(6));
    assert_eq!(leave(&cores, 9, Compact).map(|left| left.len()), Ok(8), "at most all cores leave");
}

#[test]
fn a_lost_core_is_never_given_again_nor_are_its_siblings_as_whole_cores() {
    let mut cores = machine(&vec![vec![vec![1, 2]]]);
    take(&mut cores, 1, &placed(Compact), FIRST).unwrap();
    cores.lose(CoreId(1));
    assert_eq!(cores.info()[1].owner, CoreOwner::Failed);
    let refused = CoreRefusal::NotWhole { wanted: 1, below: 0, above: None };
    assert_eq!(take(&mut cores, 1, &placed(Siblings), SECOND), Err(refused));
    let taken = vec![(CoreId(1), CoreOwner::Failed)];
    assert_eq!(take(&mut cores, 1, &named(&[1]), SECOND), Err(CoreRefusal::Taken { wanted: 1, taken }));
}

/// The number of a cell's cores by node and by physical core.
struct HeldCores {
    nodes: BTreeMap<NodeId, usize>,
    physical: BTreeMap<PhysicalCoreId, usize>,
}

fn held(info: &[CoreInfo], ids: &[CoreId]) -> HeldCores {
    let mut held = HeldCores { nodes: BTreeMap::new(), physical: BTreeMap::new() };
    for core in info.iter().filter(|core| ids.contains(&core.id)) {
        *held.nodes.entry(core.node).or_default() += 1;
        *held.physical.entry(core.site.physical).or_default() += 1;
    }
    held
}

fn owners(info: &[CoreInfo], physical: PhysicalCoreId) -> impl Iterator<Item = &CoreInfo> {
    info.iter().filter(move |core| core.site.physical == physical)
}

fn is_free(core: &CoreInfo) -> bool {
    core.owner == CoreOwner::Free
}

/// Checks the guarantees of a policy for a cell's first cores, `ids`, on a machine whose state was `before`.
fn promise(before: &[CoreInfo], ids: &[CoreId], placement: &CorePlacement) -> Result<(), TestCaseError> {
    let allowed = |core: &&CoreInfo| {
        is_free(core)
            && placement.node.is_none_or(|node| node == core.node)
            && (placement.ids.is_empty() || placement.ids.contains(&core.id))
    };
    let allowed: Vec<&CoreInfo> = before.iter().filter(allowed).collect();
    prop_assert!(
        ids.iter().all(|id| allowed.iter().any(|core| core.id == *id)),
        "the placement does not allow a core"
    );
    if ids.is_empty() {
        return Ok(());
    }
    let got = held(before, ids);
    let undisturbed = |core: &CoreInfo| owners(before, core.site.physical).all(is_free);
    let alone =
        ids.iter().filter(|id| before.iter().any(|core| core.id == **id && undisturbed(core))).count();
    match placement.policy {
        Compact => {
            let nodes: BTreeSet<NodeId> = allowed.iter().map(|core| core.node).collect();
            let on = |node: NodeId, quiet: bool| {
                allowed.iter().filter(|core| core.node == node && (!quiet || undisturbed(core))).count()
            };
            if nodes.iter().any(|node| on(*node, false) >= ids.len()) {
                prop_assert_eq!(got.nodes.len(), 1, "one node has enough");
            }
            if nodes.iter().any(|node| on(*node, true) >= ids.len()) {
                prop_assert_eq!(alone, ids.len(), "enough cores have no siblings of others");
            }
        }
        Spread => {
            let all: Vec<CoreId> = allowed.iter().map(|core| core.id).collect();
            let possible = held(before, &all);
            prop_assert_eq!(got.physical.len(), ids.len().min(possible.physical.len()));
            let quiet: BTreeSet<_> =
                allowed.iter().filter(|core| undisturbed(core)).map(|core| core.site.physical).collect();
            prop_assert!(alone >= ids.len().min(quiet.len()), "unused physical cores come first");
            if quiet.len() >= ids.len() {
                let room = |node: &NodeId| {
                    let there = allowed.iter().filter(|core| core.node == *node && undisturbed(core));
                    there.map(|core| core.site.physical).collect::<BTreeSet<_>>().len()
                };
                let most = got.nodes.values().max().copied().unwrap_or(0);
                for node in possible.nodes.keys() {
                    let has = got.nodes.get(node).copied().unwrap_or(0);
                    prop_assert!(
                        has + 1 >= most || has == room(node),
                        "the cores are divided evenly among nodes"
                    );
                }
            }
        }
        Siblings => {
            for (physical, count) in &got.physical {
                prop_assert_eq!(owners(before, *physical).count(), *count, "not a whole physical core");
            }
        }
    }
    Ok(())
}

/// Returns whether a refusal is correct: no choice of cores satisfies the request.
fn is_impossible(before: &[CoreInfo], count: usize, placement: &CorePlacement) -> bool {
    let allowed = |core: &CoreInfo| {
        is_free(core)
            && placement.node.is_none_or(|node| node == core.node)
            && (placement.ids.is_empty() || placement.ids.contains(&core.id))
    };
    let exists = |id: &CoreId| {
        before.iter().any(|core| core.id == *id && placement.node.is_none_or(|node| node == core.node))
    };
    let named = placement.ids.iter().all(exists)
        && placement.node.is_none_or(|node| before.iter().any(|core| core.node == node));
    if !named || before.iter().filter(|core| allowed(core)).count() < count {
        return true;
    }
    if placement.policy != Siblings {
        return false;
    }
    let physical: BTreeSet<_> = before.iter().map(|core| core.site.physical).collect();
    let whole = physical.into_iter().filter(|physical| owners(before, *physical).all(allowed));
    let mut sums = BTreeSet::from([0]);
    for size in whole.map(|physical| owners(before, physical).count()) {
        sums.extend(sums.clone().into_iter().map(|sum| sum + size));
    }
    !sums.contains(&count)
}

fn shapes() -> impl Strategy<Value = Shape> {
    let threads = prop_oneof![Just(1u32), Just(2), Just(2), Just(4)];
    let cache = prop::collection::vec(threads, 1..4);
    let node = prop::collection::vec(cache, 1..3);
    prop::collection::vec(node, 1..4)
}

fn placements() -> impl Strategy<Value = CorePlacement> {
    (
        prop_oneof![Just(Compact), Just(Spread), Just(Siblings)],
        prop_oneof![4 => Just(None), 1 => (0u32..4).prop_map(|node| Some(NodeId(node)))],
        prop_oneof![3 => Just(Vec::new()), 1 => prop::collection::btree_set(0u32..24, 1..12).prop_map(|ids| {
            ids.into_iter().map(CoreId).collect()
        })],
    )
        .prop_map(|(policy, node, ids)| CorePlacement { policy, node, ids })
}

#[derive(Clone, Debug)]
enum Step {
    Create(usize, CorePlacement),
    Grow(usize, usize),
    Shrink(usize, usize),
    Destroy(usize),
    Lose(usize),
}

fn steps() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0usize..8, placements()).prop_map(|(count, placement)| Step::Create(count, placement)),
        3 => (0usize..8, 0usize..4).prop_map(|(cell, count)| Step::Grow(cell, count)),
        3 => (0usize..8, 0usize..4).prop_map(|(cell, count)| Step::Shrink(cell, count)),
        3 => (0usize..8).prop_map(Step::Destroy),
        1 => (0usize..8).prop_map(Step::Lose),
    ]
}

struct Holder {
    cell: CellId,
    placement: CorePlacement,
    cores: Vec<Core>,
}

proptest! {
    #[test]
    fn every_core_has_exactly_one_owner_and_policies_keep_their_guarantees(
        shape in shapes(),
        steps in prop::collection::vec(steps(), 0..40),
    ) {
        let mut cores = machine(&shape);
        let mut holders: Vec<Holder> = Vec::new();
        let mut lost = BTreeSet::new();
        for (number, step) in steps.into_iter().enumerate() {
            let before = cores.info();
            match step {
                Step::Create(count, placement) => {
                    let cell = CellId(number as u32);
                    match cores.take(&CoreRequest { count, placement: &placement }, cell) {
                        Ok(taken) => {
                            prop_assert_eq!(taken.len(), count);
                            let ids: Vec<CoreId> = taken.iter().map(CoreToken::id).collect();
                            promise(&before, &ids, &placement)?;
                            holders.push(Holder { cell, placement, cores: taken });
                        }
                        Err(refusal) => prop_assert!(is_impossible(&before, count, &placement), "{refusal:?}"),
                    }
                }
                Step::Grow(which, count) if !holders.is_empty() => {
                    let which = which % holders.len();
                    let holder = &mut holders[which];
                    if let Ok(more) = cores.take(&CoreRequest { count, placement: &holder.placement }, holder.cell) {
                        prop_assert_eq!(more.len(), count);
                        holder.cores.extend(more);
                    }
                }
                Step::Shrink(which, count) if !holders.is_empty() => {
                    let which = which % holders.len();
                    let holder = &mut holders[which];
                    let request = CoreRequest { count, placement: &holder.placement };
                    if let Ok(leaving) = cores.choose_to_leave(&request, holder.cell) {
                        prop_assert_eq!(leaving.len(), count.min(holder.cores.len()));
                        let (leaving, staying): (Vec<Core>, _) =
                            core::mem::take(&mut holder.cores).into_iter().partition(|core| leaving.contains(&core.0));
                        holder.cores = staying;
                        leaving.into_iter().for_each(|core| cores.put(core));
                    } else {
                        prop_assert_eq!(holder.placement.policy, Siblings);
                    }
                }
                Step::Destroy(which) if !holders.is_empty() => {
                    let which = which % holders.len();
                    holders.swap_remove(which).cores.into_iter().for_each(|core| cores.put(core));
                }
                Step::Lose(which) if !holders.is_empty() => {
                    let which = which % holders.len();
                    if let Some(core) = holders[which].cores.pop() {
                        cores.lose(core.0);
                        lost.insert(core.0);
                    }
                }
                _ => {}
            }
            let after = cores.info();
            for info in after.iter().skip(1) {
                let has = |holder: &&Holder| holder.cores.iter().any(|core| core.0 == info.id);
                let owners: Vec<CoreOwner> =
                    holders.iter().filter(has).map(|holder| CoreOwner::Cell(holder.cell)).collect();
                match &info.owner {
                    CoreOwner::Free => prop_assert!(owners.is_empty() && !lost.contains(&info.id)),
                    CoreOwner::Failed => prop_assert!(owners.is_empty() && lost.contains(&info.id)),
                    owner => prop_assert_eq!(owners, [*owner]),
                }
            }
            for holder in holders.iter().filter(|holder| holder.placement.policy == Siblings) {
                for core in &holder.cores {
                    let here = after.iter().find(|info| info.id == core.0).unwrap();
                    let strangers = owners(&after, here.site.physical).filter(|info| {
                        matches!(info.owner, CoreOwner::Supervisor)
                            || matches!(info.owner, CoreOwner::Cell(cell) if cell != holder.cell)
                    });
                    prop_assert_eq!(strangers.count(), 0, "another cell has a sibling of a whole core");
                }
            }
        }
    }
}
