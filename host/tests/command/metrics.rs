//! `isola metrics`: the text, the HTTP server, the dashboard and the page that describe the metrics.

use crate::sandbox::{Sandbox, signal};
use isola_host::metrics::catalogue::ALL;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Child;
use std::time::Instant;

/// A server of metrics, which ends with this value.
pub struct MetricsServer {
    process: Child,
    pub address: String,
}

impl MetricsServer {
    /// Starts a server at a free port.
    pub fn start(sandbox: &Sandbox) -> Self {
        let mut process = sandbox.spawn(&["metrics", "--listen", "127.0.0.1:0"]);
        let mut url = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut url).unwrap();
        let address = url.trim().strip_prefix("http://").and_then(|url| url.strip_suffix("/metrics"));
        let address = address.unwrap_or_else(|| panic!("{url:?} is no URL of metrics")).to_owned();
        Self { process, address }
    }

    /// Returns the response to a request, without a body.
    fn response(&self, head: &str) -> String {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.write_all(format!("{head}\r\nHost: localhost\r\n\r\n").as_bytes()).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }
}

impl Drop for MetricsServer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Returns the file of that path in the tree.
fn file(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the names in a text that begin as those of metrics do.
fn names(text: &str) -> BTreeSet<String> {
    let words = text.split(|character: char| !(character.is_ascii_alphanumeric() || character == '_'));
    words.filter(|word| word.starts_with("isola_")).map(str::to_owned).collect()
}

/// Returns the names of all samples that the catalogue has.
fn sample_names() -> BTreeSet<String> {
    ALL.iter().flat_map(|family| family.sample_names()).collect()
}

#[test]
fn a_reading_has_the_values_of_all_cells() {
    let sandbox = Sandbox::up();
    sandbox.isola(&["run", "-d", "--name", "kv", "--cores", "2", "--memory", "32M", "kv"]).ok();
    sandbox.isola(&["run", "--name", "ended", "kv", "exit:0"]).ok();
    let text = sandbox.isola(&["metrics"]).ok();
    for line in [
        r#"isola_cell_state{cell="kv",state="running"} 1.0"#,
        r#"isola_cell_state{cell="ended",state="exited"} 1.0"#,
        r#"isola_cell_state{cell="ended",state="running"} 0.0"#,
        r#"isola_cell_cores{cell="kv"} 2.0"#,
        r#"isola_cell_cores{cell="ended"} 0.0"#,
        r#"isola_cell_memory_bytes{cell="kv"} 33554432.0"#,
        r#"isola_core_cycles_total{cell="kv",core="2",account="activity"} 4000"#,
        r#"isola_cell_request_duration_seconds_count{cell="kv"} 1020"#,
        r#"isola_activity_events_total{cell="kv",activity="tenant"} 4"#,
        r#"isola_activity_cycles_total{cell="kv",activity="(ended)"} 57"#,
        r#"isola_activity_memory_soft_bytes{cell="kv",activity="activity-2"} 67108864.0"#,
        r#"isola_activity_memory_hard_bytes{cell="kv",activity="activity-2"} 134217728.0"#,
        r#"isola_activity_memory_reclaimed_bytes_total{cell="kv",activity="activity-2"} 3145728"#,
        r#"isola_activity_memory_waiting_requests{cell="kv",activity="activity-2"} 1.0"#,
        r#"isola_cell_network_events_total{cell="kv",layer="tcp",counter="drop_tcp_port"} 1017"#,
        // Core slot 0 of the cell is core 1 of the machine.
        r#"isola_grid_requests_total{cell="kv",resource="processor",core="1",activity="activity-3"} 10"#,
        r#"isola_grid_policy_info{cell="kv",resource="processor",policy="direct"} 1"#,
        r#"isola_cell_answered{cell="kv"} 1.0"#,
        r#"isola_machine_cores{owner="free"} 1.0"#,
    ] {
        assert!(text.lines().any(|found| found == line), "{line}: {text}");
    }
    // 4,000 cycles at 2.1 GHz.
    let time = r#"isola_core_time_seconds_total{cell="kv",core="2",account="activity"} "#;
    let seconds: f64 = text.lines().find_map(|line| line.strip_prefix(time)).unwrap().parse().unwrap();
    assert!((seconds - 4_000.0 / 2.1e9).abs() < 1e-12, "{seconds}");
    assert!(!text.contains(r#"isola_cell_answered{cell="ended"}"#), "{text}");
    assert!(text.ends_with("# EOF\n"), "{text}");
    let json = sandbox.json(&["metrics"]);
    let cores = json.as_array().unwrap().iter().find(|family| family["name"] == "isola_cell_cores").unwrap();
    assert_eq!(cores["samples"].as_array().unwrap().len(), 2, "{cores}");
}

#[test]
fn every_family_of_the_catalogue_occurs() {
    let sandbox = Sandbox::up();
    sandbox.isola(&["run", "-d", "--name", "kv", "kv"]).ok();
    let text = sandbox.isola(&["metrics"]).ok();
    let emitted: BTreeSet<&str> = text.lines().filter_map(|line| line.split(['{', ' ']).next()).collect();
    let missing: Vec<String> =
        sample_names().into_iter().filter(|name| !emitted.contains(name.as_str())).collect();
    // The fake cell has no clients of network-write.
    assert_eq!(missing, ["isola_grid_cost_bytes_total"]);
}

#[test]
fn the_dashboard_names_only_metrics_that_exist() {
    let dashboard: Value = serde_json::from_str(&file("host/dashboards/isola.json")).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let targets = panels.iter().filter_map(|panel| panel["targets"].as_array()).flatten();
    let expressions: Vec<&str> = targets.map(|target| target["expr"].as_str().unwrap()).collect();
    let variables = dashboard["templating"]["list"].as_array().unwrap();
    let variables = variables.iter().filter_map(|variable| variable["query"]["query"].as_str());
    let known = sample_names();
    assert!(expressions.len() > 15, "{expressions:?}");
    for expression in expressions.into_iter().chain(variables) {
        let used = names(expression);
        assert!(!used.is_empty(), "{expression}");
        let unknown: Vec<&String> = used.difference(&known).collect();
        assert!(unknown.is_empty(), "{unknown:?} in {expression}");
    }
}

#[test]
fn the_page_on_metrics_names_every_metric() {
    let page = names(&file("docs/metrics.md"));
    let known = sample_names();
    let families: BTreeSet<String> = ALL
        .iter()
        .map(|family| match family.sample_names().as_slice() {
            [name] => name.clone(),
            _ => family.name.to_owned(),
        })
        .collect();
    assert_eq!(
        families.difference(&page).collect::<Vec<_>>(),
        Vec::<&String>::new(),
        "docs/metrics.md lacks them"
    );
    let unknown: Vec<&String> =
        page.iter().filter(|name| !families.contains(*name) && !known.contains(*name)).collect();
    assert_eq!(unknown, Vec::<&String>::new(), "docs/metrics.md names metrics that do not exist");
}

#[test]
fn a_server_answers_each_request_with_a_new_reading_until_it_is_interrupted() {
    let sandbox = Sandbox::up();
    let mut server = MetricsServer::start(&sandbox);
    let metrics = server.response("GET /metrics HTTP/1.1");
    assert!(metrics.starts_with("HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4"), "{metrics}");
    assert!(!metrics.contains("isola_cell_cores{"), "{metrics}");
    sandbox.isola(&["run", "-d", "--name", "kv", "kv"]).ok();
    let metrics =
        server.response("GET /metrics HTTP/1.1\r\nAccept: application/openmetrics-text;version=1.0.0");
    assert!(metrics.contains("\r\nContent-Type: application/openmetrics-text; version=1.0.0"), "{metrics}");
    assert!(
        metrics.contains("isola_cell_cores{cell=\"kv\"} 1.0") && metrics.ends_with("# EOF\n"),
        "{metrics}"
    );
    for (request, status) in
        [("GET / HTTP/1.1", "404"), ("POST /metrics HTTP/1.1", "405"), ("nonsense", "400")]
    {
        let response = server.response(request);
        assert!(response.starts_with(&format!("HTTP/1.1 {status} ")), "{request}: {response}");
    }
    let begun = Instant::now();
    signal("INT", server.process.id());
    assert!(server.process.wait().unwrap().success());
    assert!(begun.elapsed().as_secs() < 30);
}

#[test]
fn a_cell_that_does_not_answer_only_lacks_the_values_of_queries() {
    let sandbox = Sandbox::up();
    sandbox.isola(&["run", "-d", "--name", "mute", "kv", "mute"]).ok();
    sandbox.isola(&["run", "-d", "--name", "mute-2", "kv", "mute"]).ok();
    sandbox.isola(&["run", "-d", "--name", "kv", "kv"]).ok();
    let text = sandbox.isola(&["metrics"]).ok();
    for line in [
        r#"isola_cell_answered{cell="mute"} 0.0"#,
        r#"isola_cell_answered{cell="kv"} 1.0"#,
        r#"isola_cell_cores{cell="mute"} 1.0"#,
    ] {
        assert!(text.lines().any(|found| found == line), "{line}: {text}");
    }
    let of = |cell: &str, name: &str| {
        text.lines()
            .filter(|line| line.starts_with(name) && line.contains(&format!("cell=\"{cell}\"")))
            .count()
    };
    assert_eq!((of("mute", "isola_grid"), of("mute", "isola_cell_network_events")), (0, 0), "{text}");
    assert!(of("kv", "isola_grid") > 0 && of("mute", "isola_core_time_seconds_total") == 4, "{text}");
    // Mute cells share their time limit of 2 s.
    let line = text.lines().find_map(|line| line.strip_prefix("isola_reading_duration_seconds ")).unwrap();
    assert!((2.0..4.0).contains(&line.parse::<f64>().unwrap()), "{line}");
}

#[test]
fn a_server_outlives_its_machine() {
    let sandbox = Sandbox::new();
    let server = MetricsServer::start(&sandbox);
    let refused = server.response("GET /metrics HTTP/1.1");
    assert!(refused.starts_with("HTTP/1.1 503 ") && refused.contains("isola up"), "{refused}");
    sandbox.isola(&["up", "--accel", "tcg"]).ok();
    assert!(server.response("GET /metrics HTTP/1.1").starts_with("HTTP/1.1 200 "));
    sandbox.isola(&["down"]).ok();
    assert!(server.response("GET /metrics HTTP/1.1").starts_with("HTTP/1.1 503 "));
}

#[test]
fn invalid_arguments_and_used_ports_are_rejected() {
    let sandbox = Sandbox::new();
    sandbox.isola(&["metrics"]).failed(1, "isola up");
    sandbox.isola(&["metrics", "--listen", "localhost"]).failed(2, "127.0.0.1:9464");
    sandbox.isola(&["metrics", "--format", "xml"]).failed(2, "openmetrics");
    sandbox.isola(&["metrics", "--listen", "127.0.0.1:0", "--format", "prometheus"]).failed(2, "--listen");
    let server = MetricsServer::start(&sandbox);
    sandbox.isola(&["metrics", "--listen", &server.address]).failed(1, "choose another with --listen");
}
