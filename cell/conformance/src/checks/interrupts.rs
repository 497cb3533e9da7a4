//! Interrupts as events.

use crate::support::until_set;
use crate::{BrokenGuarantee, Outcome, cores, on_core, others};
use alloc::rc::Rc;
use alloc::string::ToString;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::Cell;
use core::sync::atomic::{AtomicUsize, Ordering};
use isola_ebbs::{current_core, platform};
use isola_events::interrupt::{Interrupt, InterruptError, on_interrupt};
use isola_events::{must_yield, sleep, yield_if_needed, yield_now};

/// The first of the vectors that only these checks use.
const FIRST: u8 = 0xa0;

/// The vector at which another core sends an interrupt back.
const THERE: u8 = FIRST - 1;

fn bind(vector: u8, handler: impl Fn() + 'static) -> Result<Interrupt, BrokenGuarantee> {
    on_interrupt(vector, handler).map_err(|error| BrokenGuarantee(error.to_string()))
}

pub async fn a_core_is_interrupted_by_itself() -> Outcome {
    for _ in 0..100 {
        let came = Rc::new(Cell::new(false));
        let shared = came.clone();
        let _interrupt = bind(FIRST, move || shared.set(true))?;
        platform().interrupt(current_core(), FIRST);
        ensure!(!came.get(), "a handler ran within an event");
        until_set(&came).await;
    }
    Ok(())
}

pub async fn a_long_event_learns_of_interrupts_and_keeps_its_registers() -> Outcome {
    let count = Rc::new(Cell::new(0));
    let counted = count.clone();
    let _interrupt = bind(FIRST, move || counted.set(counted.get() + 1))?;
    let (mut whole, mut part) = (1_u64, 1.0_f64);
    for round in 0..200 {
        yield_now().await;
        platform().interrupt(current_core(), FIRST);
        // The compiler keeps both in registers where it can; the interrupt's stub saves none.
        let (before, expected) = ((whole, part), (whole.wrapping_mul(0x9e37_79b9) ^ round, part + 0.25));
        let must_yield = must_yield();
        whole = before.0.wrapping_mul(0x9e37_79b9) ^ round;
        part = before.1 + 0.25;
        ensure!((whole, part) == expected, "round {round}: {whole} and {part} after an interrupt");
        ensure!(must_yield, "round {round}: the interrupt is not pending");
        ensure!(count.get() == round, "round {round}: a handler ran within an event");
        yield_if_needed().await;
        ensure!(count.get() == round + 1, "round {round}: {} interrupts", count.get());
    }
    Ok(())
}

pub async fn cores_interrupt_each_other() -> Outcome {
    const TURNS: usize = 50;
    let here = current_core();
    for core in others() {
        let back = Arc::new(AtomicUsize::new(0));
        let counted = back.clone();
        let _interrupt = bind(FIRST, move || {
            counted.fetch_add(1, Ordering::Relaxed);
        })?;
        on_core(core, move || async move {
            // With a single vector in a cell of one core, each interrupt would cause another one forever.
            let bound = on_interrupt(THERE, move || platform().interrupt(here, FIRST)).map(Interrupt::keep);
            assert!(matches!(bound, Ok(()) | Err(InterruptError::Taken { .. })));
        })
        .await;
        for turn in 0..TURNS {
            platform().interrupt(core, THERE);
            while back.load(Ordering::Relaxed) <= turn {
                // Both cores halt, and only the interrupts wake them.
                match turn % 2 {
                    0 => yield_now().await,
                    _ => sleep(core::time::Duration::from_micros(200)).await,
                }
            }
        }
        let back = back.load(Ordering::Relaxed);
        ensure!(back == TURNS, "{TURNS} interrupts to {core:?}, {back} back, of {} cores", cores());
    }
    Ok(())
}

pub async fn every_vector_has_its_own_handler() -> Outcome {
    let seen = Rc::new(Cell::new(0_u64));
    let mut interrupts = Vec::new();
    for vector in 0..32 {
        let seen = seen.clone();
        interrupts.push(bind(FIRST + vector, move || seen.set(seen.get() | 1 << vector))?);
    }
    for vector in (0..32).filter(|vector| vector % 3 != 1) {
        platform().interrupt(current_core(), FIRST + vector);
    }
    let expected: u64 = (0..32).filter(|vector| vector % 3 != 1).map(|vector| 1 << vector).sum();
    while seen.get().count_ones() < expected.count_ones() {
        yield_now().await;
    }
    ensure!(seen.get() == expected, "{:x} instead of {expected:x}", seen.get());
    Ok(())
}
