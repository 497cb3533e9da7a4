//! A process whose global allocator is its cell's heap, as in an application.
#![allow(unsafe_code, reason = "sets the environment, which the process reads once")]

use isola_abi::report::MemoryPressure;
use isola_events::activity::register_activity_under;
use isola_events::pressure::on_memory_pressure;
use isola_events::reclaim::{move_memory_charge, used_bytes};
use isola_events::{exit, parallel, register_activity, run, spawn_task, spawn_task_for, yield_now};
use isola_hosted::heap::CellHeap;
use isola_hosted::process::Process;
use isola_memory::regions::{OnDemand, PageSize, Region};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::mpsc::channel;
use std::thread;

#[global_allocator]
static ALLOCATOR: CellHeap = CellHeap;

const MIB: usize = 1 << 20;

fn free() -> usize {
    isola_ebbs::platform().memory_free()
}

/// Returns vectors of all sizes with a known content.
fn objects(seed: u8) -> Vec<Vec<u8>> {
    (0..2_000_usize).map(|turn| vec![seed ^ turn as u8; 1 + turn * 7 % 5_000]).collect()
}

fn are_whole(seed: u8, objects: &[Vec<u8>]) -> bool {
    (0..).zip(objects).all(|(turn, object): (usize, _)| object.iter().all(|byte| *byte == seed ^ turn as u8))
}

async fn main() {
    let total = isola_ebbs::platform().report().memory.total_bytes.load(std::sync::atomic::Ordering::Relaxed);
    assert!((60 * MIB as u64..=64 * MIB as u64).contains(&total), "{total} bytes");
    let before = free();
    let held = vec![1_u8; 8 * MIB];
    assert!(before - free() >= 8 * MIB && free() > 32 * MIB, "{before}, then {}", free());
    drop(held);

    // The activity that faults is charged for the pages, not the one that drops them.
    let tenant = register_activity("tenant").unwrap();
    let region = spawn_task_for(tenant, async {
        let mut region = Region::new("tenant", 4 * MIB, OnDemand::new(PageSize::FourKib)).unwrap();
        region.chunks_mut(4096).for_each(|page| page[0] = 1);
        region
    });
    let region = region.await;
    let used = used_bytes(tenant);
    assert!((4 * MIB as u64..5 * MIB as u64).contains(&used), "{used} bytes");
    drop(region);
    assert!(used - used_bytes(tenant) >= 4 * MIB as u64, "{used}, then {} bytes", used_bytes(tenant));

    // An event that frees the memory of another activity moves the charge to its own.
    let child = register_activity_under(tenant, "child").unwrap();
    let other = register_activity("other").unwrap();
    let before_each = [tenant, other].map(used_bytes);
    let made = spawn_task_for(child, async { vec![1_u8; 4 * MIB] }).await;
    assert!(used_bytes(tenant) - before_each[0] >= 4 * MIB as u64, "a child counts for its parent");
    let freed = spawn_task_for(other, async move {
        drop(made);
        move_memory_charge(child, other, 4 * MIB);
    });
    freed.await;
    for (activity, before) in [tenant, other].into_iter().zip(before_each) {
        let more = used_bytes(activity) as i64 - before as i64;
        assert!(more.abs() < MIB as i64 / 2, "{more} bytes more");
    }

    // Other threads allocate from the C library and free the cores' objects, and vice versa.
    let (to_thread, from_core) = channel::<Vec<Vec<u8>>>();
    let (to_core, from_thread) = channel();
    let thread = thread::spawn(move || {
        let before = objects(7);
        for (turn, mut made) in (0_u8..).zip(from_core) {
            assert!(are_whole(turn, &made));
            made[0].reserve(10_000);
            assert_eq!(made[0][0], turn);
            to_core.send(objects(turn)).unwrap();
        }
        assert!(are_whole(7, &before));
    });
    for turn in 0..10 {
        to_thread.send(objects(turn)).unwrap();
        let mut made = from_thread.recv().unwrap();
        assert!(are_whole(turn, &made));
        made[1].reserve(10_000);
        assert_eq!(made[1][0], turn ^ 1);
    }
    drop(to_thread);
    thread.join().unwrap();

    let whole = parallel(8, |part| async move { are_whole(part as u8, &objects(part as u8)) });
    assert!(!whole.await.contains(&false));

    // An allocation beyond the pool fails, whatever the host has; the cell continues.
    let mut much = Vec::<u8>::new();
    assert!(much.try_reserve_exact(65 * MIB).is_err());
    assert!(much.try_reserve_exact(16 * MIB).is_ok());
    drop(much);

    // Memory-pressure handlers run when little is left.
    let called = Rc::new(Cell::new(false));
    let seen = called.clone();
    let handler = on_memory_pressure(move |level| seen.set(seen.get() || level != MemoryPressure::None));
    let mut blocks = Vec::new();
    while !called.get() {
        blocks.push(vec![1_u8; MIB / 16]);
        yield_now().await;
    }
    assert!(free() > MIB, "{} bytes are left", free());
    drop((blocks, handler));
    assert!(before - free() < 4 * MIB, "{before}, then {}", free());
    exit(3);
}

#[test]
fn only_the_cores_of_a_process_allocate_from_its_pool() {
    // SAFETY: no other thread of this process reads or writes the environment now.
    unsafe { std::env::set_var(isola_abi::hosted::VARIABLE, "cores=2 memory=64M network=none") };
    let process = Process::open().unwrap();
    let code = process.run(Vec::new(), None, || spawn_task(main()).detach(), run);
    assert_eq!(code, Ok(3));
}
