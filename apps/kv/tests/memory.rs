//! The memory limit, and the order of eviction.

mod common;

use common::{Engine, START};
use isola_iobuf::IoBuf;
use isola_kv::*;
use isola_platform::VacatedMemory;
use proptest::prelude::*;

fn key(hasher: &KeyHasher, number: u32) -> Key {
    Key::new(IoBuf::copy_from_slice(format!("key-{number}").as_bytes()), hasher).unwrap()
}

fn set(number: u32, len: usize, exptime: i64) -> Request {
    let store = Store {
        mode: StoreMode::Set,
        flags: number,
        exptime: Exptime(exptime),
        cas: None,
        older: OlderVersion::Refused,
        value: Payload::One(IoBuf::from(vec![b'v'; len])),
    };
    Request::Item { key: key(&KeyHasher::new(1), number), operation: Operation::Store(store) }
}

fn get(number: u32) -> Request {
    Request::Item { key: key(&KeyHasher::new(1), number), operation: Operation::Get }
}

fn shard(limit_bytes: usize) -> Shard {
    Shard::new(ShardId(0), &Config::new(limit_bytes, 1).unwrap())
}

fn has(shard: &mut Shard, number: u32) -> bool {
    matches!(shard.execute(START, get(number)), Response::Hit(_))
}

#[test]
fn recently_used_items_are_not_evicted() {
    let mut shard = shard(200_000);
    let mut number = 0;
    while shard.report(START).counters.evictions == 0 {
        assert!(matches!(shard.execute(START, set(number, 1_000, 0)), Response::Stored { .. }));
        // The first item is used repeatedly.
        assert!(has(&mut shard, 0));
        number += 1;
    }
    assert!(number > 100 && shard.bytes() <= 200_000 && shard.bytes() > 180_000);
    assert!(has(&mut shard, 0) && !has(&mut shard, 1) && has(&mut shard, 2));
}

#[test]
fn a_lower_limit_holds_from_the_next_store_on() {
    let mut shard = shard(1 << 20);
    (0..100).for_each(|number| drop(shard.execute(START, set(number, 1_000, 0))));
    let bytes = shard.bytes();
    shard.set_limit_bytes(bytes / 2);
    assert_eq!(shard.len(), 100);
    for number in 100..150 {
        assert!(matches!(shard.execute(START, set(number, 1_000, 0)), Response::Stored { .. }));
        assert!(shard.bytes() <= bytes / 2);
    }
    assert!(!has(&mut shard, 0) && has(&mut shard, 149));
    shard.set_limit_bytes(1 << 20);
    (150..400).for_each(|number| drop(shard.execute(START, set(number, 1_000, 0))));
    assert!(has(&mut shard, 149) && shard.bytes() > 2 * bytes);
}

#[test]
fn small_items_are_evicted_for_large_ones_and_conversely() {
    let mut shard = shard(2 << 20);
    for round in 0..3 {
        (0..20_000).for_each(|number| drop(shard.execute(START, set(number, 10, 0))));
        assert!(shard.len() > 10_000, "{} small items", shard.len());
        for number in 0..40 {
            assert!(matches!(shard.execute(START, set(number, 200_000, 0)), Response::Stored { .. }));
            assert!(shard.bytes() <= 2 << 20, "round {round}: {}", shard.bytes());
        }
        // Recently used small items remain beside large ones.
        assert!((0..40).filter(|&number| has(&mut shard, number)).count() >= 8);
    }
}

#[test]
fn dead_items_are_reclaimed_a_few_at_a_time() {
    let mut shard = shard(1 << 20);
    (0..1_000)
        .for_each(|number| drop(shard.execute(START, set(number, 100, if number % 2 == 0 { 5 } else { 0 }))));
    assert_eq!(shard.reclaim(START, 10_000), 0);
    let later = UnixTime(START.0 + 5);
    let first = shard.reclaim(later, 100);
    assert!((20..=100).contains(&first), "{first} of 100 looked at");
    let mut total = first;
    for _ in 0..30 {
        total += shard.reclaim(later, 100);
    }
    assert_eq!((total, shard.len()), (500, 500));
    assert_eq!(shard.report(later).counters.reclaimed, 500);
    assert_eq!(shard.report(later).counters.expired_unfetched, 500);
    shard.execute(later, Request::All(Broadcast::Flush(Exptime(0))));
    assert_eq!(shard.reclaim(later, usize::MAX), 500);
    assert!(shard.is_empty());
}

