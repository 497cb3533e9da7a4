//! `isola metrics` against Prometheus: its server reads the metrics, and its tool checks them.

use crate::metrics::MetricsServer;
use crate::sandbox::Sandbox;
use isola_need::{Need, need};
use serde_json::Value;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

/// A Prometheus server, which ends with this value.
struct Prometheus {
    process: Child,
    port: u16,
}

impl Prometheus {
    /// Starts a server that reads the metrics at `address` in each second.
    fn start(sandbox: &Sandbox, address: &str) -> Self {
        let (port, config) = (isola_tests::ports::free(), sandbox.path("prometheus.yml"));
        let text = format!(
            "scrape_configs:\n- job_name: isola\n  scrape_interval: 1s\n  static_configs:\n  - targets: ['{address}']\n"
        );
        fs::write(&config, text).unwrap();
        let process = Command::new("prometheus")
            .arg(format!("--config.file={}", config.display()))
            .arg(format!("--storage.tsdb.path={}", sandbox.path("prometheus").display()))
            .arg(format!("--web.listen-address=127.0.0.1:{port}"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self { process, port }
    }

    /// Returns the result of a query of one word; `null` before the server serves.
    fn query(&self, query: &str) -> Value {
        let Ok(mut stream) = TcpStream::connect(("127.0.0.1", self.port)) else { return Value::Null };
        let request = format!("GET /api/v1/query?query={query} HTTP/1.0\r\n\r\n");
        let mut response = String::new();
        if stream.write_all(request.as_bytes()).and_then(|()| stream.read_to_string(&mut response)).is_err() {
            return Value::Null;
        }
        let body = response.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        serde_json::from_str::<Value>(body).map_or(Value::Null, |value| value["data"]["result"].clone())
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn promtool_accepts_the_metrics() {
    if !need(Need::Prometheus) {
        return;
    }
    let sandbox = Sandbox::up();
    sandbox.isola(&["run", "-d", "--name", "kv", "--cores", "2", "kv", "hostile"]).ok();
    let text = sandbox.isola(&["metrics", "--format", "prometheus"]).ok();
    assert!(text.contains(r#"activity="\"}\n\\ 1""#), "{text}");
    let mut promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    promtool.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = promtool.wait_with_output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
}

#[test]
fn prometheus_reads_every_metric_of_the_openmetrics_format() {
    if !need(Need::Prometheus) {
        return;
    }
    let sandbox = Sandbox::up();
    sandbox.isola(&["run", "-d", "--name", "kv", "--cores", "2", "kv", "hostile"]).ok();
    let server = MetricsServer::start(&sandbox);
    let prometheus = Prometheus::start(&sandbox, &server.address);
    sandbox.wait("Prometheus reads the metrics", || prometheus.query("up")[0]["value"][1] == "1");
    let text = sandbox.isola(&["metrics"]).ok();
    let samples = text.lines().filter(|line| !line.starts_with('#')).count();
    let read = &prometheus.query("scrape_samples_scraped")[0]["value"][1];
    assert_eq!(read.as_str().unwrap(), samples.to_string());
    assert_eq!(prometheus.query("isola_cell_cores")[0]["value"][1], "2");
    let metadata = prometheus.query("isola_core_queueing_delay_seconds_count");
    assert_eq!(metadata.as_array().unwrap().len(), 2, "{metadata}");
    let activities = prometheus.query("isola_activity_events_total");
    let hostile = activities.as_array().unwrap().iter();
    assert_eq!(
        hostile.filter(|series| series["metric"]["activity"] == "\"}\n\\ 1").count(),
        1,
        "{activities}"
    );
}
