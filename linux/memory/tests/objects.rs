//! Mappings of objects: reads shared by faults, dirty pages, truncation; stacks; missing memory; cancelled calls.

mod common;

use common::{PRIVATE, Process, READ_WRITE};
use isola_linux_abi::numbers::{
    MAP_FIXED, MAP_GROWSDOWN, MAP_POPULATE, MAP_PRIVATE, MAP_SHARED, MS_SYNC, PROT_READ,
};
use isola_linux_memory::{
    BoxFuture, Errno, FaultError, MapObject, MapRequest, MemoryLimits, PageSource, Protection,
    STACK_GUARD_GAP, SharedMemory, UserBuffer,
};
use isola_linux_sim::{SimulatedUserMode, poll_once};
use isola_memory::frame::Frame;
use isola_user_mode::{Access, PAGE_SIZE};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::Poll;

/// A file of 40 pages whose reads take until the test permits them. Each byte of a page is its index.
#[derive(Default)]
struct TestFile {
    state: Mutex<FileState>,
}

#[derive(Default)]
struct FileState {
    frames: BTreeMap<u64, Frame>,
    permits: bool,
    reads: Vec<u64>,
    dirty: Vec<u64>,
    synced: Vec<(u64, u64)>,
}

const FILE_PAGES: u64 = 40;

impl TestFile {
    fn new(permits: bool) -> Arc<Self> {
        let file = Self::default();
        file.state.lock().expect("no test panicked").permits = permits;
        Arc::new(file)
    }

    fn with<T>(&self, with: impl FnOnce(&mut FileState) -> T) -> T {
        with(&mut self.state.lock().expect("no test panicked"))
    }
}

impl PageSource for TestFile {
    fn frame(&self, index: u64) -> Option<Frame> {
        self.with(|state| state.frames.get(&index).cloned())
    }

    fn fetch(&self, index: u64) -> BoxFuture<'_, Result<Frame, Errno>> {
        self.with(|state| state.reads.push(index));
        Box::pin(poll_fn(move |context| {
            self.with(|state| {
                if index >= FILE_PAGES {
                    return Poll::Ready(Err(Errno::EFAULT));
                }
                if !state.permits {
                    context.waker().wake_by_ref();
                    return Poll::Pending;
                }
                let frame = Frame::zeroed();
                frame.write(0, &[index as u8; PAGE_SIZE as usize]);
                state.frames.insert(index, frame.clone());
                Poll::Ready(Ok(frame))
            })
        }))
    }

    fn mark_dirty(&self, index: u64) {
        self.with(|state| state.dirty.push(index));
    }

    fn sync(&self, first: u64, count: u64) -> BoxFuture<'_, Result<(), Errno>> {
        self.with(|state| state.synced.push((first, count)));
        Box::pin(std::future::ready(Ok(())))
    }

    fn path(&self) -> Vec<u8> {
        b"/file".to_vec()
    }

    fn identity(&self) -> (u64, u64) {
        (7, 7)
    }
}

fn map_file(process: &Process, source: Arc<dyn PageSource>, first: u64, pages: u64, flags: u32) -> u64 {
    let object = Some(MapObject { source, permitted: Protection::ALL, path: None });
    let request = MapRequest {
        address: 0x1_0000_0000,
        len: pages * PAGE_SIZE,
        protection: READ_WRITE,
        flags,
        offset: first * PAGE_SIZE,
        object,
        name: "",
    };
    process.map_with(request).expect("there is room")
}

#[test]
fn faults_on_a_page_share_one_read() {
    let process = Process::new();
    let file = TestFile::new(false);
    let address = map_file(&process, file.clone(), 3, 4, MAP_PRIVATE);
    let mut first = pin!(process.memory.fault(address, Access::Read));
    let mut second = pin!(process.memory.fault(address + 8, Access::Write));
    assert!(poll_once(first.as_mut()).is_pending() && poll_once(second.as_mut()).is_pending());
    assert_eq!(file.with(|state| state.reads.clone()), [3]);
    file.with(|state| state.permits = true);
    assert!(poll_once(second.as_mut()).is_pending(), "it waits for the first");
    assert_eq!(poll_once(first.as_mut()), Poll::Ready(Ok(())));
    process.run(second).expect("the page is there");
    assert_eq!(file.with(|state| state.reads.clone()), [3]);
    assert_eq!(process.memory.try_read_bytes(address), Some([3, 3]));
}

