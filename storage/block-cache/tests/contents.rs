//! The contents that a cache returns and writes back, against a model, and errors of the device.

mod common;

use common::{BLOCK, cache, disk};
use isola_block::BlockError;
use isola_block_cache::BlockCache;
use isola_events::future::join_all;
use isola_events::{spawn_task, yield_now};
use isola_iobuf::Chain;
use isola_platform::block::{BlockRefusal, Writability};
use isola_storage_sim::{Logged, SimDisk, Timing, limits};
use isola_test_task::run_task;
use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Waker};

#[test]
fn a_read_without_room_waits_for_the_device_and_not_in_a_loop() {
    run_task(|| async {
        let disk = disk(300);
        let cache = cache(&disk, 64);
        disk.set_timing(Timing::Manual);
        let read = |number: u64| {
            let cache = cache.clone();
            spawn_task(async move { cache.views(number * 32 * BLOCK as u64, 16 * BLOCK).await })
        };
        // Four fill the cache, three wait for room.
        let reads: Vec<_> = (0..4).map(read).collect();
        let polls = Rc::new(Cell::new(0));
        let waiting: Vec<_> = (4..7)
            .map(|number| {
                let (cache, polls) = (cache.clone(), polls.clone());
                spawn_task(async move {
                    let mut views = pin!(cache.views(number * 32 * BLOCK as u64, 16 * BLOCK));
                    poll_fn(|context| {
                        polls.set(polls.get() + 1);
                        views.as_mut().poll(context)
                    })
                    .await
                })
            })
            .collect();
        for _ in 0..200 {
            yield_now().await;
        }
        assert_eq!(disk.in_device().len(), 4);
        assert!(polls.get() < 10, "{} polls of waiting reads", polls.get());
        disk.complete_slowly();
        for (number, views) in join_all(reads.into_iter().chain(waiting)).await.into_iter().enumerate() {
            assert!(views.unwrap().to_vec()[..BLOCK] == [(number * 32) as u8; BLOCK], "read {number}");
        }
        assert!(cache.len_bytes().0 <= 64 * BLOCK);
    });
}

#[test]
fn views_are_of_the_cache_and_survive_changes_and_eviction() {
    run_task(|| async {
        let disk = disk(300);
        let cache = cache(&disk, 64);
        let at = 10 * BLOCK as u64 + 100;
        let views = cache.views(at, 3 * BLOCK).await.unwrap();
        let mut again = Chain::new();
        assert_eq!(cache.append_cached(at, 3 * BLOCK, &mut again), 3 * BLOCK);
        let addresses = |chain: &Chain| chain.parts().map(|part| part.as_ptr()).collect::<Vec<_>>();
        assert_eq!((addresses(&views), views.parts().len()), (addresses(&again), 4));
        let before = views.to_vec();
        cache.write(at, &[0xee; BLOCK]).await.unwrap();
        assert_eq!(cache.views(at, BLOCK).await.unwrap().to_vec(), [0xee; BLOCK]);
        cache.flush().await.unwrap();
        cache.shrink(usize::MAX);
        assert_eq!(cache.append_cached(at, BLOCK, &mut again), 0);
        assert!(views.to_vec() == before);
        let end = cache.device_len();
        assert_eq!(cache.views(end - 1, 2).await.unwrap_err(), BlockRefusal::OutsideDevice.into());
        assert_eq!(cache.append_cached(end - 1, 2, &mut again), 0);
    });
}

