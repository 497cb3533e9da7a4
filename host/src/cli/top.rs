//! `isola top`: shows the load of the cells periodically.

use super::inspect::cycles_ns;
use super::interrupt::Interrupts;
use super::{Context, Failure};
use crate::elastic::Every;
use crate::machine::LockedMachine;
use crate::output::view::is_running;
use crate::output::{Format, human, table};
use clap::Args;
use isola_abi::histogram::Distribution;
use isola_abi::id::CellId;
use isola_abi::management::{CellInfo, CoreOwner, CoreUsage};
use serde::Serialize;
use std::collections::BTreeMap;
use std::process::ExitCode;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The interval of checks for ^C.
const GLANCE: Duration = Duration::from_millis(50);

/// Shows the load of the running cells in each interval until ^C: cores, use, requests and latencies
#[derive(Debug, Args)]
#[command(after_help = "\
USE is the share of its cores' time in which a cell did not halt. REQUESTS are those that the application counts: kv, web \
and echo do. WAIT P99 is how long events wait until they run, on the core with the longest waits. The cells \
write all of it as they run: reading it costs them nothing. With -o json, one array per interval.

Examples:
  isola top
  isola top --interval 100ms
  isola top --intervals 1 -o json | jq '.[] | {name, use_percent, p99_ns}'")]
pub(super) struct Arguments {
    /// The interval of measurements
    #[arg(long, value_name = "TIME", default_value = "1s")]
    interval: Every,
    /// Ends after this number of intervals instead of at ^C
    #[arg(long, value_name = "NUMBER")]
    intervals: Option<u64>,
}

/// A cell's load in an interval: the JSON form.
#[derive(Debug, PartialEq, Serialize)]
struct TopView {
    /// The cell.
    name: String,
    /// The number of its cores.
    cores: usize,
    /// The share of their time in which it did not halt.
    use_percent: f64,
    /// Answered requests per second.
    requests_per_second: f64,
    /// The median latency of requests.
    p50_ns: Option<u64>,
    /// The 99th percentile of their latency.
    p99_ns: Option<u64>,
    /// The 99th percentile of the queueing delay, on the core with the longest.
    wait_p99_ns: Option<u64>,
    /// Memory in use.
    used_bytes: u64,
    /// The memory that it has.
    memory_bytes: u64,
}

