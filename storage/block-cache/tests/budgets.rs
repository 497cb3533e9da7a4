//! Whose blocks are evicted.

mod common;

use common::{BLOCK, cache, disk};
use isola_abi::id::ActivityId;
use isola_abi::report::MemoryPressure;
use isola_block_cache::{BlockCache, Budget};
use isola_ebbs::platform;
use isola_events::{current_activity, end_activity, register_activity, spawn_task_for};
use isola_test_task::run_task;
use std::ops::Range;
use std::sync::atomic::Ordering;

async fn read_for(cache: &BlockCache, activity: ActivityId, blocks: Range<u64>) {
    let cache = cache.clone();
    spawn_task_for(activity, async move {
        for number in blocks {
            cache.block(number).await.unwrap();
        }
    })
    .await;
}

async fn write_for(cache: &BlockCache, activity: ActivityId, blocks: Range<u64>) {
    let cache = cache.clone();
    spawn_task_for(activity, async move {
        for number in blocks {
            cache.write(number * BLOCK as u64, &[0xee; BLOCK]).await.unwrap();
        }
    })
    .await;
}

fn activities<const N: usize>() -> [ActivityId; N] {
    core::array::from_fn(|number| register_activity(&format!("activity {number}")).unwrap())
}

#[test]
fn hits_and_misses_count_for_the_activity_that_accesses_a_block() {
    run_task(|| async {
        let cache = cache(&disk(100), 80);
        let [first, second] = activities();
        read_for(&cache, first, 0..10).await;
        read_for(&cache, second, 5..12).await;
        let (of_first, of_second) = (cache.usage(first), cache.usage(second));
        assert_eq!((of_first.blocks, of_first.misses, of_first.hits), (10, 10, 0));
        assert_eq!((of_second.blocks, of_second.misses, of_second.hits), (2, 2, 5));
        // A read of several blocks misses each of them once.
        let mut bytes = vec![0; 10 * BLOCK];
        cache.read(50 * BLOCK as u64, &mut bytes).await.unwrap();
        cache.read(50 * BLOCK as u64, &mut bytes).await.unwrap();
        let usage = cache.usage(current_activity());
        assert_eq!((usage.misses, usage.hits), (10, 10));
    });
}

#[test]
fn an_activity_that_scans_evicts_its_own_blocks_and_not_those_within_a_share() {
    run_task(|| async {
        let disk = disk(1000);
        let cache = cache(&disk, 100);
        let [modest, scanning] = activities();
        read_for(&cache, modest, 0..40).await;
        read_for(&cache, scanning, 100..900).await;
        assert_eq!((cache.usage(modest).blocks, cache.usage(scanning).blocks), (40, 60));
        // The same for an activity that writes.
        write_for(&cache, scanning, 100..900).await;
        assert_eq!(cache.usage(modest).blocks, 40);
        cache.flush().await.unwrap();
        assert!(disk.contents()[100 * BLOCK..900 * BLOCK].iter().all(|byte| *byte == 0xee));
    });
}

#[test]
fn soft_budgets_divide_a_full_cache() {
    run_task(|| async {
        let cache = cache(&disk(2000), 100);
        let [large, small] = activities();
        cache.set_budget(large, Budget { soft: Some(75 * BLOCK), ..Budget::EQUAL });
        cache.set_budget(small, Budget { soft: Some(25 * BLOCK), ..Budget::EQUAL });
        // Alone, an activity may use the whole cache.
        read_for(&cache, small, 0..200).await;
        assert_eq!(cache.usage(small).blocks, 100);
        for round in 0..10 {
            read_for(&cache, large, 1000 + round * 50..1050 + round * 50).await;
            read_for(&cache, small, round * 50..50 + round * 50).await;
        }
        let (large, small) = (cache.usage(large).blocks, cache.usage(small).blocks);
        assert!(large.abs_diff(75) <= 1 && small.abs_diff(25) <= 1, "{large} and {small} blocks");
    });
}

#[test]
fn a_hard_budget_holds_in_an_empty_cache() {
    run_task(|| async {
        let cache = cache(&disk(2000), 500);
        let [limited] = activities();
        cache.set_budget(limited, Budget { soft: None, hard: 80 * BLOCK });
        read_for(&cache, limited, 0..300).await;
        assert_eq!(cache.usage(limited).blocks, 80);
        write_for(&cache, limited, 300..600).await;
        assert!(cache.usage(limited).blocks <= 80);
        let whole = cache.clone();
        spawn_task_for(limited, async move {
            let mut bytes = vec![0; 300 * BLOCK];
            whole.read(0, &mut bytes).await.unwrap();
            assert_eq!(bytes[299 * BLOCK], 299_u32 as u8);
        })
        .await;
        assert!(cache.usage(limited).blocks <= 80);
    });
}

