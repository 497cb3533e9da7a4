//! The NUMA nodes of memory, as firmware reports them.

use alloc::vec::Vec;
use isola_abi::id::{NodeId, PhysRange};

/// The NUMA nodes of memory; memory in none of the ranges belongs to node 0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryNodes {
    ranges: Vec<(PhysRange, NodeId)>,
}

impl MemoryNodes {
    /// Creates the map from these ranges, which do not overlap.
    pub fn new(ranges: Vec<(PhysRange, NodeId)>) -> Self {
        Self { ranges }
    }

    /// Divides ranges at the boundaries of nodes.
    pub fn cut(&self, ranges: &[PhysRange]) -> Vec<(NodeId, PhysRange)> {
        let mut found: Vec<(NodeId, PhysRange)> = Vec::new();
        for range in ranges {
            let mut start = range.start;
            while start < range.end() {
                let here = self.ranges.iter().find(|(memory, _)| memory.contains(start));
                let end = match here {
                    Some((memory, _)) => memory.end(),
                    None => {
                        let later = self.ranges.iter().map(|(memory, _)| memory.start);
                        later.filter(|next| *next > start).min().unwrap_or(range.end())
                    }
                };
                let end = end.min(range.end());
                let node = here.map_or(NodeId(0), |(_, node)| *node);
                match found.last_mut() {
                    // Firmware may report one range in several parts.
                    Some((last, part)) if *last == node && part.end() == start && start != range.start => {
                        part.len_bytes += end.0 - start.0;
                    }
                    _ => found.push((node, PhysRange::new(start, end.0 - start.0))),
                }
                start = end;
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use isola_abi::id::PhysAddr;

    #[test]
    fn memory_is_cut_at_nodes() {
        let range = |start: u64, end: u64| PhysRange::new(PhysAddr(start), end - start);
        let nodes = MemoryNodes::new(alloc::vec![
            (range(0x1000, 0x3000), NodeId(1)),
            (range(0x3000, 0x4000), NodeId(1)),
            (range(0x6000, 0x8000), NodeId(2))
        ]);
        let expected = [
            (NodeId(0), range(0, 0x1000)),
            (NodeId(1), range(0x1000, 0x4000)),
            (NodeId(0), range(0x4000, 0x6000)),
            (NodeId(2), range(0x6000, 0x8000)),
            (NodeId(0), range(0x8000, 0x9000)),
        ];
        assert_eq!(nodes.cut(&[range(0, 0x9000)]), expected);
        assert_eq!(MemoryNodes::default().cut(&[range(0, 5)]), [(NodeId(0), range(0, 5))]);
    }
}
