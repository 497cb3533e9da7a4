//! There is no periodic timer: idle cells take no interrupts, an idle machine uses no CPU time, and cores without work
//! never run.

use isola_tests::isola::Isola;
use isola_tests::kv::Connection;
use isola_tests::qemu::cpu_time;
use isola_tests::service::published;
use isola_tests::wait;
use serde_json::Value;
use std::time::Duration;

/// The length of an interval in which the machine must be idle, and the number of intervals.
const QUIET: Duration = Duration::from_secs(2);
const WINDOWS: usize = 10;

/// The work of a cell so far.
#[derive(Debug, PartialEq)]
struct WorkDone {
    /// Interrupts, including the timer's, and the cycles in events, in the loop and in interrupts, of each core.
    cores: Vec<Value>,
    /// Received frames. The network may send one at any time, such as a router advertisement or an ARP request.
    received: u64,
}

/// Returns the work of each cell so far, from the reports; the cells do nothing for it.
fn done(isola: &Isola) -> Vec<WorkDone> {
    let cells = isola.json(&["ps"]);
    let counters = ["interrupts", "event_cycles", "loop_cycles", "idle_cycles", "interrupt_cycles"];
    let of_core = |core: &Value| counters.map(|name| core[name].clone()).into();
    let of_cell = |cell: &Value| WorkDone {
        cores: cell["cores"].as_array().unwrap().iter().map(of_core).collect(),
        received: cell["traffic"]["received_frames"].as_u64().unwrap(),
    };
    cells.as_array().unwrap().iter().map(of_cell).collect()
}

#[test]
fn an_idle_machine_takes_no_interrupts_and_uses_no_cpu_time() {
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
    // Closed connections (TIME-WAIT) and the supervisor's scrubbing take a while to end.
    wait::until_true("the cells are idle", || {
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
            // A core may run only if its cell has received a frame: neither a timer nor another cell wakes it.
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
        assert_eq!(core["phase"], "asleep", "no request has used the core: {core:#}");
        for counter in ["interrupts", "event_cycles", "loop_cycles", "interrupt_cycles"] {
            assert_eq!(core[counter], 0, "{core:#}");
        }
    }
    // The service still answers at once.
    stays.set("key", b"another").unwrap();
}
