//! A service under load beside cells with each kind of fault.

use isola_tests::isola::Isola;
use isola_tests::kv::Load;
use isola_tests::service::Service;
use isola_tests::wait;
use serde_json::Value;

/// Requests that must be answered before, during and after each fault.
const REQUESTS: u64 = 200;

/// A fault of the application `faulty`, and its report.
struct Fault {
    argument: &'static str,
    kind: &'static str,
    exception: Option<&'static str>,
    /// A function in the backtrace.
    function: &'static str,
}

impl Fault {
    /// Returns the watchdog's limit. It is long unless the watchdog itself must detect the fault: an emulated machine
    /// on a busy host takes long to exhaust its memory.
    fn watchdog(&self) -> &'static str {
        if self.kind == "hang" { "2s" } else { "60s" }
    }
}

const FAULTS: [Fault; 7] = [
    Fault { argument: "panic", kind: "panic", exception: None, function: "faulty::main" },
    Fault { argument: "null", kind: "exception", exception: Some("page fault"), function: "inject" },
    Fault { argument: "write", kind: "exception", exception: Some("page fault"), function: "inject" },
    Fault { argument: "code", kind: "exception", exception: Some("page fault"), function: "inject" },
    Fault {
        argument: "overflow",
        kind: "double fault",
        exception: Some("double fault"),
        function: "faulty::descend",
    },
    Fault { argument: "spin", kind: "hang", exception: None, function: "faulty::main" },
    Fault { argument: "exhaust", kind: "out of memory", exception: None, function: "faulty::exhaust" },
];

/// Returns the backtrace of a crash, with the names of inlined functions.
fn functions(crash: &Value) -> String {
    crash["backtrace"].to_string()
}

#[test]
fn no_request_is_lost_beside_a_fault() {
    let service = Service::published(&[], &["--cores", "2", "--memory", "64M"]);
    let isola = &service.isola;
    let before = isola.inventory();
    let load = Load::start(service.address, 4);
    for fault in FAULTS {
        let argument = fault.argument;
        load.wait_for(REQUESTS);
        let watchdog = fault.watchdog();
        isola
            .run(&[
                "run",
                "-d",
                "--name",
                argument,
                "--memory",
                "16M",
                "--watchdog",
                watchdog,
                "faulty",
                argument,
            ])
            .ok();
        load.wait_for(REQUESTS);
        let ended = isola.wait_for_end(argument);
        let crash = &ended["crash"];
        assert_eq!((&ended["state"], &crash["kind"]), (&"crashed".into(), &fault.kind.into()), "{ended:#}");
        assert_eq!(crash["exception"].as_str(), fault.exception, "{ended:#}");
        assert!(functions(crash).contains(fault.function), "{} is not in {crash:#}", fault.function);
        load.wait_for(REQUESTS);
        isola.run(&["rm", argument]).ok();
        isola.wait_for_inventory(&before);
    }
    // An exit and a kill are reported as such, not as crashes.
    let exited = isola.run(&["run", "--rm", "--memory", "16M", "faulty", "exit", "3"]);
    exited.ended_with(3);
    isola.run(&["run", "-d", "--name", "spin", "--memory", "16M", "faulty", "spin"]).ok();
    load.wait_for(REQUESTS);
    assert_eq!(isola.json(&["kill", "spin"])[0]["state"], "killed");
    isola.run(&["rm", "spin"]).ok();
    isola.wait_for_inventory(&before);
    load.wait_for(REQUESTS);
    assert!(load.end() > 20 * REQUESTS);
    service.end();
}

#[test]
fn a_crashed_cell_is_restarted_as_often_as_its_policy_allows() {
    let isola = Isola::up(&["--cores", "2", "--memory", "128M"]);
    let before = isola.inventory();
    let run = ["run", "-d", "--name", "bad", "--memory", "16M", "--network", "none"];
    isola.run(&[&run[..], &["--restart", "on-failure:2", "faulty", "panic"]].concat()).ok();
    let events = || -> Vec<Value> {
        let lines = isola.run(&["events", "-o", "json"]).ok();
        lines.lines().map(|line| serde_json::from_str(line).expect("each line is an object")).collect()
    };
    let used_up = |events: &[Value]| events.iter().any(|entry| entry["event"] == "restarts-used-up");
    wait::until_true("the policy gives up", || used_up(&events()));
    let ended = isola.cell("bad");
    assert_eq!((&ended["state"], &ended["crash"]["kind"]), (&"crashed".into(), &"panic".into()), "{ended:#}");
    assert_eq!(
        (&ended["restart"]["count"], &ended["restart"]["next"]),
        (&2.into(), &Value::Null),
        "{ended:#}"
    );
    let seen = events();
    let kinds: Vec<&str> = seen.iter().skip(1).filter_map(|entry| entry["event"].as_str()).collect();
    let once = ["start", "crash", "restart-due", "recreate"];
    let expected = [&["create"], &once[..], &once[..], &["start", "crash", "restarts-used-up"]].concat();
    assert_eq!(kinds, expected, "{seen:#?}");
    assert_eq!(isola.inventory(), before);
}
