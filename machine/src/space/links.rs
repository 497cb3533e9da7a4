//! Memory of other cells in the link area of a cell, see [`isola_abi::links`].
//!
//! Page 0 of the area is the *scratch page*, a page of the cell itself from its reserve of tables. A page of the area is
//! unmapped until it is first used; from then on it maps memory of a peer or the scratch page, so that no access faults,
//! at any time, after any end of a peer. The pages of the area are in the table of links, whose windows the callers
//! record before they map and until they have unmapped.

use super::CellSpace;
use super::hot_plug::HotPlug;
use crate::apic::local;
use crate::authority::Authority;
use crate::memory::direct;
use crate::paging::Rights;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};
use isola_abi::id::{ApicId, PhysAddr, PhysRange};
use isola_abi::layout::{LINK_PAGES, LINKS, PAGE_SIZE};
use isola_abi::links::{DOORBELL_VECTOR, LinkAccess, LinkTable, LinkWindow, MAX_LENT_BYTES};

impl CellSpace {
    /// Returns the cell's links.
    pub fn links(&self) -> &LinkTable {
        self.share.links()
    }

    /// Returns whether the cell can give this memory to a peer: whole pages of its pool.
    pub fn can_lend(&self, memory: PhysRange) -> bool {
        let is_pages = memory.start.0.is_multiple_of(PAGE_SIZE)
            && memory.len_bytes.is_multiple_of(PAGE_SIZE)
            && (PAGE_SIZE..=MAX_LENT_BYTES).contains(&memory.len_bytes);
        is_pages
            && memory.start.0.checked_add(memory.len_bytes).is_some()
            && self.hot_plug.pool.contains(memory)
    }

    /// Returns a free part of the link area for `len_bytes` bytes; `None` if there is none.
    pub fn find_window(&self, len_bytes: u64, access: LinkAccess) -> Option<LinkWindow> {
        let pages = u32::try_from(len_bytes / PAGE_SIZE).ok()?;
        Some(LinkWindow { page: self.links().find_room(pages, LINK_PAGES)?, pages, access })
    }

    /// Maps memory of another cell in a window. Returns whether the cores have to flush their TLBs before they use it;
    /// `None` if there is no memory for tables: then the window may be mapped in part. Demands an authority: the memory
    /// must be what its owner [can lend](Self::can_lend), and have no other owner before it was unmapped and the cores
    /// have flushed their TLBs.
    pub fn map_peer(&mut self, _: Authority, window: LinkWindow, memory: PhysRange) -> Option<bool> {
        self.scratch_page()?;
        let pages = (memory.start.0..memory.end().0).step_by(PAGE_SIZE as usize).map(PhysAddr);
        self.map_window(window, pages)
    }

    /// Maps the scratch page in place of a peer's memory. The cores may access the peer's memory until they have flushed
    /// their TLBs.
    pub fn unmap_peer(&mut self, window: LinkWindow) {
        // Without a scratch page nothing was mapped in the window.
        if let Some(scratch) = self.scratch_page() {
            // There are tables for the pages that were mapped, and the others need none: they stay as they are.
            let at = |page: &u64| self.hot_plug.space.translate(LINKS + page * PAGE_SIZE).is_some();
            let first = u64::from(window.page);
            let mapped = (first..first + u64::from(window.pages)).take_while(at).count();
            let pages = LinkWindow { pages: mapped as u32, ..window };
            let _ = self.map_window(pages, core::iter::repeat_n(scratch, mapped));
        }
    }

    /// Copies what the cell maps in a window to memory of the same length that it [can lend](Self::can_lend); nothing to
    /// other memory.
    pub fn copy_window(&mut self, window: LinkWindow, to: PhysRange) {
        if !self.can_lend(to) || to.len_bytes != window.len_bytes() {
            return;
        }
        for page in 0..u64::from(window.pages) {
            let from = self.hot_plug.space.translate(LINKS + (u64::from(window.page) + page) * PAGE_SIZE);
            if let Some(from) = from {
                copy_page(from.phys, PhysAddr(to.start.0 + page * PAGE_SIZE));
            }
        }
    }

    /// Returns the memory of other cells that this one maps in a window.
    pub fn peer_memory_in(&self, window: LinkWindow) -> Vec<PhysRange> {
        let first = u64::from(window.page);
        let space = &self.hot_plug.space;
        let scratch = space.translate(LINKS).map(|at| at.phys);
        let pages = first..first + u64::from(window.pages);
        let found = pages.filter_map(|page| space.translate(LINKS + page * PAGE_SIZE));
        let mut ranges: Vec<PhysRange> = Vec::new();
        for phys in found.map(|at| at.phys).filter(|phys| Some(*phys) != scratch) {
            match ranges.last_mut() {
                Some(range) if range.end() == phys => range.len_bytes += PAGE_SIZE,
                _ => ranges.push(PhysRange::new(phys, PAGE_SIZE)),
            }
        }
        ranges
    }

