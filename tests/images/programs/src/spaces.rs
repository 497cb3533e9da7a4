//! Changes of an address space while a program runs there on another core.

use crate::program::{DATA, PAGE, Program, READ, WRITE, call, on_core, run};
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use isola::events::{sleep, timeout};
use isola::memory::Frame;
use isola::prelude::*;
use isola::user_mode::{Access, FlushGeneration, MapError, Trap, USER_END};

extern crate alloc;
use alloc::sync::Arc;

/// 1: mov (%rdi), %rax; incq (%rsi); jmp 1b
const LOOP: [u8; 8] = [0x48, 0x8b, 0x07, 0x48, 0xff, 0x06, 0xeb, 0xf8];

const OTHER: u64 = 0x5000_0000;
const LIMIT: Duration = Duration::from_secs(20);

pub async fn check() {
    tables().await;
    if isola::core_count() > 1 {
        for round in 0..20 {
            unmap_while_it_runs(round).await;
        }
        println!("programs: other cores see unmapped pages after a flush");
    }
    many().await;
}

async fn tables() {
    let program = Program::new(&LOOP);
    let space = &program.space;
    for address in [1, USER_END, 1 << 47, u64::MAX << 12] {
        assert_eq!(space.map(address, Frame::zeroed(), WRITE), Err(MapError::NoPage(address)));
    }
    assert_eq!(space.map(DATA, Frame::zeroed(), WRITE), Err(MapError::Occupied(DATA)));
    let frame = Frame::zeroed();
    space.map(OTHER, frame.clone(), WRITE).expect("nothing is mapped there");
    assert!(frame.is_shared());
    let mut pages = Vec::new();
    space.for_each(0, USER_END, &mut |address, page| pages.push((address, page.rights)));
    assert!(pages.len() == 5 && pages.is_sorted_by_key(|(address, _)| *address));
    space.protect(OTHER, OTHER + PAGE, &mut |_, _| READ);
    assert_eq!(space.page_at(OTHER + 9).map(|page| page.rights), Some(READ));
    let former = space.replace(OTHER, Frame::zeroed(), WRITE).expect("a page is mapped there");
    assert!(former.frame.is(&frame) && former.rights == READ);
    drop(former);
    assert_eq!(space.free_flushed(1), 0, "no flush has begun");
    assert!(frame.is_shared(), "the space keeps the replaced frame");
    let mut removed = 0;
    space.unmap(0, USER_END, &mut |_, _| removed += 1);
    assert_eq!(removed, 5);
    let generation = space.flush();
    assert!(space.is_flushed(generation), "no program runs");
    assert!(frame.is_shared());
    assert_eq!((space.free_flushed(1), frame.is_shared()), (1, false));
    assert_eq!((space.free_flushed(9), space.free_flushed(9)), (5, 0));
    println!("programs: pages own references to frames");
}

async fn unmap_while_it_runs(round: u64) {
    let program = Program::new(&LOOP);
    let frame = Frame::zeroed();
    program.space.map(OTHER, frame.clone(), WRITE).expect("nothing is mapped there");
    let trap = on_core(1, {
        let program = program.clone();
        move || async move {
            let mut thread = program.thread();
            thread.context_mut().registers.rdi = OTHER + 8;
            run(&mut *thread).await
        }
    });
    while program.data.load(64) < 10 {
        sleep(Duration::from_micros(100)).await;
    }
    let mut removed = 0;
    program.space.unmap(OTHER, OTHER + PAGE * (1 + round), &mut |_, _| removed += 1);
    assert_eq!(removed, 1);
    let generation = program.space.flush();
    let flushed = async {
        while !program.space.is_flushed(generation) {
            sleep(Duration::from_micros(50)).await;
        }
    };
    assert!(timeout(LIMIT, flushed).await.is_ok(), "the other core does not flush");
    let count = program.data.load(64);
    assert!(frame.is_shared(), "the space keeps the frame");
    assert_eq!((program.space.free_flushed(9), frame.is_shared()), (1, false));
    let trap = timeout(LIMIT, trap).await.expect("the program must fault");
    let expected = Trap::PageFault { address: OTHER + 8, access: Access::Read };
    assert_eq!((trap, program.data.load(64)), (expected, count), "round {round}");
    assert!(program.space.is_flushed(FlushGeneration(generation.0)));
}

/// Many spaces, each run once and dropped, on all cores: their tables are freed and used again.
async fn many() {
    let free = isola::memory_free();
    let done = Arc::new(AtomicU64::new(0));
    let cores = isola::core_count() as u32;
    let mut tasks = Vec::new();
    for core in 0..cores {
        let done = done.clone();
        tasks.push(on_core(core, move || async move {
            for number in 0..200_u64 {
                let program = Program::new(&[0x0f, 0x05]);
                let (mut thread, address) = (program.thread(), number << 30);
                program.space.map(address + OTHER, Frame::zeroed(), WRITE).expect("nothing is there");
                call(&mut *thread).await;
                program.space.unmap(address + OTHER, address + OTHER + PAGE, &mut |_, _| ());
                if number % 8 == 0 {
                    sleep(Duration::from_micros(10)).await;
                }
                done.fetch_add(1, Ordering::Relaxed);
            }
        }));
    }
    for task in tasks {
        task.await;
    }
    assert_eq!(done.load(Ordering::Relaxed), 200 * u64::from(cores));
    sleep(Duration::from_millis(5)).await;
    drop(Program::new(&LOOP));
    let lost = free.saturating_sub(isola::memory_free());
    assert!(lost < 4 << 20, "{lost} bytes are lost");
    println!("programs: dropped spaces are freed");
}
