//! A device divided among activities.

mod common;

use common::{buffers, start};
use isola_abi::id::ActivityId;
use isola_block::{BlockDevice, BlockSettings};
use isola_events::{register_activity, spawn_task, spawn_task_for, timeout, yield_now};
use isola_resources::{Entitlement, NETWORK_WRITE, PolicyKind, Rate, Weight};
use isola_storage_sim::{SimDisk, Timing};
use isola_test_task::run_task;
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

/// A resource with the metric bytes, in a cell without a network device.
const RESOURCE: isola_resources::GridResource = NETWORK_WRITE;

fn settings() -> BlockSettings {
    BlockSettings { resource: Some(RESOURCE), depth: 2, ..BlockSettings::default() }
}

fn weigh(activity: ActivityId, weight: u32) {
    RESOURCE.set_entitlement(activity, Entitlement::by_weight(Weight::new(weight).unwrap())).unwrap();
}

/// Reads `len` bytes at a time for an activity, `parallel` requests at a time, without end.
fn read_for(device: &BlockDevice, activity: ActivityId, parallel: usize, len: usize) {
    for _ in 0..parallel {
        let device = device.clone();
        spawn_task_for(activity, async move {
            loop {
                let _ = device.read(0, buffers(len / 4096, 4096)).await;
            }
        })
        .detach();
    }
}

async fn execute(disk: &SimDisk, requests: usize) {
    for _ in 0..requests {
        while disk.complete(1) == 0 {
            yield_now().await;
        }
        yield_now().await;
    }
}

#[test]
fn activities_get_bytes_in_proportion_to_their_weights_at_different_request_sizes() {
    run_task(|| async {
        let disk = SimDisk::new(vec![0; 1 << 20]);
        disk.set_timing(Timing::Manual);
        let device = start(&disk, settings());
        let activities = ["large", "small", "few"].map(|name| register_activity(name).unwrap());
        for (activity, weight) in activities.iter().zip([50, 33, 17]) {
            weigh(*activity, weight);
        }
        RESOURCE.set_policy(Some(PolicyKind::Wfq));
        for (activity, (parallel, len)) in activities.iter().zip([(8, 65536), (40, 4096), (6, 16384)]) {
            read_for(&device, *activity, parallel, len);
        }
        execute(&disk, 3000).await;
        let bytes = activities.map(|activity| device.usage(activity).read_bytes as f64);
        let total: f64 = bytes.iter().sum();
        for (bytes, share) in bytes.iter().zip([0.50, 0.33, 0.17]) {
            assert!((bytes / total - share).abs() < 0.01, "{:.4} instead of {share}", bytes / total);
        }
        assert!(device.scheduled(activities[0]).dispatched > 0);
    });
}

#[test]
fn without_competitors_requests_bypass_the_scheduler() {
    run_task(|| async {
        let disk = SimDisk::new(vec![0; 1 << 20]);
        let device = start(&disk, settings());
        RESOURCE.set_policy(Some(PolicyKind::Wfq));
        let alone = register_activity("alone").unwrap();
        let task = spawn_task_for(alone, async move {
            for _ in 0..100 {
                device.read(0, buffers(1, 4096)).await.unwrap();
            }
            (device.scheduled(alone).dispatched, device.usage(alone).reads)
        });
        assert_eq!(task.await, (0, 100));
    });
}

#[test]
fn no_request_is_lost_when_the_policy_changes_while_requests_wait() {
    run_task(|| async {
        let disk = SimDisk::new(vec![0; 1 << 20]);
        disk.set_timing(Timing::Manual);
        let device = start(&disk, settings());
        let done = Rc::new(Cell::new(0));
        for number in 0..60_u64 {
            let activity = register_activity(&format!("activity {}", number % 4)).unwrap();
            let (device, done) = (device.clone(), done.clone());
            spawn_task_for(activity, async move {
                device.read(number, buffers(1, 512)).await.unwrap();
                done.set(done.get() + 1);
            })
            .detach();
        }
        let limit = Rate::per_second(10_000_000).unwrap();
        for round in 0..2000 {
            let policy = match round % 4 {
                0 => Some(PolicyKind::Wfq),
                1 => Some(PolicyKind::Priority),
                2 => None,
                _ => Some(PolicyKind::Fifo),
            };
            RESOURCE.set_policy(policy);
            RESOURCE.set_limit((round % 3 == 0).then_some(limit));
            disk.complete(1);
            yield_now().await;
        }
        RESOURCE.set_limit(None);
        RESOURCE.set_policy(None);
        while done.get() < 60 {
            disk.complete(9);
            yield_now().await;
        }
        assert_eq!(disk.counts().0, 60);
    });
}

#[test]
fn the_removal_of_a_limit_is_followed_while_all_requests_wait_for_it() {
    run_task(|| async {
        let disk = SimDisk::new(vec![0; 1 << 20]);
        let device = start(&disk, settings());
        RESOURCE.set_limit(Rate::per_second(100).ok());
        RESOURCE.set_policy(Some(PolicyKind::Fifo));
        device.read(0, buffers(1, 4096)).await.unwrap();
        // 41 s later.
        let second = spawn_task({
            let device = device.clone();
            async move { device.read(0, buffers(1, 4096)).await.map(drop) }
        });
        let mut second = Box::pin(second);
        assert!(timeout(Duration::from_millis(100), &mut second).await.is_err(), "the limit holds");
        RESOURCE.set_limit(None);
        timeout(Duration::from_secs(5), second).await.expect("no limit any more").unwrap();
    });
}
