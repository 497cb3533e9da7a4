//! Region areas whose tables no processor uses.

extern crate std;

use super::*;
use crate::dma::{Access, device_piece};
use crate::memory::{Region, test_region};
use alloc::boxed::Box;
use alloc::vec::Vec;
use isola_abi::descriptor::LiveWords;
use isola_abi::id::{NodeId, PhysRange};
use isola_abi::layout::PAGE_SIZE;
use isola_abi::unplug::CHUNK;

const MIB: u64 = 1 << 20;

/// Returns a region area with so many tables, and its pool of 4 MiB at a multiple of 2 MiB.
fn area(tables: u64) -> (RegionArea, PhysRange) {
    let mut tables = test_region(tables + 1);
    tables.scrub();
    let pool = test_region(4 * MIB / PAGE_SIZE).range();
    let base = NonNull::new(crate::memory::direct(tables.range().start)).unwrap();
    // SAFETY: the region gives its memory up to the tables.
    let tables = unsafe { Tables::new(base, Region::into_range(tables)) };
    let live: &LiveWords = Box::leak(Box::default());
    (RegionArea::new(tables, OwnMemory::new(alloc::vec![pool], None, live), PageSize::TwoMib), pool)
}

fn frame(pool: PhysRange, offset: u64) -> NonNull<u8> {
    NonNull::new((pool.start.0 + offset) as *mut u8).unwrap()
}

fn map(area: &RegionArea, offset: u64, frame: NonNull<u8>, size: PageSize) -> Result<(), RegionAreaError> {
    // SAFETY: tables of a test, which no processor uses.
    unsafe { area.map(REGIONS + offset, frame, size) }
}

#[test]
fn a_word_is_read_by_its_memory_if_its_page_is_present() {
    let (area, pool) = area(8);
    map(&area, 0, frame(pool, 2 * MIB), PageSize::TwoMib).unwrap();
    map(&area, 2 * MIB, frame(pool, 0x5000), PageSize::FourKib).unwrap();
    for (offset, value) in [(2 * MIB + 0x1238, 7_u64), (0x5ff8, 9)] {
        // SAFETY: memory of the test's pool.
        unsafe { frame(pool, offset).cast::<u64>().write(value) };
    }
    let word = |offset| area.word_at(REGIONS + offset);
    assert_eq!([word(0x1238), word(2 * MIB + 0xff8)], [Some(7), Some(9)]);
    assert_eq!([word(2 * MIB + 0x1000), word(1 << 30), word(REGIONS_SIZE), word(0x1239)], [None; 4]);
    retire_and_collect(&area, 0, 4 * MIB);
    assert_eq!(word(0x1238), None);
}

fn retire_and_collect(area: &RegionArea, offset: u64, len: u64) -> Vec<(u64, PageSize)> {
    let mut taken = Vec::new();
    // SAFETY: tables of a test, which no processor uses.
    unsafe {
        area.retire(REGIONS + offset, len, &mut |_, _, _| ());
        assert_eq!(area.page_at(REGIONS + offset), None);
        area.collect(REGIONS + offset, len, &mut |frame, size| taken.push((frame.addr().get() as u64, size)));
    }
    taken
}

#[test]
fn pages_stay_mapped_until_they_are_retired_and_collected() {
    let (area, pool) = area(8);
    assert_eq!(map(&area, 0, frame(pool, 2 * MIB), PageSize::TwoMib), Ok(()));
    assert_eq!(map(&area, 2 * MIB, frame(pool, 0x5000), PageSize::FourKib), Ok(()));
    assert_eq!(map(&area, 2 * MIB + 0x3000, frame(pool, 0), PageSize::FourKib), Ok(()));
    let at = |offset| area.page_at(REGIONS + offset);
    assert_eq!([at(0), at(2 * MIB - 1)], [Some(PageSize::TwoMib); 2]);
    assert_eq!([at(2 * MIB), at(2 * MIB + 0x3fff)], [Some(PageSize::FourKib); 2]);
    assert_eq!([at(2 * MIB + 0x1000), at(4 * MIB), at(1 << 30)], [None; 3]);
    let expected = [(2 * MIB, PageSize::TwoMib), (0x5000, PageSize::FourKib), (0, PageSize::FourKib)];
    let taken = retire_and_collect(&area, 0, 4 * MIB);
    assert_eq!(taken, expected.map(|(offset, size)| (pool.start.0 + offset, size)));
    assert_eq!(retire_and_collect(&area, 0, 4 * MIB), []);
}

