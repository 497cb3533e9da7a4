//! Nodes, as the allocators tell them apart.

use super::MAX_NODES;
use isola_abi::id::NodeId;

/// A node, by its place in tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NodeIndex(u8);

impl NodeIndex {
    /// That of a node of the machine.
    pub const fn of(node: NodeId) -> Self {
        Self((node.0 as usize % MAX_NODES) as u8)
    }

    /// All of them.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..MAX_NODES as u8).map(Self)
    }

    /// Its place.
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// Its entry of a table.
    pub const fn entry<T>(self, table: &[T; MAX_NODES]) -> &T {
        &table[self.index() % MAX_NODES]
    }
}
