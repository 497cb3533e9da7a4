//! Moves of flows between the cores of a cell.

use isola_events::sleep;
use isola_net::rebalance;
use isola_net::steering::{RebalanceOutcome, buckets_per_core};
use isola_platform::CoreIndex;
use std::time::Duration;

/// Moves all flows of this cell around its cores `times` times, so that each core has all, some and none of them in
/// turn. Returns the number of moved buckets, and of connections that could not move.
///
/// # Panics
/// If the cell has no network.
pub async fn rotate_flows(times: usize) -> RebalanceOutcome {
    let cores = buckets_per_core().len() as u32;
    let mut sum = RebalanceOutcome::default();
    for turn in 0..times as u32 {
        // The core alone, all cores, all other cores.
        for set in [
            vec![turn % cores],
            (0..cores).collect(),
            (0..cores).filter(|core| *core != turn % cores).collect(),
        ] {
            let set: Vec<CoreIndex> = set.into_iter().map(CoreIndex).collect();
            let moved = rebalance(&set).await.expect("no other task moves flows");
            sum.buckets += moved.buckets;
            sum.staying += moved.staying;
            // Time for traffic by way of the new owners.
            sleep(Duration::from_millis(1)).await;
        }
    }
    sum
}
