//! Mappings, page faults, copies and `fork`, one behaviour a test.

mod common;

use common::{PRIVATE, Process, READ_WRITE};
use isola_linux_abi::numbers::{MAP_ANONYMOUS, MAP_SHARED, PROT_EXEC, PROT_NONE, PROT_READ};
use isola_linux_memory::{Errno, FaultError, MemoryCharge};
use isola_user_mode::{Access, PAGE_SIZE, USER_END};

#[test]
fn anonymous_memory_is_zero_until_it_is_written() {
    let mut process = Process::new();
    let address = process.map_anonymous(4);
    assert_eq!(process.load(address), Ok(0));
    assert_eq!(process.memory.resident().total(), 0, "a read maps the frame of zeros");
    process.store(address + PAGE_SIZE - 2, b"abcd").expect("it is writable");
    assert_eq!(process.load(address + PAGE_SIZE + 1), Ok(b'd'));
    assert_eq!(process.load(address), Ok(0));
    assert_eq!(process.memory.resident().anonymous, 2);
    assert_eq!(process.budget.left(), 998);
    process.unmap(address, 4).expect("it is mapped");
    assert_eq!(process.load(address), Err(FaultError::NotMapped));
    assert_eq!((process.memory.resident().total(), process.budget.left()), (0, 1000));
}

#[test]
fn pages_without_access_keep_their_contents() {
    let mut process = Process::new();
    let address = process.map_anonymous(2);
    process.store(address, b"kept").expect("it is writable");
    process.protect(address, 1, PROT_NONE).expect("it is mapped");
    assert_eq!(process.load(address), Err(FaultError::NotPermitted));
    assert_eq!(process.run(process.memory.read_bytes::<4>(address)), Err(Errno::EFAULT));
    process.protect(address, 1, PROT_READ).expect("it is mapped");
    assert_eq!(process.load(address + 3), Ok(b't'));
    assert_eq!(process.store(address, b"x"), Err(FaultError::NotPermitted));
    assert_eq!(process.execute(address), Err(FaultError::NotPermitted));
    process.protect(address, 1, PROT_READ | PROT_EXEC).expect("it is mapped");
    assert_eq!(process.execute(address), Ok(()));
}

#[test]
fn a_child_shares_private_pages_until_one_of_them_writes() {
    let mut parent = Process::new();
    let address = parent.map_anonymous(3);
    parent.store(address, b"parent").expect("it is writable");
    parent.store(address + PAGE_SIZE, b"both").expect("it is writable");
    let mut child = parent.fork();
    assert_eq!(parent.budget.left(), 998, "no frame was copied");
    assert_eq!(child.load(address), Ok(b'p'));
    parent.store(address, b"P").expect("it is writable");
    assert_eq!((child.load(address), parent.load(address)), (Ok(b'p'), Ok(b'P')));
    assert_eq!(parent.budget.left(), 997);
    child.store(address, b"c").expect("it is writable");
    assert_eq!(parent.budget.left(), 997, "the child is the only owner");
    assert_eq!((child.load(address), parent.load(address)), (Ok(b'c'), Ok(b'P')));
    drop(child);
    parent.store(address + PAGE_SIZE, b"B").expect("it is writable");
    assert_eq!((parent.load(address + PAGE_SIZE), parent.budget.left()), (Ok(b'B'), 998));
}

#[test]
fn a_page_that_was_written_since_a_fork_is_copied_by_the_next_ones() {
    let mut parent = Process::new();
    let address = parent.map_anonymous(3);
    parent.store(address, b"first").expect("it is writable");
    parent.store(address + PAGE_SIZE, b"second").expect("it is writable");
    drop(parent.fork());
    parent.store(address, b"F").expect("it is writable");
    for _ in 1..8 {
        let mut child = parent.fork();
        assert_eq!(parent.budget.left(), 997, "one frame was copied");
        assert!(parent.memory.try_write_bytes(address, b"f"), "without a page fault");
        assert!(!parent.memory.try_write_bytes(address + PAGE_SIZE, b"S"), "shared");
        assert_eq!((child.load(address), child.load(address + PAGE_SIZE)), (Ok(b'F'), Ok(b's')));
        assert!(child.memory.try_write_bytes(address, b"c"));
        assert_eq!(parent.load(address), Ok(b'f'));
        parent.store(address, b"F").expect("it is writable");
    }
    let child = parent.fork();
    assert_eq!(parent.budget.left(), 998, "the eighth shares all pages");
    assert!(!parent.memory.try_write_bytes(address, b"f"));
    drop(child);
    // Without memory for copies, pages are shared as before.
    parent.store(address, b"F").expect("it is writable");
    assert!(MemoryCharge::take(&*parent.budget, 998));
    let child = parent.fork();
    assert!(!child.memory.try_write_bytes(address, b"c"));
    assert!(!parent.memory.try_write_bytes(address, b"f"));
}