#[test]
fn removing_dead_items_is_not_counted_as_eviction() {
    let mut shard = shard(100_000);
    (0..50).for_each(|number| drop(shard.execute(START, set(number, 1_000, 1))));
    let later = UnixTime(START.0 + 1);
    (100..180).for_each(|number| drop(shard.execute(later, set(number, 1_000, 0))));
    let counters = shard.report(later).counters;
    assert_eq!((counters.evictions, counters.reclaimed > 10), (0, true));
}

#[test]
fn evictions_of_unread_items_and_of_items_with_a_deadline_are_counted_separately() {
    let mut shard = shard(100_000);
    // Every fourth item is read, and every second one has a distant deadline.
    for number in 0..400 {
        shard.execute(START, set(number, 1_000, i64::from(number % 2) * 1_000));
        assert!(number % 4 != 0 || has(&mut shard, number));
    }
    let counters = shard.report(START).counters;
    let evictions = counters.evictions;
    assert!(evictions > 300 && counters.reclaimed == 0, "{evictions} evictions");
    assert_eq!(counters.evicted_nonzero, evictions / 2);
    assert_eq!(counters.evicted_unfetched, evictions - evictions.div_ceil(4));
}

#[test]
fn a_flush_of_everything_frees_all_memory() {
    let mut engine = Engine::new(1);
    let empty = engine.bytes();
    (0..5_000).for_each(|number| drop(engine.shard(0).execute(START, set(number, 300, 0))));
    engine.execute_text("flush_all\r\n");
    while engine.shard(0).reclaim(START, 1_000) > 0 {}
    assert_eq!(engine.bytes(), empty);
}

#[test]
fn contradictory_limits_are_rejected() {
    assert_eq!(Config::new(1 << 20, 0), Err(ConfigError::NoShard));
    assert!(matches!(Config::for_memory(1_000, 1 << 20), Err(ConfigError::TooLittleMemory { .. })));
    let Err(ConfigError::TooLittleMemory { needed_bytes }) = Config::new(1_000, 3) else { panic!() };
    assert!(Config::new(needed_bytes, 3).is_ok());
    let config = Config::new(1 << 20, 1).unwrap();
    assert_eq!(config.clone().with_max_value_len(0), Err(ConfigError::MaxValueLen));
    let limits = SessionLimits { max_output_bytes: 0 };
    assert_eq!(config.with_session_limits(limits), Err(ConfigError::SessionLimits));
}

#[test]
fn the_memory_determines_the_number_of_shards_and_each_has_room_for_values() {
    let shards = |memory_mib: usize, value_mib: usize| {
        Config::for_memory(memory_mib << 20, value_mib << 20).unwrap().shard_count()
    };
    assert_eq!([1, 31, 32, 192].map(|memory_mib| shards(memory_mib, 1)), [1, 1, 2, 12]);
    assert_eq!([shards(64 << 10, 1), shards(192, 4), shards(16, 100)], [64, 3, 1]);
    // A small value limit does not make the shards too small to hold items.
    let tiny = Config::for_memory(64 << 10, 1).unwrap();
    assert!(tiny.shard_count() > 1 && tiny.shard_limit_bytes() >= SMALLEST_SHARD_BYTES);
}

/// Returns the addresses of all values, key and value by item.
fn items(shard: &mut Shard, count: u32) -> Vec<(u32, Vec<u8>, usize)> {
    let mut found = Vec::new();
    for number in 0..count {
        if let Response::Hit(hit) = shard.execute(START, get(number)) {
            let value = hit.body.value();
            let first = value.parts().next().map_or(0, |part| part.as_ptr().addr());
            found.push((number, value.to_vec(), first));
        }
    }
    found
}

