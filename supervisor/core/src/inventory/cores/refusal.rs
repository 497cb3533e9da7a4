//! The reasons why a cell does not get the requested cores.

use alloc::string::String;
use alloc::vec::Vec;
use isola_abi::id::{CellId, CoreId, NodeId};
use isola_abi::management::{CoreOwner, ManagementError, TakenCore, TakenCoreOwner};

/// The reason why a cell does not get the requested cores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CoreRefusal {
    /// Too few cores are free.
    Exhausted {
        /// The number of cores wanted.
        wanted: u32,
        /// The number of free cores.
        free: u32,
    },
    /// Too few cores are free on the node.
    NodeExhausted {
        /// The node.
        node: NodeId,
        /// The number of cores wanted.
        wanted: u32,
        /// The number of free cores there.
        free: u32,
    },
    /// Too many of the named cores have an owner.
    Taken {
        /// The number of cores wanted among them.
        wanted: u32,
        /// The cores with other owners than the cell, and the owners.
        taken: Vec<(CoreId, CoreOwner)>,
    },
    /// There is no such core.
    NoSuchCore {
        /// The core.
        id: CoreId,
        /// The number of cores.
        cores: u32,
    },
    /// There is no such node.
    NoSuchNode {
        /// The node.
        node: NodeId,
        /// The number of nodes.
        nodes: u32,
    },
    /// A named core is not on the named node.
    NotOnNode {
        /// The core.
        id: CoreId,
        /// The core's node.
        node: NodeId,
    },
    /// No set of whole free physical cores has the wanted number of cores.
    NotWhole {
        /// The number of cores wanted.
        wanted: u32,
        /// The largest possible number below.
        below: u32,
        /// The smallest possible number above.
        above: Option<u32>,
    },
}

impl CoreRefusal {
    /// Converts the refusal to an error of the management protocol, with cell names.
    pub fn into_error(self, name_of: impl Fn(CellId) -> String) -> ManagementError {
        match self {
            Self::Exhausted { wanted, free } => ManagementError::CoresExhausted { wanted, free },
            Self::NodeExhausted { node, wanted, free } => {
                ManagementError::NodeCoresExhausted { node, wanted, free }
            }
            Self::Taken { wanted, taken } => {
                let by = |owner| match owner {
                    CoreOwner::Cell(cell) | CoreOwner::InTransfer(cell) => {
                        TakenCoreOwner::Cell(name_of(cell))
                    }
                    CoreOwner::Supervisor => TakenCoreOwner::Supervisor,
                    CoreOwner::Free | CoreOwner::Failed => TakenCoreOwner::Failed,
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
