//! Memory plug and unplug on request, while the cell serves.

use isola_tests::kv::{Connection, Load, value};
use isola_tests::service::{CELL, Service};
use serde_json::Value;

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

#[track_caller]
fn resize(service: &Service, memory: &str) -> Value {
    service.isola.json(&["resize", CELL, "--memory", memory])["memory"].clone()
}

/// Stored values stay correct, other clients are served, and all memory returns to the machine.
#[test]
fn memory_is_plugged_and_unplugged_while_every_value_stays() {
    let service = Service::published(&["--memory", "512M"], &["--memory", "32M", "--cores", "2"]);
    let mut connection = service.connect();
    let load = Load::start(service.address, 4);
    store(&mut connection, 0..300);
    assert_eq!(resize(&service, "+64M")["has_bytes"], 96 * MIB);
    store(&mut connection, 300..600);
    for round in 0..2 {
        let less = resize(&service, "48M");
        assert!(less["has_bytes"].as_u64() < Some(96 * MIB), "round {round}: {less}");
        assert_eq!(service.cell()["held_bytes"], less["has_bytes"]);
        all_are_right(&mut connection, 0..600);
        assert_eq!(resize(&service, "96M")["has_bytes"], 96 * MIB, "round {round}");
    }
    store(&mut connection, 600..900);
    all_are_right(&mut connection, 0..900);
    assert!(load.end() > 0);
    service.isola.run(&["resize", CELL, "--memory", "4M"]).failed(1, "leave it at least");
    drop(connection);
    service.end();
}
