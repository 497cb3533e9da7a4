//! `isola metrics`: the metrics of a machine and its cells, as text or over HTTP.

use super::failure::REFUSED;
use super::interrupt::Interrupts;
use super::{Context, Failure};
use crate::machine::LockedMachine;
use crate::machine::state::{MachineDir, StateRoot};
use crate::metrics::collect::read;
use crate::metrics::reading_thread::ReadingThread;
use crate::metrics::server::{Limits, serve};
use crate::metrics::{Metrics, TextFormat};
use crate::output::Format;
use clap::Args;
use serde::Serialize;
use std::net::{SocketAddr, TcpListener};
use std::process::ExitCode;
use std::sync::Arc;

/// Prints the metrics of the machine and its cells, or serves them over HTTP for Prometheus
#[derive(Debug, Args)]
#[command(after_help = "\
Each reading asks the supervisor and all running cells anew. The supervisor reads most values from memory that cells write \
as they run; the network's counters and the grid need a query. A cell that does not answer within 2 s has no series of \
those, and isola_cell_answered is 0.

With --listen, HTTP clients that accept OpenMetrics get it, all others the Prometheus text format. There is no \
authentication: everyone who reaches the address can read names and figures of all cells. A machine that does not answer \
is status 503, with the reason.

docs/metrics.md describes the metrics, and host/dashboards/isola.json is a dashboard for Grafana.

Examples:
  isola metrics --listen                  for Prometheus, at http://127.0.0.1:9464/metrics
  isola metrics --listen 127.0.0.1:9500 --on staging
  isola metrics --format prometheus | promtool check metrics
  isola metrics -o json | jq '.[] | select(.name == \"isola_cell_cores\").samples'")]
pub(super) struct Arguments {
    /// Serves the metrics at http://ADDRESS/metrics until ^C; without ADDRESS, at 127.0.0.1:9464
    #[arg(long, value_name = "ADDRESS", num_args = 0..=1, default_missing_value = "127.0.0.1:9464")]
    #[arg(value_parser = address)]
    listen: Option<SocketAddr>,
    /// The text format
    #[arg(long, value_enum, default_value_t, conflicts_with = "listen")]
    format: TextFormat,
}

/// The server: the JSON form.
#[derive(Serialize)]
struct ServerView {
    /// The URL of the metrics.
    url: String,
}

fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| "write an IP address and a port, as in 127.0.0.1:9464 or [::1]:9464".to_owned())
}

pub(super) fn metrics(context: &Context, arguments: &Arguments) -> Result<ExitCode, Failure> {
    if let Some(address) = arguments.listen {
        return listen(context, address);
    }
    let metrics = reading(&context.root, &context.dir()).map_err(|error| Failure::new(REFUSED, error))?;
    match context.output.format {
        Format::Json => context.output.json(&metrics.json())?,
        Format::Table => context.output.text(&Arc::new(metrics).text(arguments.format)?)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn listen(context: &Context, address: SocketAddr) -> Result<ExitCode, Failure> {
    let interrupts = Interrupts::count()?;
    let listener = TcpListener::bind(address).map_err(|error| {
        let text =
            format!("the metrics cannot be served at {address}: {error}; choose another with --listen");
        Failure::new(REFUSED, text)
    })?;
    let address = listener.local_addr()?;
    if !address.ip().is_loopback() {
        context.output.note("note: everyone who reaches this address can read the metrics of all cells");
    }
    let (root, dir) = (context.root.clone(), context.dir());
    // The machine may start later; only the user can notice that its name is wrong.
    if let Err(error) = reading(&root, &dir) {
        context.output.note(&format!("note: no metrics at present: {error}"));
    }
    let url = format!("http://{address}/metrics");
    context.output.answer(&ServerView { url: url.clone() }, || url)?;
    let reading = ReadingThread::start(move || reading(&root, &dir));
    serve(&listener, reading, Limits::default(), || interrupts.so_far() > 0)?;
    Ok(ExitCode::SUCCESS)
}

/// Reads the machine and its cells; returns the reason as text if the machine does not answer.
fn reading(root: &StateRoot, dir: &MachineDir) -> Result<Metrics, String> {
    let locked = LockedMachine::take_supervised(root, dir).map_err(|error| error.to_string())?;
    let mut client = locked.client().map_err(|error| error.to_string())?;
    let reading = read(&mut client, dir.name.as_str()).map_err(|error| error.to_string())?;
    Ok(reading.metrics(&locked.record))
}
