//! Nothing ticks: cells that have served and are asked no more take no interrupt, and the machine uses no CPU; cores that
//! were never needed never did anything.

use isola_tests::isola::Isola;
use isola_tests::kv::Connection;
use isola_tests::qemu::cpu_time;
use isola_tests::service::published;
use isola_tests::wait;
use serde_json::Value;
use std::time::Duration;

/// How long each of so many windows is, in which the machine is to do nothing.
const QUIET: Duration = Duration::from_secs(2);
const WINDOWS: usize = 10;

/// The work of a cell so far.
#[derive(Debug, PartialEq)]
struct Done {
    /// Interrupts, timers' among them, and cycles in events, in the loop and in interrupts, core by core.
    cores: Vec<Value>,
    /// Frames from the network, which may always send one: a router's advertisement, an address that is looked for.
    received: u64,
}

/// Returns the work of each cell so far. The supervisor reads it; the cells are not asked.
fn done(isola: &Isola) -> Vec<Done> {
    let cells = isola.json(&["ps"]);
    let counters = ["interrupts", "event_cycles", "loop_cycles", "idle_cycles", "interrupt_cycles"];
    let of_core = |core: &Value| counters.map(|name| core[name].clone()).into();
    let of_cell = |cell: &Value| Done {
        cores: cell["cores"].as_array().unwrap().iter().map(of_core).collect(),
        received: cell["traffic"]["received_frames"].as_u64().unwrap(),
    };
    cells.as_array().unwrap().iter().map(of_cell).collect()
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
    // Connections that were closed, and the end of the supervisor's scrubbing, take a while.
    wait::until_true("the cells are at rest", || {
        let before = done(&isola);
        std::thread::sleep(QUIET / 2);
        before == done(&isola)
    });
    for window in 0..WINDOWS {
        let (before, used) = (done(&isola), cpu_time(qemu));
        std::thread::sleep(QUIET);
        let used = cpu_time(qemu) - used;
        let after = done(&isola);
        for (before, after) in before.iter().zip(&after) {
            // No timer and no neighbour: where no frame has come, no core has taken an interrupt or run at all.
            assert!(
                before.cores == after.cores || before.received < after.received,
                "window {window}: {before:#?} and {after:#?}"
            );
        }
        assert!(used < QUIET / 20, "window {window}: {used:?} of CPU time in {QUIET:?}");
    }

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
