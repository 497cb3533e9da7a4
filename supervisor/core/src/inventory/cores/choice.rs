//! The placement policies, which choose a cell's cores, as pure logic.
//!
//! All policies see cores as a tree (machine, node, last-level cache, physical core, core), and choose among the free
//! cores that the placement allows. The owners of a core's *siblings* count as well. Each policy makes the first choice
//! that is possible:
//!
//! - `compact`: one node (one of the cell's), without siblings of others; one node; several nodes, without siblings of
//!   others; any cores.
//! - `spread`: core by core; of the physical core with the fewest of the cell's cores, without siblings of others, of
//!   the node and the cache with the fewest of the cell's cores.
//! - `siblings`: physical cores without cores of others, all cores of each; of one node; of several.
//!
//! Among the remaining choices, `compact` and `siblings` prefer the group (node, cache, physical core) that the cell is
//! in already, then the smallest that suffices, then the largest: so few groups are used, and large ones stay whole for
//! cells that need them.

use super::{CoreRefusal, CoreRequest};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use isola_abi::id::{CoreId, NodeId};
use isola_abi::management::{CoreOwner, PlacementPolicy};
use isola_abi::topology::{CacheId, PhysicalCoreId};

/// A core as a candidate.
#[derive(Clone, Debug)]
pub(super) struct Seat {
    pub(super) id: CoreId,
    pub(super) node: NodeId,
    pub(super) cache: CacheId,
    pub(super) physical: PhysicalCoreId,
    pub(super) standing: Standing,
}

/// The owner of a core, from the viewpoint of the cell that gets cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// The core is free and may be chosen.
    Free,
    /// The core is free and must not be chosen.
    Idle,
    /// The cell has the core.
    Own,
    /// Another owner has the core.
    Taken(CoreOwner),
}

/// The worst owner of a core's siblings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum SiblingOwner {
    None,
    /// The supervisor, which mostly halts.
    Supervisor,
    /// Another cell, or a failed core, which may still execute code.
    Others,
}

/// The owners in order of preference.
const SIBLING_OWNERS: [SiblingOwner; 3] =
    [SiblingOwner::None, SiblingOwner::Supervisor, SiblingOwner::Others];

/// A core that may be chosen.
type Candidate<'a> = (&'a Seat, SiblingOwner);

/// A level of the tree that groups cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Level {
    Node,
    Cache,
    Physical,
}

/// A choice to be made.
pub(super) struct Choice {
    seats: Vec<Seat>,
    count: usize,
    policy: PlacementPolicy,
}

impl Choice {
    /// Returns a choice among `seats`, or a refusal if fewer cores than requested may be chosen.
    pub(super) fn new(mut seats: Vec<Seat>, request: &CoreRequest<'_>) -> Result<Self, CoreRefusal> {
        let (count, placement) = (request.count, request.placement);
        check(&seats, request)?;
        for seat in &mut seats {
            let named = placement.ids.is_empty() || placement.ids.contains(&seat.id);
            let there = placement.node.is_none_or(|node| seat.node == node);
            if seat.standing == Standing::Free && !(named && there) {
                seat.standing = Standing::Idle;
            }
        }
        let free = seats.iter().filter(|seat| seat.standing == Standing::Free).count();
        if free >= count {
            return Ok(Self { seats, count, policy: placement.policy });
        }
        let (wanted, free) = (count as u32, free as u32);
        Err(match (placement.ids.as_slice(), placement.node) {
            ([], None) => CoreRefusal::Exhausted { wanted, free },
            ([], Some(node)) => CoreRefusal::NodeExhausted { node, wanted, free },
            (ids, _) => {
                let named = seats.into_iter().filter(|seat| ids.contains(&seat.id));
                let taken = named.filter_map(|seat| match seat.standing {
                    Standing::Taken(owner) => Some((seat.id, owner)),
                    _ => None,
                });
                CoreRefusal::Taken { wanted, taken: taken.collect() }
            }
        })
    }

    /// Chooses the cores.
    pub(super) fn choose(&self) -> Result<Vec<CoreId>, CoreRefusal> {
        if self.count == 0 {
            return Ok(Vec::new());
        }
        let chosen = match self.policy {
            PlacementPolicy::Compact => self.compact(),
            PlacementPolicy::Spread => self.spread(),
            PlacementPolicy::Siblings => self.siblings()?,
        };
        Ok(chosen.into_iter().map(|seat| seat.id).collect())
    }

    fn own(&self) -> impl Iterator<Item = &Seat> {
        self.seats.iter().filter(|seat| seat.standing == Standing::Own)
    }

