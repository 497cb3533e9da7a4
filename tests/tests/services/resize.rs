//! Memory plug and unplug on request, while the cell serves.

use isola_tests::kv::{Connection, value};
use isola_tests::service::{CELL, Service};
use isola_tests::steady::{Latencies, SteadyLoad};
use serde_json::Value;
use std::thread::sleep;
use std::time::Duration;

const MIB: u64 = 1 << 20;

/// The length of the values.
const LEN: usize = 20_000;

fn store(connection: &mut Connection, numbers: std::ops::Range<u64>) {
    for number in numbers {
        connection.set(&format!("own-{number}"), &value(number, LEN)).unwrap();
    }
}

#[track_caller]
fn all_are_right(connection: &mut Connection, numbers: std::ops::Range<u64>) {
    for number in numbers {
        let found = connection.get(&format!("own-{number}")).unwrap();
        assert_eq!(found, Some(value(number, LEN)), "{number}");
    }
}

/// Resizes the cell; then requests that the resize delayed are answered, too.
#[track_caller]
fn resize(service: &Service, memory: &str) -> Value {
    let answer = service.isola.json(&["resize", CELL, "--memory", memory])["memory"].clone();
    sleep(AFTERWARDS);
    answer
}

/// The times for which the service is measured at rest, and after a resize.
const AT_REST: Duration = Duration::from_secs(2);
const AFTERWARDS: Duration = Duration::from_millis(100);

/// Stored values stay correct, other clients are served without delay, and all memory returns to the machine.
#[test]
fn memory_is_plugged_and_unplugged_while_every_value_stays() {
    let service = Service::published(&["--memory", "512M"], &["--memory", "32M", "--cores", "2"]);
    let mut connection = service.connect();
    let load = SteadyLoad::start(service.address, 4, Duration::from_millis(16));
    store(&mut connection, 0..300);
    assert_eq!(resize(&service, "+64M")["has_bytes"], 96 * MIB);
    store(&mut connection, 300..600);
    load.take();
    sleep(AT_REST);
    let (at_rest, mut resizing) = (load.take(), Latencies::default());
    for round in 0..2 {
        load.take();
        let less = resize(&service, "48M");
        resizing.add(load.take());
        assert!(less["has_bytes"].as_u64() < Some(96 * MIB), "round {round}: {less}");
        assert_eq!(service.cell()["held_bytes"], less["has_bytes"]);
        all_are_right(&mut connection, 0..600);
        load.take();
        assert_eq!(resize(&service, "96M")["has_bytes"], 96 * MIB, "round {round}");
        resizing.add(load.take());
    }
    store(&mut connection, 600..900);
    all_are_right(&mut connection, 0..900);
    assert!(load.end() > 0);
    resizing.assert_near(&at_rest, "while memory was plugged and unplugged");
    service.isola.run(&["resize", CELL, "--memory", "4M"]).failed(1, "leave it at least");
    drop(connection);
    service.end();
}