#[test]
fn a_cancelled_read_is_begun_again_by_the_next_fault() {
    let process = Process::new();
    let file = TestFile::new(false);
    let address = map_file(&process, file.clone(), 0, 1, MAP_PRIVATE);
    {
        let mut first = pin!(process.memory.fault(address, Access::Read));
        assert!(poll_once(first.as_mut()).is_pending());
    }
    file.with(|state| state.permits = true);
    assert_eq!(process.run(process.memory.fault(address, Access::Read)), Ok(()));
    assert_eq!(file.with(|state| state.reads.len()), 2);
}

#[test]
fn a_fault_looks_the_mapping_up_again_after_its_read() {
    let process = Process::new();
    let file = TestFile::new(false);
    let address = map_file(&process, file.clone(), 0, 2, MAP_PRIVATE);
    let mut fault = pin!(process.memory.fault(address, Access::Read));
    assert!(poll_once(fault.as_mut()).is_pending());
    process.unmap(address, 1).expect("it is mapped");
    file.with(|state| state.permits = true);
    assert_eq!(process.run(fault), Err(FaultError::NotMapped));
}

#[test]
fn a_fault_maps_the_pages_around_that_are_in_memory() {
    let mut process = Process::new();
    let file = TestFile::new(true);
    for index in [0, 1, 5, 15, 16] {
        process.run(file.fetch(index)).expect("the file has it");
    }
    let address = map_file(&process, file.clone(), 0, 20, MAP_PRIVATE);
    assert_eq!(process.load(address + 5 * PAGE_SIZE), Ok(5));
    assert_eq!(process.memory.resident().file, 4, "0, 1, 5, 15");
    assert_eq!(process.load(address + 17 * PAGE_SIZE), Ok(17));
    assert_eq!(process.memory.resident().file, 6);
    process.store(address + PAGE_SIZE, b"x").expect("it is writable");
    assert_eq!(file.frame(1).map(|frame| frame.load(0) as u8), Some(1), "the file is unchanged");
    assert_eq!((process.memory.resident().file, process.memory.resident().anonymous), (5, 1));
    let beyond = map_file(&process, file, FILE_PAGES - 1, 2, MAP_PRIVATE);
    assert_eq!(process.load(beyond + PAGE_SIZE), Err(FaultError::NoContents));
    assert_eq!(process.run(process.memory.read_bytes::<1>(beyond + PAGE_SIZE)), Err(Errno::EFAULT));
}

#[test]
fn writes_to_a_shared_file_make_pages_dirty_once_until_msync() {
    let mut process = Process::new();
    let file = TestFile::new(true);
    let address = map_file(&process, file.clone(), 10, 3, MAP_SHARED);
    assert_eq!(process.load(address), Ok(10));
    let dirty = || file.with(|state| std::mem::take(&mut state.dirty));
    assert!(dirty().is_empty());
    process.store(address, b"a").expect("it is writable");
    process.store(address + 1, b"b").expect("it is writable");
    assert_eq!(dirty(), [10]);
    assert_eq!(process.run(process.memory.write_bytes(address + PAGE_SIZE, b"c")), Ok(()));
    assert!(dirty().contains(&11));
    assert_eq!(process.run(process.memory.sync(address, 2 * PAGE_SIZE, MS_SYNC)), Ok(()));
    assert_eq!((dirty(), file.with(|state| state.synced.clone())), (vec![10, 11], vec![(10, 2)]));
    process.store(address, b"A").expect("it is writable");
    assert_eq!(dirty(), [10], "the write after msync is noticed");
    process.unmap(address, 3).expect("it is mapped");
    assert_eq!(dirty(), [10]);
    assert_eq!(file.frame(10).map(|frame| frame.load(0).to_le_bytes()), Some(*b"Ab\x0a\x0a"));
}

#[test]
fn truncated_memory_is_unmapped() {
    let mut process = Process::new();
    let object = SharedMemory::new(b"/memfd:test", 3 * PAGE_SIZE - 10, process.budget.clone());
    let address = map_file(&process, object.clone(), 0, 3, MAP_SHARED);
    let private = map_file(&process, object.clone(), 0, 3, MAP_PRIVATE);
    for page in 0..3 {
        process.store(address + page * PAGE_SIZE, b"object").expect("it is writable");
        process.store(private + page * PAGE_SIZE, b"own").expect("it is writable");
    }
    assert_eq!((object.resident(), process.budget.left()), (3, 994));
    assert_eq!(process.run(object.set_size(PAGE_SIZE + 3)), Ok(()));
    assert_eq!((object.resident(), process.budget.left()), (2, 996));
    assert_eq!(process.load(address + 2 * PAGE_SIZE), Err(FaultError::NoContents));
    assert_eq!(process.load(private + 2 * PAGE_SIZE), Err(FaultError::NoContents));
    assert_eq!(process.run(object.set_size(3 * PAGE_SIZE)), Ok(()));
    let mut buffer = UserBuffer::of_bytes(&[1; 8]);
    assert_eq!(object.read(PAGE_SIZE, &mut buffer), 8);
    assert_eq!(
        process.memory.try_read_bytes(address + PAGE_SIZE),
        Some(*b"obj\0\0\0"),
        "the tail was cleared"
    );
    assert_eq!(process.load(private + PAGE_SIZE), Ok(b'o'));
    process.run(object.punch_hole(1, PAGE_SIZE));
    assert_eq!(process.memory.try_read_bytes(address), Some(*b"o\0"));
    assert_eq!(process.run(object.set_size(u64::MAX)), Err(Errno::EFBIG));
    let mut buffer = UserBuffer::of_bytes(b"abc");
    assert_eq!(object.write(5 * PAGE_SIZE - 1, &mut buffer), Ok(3));
    assert_eq!(object.size(), 5 * PAGE_SIZE + 2);
    assert_eq!((process.unmap(address, 3), process.unmap(private, 3)), (Ok(()), Ok(())));
    let budget = process.budget.clone();
    drop((process, object));
    assert_eq!(budget.left(), 1000);
}