pub(super) fn top(context: &Context, arguments: &Arguments) -> Result<ExitCode, Failure> {
    let interrupts = Interrupts::count()?;
    let (mut before, mut sampled, _) = sample(context)?;
    for _ in 0..arguments.intervals.unwrap_or(u64::MAX) {
        let next = Instant::now() + arguments.interval.0;
        while Instant::now() < next {
            if interrupts.so_far() > 0 {
                return Ok(ExitCode::SUCCESS);
            }
            sleep(GLANCE.min(next.saturating_duration_since(Instant::now())));
        }
        let (now, at, tsc_hz) = sample(context)?;
        let seconds = at.duration_since(sampled).as_secs_f64();
        let views: Vec<TopView> = now
            .values()
            .map(|cell| view(cell, before.get(&cell.id).unwrap_or(cell), seconds, tsc_hz))
            .collect();
        match context.output.format {
            Format::Json => context.output.json_line(&views)?,
            Format::Table => context.output.screen(&format!("{}\n", text(&views)))?,
        }
        (before, sampled) = (now, at);
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the running cells, the time of the reading, and the cycles per second.
fn sample(context: &Context) -> Result<(BTreeMap<CellId, CellInfo>, Instant, u64), Failure> {
    let locked = LockedMachine::take_supervised(&context.root, &context.dir())?;
    let mut client = locked.client()?;
    let machine = client.machine()?;
    let mut cells = BTreeMap::new();
    for cell in client.list()?.iter().filter(|cell| is_running(cell)) {
        // The list omits details if there are too many. A cell that has ended meanwhile is not shown.
        if let Ok(mut cell) = client.inspect(&cell.spec.name) {
            // The report also lists cores that have left the cell: drop them.
            let has =
                |id| machine.cores.iter().any(|core| core.id == id && core.owner == CoreOwner::Cell(cell.id));
            cell.cores.retain(|core| has(core.id));
            cells.insert(cell.id, cell);
        }
    }
    Ok((cells, Instant::now(), machine.tsc_hz))
}

fn view(cell: &CellInfo, before: &CellInfo, seconds: f64, tsc_hz: u64) -> TopView {
    let was = |core: &CoreUsage| before.cores.iter().find(|earlier| earlier.id == core.id);
    let (mut busy, mut all) = (0, 0);
    for core in &cell.cores {
        let spent = |of: fn(&CoreUsage) -> u64| of(core).saturating_sub(was(core).map_or(0, of));
        let events = spent(|core| {
            core.event_cycles.saturating_add(core.loop_cycles).saturating_add(core.interrupt_cycles)
        });
        busy = events.saturating_add(busy);
        all = events.saturating_add(all).saturating_add(spent(|core| core.idle_cycles));
    }
    let waited = cell.cores.iter().filter_map(|core| {
        let earlier = was(core).map_or_else(Distribution::default, |core| core.queueing.clone());
        core.queueing.since(&earlier).quantile(990)
    });
    let service = cell.service.since(&before.service);
    let ns = |cycles: Option<u64>| cycles.and_then(|cycles| cycles_ns(cycles, tsc_hz));
    TopView {
        name: cell.spec.name.clone(),
        cores: cell.cores.len(),
        use_percent: if all == 0 { 0.0 } else { (busy as f64 * 1000.0 / all as f64).round() / 10.0 },
        requests_per_second: (service.count() as f64 / seconds.max(1e-9)).round(),
        p50_ns: ns(service.quantile(500)),
        p99_ns: ns(service.quantile(990)),
        wait_p99_ns: ns(waited.max()),
        used_bytes: cell.memory_usage.used.0,
        memory_bytes: cell.memory.0,
    }
}

fn text(views: &[TopView]) -> String {
    let size = |bytes| isola_abi::size::ByteSize(bytes).to_string();
    let rows = views.iter().map(|view| {
        vec![
            view.name.clone(),
            view.cores.to_string(),
            format!("{:.1} %", view.use_percent),
            human::count(view.requests_per_second as u64),
            human::maybe_duration_ns(view.p50_ns),
            human::maybe_duration_ns(view.p99_ns),
            human::maybe_duration_ns(view.wait_p99_ns),
            format!("{}/{}", size(view.used_bytes), size(view.memory_bytes)),
        ]
    });
    table(&["NAME", "CORES", "USE", "REQUESTS/S", "P50", "P99", "WAIT P99", "MEMORY"], rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_data::cell;
    use isola_abi::histogram::Histogram;
    use isola_abi::id::CoreId;
    use isola_abi::report::CorePhase;

    fn core(id: u32, busy: u64, idle: u64, waits: &Histogram) -> CoreUsage {
        CoreUsage {
            id: CoreId(id),
            is_present: true,
            phase: CorePhase::Running,
            interrupts: 0,
            idle_cycles: idle,
            loop_cycles: 0,
            interrupt_cycles: 0,
            event_cycles: busy,
            long_events: 0,
            longest_event_cycles: 0,
            queueing: waits.read(),
        }
    }

    #[test]
    fn an_interval_has_only_its_own_load_on_present_cores() {
        let (waits, requests) = (Histogram::new(), Histogram::new());
        requests.count(1 << 30, 500);
        let before = CellInfo {
            cores: vec![core(1, 1_000, 9_000, &waits), core(2, 5_000, 0, &waits)],
            service: requests.read(),
            ..cell("kv")
        };
        requests.count(1_000_000, 3_000);
        let first = core(1, 2_000, 12_000, &waits);
        waits.count(500_000, 100);
        // One core has left, and another has come.
        let now = CellInfo {
            cores: vec![first, core(3, 3_000, 1_000, &waits)],
            service: requests.read(),
            ..cell("kv")
        };
        let view = view(&now, &before, 2.0, 1_000_000_000);
        assert_eq!((view.cores, view.use_percent, view.requests_per_second), (2, 50.0, 1500.0));
        assert!(view.p99_ns.unwrap().abs_diff(1_000_000) < 250_000, "{view:?}");
        assert!(view.wait_p99_ns.unwrap().abs_diff(500_000) < 125_000, "{view:?}");
        assert!(text(&[view]).contains("1,500"));
    }
}
