//! Pages as frames: for who fills virtual memory with them, and wants to know what is in them.

use super::info::{BlockState, Contents};
use super::node::NodeIndex;
use super::{PageNumber, Pages};
use crate::pages::ranges::Range;
use core::ptr::NonNull;
use isola_abi::id::NodeId;

/// Pages that were handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The first.
    pub memory: NonNull<u8>,
    /// What is known of their bytes.
    pub contents: Contents,
}

impl Pages {
    /// As [`Self::allocate_near`].
    pub fn frame_near(&self, node: NodeId, pages: usize, align_pages: usize) -> Option<Frame> {
        let count = u32::try_from(pages).ok().filter(|&pages| pages > 0)?;
        let align_order = align_pages.max(1).ilog2();
        let taken = self
            .nodes_from(NodeIndex::of(node))
            .find_map(|node| self.buddy(node).lock().take(&self.ranges, count, align_order));
        self.frame(taken?, pages)
    }

    /// Hands out `pages` runs of one page each, one after the other; returns the first. Of `node` if that has them.
    pub fn frames_near(&self, node: NodeId, pages: usize) -> Option<Frame> {
        let count = u32::try_from(pages).ok().filter(|&pages| pages > 0)?;
        let taken = self.nodes_from(NodeIndex::of(node)).find_map(|node| {
            let mut buddy = self.buddy(node).lock();
            let taken = buddy.take(&self.ranges, count, 0)?;
            let (range, first, _) = taken;
            for page in 0..count {
                range.info(first.plus(page)).set_state(BlockState::Used { order: 0 });
            }
            Some(taken)
        });
        self.frame(taken?, pages)
    }

    /// Hands out a page whose address, in pages, leaves the remainder `color` when divided by `colors` (rounded up to
    /// a power of two); `None` where there is none. To be freed as any other.
    pub fn frame_of_color(&self, color: u32, colors: u32) -> Option<Frame> {
        let colors_order = colors.checked_next_power_of_two()?.ilog2();
        let taken = self
            .nodes_from(NodeIndex::of(NodeId(0)))
            .find_map(|node| self.buddy(node).lock().take_colored(&self.ranges, color, colors_order));
        self.frame(taken?, 1)
    }

    fn frame(&self, (range, first, contents): (&Range, PageNumber, Contents), pages: usize) -> Option<Frame> {
        self.usage.take(pages);
        Some(Frame { memory: range.memory(first), contents })
    }
}