#[test]
fn a_stack_grows_to_its_limit_and_not_into_its_neighbour() {
    let limits = MemoryLimits { stack: 600 * PAGE_SIZE, ..MemoryLimits::default() };
    let mut process = Process::with_limits(limits);
    let top = process.memory.layout().stack_top;
    let bottom = top - 4 * PAGE_SIZE;
    process.map(bottom, 4, READ_WRITE, PRIVATE | MAP_FIXED | MAP_GROWSDOWN).expect("it is free");
    process.store(bottom - 3 * PAGE_SIZE, b"x").expect("the stack grows");
    assert_eq!(process.memory.usage().stack, 7);
    assert_eq!(process.memory.usage().mapped, 7);
    assert_eq!(process.store(top - 601 * PAGE_SIZE, b"x"), Err(FaultError::NotMapped));
    process.store(top - 600 * PAGE_SIZE, b"x").expect("it is within the limit");
    process.memory.set_limits(MemoryLimits::default());
    let below = top - 900 * PAGE_SIZE;
    process.map(below - PAGE_SIZE, 1, READ_WRITE, PRIVATE | MAP_FIXED).expect("it is free");
    assert_eq!(process.store(below + STACK_GUARD_GAP - PAGE_SIZE, b"x"), Err(FaultError::NotMapped));
    process.store(below + STACK_GUARD_GAP, b"x").expect("the gap is kept");
    let hinted = process.map(below + PAGE_SIZE, 1, READ_WRITE, PRIVATE).expect("there is room");
    assert_ne!(hinted, below + PAGE_SIZE, "a hint within the gap is not used");
}

#[test]
fn missing_memory_is_an_error() {
    let mut process = Process::new();
    let address = process.map_anonymous(1100);
    assert_eq!(
        process
            .run(process.memory.buffer(address, 1100 * PAGE_SIZE, Access::Write))
            .map(|buffer| buffer.len() as u64),
        Ok(1000 * PAGE_SIZE)
    );
    assert_eq!(process.store(address + 1000 * PAGE_SIZE, b"x"), Err(FaultError::OutOfMemory));
    let beyond = address + 1000 * PAGE_SIZE;
    assert_eq!(process.run(process.memory.write_bytes(beyond, b"x")), Err(Errno::ENOMEM));
    process.unmap(address, 1).expect("it is mapped");
    process.store(beyond, b"x").expect("a frame is free");

    let mut process = Process::new();
    let address = process.map(0, 6, READ_WRITE, PRIVATE | MAP_POPULATE).expect("there is room");
    assert_eq!(process.memory.resident().anonymous, 6);
    process.platform.limit_pages(Some(6));
    let more = process.map_anonymous(1);
    assert_eq!(process.store(more, b"x"), Err(FaultError::OutOfMemory));
    process.platform.limit_pages(Some(5));
    let child = process.run(process.memory.fork(process.platform.space())).map(drop);
    assert_eq!(child, Err(Errno::ENOMEM));
    assert_eq!(process.budget.left(), 994, "the child's frames were given back");
    process.store(address, b"x").expect("the parent can still write");
}

