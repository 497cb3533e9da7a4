//! Nothing ticks: cells that have served and are asked no more take no interrupt, and the machine uses no CPU; cores that
//! were never needed never did anything.

use isola_tests::isola::Isola;
use isola_tests::kv::Connection;
use isola_tests::qemu::cpu_time;
use isola_tests::service::published;
use serde_json::Value;
use std::time::Duration;

/// How long the machine is to do nothing.
const QUIET: Duration = Duration::from_secs(2);

/// In how many tries, as a network may always say something: a router's advertisement, the end of a lease. What comes
/// back more often than every two seconds comes in each of them.
const TRIES: usize = 10;

/// What all cores of all cells have done: interrupts, timers' among them, and cycles in events and in the loop. Asking for
/// it is none of the cells' business.
fn done(isola: &Isola) -> Vec<Value> {
    let cells = isola.json(&["ps"]);
    let cores = cells.as_array().unwrap().iter().flat_map(|cell| cell["cores"].as_array().unwrap());
    let counters = ["interrupts", "event_cycles", "loop_cycles", "idle_cycles", "interrupt_cycles"];
    cores.map(|core| counters.map(|name| core[name].clone()).into()).collect()
}

#[test]
fn a_machine_that_nobody_asks_takes_no_interrupts_and_no_cpu() {
    let isola = Isola::up(&["--cores", "6"]);
    let cache = isola.json(&["run", "-d", "--name", "cache", "--cores", "2", "-p", "11211", "kv"]);
    isola.run(&["run", "-d", "--name", "primes", "--cores", "3", "-p", "7000/udp", "primes"]).ok();
    let mut stays = Connection::establish(published(&cache));
    for key in 0..64 {
        let mut goes = Connection::establish(published(&cache));
        goes.set(&format!("key-{key}"), b"value").unwrap();
        stays.set("key", b"value").unwrap();
    }
    let qemu = isola.qemu("default").expect("it runs");
    let mut seen = Vec::new();
    let was_quiet = (0..TRIES).any(|_| {
        let (before, used) = (done(&isola), cpu_time(qemu));
        std::thread::sleep(QUIET);
        let used = cpu_time(qemu) - used;
        let after = done(&isola);
        let was_quiet = before == after && used < QUIET / 4;
        seen.push((used, before, after));
        was_quiet
    });
    assert!(was_quiet, "CPU time, and what cores had done before and after: {seen:#?}");

    let primes = isola.cell("primes");
    let cores = primes["cores"].as_array().unwrap();
    assert_eq!(cores.len(), 3);
    for core in &cores[1..] {
        assert_eq!(core["phase"], "asleep", "nobody has asked for a prime: {core:#}");
        for counter in ["interrupts", "event_cycles", "loop_cycles", "interrupt_cycles"] {
            assert_eq!(core[counter], 0, "{core:#}");
        }
    }
    // It is there as soon as it is asked.
    stays.set("key", b"another").unwrap();
}