    /// Returns the APIC id of the cell's first core, to which doorbells go.
    pub fn doorbell_target(&self) -> ApicId {
        self.share.first_apic
    }

    /// Announces news of a link to the cell.
    pub fn ring_doorbell(&self) {
        self.links().note_change();
        local::send(Authority::OWN, self.share.first_apic, DOORBELL_VECTOR);
    }

    fn map_window(&mut self, window: LinkWindow, pages: impl Iterator<Item = PhysAddr>) -> Option<bool> {
        let rights = match window.access {
            LinkAccess::Read => Rights::Read,
            LinkAccess::ReadWrite => Rights::ReadWrite,
        };
        let virt = LINKS + u64::from(window.page) * PAGE_SIZE;
        let pages = pages.take(window.pages as usize);
        self.hot_plug.space.replace(virt, pages, rights, &mut self.hot_plug.tables).ok()
    }

    /// Returns the scratch page, and allocates it at the first call.
    fn scratch_page(&mut self) -> Option<PhysAddr> {
        let HotPlug { space, tables, .. } = &mut self.hot_plug;
        if let Some(at) = space.translate(LINKS) {
            return Some(at.phys);
        }
        let page = tables.take(PAGE_SIZE)?.into_range().start;
        // If there is no memory for its tables, the page stays unused until the cell ends, and later calls find none either.
        space.replace(LINKS, core::iter::once(page), Rights::ReadWrite, tables).ok().map(|_| page)
    }
}

