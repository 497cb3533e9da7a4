//! Programs on each core until the cell is asked to stop.

use crate::program::{Program, call, on_core};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use core::time::Duration;
use isola::events::{now, sleep, yield_now};
use isola::prelude::*;
use isola::user_mode::Trap;

/// 1: inc %rbx; syscall; jmp 1b
const CALLS: [u8; 7] = [0x48, 0xff, 0xc3, 0x0f, 0x05, 0xeb, 0xf9];

/// jmp .
const LOOP: [u8; 2] = [0xeb, 0xfe];

/// The length of a stubborn event.
const STUBBORN_EVENT: Duration = Duration::from_secs(3);

/// System calls in an event.
const CALLS_AN_EVENT: u64 = 50;

static STOPS: AtomicBool = AtomicBool::new(false);
static COUNT: AtomicU64 = AtomicU64::new(0);

/// Makes system calls, and checks that each continues where the last one stopped, with all registers.
pub async fn calls() {
    on_each_core(|core| async move {
        let program = Program::new(&CALLS);
        let mut thread = program.thread();
        thread.context_mut().registers.r12 = core.into();
        thread.context_mut().xmm[9] = [core as u8; 16];
        let mut number = 0;
        while !STOPS.load(Ordering::Relaxed) {
            for _ in 0..CALLS_AN_EVENT {
                call(&mut *thread).await;
                number += 1;
                let context = thread.context();
                assert_eq!((context.registers.rbx, context.registers.r12), (number, core.into()));
                assert_eq!(context.xmm[9], [core as u8; 16]);
            }
            COUNT.fetch_add(CALLS_AN_EVENT, Ordering::Relaxed);
            yield_now().await;
        }
    })
    .await;
    println!("programs: {} system calls", COUNT.load(Ordering::Relaxed));
}

/// Makes system calls in events of some seconds, so that the supervisor takes the cores of these events by force.
pub async fn stubborn() {
    on_each_core(|core| async move {
        let program = Program::new(&CALLS);
        let mut thread = program.thread();
        thread.context_mut().xmm[9] = [core as u8; 16];
        let mut number = 0;
        while !STOPS.load(Ordering::Relaxed) {
            let began = now();
            while core != 0 && now() - began < STUBBORN_EVENT {
                if thread.run() == Trap::SystemCall {
                    number += 1;
                }
                let context = thread.context();
                assert_eq!((context.registers.rbx, context.xmm[9]), (number, [core as u8; 16]));
            }
            COUNT.fetch_add(1, Ordering::Relaxed);
            sleep(Duration::from_millis(1)).await;
        }
        assert!(core == 0 || number > 0);
    })
    .await;
    println!("programs: {} stubborn events", COUNT.load(Ordering::Relaxed));
}

/// Computes in user mode.
pub async fn loops() {
    on_each_core(|_| async {
        let program = Program::new(&LOOP);
        let mut thread = program.thread();
        while !STOPS.load(Ordering::Relaxed) {
            thread.run();
            yield_now().await;
        }
    })
    .await;
    println!("programs: the loops have ended");
}

async fn on_each_core<F: Future<Output = ()> + 'static>(task: fn(u32) -> F) {
    let cores = isola::core_count() as u32;
    let tasks: Vec<_> = (0..cores).map(|core| on_core(core, move || task(core))).collect();
    println!("programs: programs on {cores} cores");
    isola::stop_requested().await;
    STOPS.store(true, Ordering::Relaxed);
    for task in tasks {
        task.await;
    }
    sleep(Duration::from_millis(1)).await;
}
