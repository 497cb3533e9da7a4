//! Memory lending between a service that grows and a batch cell.

use isola_tests::isola::Isola;
use isola_tests::kv::Connection;
use isola_tests::service::published;
use isola_tests::wait;

const MIB: u64 = 1 << 20;

/// The length of the values.
const LEN: usize = 60_000;

/// The number of values, 48 MB in all.
const VALUES: usize = 800;

fn value(number: usize) -> Vec<u8> {
    (number..number + LEN).map(|byte| byte as u8).collect()
}

fn held_mib(isola: &Isola, cell: &str) -> u64 {
    isola.cell(cell)["held_bytes"].as_u64().expect("the cell has memory") / MIB
}

/// Returns the borrowed memory of a cell in MiB, all of which is the batch cell's.
fn borrowed_mib(isola: &Isola) -> u64 {
    let cell = isola.cell("service");
    let loans = cell["memory_loans"].as_array().expect("the cell has a list of loans");
    assert!(loans.iter().all(|loan| loan["from"] == "batch"), "{loans:?}");
    loans.iter().map(|loan| loan["memory_bytes"].as_u64().unwrap()).sum::<u64>() / MIB
}

/// Returns a machine on which a batch cell has all memory but that of the service, and lends all but 32 MiB of it.
fn service_and_batch(cell: &[&str]) -> (Isola, Connection, u64) {
    let isola = Isola::up(&["--memory", "256M"]);
    let options = ["run", "-d", "--name", "service", "--priority", "9", "-p", "11211", "--memory", "24M"];
    let view = isola.json(&[&options, cell, &["kv"]].concat());
    // The image of the batch cell takes memory, too.
    isola.run(&["run", "-d", "--name", "batch", "--memory", "16M", "primes"]).ok();
    isola.run(&["stop", "batch"]).ok();
    isola.run(&["rm", "batch"]).ok();
    let all = isola.inventory()["memory"].as_u64().unwrap() / MIB - 2;
    let (memory, low) = (format!("{all}M"), "32M");
    isola.run(&["run", "-d", "--name", "batch", "--memory", &memory, "--memory-low", low, "primes"]).ok();
    assert!(isola.inventory()["memory"].as_u64() < Some(8 * MIB));
    let connection = Connection::establish(published(&view));
    let all = held_mib(&isola, "batch");
    (isola, connection, all)
}

#[test]
fn a_service_that_grows_borrows_memory_and_returns_it_when_it_shrinks_or_ends() {
    let (isola, mut connection, all) = service_and_batch(&["--memory-max", "128M"]);
    (0..VALUES).for_each(|number| connection.set(&format!("key-{number}"), &value(number)).unwrap());
    let borrowed = borrowed_mib(&isola);
    assert!(borrowed >= 20, "{borrowed} MiB");
    assert_eq!(isola.cell("batch")["memory_lent_bytes"], borrowed * MIB);
    for number in 0..VALUES {
        assert_eq!(connection.get(&format!("key-{number}")).unwrap(), Some(value(number)), "{number}");
    }
    let events = isola.run(&["events"]).ok();
    assert!(events.contains("MiB of batch, for 1.0"), "{events}");
    for number in 0..VALUES {
        connection.send(format!("delete key-{number}\r\n").as_bytes()).unwrap();
        assert_eq!(connection.line().unwrap(), "DELETED");
    }
    wait::until_true("memory that the service does not use returns", || borrowed_mib(&isola) < borrowed / 2);
    connection.set("key", b"value").unwrap();
    assert_eq!(connection.get("key").unwrap().as_deref(), Some(&b"value"[..]));
    isola.run(&["stop", "--time", "0", "service"]).ok();
    wait::until_true("the batch cell has all its memory", || held_mib(&isola, "batch") == all);
    let cell = isola.cell("batch");
    assert_eq!((&cell["memory_lent_bytes"], &cell["state"]), (&0.into(), &"running".into()));
}

#[test]
fn memory_is_borrowed_by_request_until_the_lender_needs_it_or_the_lease_ends() {
    let (isola, mut connection, all) = service_and_batch(&[]);
    isola.run(&["borrow", "batch", "--memory", "32M"]).failed(1, "cells of lower priority lend at most 0 B");
    for end in [
        &["borrow", "batch", "--memory", "64M"][..],
        &["borrow", "service", "--memory", "64M", "--give-back"],
    ] {
        isola.run(&["borrow", "service", "--memory", "64M", "--lease", "1h"]).ok();
        wait::until_true("the service has memory of the batch cell", || borrowed_mib(&isola) == 64);
        assert_eq!((held_mib(&isola, "service"), held_mib(&isola, "batch")), (24 + 64, all - 64));
        connection.set("key", b"value").unwrap();
        isola.run(end).ok();
        wait::until_true("the batch cell has all its memory", || held_mib(&isola, "batch") == all);
    }
    isola.run(&["borrow", "service", "--memory", "16M", "--lease", "100ms"]).ok();
    wait::until_true("the lease ends", || {
        isola.run(&["events"]).ok().contains("to batch: the lease is over")
    });
    wait::until_true("the batch cell has all its memory", || held_mib(&isola, "batch") == all);
    assert_eq!(held_mib(&isola, "service"), 24);
    assert_eq!(connection.get("key").unwrap().as_deref(), Some(&b"value"[..]));
}
