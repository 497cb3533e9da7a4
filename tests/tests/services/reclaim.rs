//! A full cell gives memory back to the machine while it serves.

use isola_tests::kv::{Connection, Load, value};
use isola_tests::service::{CELL, Service};
use serde_json::Value;
use std::io::Write;

const MIB: u64 = 1 << 20;

/// How many values of each length a round stores: about as many bytes of each, from one page's dozens to the longest
/// that is in one piece, and some in pieces.
const ROUND: [(usize, usize); 7] =
    [(64, 100), (32, 500), (16, 1_900), (4, 9_000), (1, 40_000), (1, 60_000), (1, 100_000)];

/// The connections that fill the server: enough for both queues of the cell to receive from some.
const CONNECTIONS: usize = 10;

/// The values of a round.
fn lengths() -> impl Iterator<Item = usize> + Clone {
    ROUND.into_iter().flat_map(|(count, len)| std::iter::repeat_n(len, count))
}

/// Stores values by these connections in turn until the server has evicted some. Returns their number.
fn fill(connections: &mut [Connection]) -> u64 {
    let mut number = 0;
    while stat(&mut connections[0], "evictions") == 0 {
        for turn in 0..20 {
            let connection = &mut connections[turn % CONNECTIONS];
            let mut round = Vec::new();
            for len in lengths() {
                let value = value(number, len);
                write!(round, "set mixed-{number} 0 0 {len} noreply\r\n").unwrap();
                round.extend_from_slice(&value);
                round.extend_from_slice(b"\r\n");
                number += 1;
            }
            connection.send(&round).unwrap();
        }
    }
    // Each answers after the values that were sent before.
    connections.iter_mut().for_each(|connection| _ = stat(connection, "evictions"));
    number
}

fn stat(connection: &mut Connection, name: &str) -> u64 {
    connection.stats().unwrap()[name].parse().unwrap()
}

#[track_caller]
fn resize(service: &Service, memory: &str) -> Value {
    service.isola.json(&["resize", CELL, "--memory", memory])["memory"].clone()
}

/// Asks for memory until the server has this much, three times at most: the memory of a request in progress cannot move, and
/// keeps its block of 2 MiB until a later resize.
#[track_caller]
fn shrink(service: &Service, mib: u64) -> Value {
    let mut less = Value::Null;
    for _ in 0..3 {
        less = resize(service, &format!("{mib}M"));
        if less["has_bytes"] == mib * MIB {
            break;
        }
    }
    less
}

/// Reads every 97th value from `first` on, and thereby uses it. Returns how many are there; the others were evicted.
#[track_caller]
fn present(connection: &mut Connection, stored: u64, first: u64) -> usize {
    let lengths: Vec<usize> = lengths().collect();
    let read = |number: u64| {
        let len = lengths[number as usize % lengths.len()];
        let found = connection.get(&format!("mixed-{number}")).unwrap();
        assert!(found.as_ref().is_none_or(|found| *found == value(number, len)), "{number}");
        found.is_some()
    };
    (first..stored).step_by(97).map(read).filter(|is_present| *is_present).count()
}

/// Clients see misses and no error; the items that remain are the latest, and unchanged. The limit of the items follows
/// the memory in both directions.
#[test]
fn a_full_server_gives_half_of_its_memory_back_while_it_serves() {
    let service = Service::published(&["--memory", "512M"], &["--memory", "256M", "--cores", "2"]);
    let mut connections: Vec<Connection> = (0..CONNECTIONS).map(|_| service.connect()).collect();
    let stored = fill(&mut connections);
    let mut connection = connections.swap_remove(0);
    let before = present(&mut connection, stored, 0);
    // One client, so that a queue receives little, and keeps its buffers.
    let load = Load::start(service.address, 1);
    let less = shrink(&service, 128);
    // Up to two blocks may keep memory of a client.
    let kept = less["has_bytes"].as_u64().unwrap();
    assert!(kept <= 132 * MIB, "{less}");
    assert_eq!(service.cell()["held_bytes"], less["has_bytes"]);
    assert!(load.end() > 0);
    assert_eq!(present(&mut connection, stored, 0), before, "they were used last");
    let after = present(&mut connection, stored, 48);
    assert!((before / 5..before / 5 * 4).contains(&after), "{after} of some {before} are left");
    // The server adjusts the limit at most once a second, so it can still be that of the memory during the transfer.
    isola_tests::wait::until("the limit follows the smaller memory", || {
        let limit = stat(&mut connection, "limit_maxbytes");
        (80 * MIB..=kept - 18 * MIB).contains(&limit).then_some(())
    });
    assert_eq!(resize(&service, "256M")["has_bytes"], 256 * MIB);
    isola_tests::wait::until("the limit follows the memory", || {
        (stat(&mut connection, "limit_maxbytes") > 180 * MIB).then_some(())
    });
    drop((connection, connections));
    service.end();
}

/// Without traffic, only the driver exchanges the buffers that the device has for others. 40 MiB are less than the memory
/// between receive buffers, or between recycled heads of frames, that stay where they are.
#[test]
fn an_idle_full_server_gives_most_of_its_memory_back() {
    let service = Service::published(&["--memory", "512M"], &["--memory", "256M", "--cores", "2"]);
    let mut connections: Vec<Connection> = (0..CONNECTIONS).map(|_| service.connect()).collect();
    let stored = fill(&mut connections);
    let before = present(&mut connections[0], stored, 0);
    let less = shrink(&service, 40);
    assert_eq!(less["has_bytes"], 40 * MIB, "{less}");
    assert_eq!(present(&mut connections[0], stored, 0), before, "they were used last");
    assert_eq!(resize(&service, "256M")["has_bytes"], 256 * MIB);
    // Both queues receive again.
    connections.iter_mut().for_each(|connection| assert!(stat(connection, "curr_items") > 0));
    drop(connections);
    service.end();
}
