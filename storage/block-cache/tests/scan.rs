//! An activity that reads ten times the cell's memory takes no memory from another: the other's hit rate is the same as
//! without it, within a percentage point. The disk is simulated, so each run has the same accesses.

mod common;

use common::{BLOCK, cache, disk};
use isola_abi::id::ActivityId;
use isola_abi::report::RECLAIM;
use isola_block_cache::{BlockCache, CacheUse};
use isola_ebbs::platform;
use isola_events::reclaim::{MemoryHolder, ReclaimCause, VacatedMemory, lost_bytes, register_memory_holder};
use isola_events::{register_activity, spawn_task_for, yield_now};
use isola_resources::{Entitlement, MEMORY, MemoryBudget};
use isola_test_task::run_task;
use std::cell::Cell;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

/// The cell's memory in blocks, a quarter of which is the cache's, as for the volumes of a cell.
const MEMORY_BLOCKS: usize = 1024;
const CACHE_BLOCKS: usize = MEMORY_BLOCKS / 4;

/// The blocks that the scan reads, over and over the same part of the disk, and those of one of its reads.
const SCANNED: usize = 10 * MEMORY_BLOCKS;
const RUN: usize = 4;

/// The most by which hit rates may differ.
const TOLERANCE: f64 = 0.01;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Scan {
    No,
    Yes,
}

/// Returns the part of accesses to cached blocks.
fn hit_rate(usage: CacheUse) -> f64 {
    usage.hits as f64 / (usage.hits + usage.misses) as f64
}

fn budget(soft: Option<usize>, hard: Option<usize>) -> Entitlement {
    let bytes = |blocks: usize| (blocks * BLOCK) as u64;
    Entitlement {
        memory: MemoryBudget { soft: soft.map(bytes), hard: hard.map(bytes) },
        ..Entitlement::default()
    }
}

/// The cache as a holder of memory, as the volumes of a cell register it.
struct Cached(BlockCache);

impl MemoryHolder for Cached {
    fn held(&self, _: ReclaimCause) -> Vec<(ActivityId, usize)> {
        self.0.held()
    }

    fn free(&self, _: ReclaimCause, activity: ActivityId, len_bytes: usize) -> usize {
        self.0.shrink_activity(activity, len_bytes)
    }

    fn vacate(&self, _: &VacatedMemory, _: u64) -> Option<u64> {
        None
    }
}

/// The use of the cache after a run, by the reader and by the scan.
struct Outcome {
    reader: CacheUse,
    scan: CacheUse,
    /// The most blocks that the scan had.
    most_scanned: usize,
    lost_bytes: [u64; 2],
}

/// Reads random blocks of a working set of `blocks`, beside the scan, with these budgets of memory for both.
fn run(blocks: usize, scan: Scan, budgets: [Option<Entitlement>; 2]) -> Outcome {
    let outcome: Arc<Mutex<Option<Outcome>>> = Arc::default();
    let result = outcome.clone();
    run_task(move || {
        let (main, result) = (play(blocks, scan, budgets), result.clone());
        async move { *result.lock().unwrap() = Some(main.await) }
    });
    outcome.lock().unwrap().take().expect("the cell has ended")
}

