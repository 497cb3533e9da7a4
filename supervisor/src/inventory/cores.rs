//! Cores: the supervisor's own, free ones, those of cells, and those that failed.

use alloc::vec::Vec;
use isola_abi::id::{CellId, CoreId, NodeId};
use isola_abi::management::{CoreInfo, CoreOwner};

/// Stands for a core that its holder may use.
pub trait CoreToken {
    /// Which core.
    fn id(&self) -> CoreId;
}

/// The cores of the machine.
#[derive(Debug)]
pub struct Cores<C> {
    slots: Vec<Slot<C>>,
}

#[derive(Debug)]
struct Slot<C> {
    id: CoreId,
    node: NodeId,
    state: State<C>,
}

#[derive(Debug)]
enum State<C> {
    Supervisor,
    Free(C),
    Owned(CellId),
    Failed,
}

impl<C> Default for Cores<C> {
    fn default() -> Self {
        Self { slots: Vec::new() }
    }
}

impl<C: CoreToken> Cores<C> {
    /// No cores.
    pub fn new() -> Self {
        Self::default()
    }

    /// Enters the core that the supervisor runs on.
    pub fn add_supervisor(&mut self, id: CoreId, node: NodeId) {
        self.slots.push(Slot { id, node, state: State::Supervisor });
    }

    /// Enters a core that can be given to cells.
    pub fn add(&mut self, core: C, node: NodeId) {
        self.slots.push(Slot { id: core.id(), node, state: State::Free(core) });
    }

    /// Enters a core that did not come up.
    pub fn add_failed(&mut self, id: CoreId, node: NodeId) {
        self.slots.push(Slot { id, node, state: State::Failed });
    }

    /// Number of free cores.
    pub fn free(&self) -> usize {
        self.slots.iter().filter(|slot| matches!(slot.state, State::Free(_))).count()
    }

    /// The node of that core.
    pub fn node(&self, id: CoreId) -> Option<NodeId> {
        self.slots.iter().find(|slot| slot.id == id).map(|slot| slot.node)
    }

    /// Gives `count` cores to `cell`: from the node that they fill best, from several where no one node has so
    /// many. Returns `None`, and gives nothing, where fewer are free.
    #[must_use]
    pub fn take(&mut self, count: usize, cell: CellId) -> Option<Vec<C>> {
        if self.free() < count {
            return None;
        }
        let best = self
            .slots
            .iter()
            .map(|slot| (self.free_of(slot.node), slot.node))
            .filter(|(free, _)| *free >= count)
            .min();
        let mut taken = Vec::with_capacity(count);
        if let Some((_, node)) = best {
            self.take_where(count, cell, &mut taken, |slot| slot.node == node);
        }
        self.take_where(count, cell, &mut taken, |_| true);
        Some(taken)
    }

    /// Takes a core back from its cell.
    pub fn put(&mut self, core: C) {
        if let Some(slot) = self.slots.iter_mut().find(|slot| slot.id == core.id()) {
            slot.state = State::Free(core);
        }
    }

    /// Notes that a core did not come back from its cell: it is never given again.
    pub fn lose(&mut self, id: CoreId) {
        if let Some(slot) = self.slots.iter_mut().find(|slot| slot.id == id) {
            slot.state = State::Failed;
        }
    }

    /// All cores and who has them.
    pub fn info(&self) -> Vec<CoreInfo> {
        self.slots
            .iter()
            .map(|slot| CoreInfo {
                id: slot.id,
                node: slot.node,
                owner: match &slot.state {
                    State::Supervisor => CoreOwner::Supervisor,
                    State::Free(_) => CoreOwner::Free,
                    State::Owned(cell) => CoreOwner::Cell(*cell),
                    State::Failed => CoreOwner::Failed,
                },
            })
            .collect()
    }

    fn free_of(&self, node: NodeId) -> usize {
        self.slots.iter().filter(|slot| slot.node == node && matches!(slot.state, State::Free(_))).count()
    }

    fn take_where(&mut self, count: usize, cell: CellId, taken: &mut Vec<C>, may: impl Fn(&Slot<C>) -> bool) {
        for slot in &mut self.slots {
            if taken.len() < count
                && may(slot)
                && matches!(slot.state, State::Free(_))
                && let State::Free(core) = core::mem::replace(&mut slot.state, State::Owned(cell))
            {
                taken.push(core);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Debug)]
    struct Core(CoreId);

    impl CoreToken for Core {
        fn id(&self) -> CoreId {
            self.0
        }
    }

    /// Cores of two nodes: 0 the supervisor's, then `first` of node 0 and `second` of node 1.
    fn cores(first: u32, second: u32) -> Cores<Core> {
        let mut cores = Cores::new();
        cores.add_supervisor(CoreId(0), NodeId(0));
        (1..=first).for_each(|id| cores.add(Core(CoreId(id)), NodeId(0)));
        (first + 1..=first + second).for_each(|id| cores.add(Core(CoreId(id)), NodeId(1)));
        cores
    }

    fn ids(taken: &[Core]) -> Vec<u32> {
        taken.iter().map(|core| core.0.0).collect()
    }

    #[test]
    fn a_cell_s_cores_share_a_node_where_they_can() {
        let mut cores = cores(3, 4);
        assert_eq!(ids(&cores.take(4, CellId(1)).unwrap()), [4, 5, 6, 7]);
        assert_eq!(ids(&cores.take(2, CellId(2)).unwrap()), [1, 2]);
    }

    #[test]
    fn a_small_cell_leaves_the_emptier_node_to_larger_ones() {
        let mut cores = cores(1, 4);
        assert_eq!(ids(&cores.take(1, CellId(1)).unwrap()), [1]);
    }

    #[test]
    fn a_cell_gets_cores_of_several_nodes_where_no_node_has_enough() {
        let mut cores = cores(2, 2);
        assert_eq!(ids(&cores.take(3, CellId(1)).unwrap()).len(), 3);
        assert!(cores.take(2, CellId(2)).is_none());
        assert_eq!(cores.free(), 1);
    }

    #[test]
    fn a_lost_core_is_never_given_again() {
        let mut cores = cores(1, 0);
        let taken = cores.take(1, CellId(9)).unwrap();
        cores.lose(taken[0].id());
        assert_eq!(cores.info()[1].owner, CoreOwner::Failed);
        assert!(cores.take(1, CellId(10)).is_none());
    }

    proptest! {
        #[test]
        fn every_core_has_exactly_one_owner(steps in proptest::collection::vec((any::<bool>(), 0usize..6), 0..60)) {
            let mut cores = cores(5, 6);
            let mut held: Vec<(CellId, Vec<Core>)> = Vec::new();
            for (number, (take, size)) in steps.into_iter().enumerate() {
                let cell = CellId(number as u32);
                if take {
                    let free = cores.free();
                    match cores.take(size, cell) {
                        Some(taken) => {
                            prop_assert_eq!(taken.len(), size);
                            held.push((cell, taken));
                        }
                        None => prop_assert!(size > free),
                    }
                } else if !held.is_empty() {
                    held.remove(size % held.len()).1.into_iter().for_each(|core| cores.put(core));
                }
                for info in cores.info().into_iter().skip(1) {
                    let owners: Vec<CoreOwner> = held
                        .iter()
                        .filter(|(_, taken)| taken.iter().any(|core| core.id() == info.id))
                        .map(|(cell, _)| CoreOwner::Cell(*cell))
                        .collect();
                    match info.owner {
                        CoreOwner::Free => prop_assert!(owners.is_empty()),
                        owner => prop_assert_eq!(owners, [owner]),
                    }
                }
            }
        }
    }
}