    /// Returns the cores that may be chosen.
    fn candidates(&self) -> Vec<Candidate<'_>> {
        let free = self.seats.iter().filter(|seat| seat.standing == Standing::Free);
        free.map(|seat| (seat, self.sibling_owner(seat))).collect()
    }

    fn sibling_owner(&self, seat: &Seat) -> SiblingOwner {
        let siblings = self.seats.iter().filter(|other| other.physical == seat.physical);
        let worst = siblings.map(|other| match other.standing {
            Standing::Taken(CoreOwner::Supervisor) => SiblingOwner::Supervisor,
            Standing::Taken(_) => SiblingOwner::Others,
            Standing::Free | Standing::Idle | Standing::Own => SiblingOwner::None,
        });
        worst.max().unwrap_or(SiblingOwner::None)
    }

    fn compact(&self) -> Vec<&Seat> {
        let all = self.candidates();
        let nodes: BTreeSet<NodeId> = self.own().map(|seat| seat.node).collect();
        let up_to = |worst| all.iter().copied().filter(|(_, owner)| *owner <= worst).collect::<Vec<_>>();
        let one_node = SIBLING_OWNERS.iter().find_map(|worst| {
            let mut allowed = up_to(*worst);
            allowed.retain(|(seat, _)| nodes.is_empty() || nodes.contains(&seat.node));
            let groups = group(&allowed, Level::Node);
            groups.into_values().filter(|group| group.len() >= self.count).min_by_key(Vec::len)
        });
        let several =
            || SIBLING_OWNERS.iter().map(|worst| up_to(*worst)).find(|allowed| allowed.len() >= self.count);
        let allowed = one_node.or_else(several).unwrap_or_default();
        let mut chosen = Chosen::beginning_with(self.own());
        for worst in SIBLING_OWNERS {
            let these: Vec<&Seat> =
                allowed.iter().filter(|(_, owner)| *owner == worst).map(|(seat, _)| *seat).collect();
            chosen.gather(&these, self.count - chosen.new.len(), Some(Level::Node));
        }
        chosen.new
    }

    fn spread(&self) -> Vec<&Seat> {
        let mut left = self.candidates();
        let mut chosen = Chosen::beginning_with(self.own());
        for _ in 0..self.count {
            let best = left.iter().enumerate().min_by_key(|(_, (seat, owner))| {
                let have =
                    |level| chosen.all.iter().filter(|other| key(other, level) == key(seat, level)).count();
                (have(Level::Physical), *owner, have(Level::Node), have(Level::Cache), seat.id)
            });
            let Some((index, (seat, _))) = best else { break };
            chosen.add(seat);
            left.swap_remove(index);
        }
        chosen.new
    }

    fn siblings(&self) -> Result<Vec<&Seat>, CoreRefusal> {
        let whole = self.whole_cores();
        let nodes: BTreeSet<NodeId> = self.own().map(|seat| seat.node).collect();
        let mut by_node: BTreeMap<NodeId, Vec<Vec<&Seat>>> = BTreeMap::new();
        for unit in &whole {
            by_node.entry(unit[0].node).or_default().push(unit.clone());
        }
        let size = |units: &[Vec<&Seat>]| units.iter().map(Vec::len).sum::<usize>();
        let one_node = by_node
            .into_iter()
            .filter(|(node, units)| {
                (nodes.is_empty() || nodes.contains(node)) && sums(units)[0] & 1 << self.count != 0
            })
            .map(|(_, units)| units)
            .min_by_key(|units| size(units));
        let reachable = sums(&whole)[0];
        if one_node.is_none() && reachable & 1 << self.count == 0 {
            let below = reachable & ((1 << self.count) - 1);
            let above = reachable >> self.count;
            return Err(CoreRefusal::NotWhole {
                wanted: self.count as u32,
                below: u128::BITS - 1 - below.leading_zeros(),
                above: (above != 0).then(|| self.count as u32 + above.trailing_zeros()),
            });
        }
        let mut units = one_node.unwrap_or(whole);
        let own_caches: BTreeSet<CacheId> = self.own().map(|seat| seat.cache).collect();
        let mut sizes: BTreeMap<CacheId, usize> = BTreeMap::new();
        units.iter().for_each(|unit| *sizes.entry(unit[0].cache).or_default() += unit.len());
        units.sort_by_key(|unit| {
            let cache = unit[0].cache;
            (!own_caches.contains(&cache), fit(sizes[&cache], self.count), cache, unit[0].physical)
        });
        let reach = sums(&units);
        let mut left = self.count;
        let mut chosen = Vec::new();
        for (index, unit) in units.iter().enumerate() {
            if unit.len() <= left && reach[index + 1] & 1 << (left - unit.len()) != 0 {
                left -= unit.len();
                chosen.extend(unit);
            }
        }
        Ok(chosen)
    }

    /// Returns the free cores of each physical core without cores of others, if all of them may be chosen.
    fn whole_cores(&self) -> Vec<Vec<&Seat>> {
        let mut cores: BTreeMap<PhysicalCoreId, Vec<&Seat>> = BTreeMap::new();
        self.seats.iter().for_each(|seat| cores.entry(seat.physical).or_default().push(seat));
        cores.retain(|_, seats| {
            let mine = |seat: &&Seat| matches!(seat.standing, Standing::Free | Standing::Own);
            seats.iter().all(mine) && seats.iter().any(|seat| seat.standing == Standing::Free)
        });
        cores.values_mut().for_each(|seats| seats.retain(|seat| seat.standing == Standing::Free));
        cores.into_values().collect()
    }
}

