//! Deferred work, and lock-free reads.

use crate::{Outcome, cores};
use alloc::sync::Arc;
use core::sync::atomic::{AtomicUsize, Ordering};
use core::time::Duration;
use isola_events::{defer, parallel, sleep, yield_now};
use isola_rcu::RcuMap;

pub async fn deferred_work_of_all_cores_runs() -> Outcome {
    const EACH: usize = 50;
    let ran = Arc::new(AtomicUsize::new(0));
    let (count, parts) = (ran.clone(), cores());
    parallel(parts, move |_| {
        let ran = count.clone();
        async move {
            for turn in 0..EACH {
                let ran = ran.clone();
                defer(move || {
                    ran.fetch_add(1, Ordering::Relaxed);
                });
                // The core halts in some turns.
                match turn % 10 {
                    9 => sleep(Duration::from_micros(100)).await,
                    _ => yield_now().await,
                }
            }
        }
    })
    .await;
    // The suite's time limit detects work that never runs.
    while ran.load(Ordering::Relaxed) < parts * EACH {
        sleep(Duration::from_micros(200)).await;
    }
    Ok(())
}

pub async fn a_table_is_read_consistently_during_writes() -> Outcome {
    let table = Arc::new(RcuMap::new());
    for key in 0..64_u64 {
        table.insert(key, [key; 4]);
    }
    let shared = table.clone();
    let wrong = parallel(cores().max(2), move |part| {
        let table = shared.clone();
        async move {
            let mut wrong = 0;
            for turn in 0..500 {
                let key = (turn * 5 + part as u64) % 64;
                if part == 0 {
                    table.insert(key, [key + 64 * turn; 4]);
                } else {
                    let good = table.read(&key, |value| {
                        value[0] % 64 == key && value.iter().all(|word| *word == value[0])
                    });
                    wrong += usize::from(good != Some(true));
                }
                if turn % 8 == 0 {
                    yield_now().await;
                }
            }
            wrong
        }
    })
    .await;
    ensure!(wrong.iter().all(|count| *count == 0), "{wrong:?} values were torn or missing");
    Ok(())
}
