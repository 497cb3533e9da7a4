//! Fork-join over the cores.

use crate::{Outcome, cores};
use alloc::vec::Vec;
use isola_ebbs::current_core;
use isola_events::{parallel, yield_now};
use isola_platform::CoreIndex;

pub async fn parts_run_on_all_cores_and_results_keep_their_order() -> Outcome {
    for round in 0..20 {
        let parts = round * cores() / 4;
        let results = parallel(parts, |part| async move {
            if part % 2 == 0 {
                yield_now().await;
            }
            (part, current_core())
        })
        .await;
        let expected: Vec<_> = (0..parts).map(|part| (part, CoreIndex((part % cores()) as u32))).collect();
        ensure!(results == expected, "{results:?}");
    }
    Ok(())
}

pub async fn nested_parallel_work_completes() -> Outcome {
    let sums = parallel(cores(), |outer| async move {
        let inner = parallel(cores(), move |inner| async move { outer * inner });
        inner.await.into_iter().sum::<usize>()
    });
    let triangle: usize = (0..cores()).sum();
    let sum: usize = sums.await.into_iter().sum();
    ensure!(sum == triangle * triangle, "{sum} instead of {}", triangle * triangle);
    Ok(())
}