#[test]
fn mapping_over_present_or_retired_pages_fails() {
    let (area, pool) = area(8);
    let page = frame(pool, 0);
    assert_eq!(map(&area, 0, page, PageSize::FourKib), Ok(()));
    let occupied = |offset| Err(RegionAreaError::Occupied(REGIONS + offset));
    assert_eq!(map(&area, 0, page, PageSize::FourKib), occupied(0));
    assert_eq!(map(&area, 0, page, PageSize::TwoMib), occupied(0));
    // SAFETY: tables of a test, which no processor uses.
    unsafe { area.retire(REGIONS, PAGE_SIZE, &mut |_, _, _| ()) };
    assert_eq!(map(&area, 0, page, PageSize::FourKib), occupied(0));
    assert_eq!(map(&area, 2 * MIB, page, PageSize::TwoMib), Ok(()));
    assert_eq!(map(&area, 3 * MIB, page, PageSize::FourKib), occupied(3 * MIB));
}

#[test]
fn only_the_cell_s_own_memory_can_be_mapped() {
    let (area, pool) = area(8);
    let refused = |address: u64, size| {
        let result = map(&area, 0, NonNull::new(address as *mut u8).unwrap(), size);
        assert_eq!(result, Err(RegionAreaError::NotOwned(address)), "{address:#x}");
    };
    let (start, end) = (pool.start.0, pool.end().0);
    refused(start - PAGE_SIZE, PageSize::FourKib);
    refused(end, PageSize::FourKib);
    refused(end - PAGE_SIZE, PageSize::TwoMib);
    refused(start + 8, PageSize::FourKib);
    refused(start + MIB, PageSize::TwoMib);
    refused(!0xfff, PageSize::FourKib);
    let whole = frame(pool, 0);
    assert_eq!(map(&area, 5, whole, PageSize::FourKib), Err(RegionAreaError::NoPage(REGIONS + 5)));
    assert_eq!(map(&area, MIB, whole, PageSize::TwoMib), Err(RegionAreaError::NoPage(REGIONS + MIB)));
    let outside = map(&area, REGIONS_SIZE, whole, PageSize::FourKib);
    assert_eq!(outside, Err(RegionAreaError::NoPage(REGIONS + REGIONS_SIZE)));
    let one_gib = map(&area, 0, whole, PageSize::OneGib);
    assert_eq!(one_gib, Err(RegionAreaError::NoSuchSize(PageSize::OneGib)));
}

#[test]
fn retiring_a_whole_table_s_range_retires_the_table() {
    let (area, pool) = area(8);
    assert_eq!(map(&area, 0, frame(pool, 0), PageSize::FourKib), Ok(()));
    assert_eq!(map(&area, 2 * MIB, frame(pool, 0x1000), PageSize::FourKib), Ok(()));
    let entry = |offset: u64| {
        let top = area.tables.top().unwrap();
        let EntryTarget::Table(table) = area.tables.target(top[0].load(Ordering::Relaxed)) else { panic!() };
        table[index(REGIONS + offset, 1)].load(Ordering::Relaxed)
    };
    // SAFETY: tables of a test, which no processor uses.
    unsafe { area.retire(REGIONS, 2 * MIB, &mut |_, _, _| ()) };
    assert!(entry(0) != 0 && entry(0) & PRESENT == 0, "a processor may cache {:#x}", entry(0));
    assert_ne!(entry(2 * MIB) & PRESENT, 0);
    let again = map(&area, 0, frame(pool, 0), PageSize::FourKib);
    assert_eq!(again, Err(RegionAreaError::Occupied(REGIONS)), "the page is still retired");
    // Only a part of a table's range: the table stays present.
    // SAFETY: as above.
    unsafe { area.retire(REGIONS + 2 * MIB, MIB, &mut |_, _, _| ()) };
    assert_ne!(entry(2 * MIB) & PRESENT, 0);
    // SAFETY: as above.
    unsafe { area.collect(REGIONS, 2 * MIB, &mut |_, _| ()) };
    assert_eq!(entry(0), 0);
}