/// The chosen cores, and the cell's earlier ones.
struct Chosen<'a> {
    all: Vec<&'a Seat>,
    new: Vec<&'a Seat>,
}

impl<'a> Chosen<'a> {
    fn beginning_with(own: impl Iterator<Item = &'a Seat>) -> Self {
        Self { all: own.collect(), new: Vec::new() }
    }

    fn add(&mut self, seat: &'a Seat) {
        self.all.push(seat);
        self.new.push(seat);
    }

    /// Chooses `count` of `seats`, or all if there are fewer, in as few groups of `level` as possible; likewise at the
    /// levels below.
    fn gather(&mut self, seats: &[&'a Seat], count: usize, level: Option<Level>) {
        let mut left = count.min(seats.len());
        let Some(level) = level else { return seats[..left].iter().for_each(|seat| self.add(seat)) };
        let mut groups: BTreeMap<u32, Vec<&Seat>> = BTreeMap::new();
        seats.iter().for_each(|seat| groups.entry(key(seat, level)).or_default().push(seat));
        while left > 0 {
            let mut order: Vec<_> = groups
                .iter()
                .map(|(group, seats)| {
                    let is_in = self.all.iter().any(|seat| key(seat, level) == *group);
                    (!is_in, fit(seats.len(), left), *group)
                })
                .collect();
            order.sort_unstable();
            let Some(seats) = order.first().and_then(|(_, _, group)| groups.remove(group)) else { return };
            self.gather(&seats, left, level.below());
            left -= left.min(seats.len());
        }
    }
}

impl Level {
    fn below(self) -> Option<Self> {
        match self {
            Self::Node => Some(Self::Cache),
            Self::Cache => Some(Self::Physical),
            Self::Physical => None,
        }
    }
}

/// Returns a key that orders groups of `len` cores by preference for `wanted` cores: the smallest that suffices first,
/// then the largest.
fn fit(len: usize, wanted: usize) -> (bool, usize) {
    if len >= wanted { (false, len) } else { (true, usize::MAX - len) }
}

fn key(seat: &Seat, level: Level) -> u32 {
    match level {
        Level::Node => seat.node.0,
        Level::Cache => seat.cache.0,
        Level::Physical => seat.physical.0,
    }
}

fn group<'a>(candidates: &[Candidate<'a>], level: Level) -> BTreeMap<u32, Vec<Candidate<'a>>> {
    let mut groups: BTreeMap<u32, Vec<Candidate<'a>>> = BTreeMap::new();
    candidates
        .iter()
        .for_each(|&(seat, owner)| groups.entry(key(seat, level)).or_default().push((seat, owner)));
    groups
}

/// Returns, for each index, the numbers of cores below 128 that the units from there on can sum up to, as a bit set. A
/// cell has at most 64 cores ([`isola_abi::id::MAX_CORES`]), so it cannot ask for more.
fn sums(units: &[Vec<&Seat>]) -> Vec<u128> {
    let mut sums = alloc::vec![1u128; units.len() + 1];
    for (index, unit) in units.iter().enumerate().rev() {
        sums[index] = sums[index + 1] | sums[index + 1].checked_shl(unit.len() as u32).unwrap_or(0);
    }
    sums
}

/// Refuses requests that a machine of this topology can never satisfy.
fn check(seats: &[Seat], request: &CoreRequest<'_>) -> Result<(), CoreRefusal> {
    let placement = request.placement;
    let nodes: BTreeSet<NodeId> = seats.iter().map(|seat| seat.node).collect();
    if let Some(node) = placement.node.filter(|node| !nodes.contains(node)) {
        return Err(CoreRefusal::NoSuchNode { node, nodes: nodes.last().map_or(0, |last| last.0 + 1) });
    }
    for id in &placement.ids {
        let Some(seat) = seats.iter().find(|seat| seat.id == *id) else {
            return Err(CoreRefusal::NoSuchCore { id: *id, cores: seats.len() as u32 });
        };
        if placement.node.is_some_and(|node| seat.node != node) {
            return Err(CoreRefusal::NotOnNode { id: *id, node: seat.node });
        }
    }
    Ok(())
}
