//! NUMA nodes as the allocators number them.

use super::MAX_NODES;
use isola_abi::id::NodeId;

/// The index of a node in tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NodeIndex(u8);

impl NodeIndex {
    /// Returns the index of a node of the machine.
    pub const fn of(node: NodeId) -> Self {
        Self((node.0 as usize % MAX_NODES) as u8)
    }

    /// Returns all indices.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..MAX_NODES as u8).map(Self)
    }

    /// Returns the index as an integer.
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// Returns the node's entry of a table.
    pub const fn entry<T>(self, table: &[T; MAX_NODES]) -> &T {
        &table[self.index() % MAX_NODES]
    }
}