#[test]
fn collecting_a_table_s_whole_range_frees_the_table() {
    let (area, pool) = area(3);
    for round in 0..10 {
        let offset = round * 2 * MIB;
        assert_eq!(map(&area, offset, frame(pool, 0), PageSize::FourKib), Ok(()));
        assert_eq!(map(&area, offset + 2 * MIB, frame(pool, 0x1000), PageSize::FourKib), Ok(()));
        assert_eq!(
            map(&area, offset + 4 * MIB, frame(pool, 0x2000), PageSize::FourKib),
            Err(RegionAreaError::OutOfTables)
        );
        assert_eq!(retire_and_collect(&area, offset, 4 * MIB).len(), 2);
    }
    // Half a table's range: the table stays, and is used again.
    assert_eq!(map(&area, 0, frame(pool, 0), PageSize::FourKib), Ok(()));
    assert_eq!(retire_and_collect(&area, 0, MIB).len(), 1);
    assert_eq!(map(&area, 0, frame(pool, 0), PageSize::TwoMib), Err(RegionAreaError::Occupied(REGIONS)));
    assert_eq!(map(&area, MIB, frame(pool, 0), PageSize::FourKib), Ok(()));
}

#[test]
fn cores_that_need_the_same_table_allocate_one() {
    let (area, pool) = area(2);
    assert_eq!(map(&area, 2 * MIB, frame(pool, 2 * MIB), PageSize::TwoMib), Ok(()));
    let map = &|page: u64| map(&area, page * PAGE_SIZE, frame(pool, page * PAGE_SIZE), PageSize::FourKib);
    std::thread::scope(|scope| {
        // One table is left. Both cores find no table for their pages, and must wait for the lock to allocate it.
        let held = area.tables.stock.lock();
        let cores = [0, 1].map(|page| scope.spawn(move || map(page)));
        std::thread::sleep(core::time::Duration::from_millis(20));
        drop(held);
        assert_eq!(cores.map(|core| core.join().unwrap()), [Ok(()); 2]);
    });
}

#[test]
fn device_addresses_of_regions_are_found_piece_by_piece() {
    let (area, pool) = area(8);
    let offset = 64 * MIB;
    let pages = [0x4000, 0x5000, 0x9000];
    for (index, page) in (0..).zip(pages) {
        assert_eq!(map(&area, offset + index * PAGE_SIZE, frame(pool, page), PageSize::FourKib), Ok(()));
    }
    assert_eq!(map(&area, offset + 2 * MIB, frame(pool, 2 * MIB), PageSize::TwoMib), Ok(()));
    crate::dma::set_region_area(
        crate::authority::Authority::OWN,
        alloc::boxed::Box::leak(alloc::boxed::Box::new(area)),
    );
    let piece = |offset, len| device_piece((REGIONS + offset) as *const u8, len, Access::DeviceWrites);
    let at = |offset: u64, len: usize| Some((pool.start.0 + offset, len));
    assert_eq!(piece(offset + 8, 100), at(0x4008, 100));
    assert_eq!(piece(offset + 8, 9000), at(0x4008, 8184), "two pages are contiguous");
    assert_eq!(piece(offset + 0x2010, 4096), at(0x9010, 4080), "no page follows");
    assert_eq!(piece(offset + 0x3000, 1), None);
    assert_eq!(piece(offset + 2 * MIB + 5, MIB as usize), at(2 * MIB + 5, MIB as usize));
}

