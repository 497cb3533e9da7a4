//! Why a cell does not get the cores that it requests for.

use alloc::string::String;
use alloc::vec::Vec;
use isola_abi::id::{CellId, CoreId, NodeId};
use isola_abi::management::{CoreOwner, ManagementError, TakenBy, TakenCore};

/// Why a cell does not get the cores that it requests for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CoreRefusal {
    /// Fewer are free.
    Exhausted {
        /// Wanted.
        wanted: u32,
        /// Free.
        free: u32,
    },
    /// Fewer are free on the node.
    NodeExhausted {
        /// The node.
        node: NodeId,
        /// Wanted.
        wanted: u32,
        /// Free there.
        free: u32,
    },
    /// Too many of those that were named are somebody's.
    Taken {
        /// How many of them are wanted.
        wanted: u32,
        /// Those that are taken, and by whom; the cell's own are none of them.
        taken: Vec<(CoreId, CoreOwner)>,
    },
    /// There is no such core.
    NoSuchCore {
        /// The core.
        id: CoreId,
        /// How many there are.
        cores: u32,
    },
    /// There is no such node.
    NoSuchNode {
        /// The node.
        node: NodeId,
        /// How many there are.
        nodes: u32,
    },
    /// A core that was named is not of the node that was named.
    NotOnNode {
        /// The core.
        id: CoreId,
        /// Its node.
        node: NodeId,
    },
    /// Whole physical cores that are free do not have so many cores together.
    NotWhole {
        /// Wanted.
        wanted: u32,
        /// The most below that they have.
        below: u32,
        /// The least above.
        above: Option<u32>,
    },
}

impl CoreRefusal {
    /// As it is told: with the names of cells.
    pub fn told(self, name_of: impl Fn(CellId) -> String) -> ManagementError {
        match self {
            Self::Exhausted { wanted, free } => ManagementError::CoresExhausted { wanted, free },
            Self::NodeExhausted { node, wanted, free } => {
                ManagementError::NodeCoresExhausted { node, wanted, free }
            }
            Self::Taken { wanted, taken } => {
                let by = |owner| match owner {
                    CoreOwner::Cell(cell) | CoreOwner::OnItsWay(cell) => TakenBy::Cell(name_of(cell)),
                    CoreOwner::Supervisor => TakenBy::Supervisor,
                    CoreOwner::Free | CoreOwner::Failed => TakenBy::Failed,
                };
                let taken = taken.into_iter().map(|(id, owner)| TakenCore { id, by: by(owner) }).collect();
                ManagementError::CoresTaken { wanted, taken }
            }
            Self::NoSuchCore { id, cores } => ManagementError::NoSuchCore { id, cores },
            Self::NoSuchNode { node, nodes } => ManagementError::NoSuchNode { node, nodes },
            Self::NotOnNode { id, node } => ManagementError::NotOnNode { id, node },
            Self::NotWhole { wanted, below, above } => {
                ManagementError::NotWholeCores { wanted, below, above }
            }
        }
    }
}