async fn play(blocks: usize, scan: Scan, budgets: [Option<Entitlement>; 2]) -> Outcome {
    let cache = cache(&disk(MEMORY_BLOCKS + CACHE_BLOCKS), CACHE_BLOCKS);
    let holder = register_memory_holder(Cached(cache.clone()));
    let activities = ["reader", "scan"].map(|name| register_activity(name).unwrap());
    for (activity, budget) in activities.iter().zip(budgets) {
        budget.into_iter().for_each(|budget| MEMORY.set_entitlement(*activity, budget).unwrap());
    }
    let [reader, scanning] = activities;
    let most_scanned = Rc::new(Cell::new(0));
    let of_reader = cache.clone();
    let reads = spawn_task_for(reader, async move {
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..SCANNED / RUN {
            let block = of_reader.block(random.u64(..blocks as u64)).await.unwrap();
            assert_eq!(block.len(), BLOCK);
            drop(block);
            yield_now().await;
        }
    });
    let (of_scan, most) = (cache.clone(), most_scanned.clone());
    let scans = spawn_task_for(scanning, async move {
        let runs = if scan == Scan::Yes { SCANNED / RUN } else { 0 };
        for run in 0..runs {
            let number = CACHE_BLOCKS + run * RUN % MEMORY_BLOCKS;
            let views = of_scan.views((number * BLOCK) as u64, RUN * BLOCK).await.unwrap();
            assert_eq!(views.parts().last().unwrap()[0], (number + RUN - 1) as u8);
            drop(views);
            // The heap does so when an activity exceeds its hard budget.
            if of_scan.usage(scanning).blocks * BLOCK > hard_bytes(scanning) {
                platform().report().memory.pressure.fetch_or(RECLAIM, Ordering::Relaxed);
            }
            yield_now().await;
            most.set(most.get().max(of_scan.usage(scanning).blocks));
        }
    });
    reads.await;
    scans.await;
    drop(holder);
    Outcome {
        reader: cache.usage(reader),
        scan: cache.usage(scanning),
        most_scanned: most_scanned.get(),
        lost_bytes: activities.map(lost_bytes),
    }
}

fn hard_bytes(activity: ActivityId) -> usize {
    MEMORY.entitlement(activity).memory.hard.map_or(usize::MAX, |hard| hard as usize)
}

/// Returns the hit rates without the scan and beside it, and the outcome of the latter.
fn hit_rates(blocks: usize, budgets: [Option<Entitlement>; 2]) -> (f64, f64, Outcome) {
    let alone = run(blocks, Scan::No, budgets);
    let beside = run(blocks, Scan::Yes, budgets);
    assert!(beside.scan.misses as usize >= SCANNED, "the scan has read it all from the disk");
    (hit_rate(alone.reader), hit_rate(beside.reader), beside)
}

#[test]
fn a_working_set_within_an_equal_part_is_kept_from_a_scan() {
    let (alone, beside, outcome) = hit_rates(CACHE_BLOCKS / 2 - 32, [None, None]);
    assert!(alone > 0.9, "{alone}");
    assert!((alone - beside).abs() < TOLERANCE, "hit rate {beside} beside the scan, {alone} without");
    assert_eq!(outcome.reader.evicted, 0);
}

#[test]
fn a_working_set_beyond_an_equal_part_is_kept_from_a_scan_by_a_soft_budget_of_memory() {
    let blocks = CACHE_BLOCKS * 7 / 8;
    let (alone, beside, _) = hit_rates(blocks, [None, None]);
    assert!(alone - beside > 0.1, "without a budget, the scan has an equal part: {beside} and {alone}");
    let (alone, beside, outcome) = hit_rates(blocks, [Some(budget(Some(blocks), None)), None]);
    assert!((alone - beside).abs() < TOLERANCE, "hit rate {beside} beside the scan, {alone} without");
    assert_eq!(outcome.reader.evicted, 0);
    assert!(outcome.scan.blocks > 0);
}

#[test]
fn a_scan_above_its_hard_budget_loses_its_own_blocks_only() {
    let (blocks, hard) = (CACHE_BLOCKS * 5 / 8, CACHE_BLOCKS / 8);
    let (alone, beside, outcome) = hit_rates(blocks, [None, Some(budget(None, Some(hard)))]);
    assert!((alone - beside).abs() < TOLERANCE, "hit rate {beside} beside the scan, {alone} without");
    // The memory scheduler runs some events after the demand, in each of which the scan may read a run.
    assert!(outcome.most_scanned <= hard + 8 * RUN, "{} blocks of {hard}", outcome.most_scanned);
    assert_eq!(outcome.lost_bytes[0], 0);
    assert!(outcome.lost_bytes[1] as usize > 8 * MEMORY_BLOCKS * BLOCK);
}