#[test]
fn plugged_blocks_belong_to_the_cell_until_they_are_unplugged() {
    let live: &LiveWords = Box::leak(Box::default());
    let pool = PhysRange::new(PhysAddr(16 * MIB), 4 * MIB);
    let own = OwnMemory::new(alloc::vec![pool], None, live);
    let phys = |at: u64| own.phys(NonNull::new(at as *mut u8).unwrap(), PAGE_SIZE).map(|phys| phys.0);
    assert_eq!((phys(16 * MIB), phys(4 * MIB), own.frame(PhysAddr(4 * MIB))), (Some(16 * MIB), None, None));
    assert!(live.plugged_memory.push(PhysRange::new(PhysAddr(4 * MIB), 4 * MIB), NodeId(0)));
    assert_eq!((phys(4 * MIB), phys(8 * MIB - PAGE_SIZE)), (Some(4 * MIB), Some(8 * MIB - PAGE_SIZE)));
    assert_eq!((phys(2 * MIB), phys(8 * MIB)), (None, None));
    assert!(own.frame(PhysAddr(5 * MIB)).is_some());
    // Unplugged ranges of the pool and of blocks do not belong to the cell; their neighbours do.
    let chunk = |at: u64| PhysRange::new(PhysAddr(at), CHUNK);
    live.unplug_request.set_unplugged(&[chunk(4 * MIB), chunk(18 * MIB)]);
    assert_eq!((phys(4 * MIB), own.frame(PhysAddr(6 * MIB - 1)), phys(18 * MIB)), (None, None, None));
    assert_eq!((phys(6 * MIB), phys(16 * MIB)), (Some(6 * MIB), Some(16 * MIB)));
}

/// Returns a region area with two pages at `REGIONS`, the second of which is pinned; and the pool.
fn two_pages() -> (RegionArea, PhysRange) {
    let (area, pool) = area(3);
    assert_eq!(map(&area, 0, frame(pool, 0x1000), PageSize::FourKib), Ok(()));
    assert_eq!(map(&area, PAGE_SIZE, frame(pool, 0x2000), PageSize::FourKib), Ok(()));
    assert_eq!(
        area.memory_at(REGIONS + PAGE_SIZE + 5).map(|memory| memory.start.0),
        Some(pool.start.0 + 0x2005)
    );
    (area, pool)
}

/// Completes the migration of the first page.
fn finish(area: &RegionArea, pool: PhysRange, from: u64, to: u64) -> bool {
    // SAFETY: tables and memory of a test, which no processor uses.
    unsafe { area.finish_migration(REGIONS, frame(pool, from), frame(pool, to)) }
}

fn is_at(area: &RegionArea, pool: PhysRange, offset: u64) -> bool {
    let (pte, _) = area.entry_of(REGIONS).unwrap();
    let entry = pte.load(Ordering::Relaxed);
    entry & ADDRESS == pool.start.0 + offset && entry & PRESENT != 0
}

#[test]
fn a_migrating_page_is_not_present_and_moves_with_its_bytes() {
    let (area, pool) = two_pages();
    let page = |offset| {
        // SAFETY: memory of a test, which only this test uses.
        unsafe { core::slice::from_raw_parts_mut(frame(pool, offset).as_ptr(), PAGE_SIZE as usize) }
    };
    page(0x1000).iter_mut().zip(0..).for_each(|(byte, number)| *byte = (number % 251) as u8);
    page(0x5000).fill(9);
    assert!(!finish(&area, pool, 0x1000, 0x5000), "it is not migrating");
    assert!(!area.begin_migration(REGIONS, frame(pool, 0x3000)), "another frame is mapped");
    assert!(area.begin_migration(REGIONS, frame(pool, 0x1000)));
    assert_eq!(area.page_at(REGIONS), None, "an access faults");
    assert_eq!(
        map(&area, 0, frame(pool, 0x3000), PageSize::FourKib),
        Err(RegionAreaError::Occupied(REGIONS))
    );
    assert!(!finish(&area, pool, 0x3000, 0x5000), "another frame is mapped");
    let outside = NonNull::new((pool.end().0) as *mut u8).unwrap();
    // SAFETY: the call writes nothing there, as the page is not the cell's.
    assert!(!unsafe { area.finish_migration(REGIONS, frame(pool, 0x1000), outside) });
    assert!(finish(&area, pool, 0x1000, 0x5000));
    assert!(is_at(&area, pool, 0x5000) && page(0x5000) == page(0x1000));
    assert_eq!(retire_and_collect(&area, 0, PAGE_SIZE), [(pool.start.0 + 0x5000, PageSize::FourKib)]);
}

