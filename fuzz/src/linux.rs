//! System calls of Linux programs.

use crate::input::InputReader;
use isola_linux_memory::{
    Errno, FrameBudget, MapObject, MapRequest, MemoryLayout, MemoryLimits, ProcessMemory, Protection,
    RemapRequest, SharedMemory,
};
use isola_linux_sim::{SimulatedUserMode, run_with};
use isola_user_mode::{Access, PAGE_SIZE, USER_END};
use std::future::Future;
use std::sync::Arc;

/// The frames of all processes.
const FRAMES: u64 = 200;

/// The most processes at a time.
const MOST_PROCESSES: usize = 3;

/// Calls on the memory of processes, with any arguments. The simulated address spaces check that no frame is freed before
/// TLBs are flushed; the mappings and the frames must add up.
pub fn memory(input: &[u8]) {
    let platform = SimulatedUserMode::new();
    platform.hold_flushes();
    let budget = Arc::new(FrameBudget::new(FRAMES));
    let layout = MemoryLayout::new(Some(7), MemoryLimits::DEFAULT_STACK);
    let first = ProcessMemory::new(platform.space(), layout, MemoryLimits::default(), budget.clone());
    let object = SharedMemory::new(b"object", 5 * PAGE_SIZE, budget.clone());
    let mut processes = vec![first];
    let mut input = InputReader::new(input);
    while !input.is_over() {
        let process = usize::from(input.byte()) % processes.len();
        match input.byte() % 16 {
            0 if processes.len() < MOST_PROCESSES => {
                let child = run(&platform, processes[process].fork(platform.space()));
                processes.extend(child);
            }
            1 if processes.len() > 1 => drop(processes.remove(process)),
            2 => {
                let size = u64::from(input.word());
                refused(run(&platform, object.set_size(size)));
            }
            _ => call(&platform, &processes[process], &object, &mut input),
        }
        for process in &processes {
            let mappings = process.mappings();
            let pages: u64 = mappings.iter().map(|mapping| mapping.pages()).sum();
            assert_eq!(process.usage().mapped, pages);
            assert!(mappings.iter().all(|mapping| mapping.start < mapping.end && mapping.end <= USER_END));
            assert!(mappings.is_sorted_by(|a, b| a.end <= b.start));
        }
    }
    drop((processes, object));
    assert_eq!(budget.left(), FRAMES);
}

fn call(
    platform: &SimulatedUserMode,
    process: &ProcessMemory,
    object: &Arc<SharedMemory>,
    input: &mut InputReader<'_>,
) {
    let (address, len) = (number(input), number(input));
    match input.byte() % 12 {
        0..=3 => {
            let object = input.byte().is_multiple_of(2).then(|| MapObject {
                source: object.clone(),
                permitted: Protection::ALL,
                path: None,
            });
            let request = MapRequest {
                address,
                len,
                protection: u32::from(input.byte() % 8),
                // The bits of the types and of the known flags.
                flags: u32::from(input.word()) & 0x17f3 | u32::from(input.byte() % 4) << 18,
                offset: if input.byte().is_multiple_of(4) { number(input) } else { 0 },
                object,
                name: "",
            };
            refused(run(platform, process.map(request)));
        }
        4 => refused(run(platform, process.unmap(address, len))),
        5 => refused(run(platform, process.protect(address, len, u32::from(input.byte() % 8)))),
        6 => {
            let (new_len, new_address) = (number(input), number(input));
            let request =
                RemapRequest { address, len, new_len, flags: u32::from(input.byte() % 8), new_address };
            refused(run(platform, process.remap(request)));
        }
        7 => refused(run(platform, process.advise(address, len, u32::from(input.byte() % 26)))),
        8 => refused(run(platform, process.lock(address, len, u32::from(input.byte() % 2)))),
        9 => refused(run(platform, process.write_bytes(address, &[1; 9]))),
        10 => refused(run(platform, process.buffer(address, len.min(1 << 20), Access::Read))),
        _ => {
            process.set_break_start(address);
            run(platform, process.set_break(address.saturating_add(len)));
        }
    }
}

/// Ignores a result: errors are permitted.
fn refused<T>(_result: Result<T, Errno>) {}

/// Runs a call. Flushes end only while it waits.
fn run<T>(platform: &SimulatedUserMode, call: impl Future<Output = T>) -> T {
    run_with(call, || {
        platform.end_flushes();
    })
}

/// An address or a length: pages near each other mostly, some near the limits.
fn number(input: &mut InputReader<'_>) -> u64 {
    let selector = input.byte();
    let offset = u64::from(selector % 32) * PAGE_SIZE;
    match selector / 32 {
        0..=4 => 0x10_0000 + offset,
        5 => offset + 1,
        6 => USER_END.wrapping_sub(offset),
        _ => (u64::MAX - offset).saturating_add(u64::from(input.byte())),
    }
}