#[test]
fn shared_memory_is_shared_with_a_child() {
    let mut parent = Process::new();
    let address = parent.map(0, 2, READ_WRITE, MAP_SHARED | MAP_ANONYMOUS).expect("there is room");
    let mut child = parent.fork();
    child.store(address + PAGE_SIZE, b"c").expect("it is writable");
    assert_eq!(parent.load(address + PAGE_SIZE), Ok(b'c'));
    assert_eq!(parent.memory.resident().shared_memory, 1);
    let key = |process: &Process| process.memory.futex_key(address + 8, false);
    assert_eq!(key(&parent), key(&child));
    assert_ne!(parent.memory.futex_key(address + 8, true), child.memory.futex_key(address + 8, true));
}

#[test]
fn the_heap_grows_and_shrinks() {
    let mut process = Process::new();
    process.memory.set_break_start(0x40_0010);
    let end = process.run(process.memory.set_break(0));
    assert_eq!(end, 0x40_0010);
    assert_eq!(process.run(process.memory.set_break(end + 3 * PAGE_SIZE)), end + 3 * PAGE_SIZE);
    process.store(end + 2 * PAGE_SIZE, b"heap").expect("it is mapped");
    assert_eq!(process.run(process.memory.set_break(end)), end);
    assert_eq!(process.load(end + 2 * PAGE_SIZE), Err(FaultError::NotMapped));
    assert_eq!(process.run(process.memory.set_break(USER_END + 1)), end);
    assert_eq!(process.run(process.memory.set_break(u64::MAX)), end);
}

#[test]
fn the_heap_grows_at_once_and_does_not_shrink_so() {
    let mut process = Process::new();
    process.memory.set_break_start(0x40_0000);
    assert_eq!(process.memory.set_break_at_once(0), Some(0x40_0000));
    assert_eq!(process.memory.set_break_at_once(0x40_3000), Some(0x40_3000));
    process.store(0x40_2ff0, b"heap").expect("it is mapped");
    assert_eq!(process.memory.set_break_at_once(0x40_1000), None);
    assert_eq!(process.memory.set_break_at_once(u64::MAX), Some(0x40_3000), "refused");
    assert_eq!(process.load(0x40_2ff0), Ok(b'h'));
}

#[test]
fn a_child_shares_the_records_of_mappings_until_one_of_them_changes() {
    let mut parent = Process::new();
    let address = parent.map_anonymous(4);
    parent.run(parent.memory.lock(address, PAGE_SIZE, 0)).expect("the limit is higher");
    let before = parent.maps();
    let child = parent.fork();
    child.protect(address + PAGE_SIZE, 1, PROT_NONE).expect("it is mapped");
    assert_eq!((parent.maps(), child.maps().len()), (before.clone(), before.len() + 1));
    child.unmap(address, 4).expect("it is mapped");
    assert_eq!((parent.maps(), child.maps()), (before, Vec::new()));
    parent.store(address + PAGE_SIZE, b"x").expect("it is writable");
}

#[test]
fn buffers_end_before_the_first_page_without_access() {
    let process = Process::new();
    let address = process.map_anonymous(2);
    let end = address + 2 * PAGE_SIZE;
    let buffer = |address, len, access| {
        process.run(process.memory.buffer(address, len, access)).map(|buffer| buffer.len())
    };
    assert_eq!(buffer(end - 10, 20, Access::Write), Ok(10));
    assert_eq!(buffer(end, 20, Access::Write), Err(Errno::EFAULT));
    assert_eq!(buffer(USER_END - 1, 2, Access::Read), Err(Errno::EFAULT));
    assert_eq!(buffer(u64::MAX, 2, Access::Read), Err(Errno::EFAULT));
    assert_eq!(buffer(end, 0, Access::Write), Ok(0));
    let mut buffer = process.run(process.memory.buffer(end - 3, 3, Access::Write)).expect("it is mapped");
    assert_eq!(buffer.write(b"abc"), 3);
    assert_eq!(process.memory.try_read_bytes(end - 3), Some(*b"abc"));
    assert_eq!(process.run(process.memory.string(end - 3, 3)), Err(Errno::ENAMETOOLONG));
    assert_eq!(process.run(process.memory.string(end - 3, 4)), Err(Errno::EFAULT));
    assert!(process.memory.try_write_bytes(end - 1, &[0]));
    assert_eq!(process.run(process.memory.path(end - 3)), Ok(b"ab".to_vec()));
    assert_eq!(process.map(0, 0, READ_WRITE, PRIVATE), Err(Errno::EINVAL));
}

#[test]
fn a_fork_without_memory_for_page_tables_leaves_the_parent_whole() {
    let mut parent = Process::new();
    let address = parent.map_anonymous(3);
    for page in 0..3 {
        parent.store(address + page * PAGE_SIZE, &[7]).unwrap();
    }
    let left = parent.budget.left();
    parent.platform.limit_pages(Some(2));
    // The child gets a copy of the page that a call may write to.
    let buffer = parent.run(parent.memory.buffer(address, 1, Access::Write)).unwrap();
    // The space of the child checks, when it is dropped, that its frames were flushed.
    let forked = parent.run(parent.memory.fork(parent.platform.space()));
    assert_eq!(forked.err(), Some(Errno::ENOMEM));
    parent.platform.limit_pages(None);
    drop(buffer);
    for page in 0..3 {
        parent.store(address + page * PAGE_SIZE, &[8]).unwrap();
    }
    assert_eq!(parent.budget.left(), left, "the parent's pages are its own again, without copies");
}