#[test]
fn an_access_or_a_pin_cancels_a_migration() {
    let (area, pool) = two_pages();
    assert!(area.begin_migration(REGIONS, frame(pool, 0x1000)));
    assert!(area.stay(REGIONS + 0x123) && is_at(&area, pool, 0x1000));
    assert!(!finish(&area, pool, 0x1000, 0x5000));
    assert!(area.stay(REGIONS), "another core cancelled it first");
    assert!(!area.stay(REGIONS + 2 * PAGE_SIZE) && !area.stay(REGIONS + 4 * MIB), "no page is mapped");
    assert!(!area.begin_migration(REGIONS + PAGE_SIZE, frame(pool, 0x2000)), "it is pinned");
    assert!(area.begin_migration(REGIONS, frame(pool, 0x1000)));
    assert_eq!(area.memory_at(REGIONS).map(|memory| memory.start.0), Some(pool.start.0 + 0x1000));
    assert!(!finish(&area, pool, 0x1000, 0x5000) && is_at(&area, pool, 0x1000));
    assert!(!area.begin_migration(REGIONS, frame(pool, 0x1000)), "it is pinned now");
}

#[test]
fn retirement_cancels_a_migration() {
    let (area, pool) = two_pages();
    assert!(area.begin_migration(REGIONS, frame(pool, 0x1000)));
    // SAFETY: tables of a test, which no processor uses.
    unsafe { area.retire(REGIONS, PAGE_SIZE, &mut |_, _, _| ()) };
    assert!(!finish(&area, pool, 0x1000, 0x5000) && !area.stay(REGIONS));
    assert_eq!(area.memory_at(REGIONS), None);
    assert!(!area.begin_migration(REGIONS, frame(pool, 0x1000)));
    assert_eq!(retire_and_collect(&area, 0, PAGE_SIZE), [(pool.start.0 + 0x1000, PageSize::FourKib)]);
}

#[test]
fn all_movable_pages_are_found() {
    let (area, pool) = two_pages();
    let far = 2 * MIB + 5 * PAGE_SIZE;
    assert_eq!(map(&area, far, frame(pool, 0x3000), PageSize::FourKib), Ok(()));
    assert_eq!(map(&area, 4 * MIB, frame(pool, 2 * MIB), PageSize::TwoMib), Ok(()));
    assert!(area.begin_migration(REGIONS, frame(pool, 0x1000)));
    for most in [1, 2, 7, 4096] {
        let (mut next, mut found, mut has_refused) = (REGIONS, Vec::new(), false);
        while next < REGIONS + (1 << 30) {
            let before = next;
            next = area.look_at_movable(next, REGIONS + (1 << 30), most, &mut |address, page| {
                if found.len() == 1 && !core::mem::replace(&mut has_refused, true) {
                    return core::ops::ControlFlow::Break(());
                }
                found.push((address - REGIONS, page.addr().get() as u64 - pool.start.0));
                core::ops::ControlFlow::Continue(())
            });
            assert!(next > before || has_refused);
        }
        assert_eq!(found, [(0, 0x1000), (far, 0x3000)], "{most} at a time");
    }
}
