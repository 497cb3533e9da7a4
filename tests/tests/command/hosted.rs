//! Applications as processes of this host: `isola run --hosted`.

use isola_tests::isola::{Isola, is_alive};
use isola_tests::kv::{Connection, Load};
use isola_tests::namespace::{self, QUEUES, SHARED, Tap};
use isola_tests::{images, perfetto, ports, wait};
use serde_json::Value;
use std::fs;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::thread;
use std::time::Duration;

/// Returns an unused port of the host, as an argument that publishes the port `cell`, and its address.
fn free_port(cell: &str) -> (String, SocketAddr) {
    let port = ports::free();
    (format!("{port}:{cell}"), SocketAddr::from(([127, 0, 0, 1], port)))
}

/// Returns the child processes of `parent`.
fn children(parent: u32) -> Vec<u32> {
    let listed = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap_or_default();
    listed.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

/// Traces the cell `kv` of three cores while it serves a load.
fn traces(isola: &Isola) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kv.pftrace");
    let summary = isola.json(&["trace", "kv", "-w", path.to_str().unwrap(), "--duration", "500ms"]);
    assert_eq!(summary["cores"], serde_json::json!([0, 1, 2]), "{summary:#}");
    assert!(summary["events"].as_u64() > Some(100), "{summary:#}");
    isola.run(&["profile", "kv"]).failed(1, "profile it with `perf`");
    let trace = perfetto::parse(&fs::read(&path).unwrap()).unwrap();
    let has = |category: &str| trace.slices.iter().any(|slice| slice.category == category);
    assert!(has("application") && has("idle") && has("lost") == (summary["lost"].as_u64() > Some(0)));
}

#[test]
fn the_key_value_server_serves_as_a_process_until_it_is_interrupted() {
    let isola = Isola::new();
    let (port, address) = free_port("11211");
    let run =
        isola.spawn(&["run", "--hosted", "--cores", "3", "--memory", "64M", "-p", &port, "kv", "-m", "32"]);
    Connection::establish(address).set("key", b"value").unwrap();
    let load = Load::start(address, 8);
    load.wait_for(2_000);
    let counters = &isola.json(&["inspect", "kv"])["counters"];
    assert!(counters["tcp_accepted"].as_u64() >= Some(9), "{counters}");
    assert_eq!(counters["drop_tcp_checksum"], 0, "{counters}");
    traces(&isola);
    load.end();
    assert_eq!(Connection::establish(address).get("key").unwrap().as_deref(), Some(&b"value"[..]));
    run.signal("INT");
    let ended = run.wait().ended_with(0);
    assert_eq!(ended.out, "kv: TCP port 11211, 3 cores, 32 MiB for items\n");
    assert!(TcpListener::bind(address).is_ok(), "the port is free again");
}

/// Returns the fields of `tenant` in a list of activities.
fn tenant(activities: &Value) -> &Value {
    let all = activities.as_array().expect("a list of activities");
    all.iter().find(|activity| activity["name"] == "tenant").expect("the tenant is there")
}

/// A hard budget bounds the items of a tenant, and its frames are dropped if that does not suffice.
#[test]
fn budgets_of_memory_hold_and_are_shown() {
    const MIB: u64 = 1 << 20;
    let isola = Isola::new();
    let (port, address) = free_port("11211");
    let run = isola.spawn(&["run", "--hosted", "--memory", "64M", "-p", &port, "kv"]);
    // It listens.
    drop(Connection::establish(address));
    isola.run(&["grid", "rule", "add", "kv", "--port", "11211", "--activity", "tenant"]).ok();
    let set = ["grid", "set", "kv", "memory", "--activity", "tenant"];
    isola
        .run(&[&set[..], &["--soft", "9M", "--hard", "8M"]].concat())
        .failed(1, "above the hard one of 8 MiB");
    let mut connection = Connection::establish(address);
    let memory = || tenant(&isola.json(&["grid", "show", "kv"])["memory"]).clone();
    let dropped = || isola.json(&["inspect", "kv"])["counters"]["drop_activity_memory"].as_u64();
    // A request that does not fit waits until the budget does.
    isola.run(&[&set[..], &["--hard", "256K"]].concat()).ok();
    assert_eq!(dropped(), Some(0));
    thread::scope(|scope| {
        let stored = scope.spawn(|| connection.set("large", &[8; 900_000]));
        wait::until_true("frames are dropped", || dropped() > Some(0));
        assert!(!stored.is_finished());
        isola.run(&[&set[..], &["--hard", "none"]].concat()).ok();
        stored.join().unwrap().unwrap();
    });
    assert_eq!(connection.get("large").unwrap().map(|value| value.len()), Some(900_000));
    assert!(memory()["hard_bytes"].is_null());

    isola.run(&[&set[..], &["--soft", "4M", "--hard", "8M"]].concat()).ok();
    for number in 0..320 {
        connection.set(&format!("item-{number}"), &[7; 64 << 10]).unwrap();
    }
    let shown = wait::until("the tenant has lost what was above its budget", || {
        let shown = memory();
        (shown["charged_bytes"].as_u64() <= Some(8 * MIB)).then_some(shown)
    });
    assert_eq!((&shown["soft_bytes"], &shown["hard_bytes"]), (&(4 * MIB).into(), &(8 * MIB).into()));
    assert!(shown["charged_bytes"].as_u64() > Some(2 * MIB), "{shown}");
    assert!(shown["reclaimed_bytes"].as_u64() > Some(8 * MIB), "{shown}");
    assert!(connection.get("item-319").unwrap().is_some(), "it was used last");
    assert_eq!(connection.get("item-0").unwrap(), None, "it was evicted");
    let listed = isola.json(&["grid", "activities", "kv"])["activities"].clone();
    assert_eq!(tenant(&listed)["memory"]["hard_bytes"], 8 * MIB, "{listed}");
    let text = isola.run(&["grid", "show", "kv", "--table"]).ok();
    assert!(text.contains("soft 4 MiB, hard 8 MiB"), "{text}");
    run.signal("INT");
    run.wait().ended_with(0);
}

