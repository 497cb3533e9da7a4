//! The errors of the calls, as Linux's manual pages and its code have them.

mod common;

use common::{PRIVATE, Process, READ_WRITE};
use isola_linux_abi::numbers::*;
use isola_linux_memory::{
    Errno, MAX_BUFFERS, MAX_MAPPINGS, MIN_ADDRESS, MapObject, MapRequest, MemoryLimits, Protection,
    RemapRequest, SharedMemory,
};
use isola_user_mode::{Access, PAGE_SIZE, USER_END};

const READ_ONLY: Protection = Protection { readable: true, writable: false, executable: false };

fn map_error(process: &Process, change: impl FnOnce(&mut MapRequest)) -> Option<Errno> {
    let mut request =
        MapRequest { len: PAGE_SIZE, protection: READ_WRITE, flags: PRIVATE, ..MapRequest::default() };
    change(&mut request);
    process.map_with(request).err()
}

#[test]
fn mmap_refuses_bad_arguments() {
    let process = Process::new();
    let used = process.map_anonymous(1);
    let object = |permitted| MapObject {
        source: SharedMemory::new(b"", 100, process.budget.clone()),
        permitted,
        path: None,
    };
    type Change<'a> = &'a dyn Fn(&mut MapRequest);
    let cases: &[(Option<Errno>, Change<'_>)] = &[
        (None, &|_| ()),
        (Some(Errno::EINVAL), &|request| request.len = 0),
        (Some(Errno::ENOMEM), &|request| request.len = u64::MAX),
        (Some(Errno::ENOMEM), &|request| request.len = USER_END),
        (Some(Errno::EINVAL), &|request| request.offset = 1),
        (Some(Errno::EINVAL), &|request| request.flags = MAP_ANONYMOUS),
        (Some(Errno::EINVAL), &|request| request.flags = MAP_ANONYMOUS | MAP_SHARED_VALIDATE),
        (Some(Errno::EINVAL), &|request| request.flags |= 0x80_0000),
        (Some(Errno::EOPNOTSUPP), &|request| request.flags = MAP_SHARED_VALIDATE | 0x80_0000),
        (Some(Errno::EBADF), &|request| request.flags = MAP_PRIVATE),
        (Some(Errno::ENOMEM), &|request| request.flags |= MAP_HUGETLB),
        (Some(Errno::EINVAL), &|request| request.flags = MAP_ANONYMOUS | MAP_SHARED | MAP_GROWSDOWN),
        (Some(Errno::EINVAL), &|request| {
            (request.flags, request.address) = (PRIVATE | MAP_FIXED, used + 1);
        }),
        (Some(Errno::EPERM), &|request| request.flags |= MAP_FIXED),
        (Some(Errno::ENOMEM), &|request| {
            (request.flags, request.address) = (PRIVATE | MAP_FIXED, USER_END);
        }),
        (Some(Errno::EEXIST), &|request| {
            (request.flags, request.address) = (PRIVATE | MAP_FIXED_NOREPLACE, used);
        }),
        (Some(Errno::EACCES), &|request| {
            (request.flags, request.object) = (MAP_SHARED, Some(object(READ_ONLY)));
        }),
        (Some(Errno::EACCES), &|request| {
            (request.flags, request.object) = (MAP_PRIVATE, Some(object(Protection::NONE)));
        }),
        (Some(Errno::EPERM), &|request| {
            request.protection = PROT_EXEC;
            (request.flags, request.object) = (MAP_PRIVATE, Some(object(READ_ONLY)));
        }),
        (Some(Errno::EOPNOTSUPP), &|request| {
            (request.flags, request.object) = (MAP_SHARED_VALIDATE | MAP_SYNC, Some(object(Protection::ALL)));
        }),
        (Some(Errno::EOVERFLOW), &|request| {
            (request.flags, request.object) = (MAP_PRIVATE, Some(object(Protection::ALL)));
            request.offset = u64::MAX - PAGE_SIZE + 1;
        }),
        (Some(Errno::EINVAL), &|request| {
            (request.flags, request.object) = (MAP_PRIVATE | MAP_GROWSDOWN, Some(object(Protection::ALL)));
        }),
    ];
    for (number, (expected, change)) in cases.iter().enumerate() {
        assert_eq!(map_error(&process, change), *expected, "case {number}");
    }
}

#[test]
fn addresses_are_chosen_from_above_and_hints_are_used() {
    let process = Process::new();
    let top = process.memory.layout().mapping_top;
    let first = process.map_anonymous(2);
    assert_eq!(first, top - 2 * PAGE_SIZE);
    let read_only = |hint| process.map(hint, 1, PROT_READ, PRIVATE).expect("there is room");
    assert_eq!(read_only(0), first - PAGE_SIZE);
    assert_eq!(read_only(0x1234_5678), 0x1234_5000);
    assert_eq!(read_only(1), MIN_ADDRESS);
    assert_eq!(read_only(first), first - 2 * PAGE_SIZE, "the hint is in use");
    process.unmap(first, 1).expect("it is mapped");
    assert_eq!(process.map_anonymous(1), first, "the gap is filled");
    let low = process.map(0, 1, PROT_READ, PRIVATE | MAP_32BIT).expect("there is room");
    assert_eq!(low, 0x8000_0000 - PAGE_SIZE);
    let huge = process.map(0, 8 << 28, PROT_NONE, PRIVATE).expect("8 TiB cost nothing");
    assert_eq!(process.unmap(huge, 8 << 28), Ok(()));
    let zeros = process.map(0, 8 << 28, PROT_READ, PRIVATE | MAP_POPULATE).expect("zeros need no pages");
    assert_eq!(process.run(process.memory.lock(zeros, 8 << 40, 0)), Ok(()));
    assert_eq!(process.run(process.memory.advise(zeros, 8 << 40, MADV_POPULATE_READ)), Ok(()));
    assert_eq!(process.unmap(zeros, 8 << 28), Ok(()));
    assert_eq!(process.budget.left(), 1000);
}

#[test]
fn munmap_and_mprotect_refuse_bad_arguments() {
    let process = Process::new();
    let address = process.map_anonymous(4);
    let memory = &process.memory;
    assert_eq!(process.run(memory.unmap(address + 1, 1)), Err(Errno::EINVAL));
    assert_eq!(process.run(memory.unmap(address, 0)), Err(Errno::EINVAL));
    assert_eq!(process.run(memory.unmap(address, u64::MAX)), Err(Errno::EINVAL));
    assert_eq!(process.run(memory.unmap(USER_END - PAGE_SIZE, 2 * PAGE_SIZE)), Err(Errno::EINVAL));
    assert_eq!(process.unmap(MIN_ADDRESS, 1), Ok(()), "nothing is mapped there");
    let protect = |address, len, protection| process.run(memory.protect(address, len, protection));
    assert_eq!(protect(address + 1, 1, PROT_READ), Err(Errno::EINVAL));
    assert_eq!(protect(address, 0, PROT_READ), Ok(()));
    assert_eq!(protect(address, PAGE_SIZE, 0x40), Err(Errno::EINVAL));
    assert_eq!(protect(address, PAGE_SIZE, PROT_GROWSDOWN), Err(Errno::EINVAL));
    assert_eq!(protect(address, PAGE_SIZE, PROT_GROWSDOWN | PROT_GROWSUP), Err(Errno::EINVAL));
    assert_eq!(protect(address, u64::MAX, PROT_READ), Err(Errno::ENOMEM));
    assert_eq!(protect(address, 5 * PAGE_SIZE, PROT_READ), Err(Errno::ENOMEM));
    assert_eq!(process.maps(), [format!("{address:x}-{:x} r--p", address + 4 * PAGE_SIZE)]);
    let source = SharedMemory::new(b"", PAGE_SIZE, process.budget.clone());
    let object = Some(MapObject { source, permitted: READ_ONLY, path: None });
    let request =
        MapRequest { len: 1, protection: PROT_READ, flags: MAP_SHARED, object, ..MapRequest::default() };
    let shared = process.map_with(request).expect("there is room");
    assert_eq!(process.protect(shared, 1, READ_WRITE), Err(Errno::EACCES));
}

#[test]
fn mremap_refuses_bad_arguments() {
    let process = Process::new();
    let address = process.map_anonymous(4);
    let page = |number| address + number * PAGE_SIZE;
    assert_eq!(process.protect(page(3), 1, PROT_READ), Ok(()));
    let remap = |address, len, new_len, flags, new_address| {
        process.run(process.memory.remap(RemapRequest { address, len, new_len, flags, new_address }))
    };
    let one = PAGE_SIZE;
    assert_eq!(remap(address, one, one, 8, 0), Err(Errno::EINVAL));
    assert_eq!(remap(address, one, one, MREMAP_FIXED, MIN_ADDRESS), Err(Errno::EINVAL));
    assert_eq!(remap(address, one, one, MREMAP_DONTUNMAP, 0), Err(Errno::EINVAL));
    assert_eq!(remap(address, one, 2 * one, MREMAP_DONTUNMAP | MREMAP_MAYMOVE, 0), Err(Errno::EINVAL));
    assert_eq!(remap(address + 1, one, one, 0, 0), Err(Errno::EINVAL));
    assert_eq!(remap(address, one, 0, 0, 0), Err(Errno::EINVAL));
    assert_eq!(remap(MIN_ADDRESS, one, one, 0, 0), Err(Errno::EFAULT));
    assert_eq!(remap(address, 0, one, MREMAP_MAYMOVE, 0), Err(Errno::EINVAL), "it is not shared");
    assert_eq!(remap(page(2), 2 * one, 3 * one, MREMAP_MAYMOVE, 0), Err(Errno::EFAULT), "two mappings");
    assert_eq!(remap(page(1), one, 2 * one, 0, 0), Err(Errno::ENOMEM), "it cannot grow");
    let fixed = MREMAP_FIXED | MREMAP_MAYMOVE;
    assert_eq!(remap(address, 2 * one, 2 * one, fixed, page(1)), Err(Errno::EINVAL), "they overlap");
    assert_eq!(remap(address, one, one, fixed, page(1) + 1), Err(Errno::EINVAL));
    assert_eq!(remap(address, one, one, fixed, USER_END), Err(Errno::EINVAL));
    assert_eq!(remap(address, one, one, fixed, 0), Err(Errno::EPERM));
    assert_eq!(remap(address, 2 * one, one, 0, 0), Ok(address));
    assert!(!process.mapped_at(page(1)), "the tail is gone");
}

#[test]
fn mremap_grows_in_place_or_moves_without_copies() {
    let mut process = Process::new();
    let address = 0x1000_0000;
    process.map(address, 2, READ_WRITE, PRIVATE | MAP_FIXED).expect("it is free");
    process.store(address + PAGE_SIZE, b"moved").expect("it is mapped");
    let left = process.budget.left();
    let remap = |process: &Process, address, pages: u64, new_pages: u64, flags| {
        let (len, new_len) = (pages * PAGE_SIZE, new_pages * PAGE_SIZE);
        process.run(process.memory.remap(RemapRequest { address, len, new_len, flags, new_address: 0 }))
    };
    assert_eq!(remap(&process, address, 2, 3, 0), Ok(address));
    process.map(address + 3 * PAGE_SIZE, 1, PROT_READ, PRIVATE | MAP_FIXED).expect("it is free");
    let moved = remap(&process, address, 3, 4, MREMAP_MAYMOVE).expect("there is room");
    assert_ne!(moved, address);
    assert_eq!((process.load(moved + PAGE_SIZE + 4), process.budget.left()), (Ok(b'd'), left));
    assert!(process.load(address + PAGE_SIZE).is_err());
    let shared = process.map(0, 1, READ_WRITE, MAP_SHARED | MAP_ANONYMOUS).expect("there is room");
    let second = remap(&process, shared, 0, 1, MREMAP_MAYMOVE).expect("it is shared");
    process.store(shared, b"x").expect("it is writable");
    assert_eq!(process.load(second), Ok(b'x'));
}

#[test]
fn madvise_refuses_bad_arguments() {
    let mut process = Process::new();
    let address = process.map_anonymous(2);
    let shared = process.map(0, 1, READ_WRITE, MAP_SHARED | MAP_ANONYMOUS).expect("there is room");
    let memory = process.memory.clone();
    let platform = process.platform.clone();
    let advise = |address, len, advice| {
        isola_linux_sim::run_with(memory.advise(address, len, advice), || {
            platform.end_flushes();
        })
    };
    for advice in [5, 7, MADV_MERGEABLE, MADV_UNMERGEABLE, MADV_COLLAPSE, 26, 99, u32::MAX] {
        assert_eq!(advise(address, PAGE_SIZE, advice), Err(Errno::EINVAL), "advice {advice}");
    }
    assert_eq!(advise(address + 1, 1, MADV_NORMAL), Err(Errno::EINVAL));
    assert_eq!(advise(address, u64::MAX, MADV_NORMAL), Err(Errno::EINVAL));
    assert_eq!(advise(address, 0, MADV_DONTNEED), Ok(()));
    assert_eq!(advise(address, PAGE_SIZE, MADV_HWPOISON), Err(Errno::EPERM));
    assert_eq!(advise(shared, PAGE_SIZE, MADV_FREE), Err(Errno::EINVAL));
    assert_eq!(advise(shared, PAGE_SIZE, MADV_WIPEONFORK), Err(Errno::EINVAL));
    assert_eq!(advise(address, PAGE_SIZE, MADV_REMOVE), Err(Errno::EINVAL));
    assert_eq!(advise(MIN_ADDRESS, PAGE_SIZE, MADV_DONTNEED), Err(Errno::ENOMEM));
    assert_eq!(advise(address, PAGE_SIZE, MADV_POPULATE_WRITE), Ok(()));
    assert_eq!(memory.resident().anonymous, 1);
    assert_eq!(process.protect(address, 1, PROT_READ), Ok(()));
    assert_eq!(advise(address, PAGE_SIZE, MADV_POPULATE_WRITE), Err(Errno::EINVAL));
    assert_eq!(process.run(memory.lock(address, 1, 0)), Ok(()));
    for advice in [MADV_DONTNEED, MADV_FREE, MADV_COLD] {
        assert_eq!(advise(address, PAGE_SIZE, advice), Err(Errno::EINVAL), "it is locked");
    }
    assert_eq!(advise(address, PAGE_SIZE, MADV_DONTNEED_LOCKED), Ok(()));
    assert_eq!(memory.resident().anonymous, 0);
    process.store(shared, b"x").expect("it is writable");
    assert_eq!(advise(shared, PAGE_SIZE, MADV_DONTNEED), Ok(()));
    assert_eq!(process.load(shared), Ok(b'x'), "the object has it");
    assert_eq!(advise(shared, PAGE_SIZE, MADV_REMOVE), Ok(()));
    assert_eq!(process.load(shared), Ok(0));
}

#[test]
fn mlock_counts_against_its_limit() {
    let limits = MemoryLimits { locked: 2 * PAGE_SIZE, ..MemoryLimits::default() };
    let process = Process::with_limits(limits);
    let address = process.map_anonymous(4);
    let lock = |address, len, flags| process.run(process.memory.lock(address, len, flags));
    assert_eq!(lock(address, 1, 2), Err(Errno::EINVAL));
    assert_eq!(lock(address, u64::MAX, 0), Err(Errno::EINVAL));
    assert_eq!(lock(address, 3 * PAGE_SIZE, 0), Err(Errno::ENOMEM));
    assert_eq!(lock(address + 1, PAGE_SIZE, 0), Ok(()), "two pages");
    assert_eq!((process.memory.resident().anonymous, process.memory.usage().locked), (2, 2));
    assert_eq!(lock(address + 3 * PAGE_SIZE, 1, MLOCK_ONFAULT), Err(Errno::ENOMEM));
    assert_eq!(map_error(&process, |request| request.flags |= MAP_LOCKED), Some(Errno::EAGAIN));
    assert_eq!(process.memory.unlock(address, PAGE_SIZE), Ok(()));
    assert_eq!(process.memory.unlock(MIN_ADDRESS, PAGE_SIZE), Err(Errno::ENOMEM));
    assert_eq!(lock(address + 3 * PAGE_SIZE, 1, MLOCK_ONFAULT), Ok(()));
    let lock_all = |flags| process.run(process.memory.lock_all(flags));
    assert_eq!(lock_all(0), Err(Errno::EINVAL));
    assert_eq!(lock_all(MCL_ONFAULT), Err(Errno::EINVAL));
    assert_eq!(lock_all(8), Err(Errno::EINVAL));
    assert_eq!(lock_all(MCL_CURRENT), Err(Errno::ENOMEM));
    process.memory.unlock_all();
    assert_eq!(process.memory.usage().locked, 0);
    process.memory.set_limits(MemoryLimits { locked: 0, ..limits });
    assert_eq!(lock(address, 1, 0), Err(Errno::EPERM));
    assert_eq!(lock_all(MCL_FUTURE), Err(Errno::EPERM));
}

#[test]
fn msync_and_mincore_refuse_bad_arguments() {
    let mut process = Process::new();
    let address = process.map_anonymous(3);
    let memory = process.memory.clone();
    let run = |process: &Process, address, len, flags| process.run(process.memory.sync(address, len, flags));
    assert_eq!(run(&process, address, 1, 8), Err(Errno::EINVAL));
    assert_eq!(run(&process, address, 1, MS_SYNC | MS_ASYNC), Err(Errno::EINVAL));
    assert_eq!(run(&process, address + 1, 1, MS_SYNC), Err(Errno::EINVAL));
    assert_eq!(run(&process, address, u64::MAX, MS_SYNC), Err(Errno::ENOMEM));
    assert_eq!(run(&process, address, 4 * PAGE_SIZE, MS_SYNC), Err(Errno::ENOMEM));
    assert_eq!(run(&process, address, 0, MS_SYNC), Ok(()));
    assert_eq!(process.run(memory.lock(address, 1, 0)), Ok(()));
    assert_eq!(run(&process, address, 1, MS_INVALIDATE), Err(Errno::EBUSY));
    process.memory.unlock_all();
    process.store(address + 2 * PAGE_SIZE, b"x").expect("it is writable");
    let states = address + 10;
    let residency = |address, len, states| process.run(memory.residency(address, len, states));
    assert_eq!(residency(address + 1, 1, states), Err(Errno::EINVAL));
    assert_eq!(residency(address, u64::MAX, states), Err(Errno::ENOMEM));
    assert_eq!(residency(address, PAGE_SIZE, MIN_ADDRESS), Err(Errno::EFAULT));
    assert_eq!(residency(address, 4 * PAGE_SIZE, states), Err(Errno::ENOMEM));
    assert_eq!(memory.try_read_bytes(states), Some([1, 0, 1, 0]));
}

#[test]
fn limits_refuse_growth() {
    let limits =
        MemoryLimits { address_space: 8 * PAGE_SIZE, data: 4 * PAGE_SIZE, ..MemoryLimits::default() };
    let process = Process::with_limits(limits);
    assert_eq!(process.map(0, 9, PROT_READ, PRIVATE), Err(Errno::ENOMEM));
    assert_eq!(process.map(0, 5, READ_WRITE, PRIVATE), Err(Errno::ENOMEM));
    let address = process.map(0, 5, PROT_READ, PRIVATE).expect("it is within the limits");
    assert_eq!(process.protect(address, 5, READ_WRITE), Err(Errno::ENOMEM));
    process.memory.set_break_start(0x40_0000);
    let grow = |pages| process.run(process.memory.set_break(0x40_0000 + pages * PAGE_SIZE));
    assert_eq!(grow(4), 0x40_0000, "the address space has 3 pages left");
    assert_eq!(grow(3), 0x40_0000 + 3 * PAGE_SIZE);
    assert_eq!(process.map(address, 5, PROT_READ, PRIVATE | MAP_FIXED), Ok(address), "it replaces as many");
    assert_eq!(process.protect(address, 1, READ_WRITE), Ok(()), "the fourth page of data");
    assert_eq!(process.protect(address + PAGE_SIZE, 1, READ_WRITE), Err(Errno::ENOMEM));
}

#[test]
fn the_number_of_mappings_is_limited() {
    let process = Process::new();
    let pages = 2 * MAX_MAPPINGS as u64;
    let address = process.map(0, pages, PROT_NONE, PRIVATE).expect("there is room");
    let mut made = 1;
    let refused = (0..pages / 2).find_map(|number| {
        let page = address + (2 * number + 1) * PAGE_SIZE;
        made = process.memory.mappings_count();
        process.protect(page, 1, PROT_READ).err()
    });
    assert_eq!((refused, made), (Some(Errno::ENOMEM), MAX_MAPPINGS - 1));
    assert_eq!(process.unmap(address + 3 * PAGE_SIZE, pages - 3), Ok(()));
    assert_eq!(process.protect(address, 1, PROT_READ), Ok(()));
}

#[test]
fn arrays_of_buffers_are_checked() {
    let process = Process::new();
    let address = process.map_anonymous(8);
    let write = |slot: u64, base: u64, len: u64| {
        let bytes: Vec<u8> = [base.to_le_bytes(), len.to_le_bytes()].concat();
        assert_eq!(process.run(process.memory.write_bytes(address + slot * 16, &bytes)), Ok(()));
    };
    let buffers = |count| {
        process.run(process.memory.buffers(address, count, Access::Write)).map(|buffer| buffer.len() as u64)
    };
    let data = address + 5 * PAGE_SIZE;
    write(0, data, 10);
    write(1, 0, 0);
    write(2, data + 100, 2 * PAGE_SIZE);
    assert_eq!(buffers(0), Ok(0));
    assert_eq!(buffers(3), Ok(10 + 2 * PAGE_SIZE));
    assert_eq!(buffers(MAX_BUFFERS + 1), Err(Errno::EINVAL));
    assert_eq!(buffers(u64::MAX), Err(Errno::EINVAL));
    write(3, data, u64::MAX);
    assert_eq!(buffers(4), Err(Errno::EINVAL));
    write(3, USER_END, 1);
    assert_eq!(buffers(4), Err(Errno::EFAULT));
    write(0, MIN_ADDRESS, 10);
    assert_eq!(buffers(1), Err(Errno::EFAULT), "nothing is mapped");
    write(0, data, 10);
    write(1, MIN_ADDRESS, 10);
    assert_eq!(buffers(3), Ok(10), "the rest cannot be accessed");
}