#[test]
fn given_up_memory_is_that_of_the_items_used_least_recently_and_is_not_taken_again() {
    let config = Config::new(1 << 20, 1).unwrap().with_max_value_len(100_000).unwrap();
    let mut shard = Shard::new(ShardId(0), &config);
    (0..500).for_each(|number| drop(shard.execute(START, set(number, 1_000, 0))));
    assert!((0..100).all(|number| has(&mut shard, number)));
    let before = shard.bytes();
    let freed = shard.evict_of(START, before / 2, |_| true);
    shard.lower_limit();
    assert!((before / 2..before / 2 + 8_000).contains(&freed) && shard.bytes() == before - freed);
    assert!((0..100).all(|number| has(&mut shard, number)), "they were used last");
    assert!((100..300).all(|number| !has(&mut shard, number)));
    (1_000..1_500).for_each(|number| drop(shard.execute(START, set(number, 1_000, 0))));
    assert!(shard.bytes() <= before - freed);
    shard.set_limit_bytes(1 << 20);
    (1_000..1_500).for_each(|number| drop(shard.execute(START, set(number, 1_000, 0))));
    assert!(shard.bytes() > before - freed);
    assert!(shard.evict_of(START, usize::MAX, |_| true) > 0 && shard.is_empty());
    shard.lower_limit();
    for len in [1, 100_000] {
        assert!(
            matches!(shard.execute(START, set(1, len, 0)), Response::Stored { .. }),
            "one item always fits"
        );
    }
}

#[test]
fn all_memory_of_a_shard_can_be_vacated_and_every_item_stays() {
    let mut shard = shard(32 << 20);
    let lens = [10, 500, 3_000, 20_000, 70_000, 200_000];
    for number in 0..600 {
        shard.execute(START, set(number, lens[number as usize % lens.len()], 0));
    }
    let before = items(&mut shard, 600);
    let (bytes, len) = (shard.bytes(), shard.len());
    assert!(before.len() > 200);
    // A response in transit keeps the original.
    let Response::Hit(hit) = shard.execute(START, get(before[7].0)) else { panic!() };
    let everything = VacatedMemory::new(0..usize::MAX, |address| address);
    let mut moved = MovedMemory::default();
    let (mut from, mut calls) = (Some(0), 0);
    while let Some(next) = from {
        from = shard.vacate(&everything, next, 10, &mut moved);
        calls += 1;
    }
    assert_eq!(calls, len.div_ceil(10));
    // The originals exist until here, so no copy is where one is.
    let after = items(&mut shard, 600);
    assert!(before.iter().zip(&after).all(|(old, new)| (old.0, &old.1) == (new.0, &new.1) && old.2 != new.2));
    assert_eq!((shard.bytes(), shard.len(), moved.len_bytes() > bytes / 2), (bytes, len, true));
    drop(moved);
    assert_eq!(hit.body.value().to_vec(), before[7].1);
    // Other addresses move nothing.
    let mut moved = MovedMemory::default();
    let other = VacatedMemory::new(0..1, |address| address);
    assert_eq!(shard.vacate(&other, 0, usize::MAX, &mut moved), None);
    assert_eq!(moved.len_bytes(), 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// The limit holds after every step, for all sequences of stores, counts, reads and deletes.
    #[test]
    fn the_limit_holds_after_every_step(
        limit in 40_000usize..400_000,
        steps in proptest::collection::vec((0..5u8, 0..200u32, 0..30_000usize, -1..3i64), 1..400),
    ) {
        let config = Config::new(limit, 1).unwrap();
        let mut shard = Shard::new(ShardId(0), &config);
        let hasher = KeyHasher::new(1);
        let mut now = START;
        for (step, number, len, exptime) in steps {
            let key = key(&hasher, number);
            let operation = match step {
                0 | 1 => {
                    let mode = if step == 0 { StoreMode::Set } else { StoreMode::Append };
                    let value = Payload::One(IoBuf::from(vec![b'1'; len / 10]));
                    Operation::Store(Store { mode, flags: 0, exptime: Exptime(exptime), cas: None, older: OlderVersion::Refused, value })
                }
                2 => {
                    let initial = Some((9, Exptime(exptime)));
                    Operation::Count(Count { direction: Direction::Up, delta: len as u64, initial, cas: None, exptime: None })
                }
                3 => Operation::Get,
                _ => Operation::Delete { cas: None },
            };
            shard.execute(now, Request::Item { key, operation });
            prop_assert!(shard.bytes() <= limit, "{} of {limit}", shard.bytes());
            now = UnixTime(now.0 + u32::from(len % 7 == 0));
        }
    }
}