#[test]
fn a_hosted_cell_ends_with_its_command_even_after_a_kill() {
    let isola = Isola::new();
    let (port, address) = free_port("7");
    let run = isola.spawn(&["run", "--hosted", "-p", &port, "echo"]);
    wait::until_true("it serves", || std::net::TcpStream::connect(address).is_ok());
    let process = children(run.id())[0];
    run.signal("KILL");
    drop(run);
    wait::until_true("the process is gone", || !is_alive(process));
}

#[test]
fn primes_are_counted_by_all_cores_of_a_process() {
    let isola = Isola::new();
    let port = ports::free();
    let publish = format!("{port}:7000/udp");
    let run = isola.spawn(&["run", "--hosted", "--cores", "4", "-p", &publish, "primes"]);
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    client.connect(("127.0.0.1", port)).unwrap();
    client.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
    let answer = wait::until("an answer", || {
        let mut buffer = [0; 64];
        client.send(b"1000000").ok()?;
        let len = client.recv(&mut buffer).ok()?;
        Some(String::from_utf8_lossy(&buffer[..len]).into_owned())
    });
    assert_eq!(answer, "1000000 78498\n");
    run.signal("TERM");
    run.wait().ended_with(0);
}

#[test]
fn options_that_a_process_does_not_support_are_rejected_by_name() {
    let isola = Isola::new();
    let refused = |arguments: &[&str], code: i32, words: &str| {
        isola.run(&[&["run", "--hosted"], arguments].concat()).failed(code, words);
    };
    refused(&["no-such-program"], 127, "cargo hosted");
    refused(&["kvv"], 127, "did you mean \"kv\"");
    refused(&[images::path("kv").to_str().unwrap()], 126, "is a cell image");
    refused(&["--network", "10.0.2.20/24", "kv"], 2, "--net tap:INTERFACE");
    refused(&["--network", "none", "-p", "11211", "kv"], 2, "-p goes with");
    refused(&["--cores", "65", "kv"], 2, "1 to 64 cores");
    refused(&["-d", "kv"], 2, "--detach");
    refused(&["--standalone", "kv"], 2, "--standalone");
    refused(&["--net", "tap:no-such-tap-0123456789", "kv"], 2, "is no network");
    refused(&["--net", "tap:shared,queues=2", "kv"], 2, "queues=");
    refused(&["kv", "--no-such-option"], 2, "");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = format!("{}:11211", taken.local_addr().unwrap().port());
    refused(&["-p", &port, "kv"], 125, "in use by another program");
    isola.run(&["run", "--net", "tap:x", "kv"]).failed(2, "--hosted");
}

#[test]
fn a_hosted_cell_is_on_a_tap_interface_with_one_queue_and_with_several() {
    fn serves(tap: Tap, interface: &str) {
        let isola = Isola::new();
        let network = format!("{}/{}", tap.cell(), namespace::PREFIX_LEN);
        let run = ["run", "--hosted", "--cores", "2", "--net", interface, "--network", &network, "kv"];
        let run = isola.spawn(&run);
        let address = (tap.cell(), 11211).into();
        let load = Load::start(address, 16);
        load.wait_for(3_000);
        load.end();
        run.signal("INT");
        run.wait().ended_with(0);
    }
    namespace::run(|| {
        serves(SHARED, "tap:shared");
        serves(QUEUES, "tap:queues");
    });
}
