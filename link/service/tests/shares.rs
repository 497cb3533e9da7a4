//! The shares of a disk among clients of a service cell, by a simulated disk.

use isola_block::{BlockDevice, BlockSettings};
use isola_events::{register_activity, spawn_task_for, yield_now};
use isola_iobuf::IoBufMut;
use isola_resources::{Entitlement, GridResource, NETWORK_WRITE, PolicyKind, Weight};
use isola_storage_sim::{SimDisk, Timing};
use isola_test_task::run_task;
use isola_volume_service::server::{MOST_IN_DISK, MOST_IN_FLIGHT};

/// A resource with the metric bytes, in a cell without a network device.
const RESOURCE: GridResource = NETWORK_WRITE;

const BLOCK: usize = 4096;

/// Three clients read without a pause, one of them with as many requests as the service permits, the others too.
#[test]
fn clients_get_their_shares_though_each_has_few_requests_in_the_service() {
    run_task(|| async {
        let disk = SimDisk::new(vec![0; 1 << 20]);
        disk.set_timing(Timing::Manual);
        let settings =
            BlockSettings { resource: Some(RESOURCE), depth: MOST_IN_DISK, ..BlockSettings::default() };
        let device = BlockDevice::start(disk.port(), settings).unwrap();
        let weights = [50, 33, 17];
        let clients = ["first", "second", "flood"].map(|name| register_activity(name).unwrap());
        for (client, weight) in clients.into_iter().zip(weights) {
            let entitlement = Entitlement::by_weight(Weight::new(weight).unwrap());
            RESOURCE.set_entitlement(client, entitlement).unwrap();
        }
        RESOURCE.set_policy(Some(PolicyKind::Wfq));
        for client in clients {
            for _ in 0..MOST_IN_FLIGHT {
                let device = device.clone();
                spawn_task_for(client, async move {
                    loop {
                        let mut buffer = IoBufMut::with_room(0, BLOCK);
                        buffer.extend();
                        let _ = device.read(0, vec![buffer]).await;
                    }
                })
                .detach();
            }
        }
        for _ in 0..6000 {
            while disk.complete(1) == 0 {
                yield_now().await;
            }
            yield_now().await;
        }
        let bytes = clients.map(|client| device.usage(client).read_bytes as f64);
        let total: f64 = bytes.iter().sum();
        for (bytes, weight) in bytes.into_iter().zip(weights) {
            let share = 100.0 * bytes / total;
            assert!((share - f64::from(weight)).abs() < 1.0, "{share:.2} % instead of {weight} %");
        }
    });
}