/// Copies a page that a cell maps to a page of its pool. Cores may access both meanwhile: each word is that of some moment.
fn copy_page(from: PhysAddr, to: PhysAddr) {
    const WORDS: usize = PAGE_SIZE as usize / size_of::<AtomicU64>();
    let words = |page| direct(page).cast::<[AtomicU64; WORDS]>();
    // SAFETY: both are whole pages of memory that belongs to cells, as it is in the page tables and the pool of one: it is in
    // the direct map, nothing of the supervisor's is in it, and any bytes are valid for atomics.
    let (from, to) = unsafe { (&*words(from), &*words(to)) };
    for (from, to) in from.iter().zip(to) {
        to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{FreeRegions, Region, test_region};
    use crate::paging::{AddressSpace, LargestPage};
    use crate::space::{Built, HotPlug};
    use alloc::sync::Arc;
    use core::sync::atomic::AtomicUsize;
    use isola_abi::id::CellId;
    use isola_abi::layout::DESCRIPTOR_SIZE;
    use isola_abi::links::{LEAST_LINKS, LinkPart, LinkState};

    /// Creates a space of tables, a descriptor, and a pool of some pages.
    fn space(tables: u64) -> (CellSpace, PhysRange) {
        let mut memory = FreeRegions::new(alloc::vec![test_region(tables + 1 + DESCRIPTOR_SIZE / PAGE_SIZE)]);
        let descriptor = memory.take(DESCRIPTOR_SIZE).unwrap().into_range().start;
        let space = AddressSpace::new(&mut memory, LargestPage::TwoMib).unwrap();
        let built = Built {
            root: space.root(),
            entry: 0,
            core_slots: 0,
            activity_slots: 0,
            link_slots: LEAST_LINKS,
            first_apic: ApicId(7),
            core_pages: PhysAddr(0),
            descriptor,
            report: PhysAddr(0),
            text: None,
            cores_inside: AtomicUsize::new(0),
        };
        let pool = test_region(8).into_range();
        let hot_plug = HotPlug::new(space, memory, [], [pool], 0);
        (CellSpace { share: Arc::new(built), hot_plug, record: None }, pool)
    }

    fn at(space: &CellSpace, page: u32) -> Option<(PhysAddr, Rights)> {
        let found = space.hot_plug.space.translate(LINKS + u64::from(page) * PAGE_SIZE);
        found.map(|at| (at.phys, at.rights))
    }

    fn part(of: PhysRange, page: u64, pages: u64) -> PhysRange {
        PhysRange::new(PhysAddr(of.start.0 + page * PAGE_SIZE), pages * PAGE_SIZE)
    }

    /// Lists a window at slot 0, as the trusted core does before it maps.
    fn list(space: &CellSpace, window: LinkWindow) {
        let link = space.links().get(0).unwrap();
        link.begin((CellId(2), 0), ApicId(0), 0, &[0; 24]);
        link.set_state(LinkState::Open);
        link.set_window(LinkPart::Ring, Some(window));
    }

    #[test]
    fn peer_memory_is_mapped_and_replaced_by_the_scratch_page() {
        let ((mut space, _), (owner, pool)) = (space(8), space(8));
        let memory = part(pool, 2, 3);
        assert!(owner.can_lend(memory));
        let window = space.find_window(memory.len_bytes, LinkAccess::Read).unwrap();
        assert_eq!((window.page, window.pages), (1, 3));
        list(&space, window);
        assert_eq!(space.map_peer(Authority::OWN, window, memory), Some(false), "nothing was there");
        for page in 0..3 {
            let phys = PhysAddr(memory.start.0 + page * PAGE_SIZE);
            assert_eq!(at(&space, 1 + page as u32), Some((phys, Rights::Read)));
        }
        assert_eq!(at(&space, 4), None);
        assert_eq!(space.peer_memory_in(window), [memory]);
        space.unmap_peer(window);
        let (scratch, rights) = at(&space, 0).unwrap();
        assert_eq!(rights, Rights::ReadWrite);
        assert!((1..4).all(|page| at(&space, page) == Some((scratch, Rights::Read))));
        assert!(space.peer_memory_in(window).is_empty());
        let again = LinkWindow { access: LinkAccess::ReadWrite, ..window };
        assert_eq!(space.map_peer(Authority::OWN, again, memory), Some(true), "the scratch page was there");
        assert_eq!(at(&space, 1), Some((memory.start, Rights::ReadWrite)));
        space.unmap_peer(again);
        assert_eq!(
            at(&space, 1),
            Some((scratch, Rights::ReadWrite)),
            "a late store faults no more than before"
        );
    }

    #[test]
    fn the_contents_of_a_window_are_copied_to_the_pool_and_nowhere_else() {
        let ((mut space, own), (_, pool)) = (space(8), space(8));
        let memory = part(pool, 2, 2);
        let window = space.find_window(memory.len_bytes, LinkAccess::Read).unwrap();
        list(&space, window);
        // SAFETY: the test's own memory.
        let word = |at: PhysAddr| unsafe { &*direct(at).cast::<AtomicU64>() };
        let last = |of: PhysRange| word(PhysAddr(of.end().0 - 8));
        let (kept, foreign) = (part(own, 4, 2), part(pool, 6, 2));
        for (index, of) in [memory, kept, foreign].into_iter().enumerate() {
            word(of.start).store(10 + index as u64, Ordering::Relaxed);
            last(of).store(20 + index as u64, Ordering::Relaxed);
        }
        space.map_peer(Authority::OWN, window, memory).unwrap();
        for to in [foreign, part(own, 4, 1), PhysRange::new(PhysAddr(own.start.0 + 8), 2 * PAGE_SIZE)] {
            space.copy_window(window, to);
        }
        let words = |of: PhysRange| [word(of.start), last(of)].map(|word| word.load(Ordering::Relaxed));
        assert_eq!(
            [words(kept), words(foreign)],
            [[11, 21], [12, 22]],
            "not whole pages of the pool, of that length"
        );
        space.copy_window(window, kept);
        assert_eq!([words(memory), words(kept)], [[10, 20]; 2]);
    }

    #[test]
    fn only_whole_pages_of_the_pool_can_be_lent() {
        let (space, pool) = space(8);
        assert!(space.can_lend(part(pool, 0, 8)));
        let half = PhysRange::new(PhysAddr(pool.start.0 + 8), PAGE_SIZE);
        let short = PhysRange::new(pool.start, PAGE_SIZE - 1);
        let own = PhysRange::new(space.share.descriptor, PAGE_SIZE);
        let end = PhysRange::new(PhysAddr(0u64.wrapping_sub(PAGE_SIZE)), PAGE_SIZE);
        for memory in [half, short, own, end, part(pool, 0, 0), part(pool, 4, 8), PhysRange::default()] {
            assert!(!space.can_lend(memory), "{memory:?}");
        }
        let long = PhysRange::new(pool.start, MAX_LENT_BYTES + PAGE_SIZE);
        assert!(!space.can_lend(long));
    }

    #[test]
    fn a_space_without_memory_for_tables_maps_nothing_and_can_still_unmap() {
        for tables in 0..4 {
            let ((mut space, _), (_, pool)) = (space(tables), space(1));
            let window = LinkWindow { page: 1, pages: 1, access: LinkAccess::Read };
            list(&space, window);
            let mapped = space.map_peer(Authority::OWN, window, part(pool, 0, 1));
            // The scratch page, and tables of three levels; the first entry of the next table.
            assert_eq!(mapped.is_some(), tables >= 4, "{tables}");
            space.unmap_peer(window);
            assert!(space.peer_memory_in(window).is_empty());
        }
    }

    #[test]
    fn lent_memory_is_not_unplugged() {
        const CHUNK_PAGES: u64 = isola_abi::unplug::CHUNK / PAGE_SIZE;
        let (mut space, _) = space(64);
        let chunk = test_region(CHUNK_PAGES);
        let range = chunk.range();
        space.plug(chunk, isola_abi::id::NodeId(0)).unwrap();
        let link = space.links().get(3).unwrap();
        link.set_lent(LinkPart::Shared, part(range, 5, 1));
        link.set_state(LinkState::Open);
        assert_eq!(space.unplug(&[range]), 0);
        space.links().get(3).unwrap().set_state(LinkState::Free);
        assert_eq!(space.unplug(&[range]), 1);
        let _: alloc::vec::Vec<Region> = space.take_unplugged(&[]).unwrap();
        // SAFETY: the test's own memory.
        let _ = unsafe { direct(range.start).read_volatile() };
    }
}
