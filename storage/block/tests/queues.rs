//! Several queues of a device, each served by the core that started it.

mod common;

use common::{buffers, chain, data};
use isola_block::{BlockDevice, BlockError, BlockSettings, QueuePort};
use isola_ebbs::current_core;
use isola_events::{current_activity, exit, run, sleep, spawn_on, spawn_task};
use isola_hosted::Settings;
use isola_platform::CoreIndex;
use isola_platform::block::BlockPort;
use isola_storage_sim::{SimDisk, Timing};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// The number of cores, and of queues.
const QUEUES: usize = 2;

/// Returns a device with a queue for each disk. In a device they would have the same contents; with contents of their
/// own, a test sees which queue had a request.
fn port(disks: &[SimDisk]) -> BlockPort {
    let mut port = disks[0].port();
    port.queues.extend(disks[1..].iter().flat_map(|disk| disk.port().queues));
    port
}

/// Runs a task on each core of a cell, with a queue of the device and its disk.
fn on_each_core<F: Future<Output = ()> + 'static>(
    disks: &[SimDisk; QUEUES],
    settings: BlockSettings,
    main: fn(BlockDevice, SimDisk) -> F,
) {
    let done: &'static AtomicU32 = Box::leak(Box::default());
    let codes = isola_hosted::run(Settings { cores: QUEUES, ..Settings::default() }, Vec::new(), |_| {
        if current_core() == CoreIndex(0) {
            let ports = QueuePort::divide(port(disks));
            assert_eq!(ports.len(), QUEUES);
            for (core, (port, disk)) in (0..).zip(ports.into_iter().zip(disks.clone())) {
                let main = async move |device: BlockDevice| {
                    main(device, disk).await;
                    if done.fetch_add(1, Ordering::SeqCst) as usize == QUEUES - 1 {
                        exit(0);
                    }
                };
                spawn_on(CoreIndex(core), move || {
                    let device = port.start(settings).unwrap();
                    spawn_task(async move { main(device).await }).detach();
                });
            }
        }
        run()
    });
    assert_eq!(codes, [0; QUEUES]);
}

fn disks() -> [SimDisk; QUEUES] {
    [(); QUEUES].map(|()| SimDisk::new(vec![0; 1 << 19]))
}

/// Executes requests of a disk one by one, on the calling core.
fn complete_slowly(disk: &SimDisk) {
    disk.set_timing(Timing::Manual);
    let disk = disk.clone();
    spawn_task(async move {
        loop {
            disk.complete(1);
            sleep(Duration::from_micros(50)).await;
        }
    })
    .detach();
}

#[test]
fn each_core_serves_its_own_queue_with_its_interrupt() {
    let disks = disks();
    on_each_core(&disks, BlockSettings::default(), |device, disk| async move {
        complete_slowly(&disk);
        assert_eq!(device.capacity(), 1024);
        let number = u64::from(current_core().0);
        for round in 0..50 {
            let sector = 8 * (round + number);
            let bytes = data(4096 * (1 + number as usize));
            device.write(sector, chain(&bytes, 4096)).await.unwrap();
            let read = device.read(sector, buffers(1, bytes.len())).await.unwrap();
            assert_eq!(read[0][..], bytes[..]);
        }
        let usage = device.usage(current_activity());
        assert_eq!((usage.reads, usage.writes), (50, 50), "a queue counts its own requests");
    });
    // Each disk has had the requests of its queue only.
    assert_eq!(disks.map(|disk| disk.bytes()), [(50 * 4096, 50 * 4096), (50 * 8192, 50 * 8192)]);
}

#[test]
fn a_queue_that_fails_does_not_stop_the_other() {
    let time_limit = Duration::from_millis(20);
    on_each_core(
        &disks(),
        BlockSettings { time_limit, ..BlockSettings::default() },
        |device, disk| async move {
            if current_core().0 == 0 {
                // This device never answers.
                disk.set_timing(Timing::Manual);
                assert_eq!(device.read(0, buffers(1, 512)).await.unwrap_err(), BlockError::TimedOut);
                assert!(device.failure().is_some());
            } else {
                sleep(Duration::from_millis(40)).await;
                device.write(0, chain(&data(512), 512)).await.unwrap();
                assert_eq!(device.failure(), None);
            }
        },
    );
}
