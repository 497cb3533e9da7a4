//! Core lending between a service and a batch cell.

use isola_tests::isola::Isola;
use isola_tests::kv::Connection;
use isola_tests::service::published;
use isola_tests::steady::{Latencies, SteadyLoad};
use isola_tests::wait;
use serde_json::Value;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, sleep};
use std::time::Duration;

/// Returns the number of cores of each cell.
fn cores(isola: &Isola) -> (usize, usize) {
    let inventory = isola.inventory();
    let cores = inventory["cores"].as_array().expect("the machine has cores").clone();
    let of = |name: &str| {
        let id = isola.cell(name)["id"].to_string();
        cores.iter().filter(|core| core["owner"] == id.as_str()).count()
    };
    (of("service"), of("batch"))
}

/// Requests a loan of an hour for the service, and waits for it.
fn borrow(isola: &Isola) -> Value {
    isola.run(&["borrow", "service", "--lease", "1h"]).ok();
    wait::until("the service has a core of the batch cell", || isola.cell("service")["loans"].get(0).cloned())
}

/// The number of loans.
const LOANS: u32 = 10;

#[test]
fn loans_do_not_delay_answers() {
    let isola = Isola::up(&[]);
    isola.run(&["run", "-d", "--name", "batch", "--cores", "2", "--lend", "1", "primes"]).ok();
    let view = isola.json(&["run", "-d", "--name", "service", "--priority", "9", "-p", "11211", "kv"]);
    let load = SteadyLoad::start(published(&view), 4, Duration::from_millis(16));
    sleep(Duration::from_secs(1));
    load.take();
    let (mut at_rest, mut moving) = (Latencies::default(), Latencies::default());
    for _ in 0..LOANS {
        sleep(Duration::from_millis(300));
        at_rest.add(load.take());
        borrow(&isola);
        isola.run(&["borrow", "service", "--give-back"]).ok();
        wait::until_true("the batch cell has its core again", || cores(&isola) == (1, 2));
        moving.add(load.take());
    }
    assert!(load.end() > 0);
    moving.assert_near(&at_rest, "while a core was borrowed and returned");
}

#[test]
fn a_borrowed_core_returns_on_demand_at_the_borrower_s_end_and_after_its_lease() {
    let isola = Isola::up(&[]);
    isola.run(&["run", "-d", "--name", "batch", "--cores", "2", "--lend", "1", "primes"]).ok();
    let view = isola.json(&["run", "-d", "--name", "service", "--priority", "9", "-p", "11211", "kv"]);
    let address = published(&view);
    let mut connection = Connection::establish(address);
    let mut serves = |value: &[u8]| {
        connection.set("key", value).unwrap();
        assert_eq!(connection.get("key").unwrap().as_deref(), Some(value));
    };
    assert_eq!(cores(&isola), (1, 2));
    isola.run(&["borrow", "batch"]).failed(1, "no cell lends a core");
    isola.run(&["borrow", "nobody"]).failed(1, "nobody");

    assert_eq!(borrow(&isola)["from"], "batch");
    assert_eq!(cores(&isola), (2, 1));
    serves(b"with a borrowed core");
    // The lender gets its core back when it requests one itself.
    isola.run(&["borrow", "batch"]).ok();
    wait::until_true("the batch cell has its core again", || cores(&isola) == (1, 2));
    serves(b"without");

    borrow(&isola);
    isola.run(&["stop", "--time", "0", "service"]).ok();
    wait::until_true("the core of an ended borrower returns", || cores(&isola) == (0, 2));

    isola.run(&["start", "service"]).ok();
    let lease = "the lease is over";
    assert!(!isola.run(&["events"]).ok().contains(lease));
    isola.run(&["borrow", "service", "--lease", "20ms"]).ok();
    wait::until_true("a core returns at the end of its lease", || {
        isola.run(&["events"]).ok().contains(lease)
    });
    wait::until_true("the batch cell has all its cores", || cores(&isola) == (1, 2));
}

/// The number of clients, each of which has one request outstanding at any time: more than one core serves at once.
const BUSY_CLIENTS: usize = 16;

/// Runs `body` while clients keep the service at `address` busy.
fn under_load<T>(address: SocketAddr, body: impl FnOnce() -> T) -> T {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..BUSY_CLIENTS {
            scope.spawn(|| {
                let mut connection = Connection::establish(address);
                while !is_over.load(Ordering::Relaxed) {
                    assert_eq!(connection.get("key").unwrap(), None);
                }
            });
        }
        let _end = EndOnDrop(&is_over);
        body()
    })
}

/// Ends the clients, also if the test fails.
struct EndOnDrop<'a>(&'a AtomicBool);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn load_moves_cores_by_queueing_delay_and_by_the_latency_of_requests() {
    let isola = Isola::up(&[]);
    isola.run(&["run", "-d", "--name", "batch", "--cores", "2", "--lend", "1", "primes"]).ok();
    let service = ["run", "-d", "--name", "service", "--priority", "9", "-p", "11211"];
    let view = isola.json(&[&service[..], &["--borrow-above", "50us", "kv"]].concat());
    under_load(published(&view), || {
        wait::until_true("events that wait borrow a core", || cores(&isola) == (2, 1));
    });
    wait::until_true("an idle service returns the core", || cores(&isola) == (1, 2));
    isola.run(&["stop", "--time", "0", "service"]).ok();
    isola.run(&["rm", "service"]).ok();

    let view = isola.json(&[&service[..], &["kv"]].concat());
    let loans = || isola.run(&["events"]).ok().matches(" of batch, for ").count();
    let before = loans();
    let latency = ["elastic", "service", "--p99", "5us..50us", "--interval", "200ms", "--intervals", "10"];
    under_load(published(&view), || {
        assert_eq!((cores(&isola), loans()), ((1, 2), before), "without the controller no core moves");
        isola.run(&latency).ok();
    });
    assert!(loans() > before, "the controller borrows a core of the batch cell");
    wait::until_true("the controller has returned the core", || cores(&isola) == (1, 2));
}