#[test]
fn random_accesses_see_what_was_written_and_a_flush_writes_all_of_it() {
    for seed in 0..6 {
        run_task(move || async move {
            let disk = disk(300);
            let cache = cache(&disk, 64);
            if seed % 2 == 0 {
                disk.complete_slowly();
            }
            let mut random = fastrand::Rng::with_seed(seed);
            let mut model = disk.contents();
            for step in 0..600 {
                let at = random.usize(..model.len());
                let most = if random.u8(..4) == 0 { 40 * BLOCK } else { 6000 };
                let len = random.usize(..most).min(model.len() - at);
                match random.u8(..10) {
                    0..2 => {
                        let views = cache.views(at as u64, len).await.unwrap();
                        assert!(
                            views.to_vec() == model[at..at + len],
                            "seed {seed}, step {step}: views of {len} bytes at {at}"
                        );
                        let mut cached = Chain::new();
                        let count = cache.append_cached(at as u64, len, &mut cached);
                        assert!(cached.len() == count && cached.to_vec() == model[at..at + count]);
                    }
                    2..4 => {
                        let mut bytes = vec![0; len];
                        cache.read(at as u64, &mut bytes).await.unwrap();
                        assert!(
                            bytes == model[at..at + len],
                            "seed {seed}, step {step}: {len} bytes at {at}"
                        );
                    }
                    4..8 => {
                        let bytes: Vec<u8> = (0..len).map(|_| random.u8(..)).collect();
                        cache.write(at as u64, &bytes).await.unwrap();
                        model[at..at + len].copy_from_slice(&bytes);
                    }
                    8 => {
                        cache.shrink(random.usize(..1 << 20));
                    }
                    _ => {
                        cache.flush().await.unwrap();
                        assert!(disk.contents() == model, "seed {seed}, step {step}: flush");
                        assert_eq!(cache.len_bytes().1, 0);
                    }
                }
                assert!(cache.len_bytes().0 <= 64 * BLOCK);
            }
        });
    }
}

#[test]
fn parallel_accesses_of_the_same_blocks_read_them_once() {
    run_task(|| async {
        let disk = disk(100);
        let cache = cache(&disk, 80);
        disk.complete_slowly();
        let read = |number: u64| {
            let cache = cache.clone();
            spawn_task(async move { cache.block(number % 20).await.unwrap().to_vec() })
        };
        let blocks = join_all((0..200).map(read).collect::<Vec<_>>()).await;
        for (number, block) in blocks.iter().enumerate() {
            assert_eq!(*block, [(number % 20) as u8; BLOCK]);
        }
        assert_eq!(disk.counts().0, 20);
    });
}

#[test]
fn parallel_writers_of_one_block_lose_no_byte() {
    run_task(|| async {
        let disk = disk(100);
        let cache = cache(&disk, 64);
        disk.complete_slowly();
        let write = |writer: u64| {
            let cache = cache.clone();
            spawn_task(async move {
                for round in 0..20_u64 {
                    cache.write(writer * 100, &[writer as u8 + 1; 100]).await.unwrap();
                    if (writer + round).is_multiple_of(5) {
                        cache.flush().await.unwrap();
                    }
                    yield_now().await;
                }
            })
        };
        join_all((0..90).map(write).collect::<Vec<_>>()).await;
        cache.flush().await.unwrap();
        let contents = disk.contents();
        for writer in 0..90 {
            assert_eq!(contents[writer * 100..][..100], [writer as u8 + 1; 100]);
        }
    });
}

#[test]
fn adjacent_dirty_blocks_are_one_request_and_precede_the_flush() {
    run_task(|| async {
        let disk = disk(100);
        let cache = cache(&disk, 100);
        for number in [7, 5, 6, 30, 8] {
            cache.write(number * BLOCK as u64, &[1; BLOCK]).await.unwrap();
        }
        assert_eq!(disk.take_log(), []);
        cache.flush().await.unwrap();
        let mut log = disk.take_log();
        assert_eq!(log.pop(), Some(Logged::Flush));
        log.sort_by_key(|entry| matches!(entry, Logged::Write { at, .. } if *at == 30 * BLOCK));
        let writes = [(5 * BLOCK, 4 * BLOCK), (30 * BLOCK, BLOCK)];
        let expected = writes.map(|(at, len)| Logged::Write { at, bytes: vec![1; len] });
        assert_eq!(log, expected);
        // Whole blocks are not read before they are written.
        assert_eq!(disk.counts().0, 0);
    });
}

