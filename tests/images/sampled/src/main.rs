//! A test image: activities with known functions and known shares of the cores, for tests of profiles.
//!
//! `sampled [crash]`
//!
//! | activity | in each event | on |
//! |---|---|---|
//! | `light` | `light_work`: one unit | the event loop's stack |
//! | `heavy` | `heavy_work`: three units | the same |
//! | `fiber` | `fiber_work`: one unit | a fiber's stack |
//! | `deep` | `deep_work`: one unit, 40 calls below | the event loop's stack |
//! | `astray` | `astray_work`: one unit or more, with frame pointers that point nowhere | the same |
//!
//! Each core does all of it in turn until the cell gets a stop request, or for three seconds with `crash`.
#![no_std]
#![no_main]

use core::hint::black_box;
use core::time::Duration;
use isola::ebbs::CoreIndex;
use isola::events::{register_activity, sleep, spawn, spawn_task_for, spawn_task_on, yield_now};
use isola::fibers::{block_on, spawn_fiber};
use isola::prelude::*;
use isola_fault_injection::spin_with_frame_pointer;

isola::app!(main);

/// The iterations of a unit of work: some milliseconds of an emulated core.
const UNIT: u64 = 200_000;

/// The depth of `deep_work`.
const DEPTH: u32 = 40;

async fn main(arguments: Arguments) -> ExitCode {
    let names = ["light", "heavy", "fiber", "deep", "astray"];
    let [light, heavy, fiber, deep, astray] =
        names.map(|name| register_activity(name).expect("few activities"));
    for core in 0..isola::core_count() as u32 {
        spawn_task_on(CoreIndex(core), move || async move {
            spawn_task_for(light, repeat(|| light_work(1))).detach();
            spawn_task_for(heavy, repeat(|| heavy_work(3))).detach();
            spawn_task_for(deep, repeat(|| _ = deep_work(DEPTH))).detach();
            spawn_task_for(astray, repeat(astray_work)).detach();
            spawn_task_for(fiber, async {
                let work = || {
                    loop {
                        fiber_work(1);
                        block_on(yield_now());
                    }
                };
                spawn_fiber(work).expect("memory for a stack").detach();
            })
            .detach();
        });
    }
    println!("sampled: {} cores work", isola::core_count());
    if arguments.get(0) == Some("crash") {
        sleep(Duration::from_secs(3)).await;
        spawn(|| panic!("asked to"));
    }
    isola::stop_requested().await;
    ExitCode::SUCCESS
}

/// Does work in one event after the other.
async fn repeat(work: impl Fn() + 'static) {
    loop {
        work();
        yield_now().await;
    }
}

// These functions differ in a constant, as the compiler merges equal ones.

#[inline(never)]
fn light_work(units: u64) {
    black_box("light");
    (0..black_box(units)).for_each(|_| unit());
}

#[inline(never)]
fn heavy_work(units: u64) {
    black_box("heavy");
    (0..black_box(units)).for_each(|_| unit());
}

#[inline(never)]
fn fiber_work(units: u64) {
    black_box("fiber");
    (0..black_box(units)).for_each(|_| unit());
}

/// Returns the depth, so that no call is the last instruction of its function.
#[inline(never)]
fn deep_work(depth: u32) -> u32 {
    if depth == 0 {
        unit();
        return 0;
    }
    black_box(deep_work(black_box(depth - 1))) + 1
}

#[inline(never)]
fn unit() {
    for iteration in 0..UNIT {
        black_box(iteration);
    }
}

/// Frame pointers that point nowhere: null, odd, not canonical, unmapped in each area of the address space, below the
/// stack, in its guard page, and at the last word of the address space.
#[inline(never)]
fn astray_work() {
    let here = core::ptr::from_ref(black_box(&0_u64)).addr() as u64;
    let page = here & !0xfff;
    let values = [
        0,
        here | 1,
        0x0000_8000_0000_0000,
        0xffff_8fff_ffff_f000,
        0xffff_b000_0000_0000,
        0xffff_b07f_ffff_fff8,
        0xffff_b080_0000_0000,
        0xffff_c000_0000_0000,
        0xffff_ffff_ffff_fff8,
        here - 0x100,
        page & !0x1f_ffff,
        page | 0x1f_fff8,
        here + 0x1_0000,
        here + 0x2_0000,
    ];
    for value in values {
        spin_with_frame_pointer(value, UNIT / values.len() as u64);
    }
}
