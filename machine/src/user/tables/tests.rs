//! Tests of the page tables of programs.

use super::*;
use alloc::vec::Vec;

const PAGE: u64 = 4096;

fn phys(page: NonNull<u8>) -> Option<PhysAddr> {
    let address = page.addr().get() as u64;
    (address & 4095 == 0).then_some(PhysAddr(address & ADDRESS))
}

fn tables() -> Tables {
    Tables::new(|number| number as u64 + 7, &phys).unwrap()
}

/// Returns a page that nothing accesses, and its owner.
fn page(number: u64) -> (NonNull<u8>, NonNull<()>) {
    let at = |address: u64| core::ptr::without_provenance_mut(address as usize);
    (NonNull::new(at((number + 1) << 20)).unwrap(), NonNull::new(at(number + 1)).unwrap().cast())
}

fn map(tables: &mut Tables, address: u64, number: u64, rights: (bool, bool)) -> Result<(), TableError> {
    let (memory, owner) = page(number);
    tables.map(address, memory, owner, rights, &phys)
}

fn unmap(tables: &mut Tables, start: u64, end: u64) -> (Vec<(u64, usize)>, usize) {
    let mut pages = Vec::new();
    let removed =
        tables.unmap(start, end, &mut |address, owner, _| pages.push((address, owner.addr().get())));
    let count = removed.0.len();
    // SAFETY: no processor uses the tables.
    unsafe { removed.free() };
    (pages, count)
}

/// Returns the entry that the processor would find.
fn entry(tables: &Tables, address: u64) -> u64 {
    let mut table = tables.root().0;
    for level in (1..=TOP).rev() {
        // SAFETY: the tables' "physical" addresses are their addresses.
        let read = unsafe { *((table + 8 * index(address, level) as u64) as *const u64) };
        if read & PRESENT == 0 {
            return 0;
        }
        assert_eq!(read & (USER | WRITABLE | NO_EXECUTE), USER | WRITABLE);
        table = read & ADDRESS;
    }
    // SAFETY: as above.
    unsafe { *((table + 8 * index(address, 0) as u64) as *const u64) }
}

#[test]
fn the_processor_finds_pages_with_their_rights() {
    let mut tables = tables();
    let addresses = [0, PAGE, 0x1234_5678_9000, USER_END - PAGE];
    for (number, address) in addresses.into_iter().enumerate() {
        let rights = (number & 1 != 0, number & 2 != 0);
        assert_eq!(map(&mut tables, address, number as u64, rights), Ok(()));
        let found = entry(&tables, address);
        assert_eq!(found & ADDRESS, (number as u64 + 1) << 20);
        assert_eq!(found & (PRESENT | USER), PRESENT | USER);
        assert_eq!((found & WRITABLE != 0, found & NO_EXECUTE == 0), rights);
        let (owner, state) = tables.page_at(address + 5).unwrap();
        assert_eq!(owner, page(number as u64).1);
        assert_eq!((state.is_writable, state.is_executable, state.is_dirty), (rights.0, rights.1, false));
    }
    let upper = tables.root.get().entries[300].load(Ordering::Relaxed);
    assert_eq!(upper, 307);
    assert_eq!(map(&mut tables, PAGE, 9, (true, true)), Err(TableError::Occupied));
    assert_eq!(tables.page_at(2 * PAGE), None);
    assert_eq!(unmap(&mut tables, 0, u64::MAX).0.len(), 4);
}

#[test]
fn addresses_that_are_no_program_s_are_rejected() {
    let mut tables = tables();
    for address in [1, USER_END, USER_END + PAGE, 1 << 47, 0xffff_8000_0000_0000, !4095] {
        assert_eq!(map(&mut tables, address, 0, (true, true)), Err(TableError::NoPage), "{address:#x}");
        assert_eq!(tables.page_at(address.max(USER_END)), None);
    }
    let memory = NonNull::new(core::ptr::without_provenance_mut(0x1001)).unwrap();
    assert_eq!(tables.map(0, memory, page(0).1, (true, true), &phys), Err(TableError::NotOwned));
    assert_eq!(unmap(&mut tables, 0, u64::MAX), (Vec::new(), 0));
}

#[test]
fn empty_tables_leave_the_tree_and_no_others() {
    let mut tables = tables();
    let (low, high) = (PAGE, 511 * PAGE);
    for (number, address) in [low, high, 1 << 21, 1 << 30, 1 << 39].into_iter().enumerate() {
        map(&mut tables, address, number as u64, (true, false)).unwrap();
    }
    assert_eq!(unmap(&mut tables, 0, 2 * PAGE), (alloc::vec![(low, 1)], 0));
    assert_eq!(unmap(&mut tables, 0, high), (Vec::new(), 0));
    assert_eq!(unmap(&mut tables, high, high + PAGE), (alloc::vec![(high, 2)], 1));
    assert_eq!(entry(&tables, 1 << 21) & ADDRESS, 3 << 20, "beside the removed table");
    assert_eq!(unmap(&mut tables, 1 << 39, 1 << 40), (alloc::vec![(1 << 39, 5)], 3));
    map(&mut tables, high, 8, (true, false)).unwrap();
    let (pages, removed) = unmap(&mut tables, 0, u64::MAX);
    assert_eq!(pages, [(high, 9), (1 << 21, 3), (1 << 30, 4)]);
    assert_eq!(removed, 3 + 2 + 1);
}