#[test]
fn a_failed_write_back_fails_the_flush_and_is_repeated_by_the_next() {
    run_task(|| async {
        let disk = disk(100);
        let cache = cache(&disk, 64);
        cache.write(0, &[9; 3 * BLOCK]).await.unwrap();
        cache.write(40 * BLOCK as u64, &[8; 10]).await.unwrap();
        disk.set_bad(Some(BLOCK..BLOCK + 1));
        assert_eq!(cache.flush().await, Err(BlockError::Io));
        assert_eq!(cache.flush().await, Err(BlockError::Io));
        assert_eq!(disk.counts().2, 0, "a flush reached the device without the writes before it");
        let mut bytes = vec![0; 3 * BLOCK];
        cache.read(0, &mut bytes).await.unwrap();
        assert_eq!(bytes, [9; 3 * BLOCK]);
        disk.set_bad(None);
        cache.flush().await.unwrap();
        assert_eq!(disk.contents()[..3 * BLOCK], [9; 3 * BLOCK]);
        assert_eq!(disk.contents()[40 * BLOCK..][..10], [8; 10]);
    });
}

#[test]
fn a_block_that_cannot_be_written_fails_flushes_and_no_other_access() {
    run_task(|| async {
        let disk = disk(300);
        let cache = cache(&disk, 64);
        disk.set_bad(Some(0..BLOCK));
        cache.write(0, &[9; BLOCK]).await.unwrap();
        for number in 1..250 {
            cache.write(number * BLOCK as u64, &[8; BLOCK]).await.unwrap();
            cache.block(299 - number).await.unwrap();
        }
        assert_eq!(cache.flush().await, Err(BlockError::Io));
        assert_eq!(cache.block(0).await.unwrap()[..], [9; BLOCK]);
        disk.set_bad(None);
        cache.flush().await.unwrap();
        assert!(disk.contents()[..BLOCK].iter().all(|byte| *byte == 9));
    });
}

#[test]
fn a_failed_read_is_an_error_and_leaves_no_block() {
    run_task(|| async {
        let disk = disk(100);
        let cache = cache(&disk, 64);
        disk.set_bad(Some(0..BLOCK));
        let mut bytes = [0; 10];
        assert_eq!(cache.read(5, &mut bytes).await, Err(BlockError::Io));
        assert_eq!(cache.write(5, &bytes).await, Err(BlockError::Io));
        assert_eq!(cache.len_bytes(), (0, 0));
        disk.set_bad(None);
        cache.read(2 * BLOCK as u64, &mut bytes).await.unwrap();
        assert_eq!(bytes, [2; 10]);
        let outside = cache.read(100 * BLOCK as u64 - 5, &mut bytes).await;
        assert_eq!(outside, Err(BlockError::Rejected(BlockRefusal::OutsideDevice)));
        assert!(cache.read(u64::MAX - 5, &mut bytes).await.is_err());
    });
}

#[test]
fn a_dropped_access_leaves_a_usable_cache() {
    fn poll_once(future: impl Future) {
        let mut future = pin!(future);
        assert!(future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    }
    async fn drop_some(cache: &BlockCache) {
        for number in 0..10 {
            let mut bytes = [0; 2 * BLOCK];
            poll_once(cache.read(number * BLOCK as u64, &mut bytes));
            yield_now().await;
            poll_once(cache.flush());
        }
    }
    run_task(|| async {
        let disk = disk(100);
        let cache = cache(&disk, 64);
        disk.complete_slowly();
        cache.write(50 * BLOCK as u64, &[1; BLOCK]).await.unwrap();
        drop_some(&cache).await;
        let mut bytes = [0; 10 * BLOCK];
        cache.read(0, &mut bytes).await.unwrap();
        assert_eq!(bytes[9 * BLOCK], 9);
        cache.flush().await.unwrap();
        assert_eq!(disk.contents()[50 * BLOCK], 1);
    });
}

#[test]
fn a_read_only_device_is_cached_and_rejects_writes() {
    run_task(|| async {
        let read_only = isola_platform::block::BlockLimits { writability: Writability::ReadOnly, ..limits() };
        let disk = SimDisk::with_limits(vec![5; 100 * BLOCK], read_only);
        let cache = cache(&disk, 64);
        assert_eq!(cache.block(3).await.unwrap()[..], [5; BLOCK]);
        assert_eq!(cache.write(0, &[1]).await, Err(BlockError::Rejected(BlockRefusal::ReadOnly)));
    });
}
