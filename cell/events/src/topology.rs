//! The order in which work is best spread over the cell's cores (multicore IncludeOS III).
//!
//! Siblings share the pipelines of one physical core: two events there take nearly as long as one after the other,
//! while another physical core is idle. So work goes to physical cores first, near ones before far ones, and to their
//! siblings when all physical cores have some.

use crate::vcore_runner::present_cores;
use alloc::vec::Vec;
use isola_abi::descriptor::Core;
use isola_ebbs::{current_core, platform};
use isola_platform::CoreIndex;

/// Returns the cell's cores in the order in which the pieces of a computation are best assigned to them: the calling
/// core, then one core of each other physical core, nearest first (same last-level cache, same node, elsewhere), then
/// their siblings.
///
/// Costs an allocation and, in a cell of many cores, some thousand instructions: for work that is worth waking cores
/// for.
pub fn spreading_order() -> Vec<CoreIndex> {
    order(present(), current_core())
}

/// Returns the present cores on the physical core of `core`, `core` included.
pub fn siblings(core: CoreIndex) -> impl Iterator<Item = CoreIndex> {
    let physical = processor(core).map(|core| core.site.physical);
    present().filter(move |(_, other)| Some(other.site.physical) == physical).map(|(index, _)| index)
}

/// Returns the slots with a core at present, and these cores' descriptions.
fn present() -> impl Iterator<Item = (CoreIndex, Core)> {
    present_cores().filter_map(|index| Some((index, processor(index)?)))
}

/// Returns the description of the core at the slot of `core`.
fn processor(core: CoreIndex) -> Option<Core> {
    let slot = core.0 as usize;
    platform().core_slots().core(slot).or_else(|| platform().descriptor().cores.get(slot).copied())
}

/// See [`spreading_order`]. `start` is the calling core; equally good cores follow it in cyclic order.
fn order(cores: impl Iterator<Item = (CoreIndex, Core)>, start: CoreIndex) -> Vec<CoreIndex> {
    let mut cores: Vec<(CoreIndex, Core)> = cores.collect();
    let first = cores.iter().position(|(index, _)| *index == start).unwrap_or(0);
    cores.rotate_left(first);
    let Some(&(_, here)) = cores.first() else { return Vec::new() };
    let mut ranked: Vec<_> = cores
        .iter()
        .enumerate()
        .map(|(turn, (index, core))| {
            let before = cores.iter().take(turn);
            let siblings = before.filter(|(_, other)| other.site.physical == core.site.physical).count();
            let (far, further) = (core.site.cache != here.site.cache, core.node != here.node);
            (siblings, further, far, turn, *index)
        })
        .collect();
    ranked.sort_unstable();
    ranked.into_iter().map(|(.., index)| index).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use isola_abi::id::{ApicId, CoreId, NodeId};
    use isola_abi::topology::{CacheId, CoreSite, PackageId, PhysicalCoreId};

    /// Returns the order from `start` on, for cores of the given (node, cache, physical core).
    fn ordered(start: u32, cores: &[(u32, u32, u32)]) -> Vec<u32> {
        let core = |(index, &(node, cache, physical)): (usize, &(u32, u32, u32))| {
            let site = CoreSite {
                package: PackageId(node),
                cache: CacheId(cache),
                physical: PhysicalCoreId(physical),
            };
            let id = index as u32;
            (CoreIndex(id), Core { id: CoreId(id), apic: ApicId(id), node: NodeId(node), site })
        };
        order(cores.iter().enumerate().map(core), CoreIndex(start)).iter().map(|core| core.0).collect()
    }

    #[test]
    fn physical_cores_precede_their_siblings_and_near_cores_precede_far_ones() {
        // Siblings are adjacent; node 0 has two caches, node 1 has one.
        let cores = [(0, 0, 0), (0, 0, 0), (0, 0, 1), (0, 0, 1), (0, 1, 2), (0, 1, 2), (1, 2, 3), (1, 2, 3)];
        assert_eq!(ordered(0, &cores), [0, 2, 4, 6, 1, 3, 5, 7]);
        assert_eq!(ordered(3, &cores), [3, 0, 4, 6, 1, 2, 5, 7]);
        assert_eq!(ordered(6, &cores)[0], 6);
    }

    #[test]
    fn siblings_with_distant_indices_are_recognised() {
        let cores = [(0, 0, 0), (0, 0, 1), (0, 0, 0), (0, 0, 1)];
        assert_eq!(ordered(0, &cores), [0, 1, 2, 3]);
        assert_eq!(ordered(1, &cores), [1, 2, 3, 0]);
    }

    #[test]
    fn unrelated_cores_follow_the_caller_in_cyclic_order() {
        let cores = [(0, 0, 0), (0, 0, 1), (0, 0, 2)];
        assert_eq!(ordered(0, &cores), [0, 1, 2]);
        assert_eq!(ordered(2, &cores), [2, 0, 1]);
        assert_eq!(ordered(9, &cores), [0, 1, 2], "the caller's core has left");
        assert!(ordered(0, &[]).is_empty());
    }
}