#[test]
fn an_ended_activity_loses_its_blocks_first() {
    run_task(|| async {
        let cache = cache(&disk(2000), 100);
        let [ended, other, third] = activities();
        read_for(&cache, ended, 0..30).await;
        read_for(&cache, other, 100..170).await;
        assert!(end_activity(ended));
        read_for(&cache, third, 200..225).await;
        assert_eq!((cache.usage(other).blocks, cache.usage(third).blocks), (70, 25));
        assert_eq!(cache.usage(ended).blocks, 0);
    });
}

#[test]
fn blocks_in_use_outlive_blocks_of_a_scan_of_the_same_activity() {
    run_task(|| async {
        let cache = cache(&disk(2000), 100);
        let [one] = activities();
        read_for(&cache, one, 0..10).await;
        for round in 0..20 {
            read_for(&cache, one, 0..10).await;
            read_for(&cache, one, 100 + round * 50..150 + round * 50).await;
        }
        let before = cache.usage(one);
        read_for(&cache, one, 0..10).await;
        assert_eq!(cache.usage(one).hits - before.hits, 10);
    });
}

#[test]
fn shrinking_returns_memory_of_clean_blocks_at_once_and_of_dirty_ones_later() {
    run_task(|| async {
        let cache = cache(&disk(200), 100);
        let [one] = activities();
        read_for(&cache, one, 0..50).await;
        write_for(&cache, one, 100..110).await;
        assert_eq!(cache.shrink(20 * BLOCK), 20 * BLOCK);
        assert_eq!(cache.shrink(100 * BLOCK), 30 * BLOCK);
        assert_eq!(cache.len_bytes(), (10 * BLOCK, 10 * BLOCK));
        cache.flush().await.unwrap();
        assert_eq!(cache.shrink(100 * BLOCK), 10 * BLOCK);
        assert_eq!(cache.len_bytes(), (0, 0));
    });
}

#[test]
fn the_capacity_follows_the_memory_of_the_cell_down_and_up_again() {
    run_task(|| async {
        let set = |bytes| platform().report().memory.total_bytes.store(bytes, Ordering::Relaxed);
        set(64 << 20);
        let disk = disk(1000);
        let cache = cache(&disk, 400);
        let [one, other] = activities();
        read_for(&cache, one, 0..500).await;
        assert_eq!(cache.usage(one).blocks, 400);
        set(16 << 20);
        read_for(&cache, one, 500..501).await;
        assert_eq!(cache.usage(one).blocks, 100);
        // The parts of activities are those of what is left, and dirty blocks have no more than half.
        write_for(&cache, other, 600..700).await;
        assert!(cache.usage(one).blocks.abs_diff(50) <= 1 && cache.usage(other).blocks.abs_diff(50) <= 1);
        assert!(cache.len_bytes().0 <= 100 * BLOCK && cache.len_bytes().1 <= 51 * BLOCK);
        set(128 << 20);
        read_for(&cache, one, 0..500).await;
        assert_eq!(cache.len_bytes().0, 400 * BLOCK);
        cache.flush().await.unwrap();
        assert!(disk.contents()[600 * BLOCK..700 * BLOCK].iter().all(|byte| *byte == 0xee));
    });
}

#[test]
fn a_cache_does_not_grow_while_memory_is_short() {
    run_task(|| async {
        let set = |level: MemoryPressure| {
            platform().report().memory.pressure.store(level as u32, Ordering::Relaxed);
        };
        let cache = cache(&disk(1000), 400);
        let [one] = activities();
        read_for(&cache, one, 0..150).await;
        for level in [MemoryPressure::Low, MemoryPressure::Critical] {
            set(level);
            read_for(&cache, one, 300..600).await;
            write_for(&cache, one, 600..900).await;
            assert_eq!(cache.len_bytes().0, 150 * BLOCK, "{level:?}");
        }
        set(MemoryPressure::None);
        read_for(&cache, one, 0..400).await;
        assert_eq!(cache.len_bytes().0, 400 * BLOCK);
    });
}
