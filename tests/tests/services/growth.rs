//! Memory growth of a serving cell, up to its limit and up to the machine's memory.

use isola_tests::kv::Connection;
use isola_tests::service::Service;

const MIB: u64 = 1 << 20;

/// The length of the values.
const LEN: usize = 60_000;

fn key(number: usize) -> String {
    format!("key-{number}")
}

fn value(number: usize) -> Vec<u8> {
    (number..number + LEN).map(|byte| byte as u8).collect()
}

fn fill(connection: &mut Connection, count: usize) {
    (0..count).for_each(|number| connection.set(&key(number), &value(number)).unwrap());
}

/// Returns a statistic of the server.
fn statistic(connection: &mut Connection, name: &str) -> u64 {
    connection.send(b"stats\r\n").unwrap();
    let mut found = None;
    loop {
        let line = connection.line().unwrap();
        if line == "END" {
            return found.unwrap_or_else(|| panic!("no {name}"));
        }
        found = line.strip_prefix(&format!("STAT {name} ")).map(|rest| rest.parse().unwrap()).or(found);
    }
}

#[test]
fn a_cell_that_can_grow_evicts_no_value() {
    let service = Service::published(&[], &["--memory", "24M", "--memory-max", "96M"]);
    assert_eq!(service.cell()["memory_bytes"], 24 * MIB);
    let mut connection = service.connect();
    fill(&mut connection, 800);
    let held = service.cell()["held_bytes"].as_u64().unwrap();
    assert!((46 * MIB..=96 * MIB).contains(&held), "{} MiB", held / MIB);
    assert_eq!(statistic(&mut connection, "evictions"), 0);
    for number in 0..800 {
        assert_eq!(connection.get(&key(number)).unwrap().as_deref(), Some(&value(number)[..]), "{number}");
    }
    assert_eq!(service.cell()["pressure"], "none");
    drop(connection);
    service.end();
}

#[test]
fn a_cell_that_cannot_grow_evicts_the_least_recently_used_values() {
    let service = Service::published(&["--memory", "128M"], &["--memory", "24M", "--memory-max", "1G"]);
    let mut connection = service.connect();
    fill(&mut connection, 3000);
    assert!(statistic(&mut connection, "evictions") > 500);
    assert!(service.cell()["held_bytes"].as_u64() > Some(80 * MIB));
    assert_eq!(connection.get(&key(0)).unwrap(), None);
    assert_eq!(connection.get(&key(2999)).unwrap().as_deref(), Some(&value(2999)[..]));
    drop(connection);
    service.end();
}