#[test]
fn a_cancelled_call_frees_frames_after_the_flush_only() {
    let mut process = Process::new();
    let address = process.map_anonymous(4);
    process.store(address, b"stale").expect("it is writable");
    let mut byte = [0];
    process.thread.processor().load(address, &mut byte).expect("it is mapped");
    process.platform.end_flushes();
    {
        let mut unmap = pin!(process.memory.unmap(address, 4 * PAGE_SIZE));
        assert!(poll_once(unmap.as_mut()).is_pending());
    }
    assert_eq!(process.memory.space().free_flushed(9), 0, "the flush is not over");
    let other = process.map(0, 1, PROT_READ, PRIVATE).expect("there is room");
    assert_eq!(process.load(other), Ok(0));
    let mut child = process.fork();
    assert_eq!(child.load(address), Err(FaultError::NotMapped));
    let space = process.platform.space();
    drop(process);
    drop((child, space));
}

#[test]
fn calls_free_the_frames_of_all_pages_that_they_remove() {
    for holds_flushes in [true, false] {
        let platform = SimulatedUserMode::new();
        if holds_flushes {
            platform.hold_flushes();
        }
        let process = Process::on(platform, MemoryLimits::default());
        for (pages, hides) in [(1, false), (32, false), (33, false), (33, true), (300, false)] {
            let address = process.map(0, pages, READ_WRITE, PRIVATE | MAP_POPULATE).expect("there is room");
            if hides {
                assert_eq!(process.protect(address, pages, 0), Ok(()));
            }
            assert_eq!((process.memory.resident().total(), process.unmap(address, pages)), (pages, Ok(())));
            assert_eq!(process.memory.space().free_flushed(usize::MAX), 0, "{pages} pages were freed");
        }
        assert_eq!(process.budget.left(), 1000);
    }
}

#[test]
fn clear_removes_all_and_waits_for_the_flush() {
    let mut process = Process::new();
    let address = process.map_anonymous(2);
    process.store(address, b"x").expect("it is writable");
    let flushes = process.platform.flushes();
    process.run(process.memory.clear());
    assert!(process.maps().is_empty() && process.platform.flushes() > flushes);
    assert_eq!(process.budget.left(), 1000);
}

#[test]
fn the_buffer_of_a_waiting_call_stays_that_of_the_parent() {
    let mut parent = Process::new();
    let address = parent.map_anonymous(1);
    parent.store(address, b"before").expect("it is writable");
    let mut buffer = parent.run(parent.memory.buffer(address, 3, Access::Write)).expect("it is mapped");
    let mut child = parent.fork();
    assert_eq!(parent.budget.left(), 998, "the page was copied");
    parent.store(address + 3, b"ORE").expect("it is writable");
    assert_eq!(buffer.write(b"BEF"), 3);
    drop(buffer);
    assert_eq!(parent.memory.try_read_bytes(address), Some(*b"BEFORE"));
    assert_eq!((child.load(address), child.load(address + 3)), (Ok(b'b'), Ok(b'o')));
    // The eighth fork after it copies pages that are pinned only.
    (1..8).for_each(|_| drop(parent.fork()));
    let last = parent.fork();
    assert_eq!(parent.budget.left(), 998, "no page is pinned");
    drop((child, last));
    parent.store(address, b"x").expect("it is writable");
}

#[test]
fn a_debugger_writes_to_a_copy_of_a_page_that_the_program_may_not_write() {
    let mut process = Process::new();
    let file = TestFile::new(true);
    let request = |flags| MapRequest {
        len: 2 * PAGE_SIZE,
        protection: PROT_READ,
        flags,
        object: Some(MapObject { source: file.clone(), permitted: Protection::ALL, path: None }),
        ..MapRequest::default()
    };
    let address = process.map_with(request(MAP_PRIVATE)).expect("there is room");
    process.load(address).expect("it is readable");
    process.run(process.memory.poke(address + PAGE_SIZE - 1, b"ab")).expect("the mapping is private");
    assert_eq!(
        (process.load(address + PAGE_SIZE - 1), process.load(address + PAGE_SIZE)),
        (Ok(b'a'), Ok(b'b'))
    );
    assert_eq!(file.frame(1).map(|frame| frame.load(0) as u8), Some(1), "the file is unchanged");
    assert_eq!(process.store(address, b"x"), Err(FaultError::NotPermitted), "the program may not write");
    let mut child = process.fork();
    process.run(process.memory.poke(address + PAGE_SIZE, b"c")).expect("the mapping is private");
    assert_eq!((child.load(address + PAGE_SIZE), process.load(address + PAGE_SIZE)), (Ok(b'b'), Ok(b'c')));
    let shared = process.map_with(request(MAP_SHARED)).expect("there is room");
    assert_eq!(process.run(process.memory.poke(shared, b"x")), Err(Errno::EFAULT));
    assert_eq!(process.run(process.memory.poke(0x1000, b"x")), Err(Errno::EFAULT));
    let own = process.map_anonymous(1);
    process.run(process.memory.poke(own, b"own")).expect("the program may write");
    assert_eq!(process.load(own), Ok(b'o'));
}