#[test]
fn rights_change_and_the_dirty_bit_stays() {
    let mut tables = tables();
    map(&mut tables, PAGE, 1, (true, false)).unwrap();
    map(&mut tables, 1 << 40, 2, (true, false)).unwrap();
    tables.slot(PAGE).unwrap().entry.fetch_or(DIRTY, Ordering::Relaxed);
    tables.for_each(0, u64::MAX, &mut |address, _, state| {
        assert_eq!(state.is_dirty, address == PAGE);
        (address == PAGE).then_some((false, true))
    });
    let (_, state) = tables.page_at(PAGE).unwrap();
    assert_eq!(state, PageState { is_writable: false, is_executable: true, is_dirty: true });
    assert!(tables.page_at(1 << 40).unwrap().1.is_writable);
    let (memory, owner) = page(7);
    let (former, state) = tables.replace(PAGE, memory, owner, (true, true), &phys).unwrap();
    assert_eq!((former, state.is_dirty), (page(1).1, true));
    assert_eq!(tables.page_at(PAGE).unwrap().0, owner);
    assert!(!tables.page_at(PAGE).unwrap().1.is_dirty);
    let absent = tables.replace(2 * PAGE, memory, owner, (true, true), &phys);
    assert_eq!(absent, Err(TableError::NoPage));
    let _ = unmap(&mut tables, 0, u64::MAX);
}

#[test]
fn a_group_fills_pages_where_nothing_is_mapped() {
    let mut tables = tables();
    let start = (1 << 21) - 2 * PAGE;
    map(&mut tables, start + PAGE, 9, (true, true)).unwrap();
    let not_owned = NonNull::new(core::ptr::without_provenance_mut(0x1001)).unwrap();
    let group = [Some(page(0)), Some(page(1)), None, Some((not_owned, page(3).1)), Some(page(4))];
    assert_eq!(tables.map_group(start, &group, (false, true), &phys), 0b1_0001);
    assert_eq!(entry(&tables, start) & ADDRESS, 1 << 20);
    assert_eq!(tables.page_at(start + PAGE).unwrap().0, page(9).1, "as before");
    assert_eq!((tables.page_at(start + 2 * PAGE), tables.page_at(start + 3 * PAGE)), (None, None));
    let (owner, state) = tables.page_at(start + 4 * PAGE).unwrap();
    assert_eq!((owner, state.is_writable, state.is_executable), (page(4).1, false, true));
    assert_eq!(tables.map_group(USER_END - PAGE, &[Some(page(0)); 2], (true, true), &phys), 1);
    assert_eq!(unmap(&mut tables, 0, u64::MAX).0.len(), 4);
}

#[test]
fn a_range_of_one_table_is_walked_alone() {
    let mut tables = tables();
    let (first, second) = (1 << 30, (1 << 30) + (1 << 21));
    for (number, address) in [first, first + PAGE, second].into_iter().enumerate() {
        map(&mut tables, address, number as u64, (true, false)).unwrap();
    }
    let seen = |tables: &Tables, start, end| {
        let mut seen = Vec::new();
        tables.for_each(start, end, &mut |address, _, _| {
            seen.push(address);
            None
        });
        seen
    };
    assert_eq!(seen(&tables, first + PAGE, second), [first + PAGE]);
    assert_eq!(seen(&tables, first + PAGE, second + PAGE), [first + PAGE, second]);
    assert_eq!(seen(&tables, first, first), []);
    assert_eq!(seen(&tables, 0, PAGE), []);
    assert_eq!(unmap(&mut tables, 1 << 40, (1 << 40) + PAGE), (Vec::new(), 0));
    assert_eq!(unmap(&mut tables, first, first + PAGE), (alloc::vec![(first, 1)], 0));
    // A table that stays is still known as the recent one.
    map(&mut tables, first, 7, (true, false)).unwrap();
    assert_eq!(unmap(&mut tables, first, second), (alloc::vec![(first, 8), (first + PAGE, 2)], 1));
    assert_eq!(entry(&tables, first), 0);
    map(&mut tables, first, 5, (true, false)).unwrap();
    assert_eq!(unmap(&mut tables, 0, u64::MAX), (alloc::vec![(first, 6), (second, 3)], 4));
}

#[test]
fn a_walk_of_a_huge_range_visits_only_tables() {
    let mut tables = tables();
    map(&mut tables, 1 << 46, 3, (false, false)).unwrap();
    let began = std::time::Instant::now();
    for _ in 0..1000 {
        tables.for_each(0, USER_END, &mut |_, _, _| None);
    }
    assert!(began.elapsed().as_secs() < 5);
    assert_eq!(unmap(&mut tables, 0, USER_END).0, [(1 << 46, 4)]);
}

extern crate std;
