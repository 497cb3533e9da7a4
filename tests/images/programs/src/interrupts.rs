//! Work of the core interrupts a program that computes.

use crate::program::{Program, on_core};
use alloc::rc::Rc;
use core::cell::Cell;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use isola::events::{now, sleep, spawn_task, yield_now};
use isola::prelude::*;
use isola::user_mode::Trap;

extern crate alloc;

/// jmp .
const ENDLESS: [u8; 2] = [0xeb, 0xfe];

/// A time that an emulated core needs at most for an alarm or a message.
const LIMIT: Duration = Duration::from_secs(10);

static MESSAGES: AtomicU64 = AtomicU64::new(0);

pub async fn check() {
    let program = Program::new(&ENDLESS);
    // An alarm.
    let mut thread = program.thread();
    let rung = Rc::new(Cell::new(None));
    let ringing = rung.clone();
    let alarm = spawn_task(async move {
        sleep(Duration::from_millis(20)).await;
        ringing.set(Some(now()));
    });
    let (began, mut traps) = (now(), 0);
    while rung.get().is_none() {
        assert_eq!(thread.run(), Trap::Interrupt);
        traps += 1;
        yield_now().await;
        assert!(now() - began < LIMIT, "no alarm within a program");
    }
    alarm.await;
    let late = rung.get().map(|at| at - began);
    assert!(late >= Some(Duration::from_millis(20)));
    assert!(traps < 50, "{traps} traps: the program runs until there is work");
    println!("programs: alarms interrupt programs");

    // Another task of the core: the program does not run.
    let mut thread = program.thread();
    let other = spawn_task(async { 7 });
    assert_eq!(thread.run(), Trap::Interrupt);
    assert_eq!(other.await, 7);

    if isola::core_count() > 1 {
        let runner = on_core(1, {
            let program = program.clone();
            move || async move {
                let mut thread = program.thread();
                while MESSAGES.load(Ordering::Relaxed) < 100 {
                    assert_eq!(thread.run(), Trap::Interrupt);
                    yield_now().await;
                }
            }
        });
        for _ in 0..100 {
            let message = on_core(1, || async { MESSAGES.fetch_add(1, Ordering::Relaxed) });
            let _ = message.await;
        }
        runner.await;
        println!("programs: messages interrupt programs");
    }
}
