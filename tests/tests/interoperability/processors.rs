//! Machines of 16 and 64 processors whose cells use all of them.

use isola_tests::isola::Isola;
use isola_tests::kv::{Connection, value};
use isola_tests::service::published;
use isola_tests::{ports, wait};
use std::net::{Ipv4Addr, UdpSocket};
use std::time::Duration;

/// A bound, and the number of primes below it.
const BELOW: u32 = 3_000_000;
const PRIMES: &str = "216816";

/// Sends a request to the cell `primes`, at a port of the host; returns the answer.
fn count_primes(port: u16) -> Option<String> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    socket.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout");
    socket.send_to(BELOW.to_string().as_bytes(), (Ipv4Addr::LOCALHOST, port)).ok()?;
    let mut answer = [0; 200];
    let len = socket.recv(&mut answer).ok()?;
    Some(String::from_utf8_lossy(&answer[..len]).into_owned())
}

/// Gives all cores but the supervisor's to two cells, of which one counts primes on most of them and one serves.
fn all_processors_work(processors: u32) {
    let isola = Isola::up(&["--cores", &processors.to_string(), "--memory", "3G"]);
    let before = isola.inventory();
    let (serving, port) = (processors / 4, ports::free());
    let counting = processors - 1 - serving;
    let run = ["run", "-d", "--memory", "512M", "--name"];
    let cores = |count: u32| count.to_string();
    let primes = ["batch", "--cores", &cores(counting), "-p", &format!("{port}:7000/udp"), "primes"];
    isola.run(&[&run[..], &primes].concat()).ok();
    let kv = ["cache", "--cores", &cores(serving), "-p", "11211", "kv"];
    let address = published(&isola.json(&[&run[..], &kv].concat()));
    isola.run(&["run", "-d", "echo"]).failed(125, "core");

    let answer = wait::until("the primes are counted", || count_primes(port));
    assert!(answer.contains(PRIMES), "{answer}");
    // More connections than cores, so that most cores get a flow.
    let mut connections: Vec<Connection> = (0..8 * serving).map(|_| Connection::establish(address)).collect();
    for (number, connection) in (0..).zip(&mut connections) {
        let (key, stored) = (format!("key{number}"), value(number, 500));
        connection.set(&key, &stored).expect("stored");
        assert_eq!(connection.get(&key).expect("an answer"), Some(stored));
    }
    for (cell, count) in [("batch", counting), ("cache", serving)] {
        let view = isola.cell(cell);
        let cores = view["cores"].as_array().expect("a list");
        assert_eq!(cores.len(), count as usize, "{view:#}");
        let worked = |core: &serde_json::Value| core["event_cycles"].as_u64() > Some(0);
        let working = cores.iter().filter(|core| worked(core)).count();
        // A hash assigns flows to cores, so a few of the serving cores may get none.
        let least = if cell == "batch" { count } else { count.div_ceil(2) };
        assert!(working >= least as usize, "{working} of {count} cores worked: {view:#}");
    }
    // Moves half of the counting cores to the cache, while both cells run.
    let moved = counting / 2;
    isola.run(&["resize", "batch", "--cores", &format!("-{moved}")]).ok();
    isola.run(&["resize", "cache", "--cores", &format!("+{moved}")]).ok();
    let answer = wait::until("the primes are counted again", || count_primes(port));
    assert!(answer.contains(PRIMES), "{answer}");
    for (number, connection) in (0..).zip(&mut connections) {
        assert_eq!(connection.get(&format!("key{number}")).expect("an answer"), Some(value(number, 500)));
    }
    drop(connections);
    isola.run(&["rm", "--force", "batch", "cache"]).ok();
    isola.wait_for_inventory(&before);
}

#[test]
fn sixteen_processors_work() {
    all_processors_work(16);
}

#[test]
fn sixty_four_processors_work() {
    all_processors_work(64);
}
