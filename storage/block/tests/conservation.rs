//! While activities come and go and the policy changes at random: the use of a device by its activities is all of its
//! use, no request is lost, and those of an activity reach the device in their order.

mod common;

use common::{buffers, start};
use isola_abi::id::ActivityId;
use isola_block::{BlockDevice, BlockSettings, BlockUsage};
use isola_events::{end_activity, register_activity, register_activity_under, spawn_task_for, yield_now};
use isola_iobuf::IoBuf;
use isola_resources::{Entitlement, NETWORK_WRITE, PolicyKind, Rate, Weight};
use isola_storage_sim::{SimDisk, Timing};
use isola_test_task::run_task;
use std::cell::Cell;
use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::rc::Rc;

/// A resource with the metric bytes, in a cell without a network device.
const RESOURCE: isola_resources::GridResource = NETWORK_WRITE;

/// Each activity has a range of the disk, in sectors, and a range of bad ones lies behind them.
const RANGE: u64 = 512;
const RANGES: u64 = 64;
const STEPS: u32 = 6_000;

/// A registered activity, its range, and the next sector in that.
struct Live {
    activity: ActivityId,
    range: u64,
    next: u64,
}

/// Returns the reads' and the writes' bytes, and the failed requests, of all activities that exist or existed.
fn of_all(device: &BlockDevice, ids: &BTreeSet<ActivityId>) -> (u64, u64, u64) {
    // One that was ended exists until its last child has ended.
    let of_live = ids.iter().map(|activity| device.usage(*activity));
    let all: Vec<BlockUsage> = of_live.chain([device.usage_of_ended()]).collect();
    let sum = |part: fn(&BlockUsage) -> u64| all.iter().map(part).sum::<u64>();
    (sum(|of| of.read_bytes), sum(|of| of.written_bytes), sum(|of| of.failed))
}

fn change_grid(random: &mut fastrand::Rng, live: &[Live]) {
    match random.u32(..4) {
        0 => RESOURCE.set_policy(random.choice(PolicyKind::ALL)),
        1 => RESOURCE.set_policy(None),
        2 => {
            let limit = Rate::per_second(random.u64(100_000_000..2_000_000_000)).unwrap();
            RESOURCE.set_limit(random.bool().then_some(limit));
        }
        _ => {
            RESOURCE.set_batch(NonZeroU32::new(random.u32(1..5)).unwrap());
            if let Some(live) = random.choice(live) {
                let weight = Weight::new(random.u32(1..1000)).unwrap();
                RESOURCE.set_entitlement(live.activity, Entitlement::by_weight(weight)).unwrap();
            }
        }
    }
}

#[test]
fn the_use_of_a_device_by_its_activities_is_all_of_its_use() {
    for seed in 0..6 {
        run_task(move || play(seed));
    }
}

async fn play(seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let disk = SimDisk::new(vec![0; ((RANGES * RANGE + 8) * 512) as usize]);
    disk.set_timing(Timing::Manual);
    disk.set_bad(Some((RANGES * RANGE * 512) as usize..usize::MAX));
    assert!(disk.take_order().is_empty());
    let settings = BlockSettings { resource: Some(RESOURCE), depth: 8, ..BlockSettings::default() };
    let device = start(&disk, settings);
    let (mut live, mut ranges): (Vec<Live>, u64) = (Vec::new(), 0);
    let mut ids = BTreeSet::new();
    let (mut made, done, failed) = (0, Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
    for _ in 0..STEPS {
        match random.u32(..20) {
            0 if ranges < RANGES && live.len() < 12 => {
                let parent = live.iter().map(|live| live.activity).find(|_| random.u32(..3) == 0);
                let activity = match parent {
                    Some(parent) => register_activity_under(parent, "child").unwrap(),
                    None => register_activity("tenant").unwrap(),
                };
                ids.insert(activity);
                live.push(Live { activity, range: ranges, next: 0 });
                ranges += 1;
            }
            1 if live.len() > 3 => {
                // With requests that wait and that are in the device.
                let ended = live.swap_remove(random.usize(..live.len()));
                assert!(end_activity(ended.activity));
            }
            2 => change_grid(&mut random, &live),
            3..8 => _ = disk.complete(random.usize(..6)),
            8 => yield_now().await,
            _ => {
                let count = live.len();
                let Some(one) = live.get_mut(random.usize(..count.max(1))) else { continue };
                let sectors = random.u64(1..4);
                let is_bad = random.u32(..20) == 0;
                if one.next + sectors > RANGE {
                    continue;
                }
                let at = if is_bad { RANGES * RANGE } else { one.range * RANGE + one.next };
                one.next += if is_bad { 0 } else { sectors };
                let len = sectors as usize * 512;
                let (is_read, device) = (random.bool(), device.clone());
                made += 1;
                let (done, failed) = (done.clone(), failed.clone());
                spawn_task_for(one.activity, async move {
                    let request = match is_read {
                        true => device.read(at, buffers(1, len)),
                        false => device.write(at, IoBuf::from(vec![1; len]).into()),
                    };
                    let outcome = request.await;
                    assert_eq!(outcome.is_err(), is_bad);
                    failed.set(failed.get() + u64::from(is_bad));
                    done.set(done.get() + 1);
                })
                .detach();
            }
        }
    }
    RESOURCE.set_limit(None);
    while done.get() < made {
        disk.complete(9);
        yield_now().await;
        // The use by activities never exceeds the device's.
        let (read, written) = disk.bytes();
        let of_all = of_all(&device, &ids);
        assert!(of_all.0 <= read && of_all.1 <= written);
    }
    assert!(made > 1_000 && ranges > 12 && failed.get() > 0, "{made} requests of {ranges} activities");
    let (read, written) = disk.bytes();
    assert_eq!(of_all(&device, &ids), (read, written, failed.get()));
    let order = disk.take_order();
    for range in 0..ranges {
        let of_range: Vec<u64> = order.iter().copied().filter(|sector| sector / RANGE == range).collect();
        assert!(of_range.is_sorted(), "the requests of an activity were reordered: {of_range:?}");
    }
    assert_eq!(order.len() as u64, made);
}
