//! `isola inspect`: all details of cells, or of the machine.

use super::cores::cores_text;
use super::failure::REFUSED;
use super::{Context, Failure, complete, memory_parts, network, processes, show, standalone};
use crate::cellctl::look_up;
use crate::client::Client;
use crate::hosted_cells;
use crate::machine::LockedMachine;
use crate::output::view::{
    ActivityView, CellView, HostedView, LatencyView, MachineView, RestartView, VolumeView, is_running,
    most_memory,
};
use crate::output::{Format, human, table};
use crate::placement::ranges;
use crate::query::facts;
use clap::Args;
use isola_abi::management::{CellInfo, MachineInfo, MemoryUsage, RestartPolicy};
use isola_abi::query::{FrameFilter, Query};
use isola_abi::report::MemoryPressure;
use serde_json::Value;
use std::fmt::Write;
use std::net::IpAddr;
use std::process::ExitCode;

/// Shows all details of a cell, or of the machine
#[derive(Debug, Args)]
#[command(after_help = "\
The supervisor reads most of it from memory that the cell writes as it runs. The network's counters need a \
query: each core of the cell with connections answers between two events. A cell with Linux programs lists its processes: \
those of the most processor time, up to 100. A cell reports the uses of its memory; cached memory is freed when the cell runs \
short. Only counters that are not 0 are shown; -o json \
has all. Cycles are those of the time-stamp counter.

Examples:
  isola inspect kv
  isola inspect                           the machine: owners of cores, free memory
  isola inspect kv --connections --port 11211
  isola inspect kv -o json | jq .activities")]
pub(super) struct Arguments {
    /// The cells; without one, the machine
    #[arg(add = complete::cells())]
    cells: Vec<String>,
    /// Shows the TCP connections instead
    #[arg(short, long, requires = "cells")]
    connections: bool,
    /// Only connections with this port, on either side
    #[arg(long, requires = "connections")]
    port: Option<u16>,
    /// Only connections with this address, on either side
    #[arg(long, value_name = "IP", requires = "connections")]
    host: Option<IpAddr>,
    /// Maximum number of connections per cell
    #[arg(long, value_name = "NUMBER", default_value_t = 100, requires = "connections")]
    most: u32,
}

pub(super) fn inspect(context: &Context, arguments: &Arguments) -> Result<ExitCode, Failure> {
    if arguments.cells.is_empty() {
        return machine(context);
    }
    let shown = arguments.cells.iter().map(|name| cell(context, arguments, name));
    let (views, texts): (Vec<_>, Vec<_>) = shown.collect::<Result<Vec<_>, Failure>>()?.into_iter().unzip();
    match (context.output.format, &views[..]) {
        (Format::Table, _) => context.output.text(&texts.join("\n"))?,
        // A single cell is not wrapped in an array.
        (Format::Json, [view]) => context.output.json(view)?,
        (Format::Json, views) => context.output.json(&views)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the JSON form and the text of a cell.
fn cell(context: &Context, arguments: &Arguments, name: &str) -> Result<(Value, String), Failure> {
    if let Some(machine) = standalone::find(context, name)? {
        if arguments.connections {
            return Err(Failure::new(
                REFUSED,
                format!("{name:?} is a standalone image, which does not answer queries about connections"),
            ));
        }
        let view = standalone::view(&machine);
        return Ok((serde_json::to_value(&view)?, serde_json::to_string_pretty(&view)?));
    }
    if let Some(mut client) = hosted_cells::find(&context.root, name)? {
        let view = serde_json::to_value(HostedView::running(name))?;
        let text = format!("{:<12}{name}\n{:<12}running, in a Linux process\n", "cell", "state");
        return ask(&mut client, arguments, name, None, (view, text));
    }
    let locked = LockedMachine::take_supervised(&context.root, &context.dir())?;
    let mut client = locked.client()?;
    let info = client.machine()?;
    let mut cell = look_up(&locked, &mut client, name)?;
    client.add_activities(&mut cell)?;
    let shown = |cell: &CellInfo| -> Result<(Value, String), Failure> {
        let view = show::cell(&locked.dir, cell);
        let at_switch = locked.port_counters(cell);
        let mut json = serde_json::to_value(&view)?;
        network::add_switch(&mut json, &at_switch)?;
        Ok((json, cell_text(cell, &view, &info, &network::switch_text(&at_switch))))
    };
    let refused = |cell: &CellInfo| {
        Failure::new(REFUSED, format!("{name:?} is {}: it has no connections", show::state(cell)))
    };
    if !is_running(&cell) {
        return if arguments.connections { Err(refused(&cell)) } else { shown(&cell) };
    }
    match ask(&mut client, arguments, name, Some(cell.memory.0), shown(&cell)?) {
        // The cell may have ended meanwhile: then show its last state.
        Err(failure) => match look_up(&locked, &mut client, name)? {
            cell if is_running(&cell) => Err(failure),
            cell if arguments.connections => Err(refused(&cell)),
            cell => shown(&cell),
        },
        answer => answer,
    }
}

/// Adds a running cell's answer to a query.
fn ask(
    client: &mut Client,
    arguments: &Arguments,
    name: &str,
    total_bytes: Option<u64>,
    (mut view, mut text): (Value, String),
) -> Result<(Value, String), Failure> {
    if arguments.connections {
        let filter = FrameFilter { port: arguments.port, host: arguments.host };
        let query = Query::Connections { filter, most: arguments.most };
        let mut answer = facts(client, name, &query)?;
        network::order_connections(&mut answer, arguments.most as usize);
        network::add_connections(&mut view, &answer)?;
        text = network::connections_text(&answer, &filter);
    } else {
        let answer = facts(client, name, &Query::Counters)?;
        network::add_counters(&mut view, &answer);
        text.push_str(&network::counters_text(&answer));
        processes::add_processes(client, name, &mut view, &mut text)?;
        memory_parts::add_memory_parts(client, name, total_bytes, &mut view, &mut text)?;
    }
    Ok((view, text))
}

fn machine(context: &Context) -> Result<ExitCode, Failure> {
    let locked = LockedMachine::take_supervised(&context.root, &context.dir())?;
    let mut client = locked.client()?;
    let info = client.machine()?;
    let cells = client.list()?;
    let view = show::machine(&locked, Some(&info));
    context.output.answer(&view, || machine_text(&view, &info, &cells))?;
    Ok(ExitCode::SUCCESS)
}

fn machine_text(view: &MachineView, info: &MachineInfo, cells: &[CellInfo]) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: String| {
        let _ = writeln!(text, "{name:<12}{value}");
    };
    line("machine", view.name.clone());
    line("platform", format!("{}, cpu {}, under {}", view.model, view.cpu, view.accelerator));
    line(
        "network",
        format!("{}; {} of {} devices free", view.network, info.devices_free, info.devices_total),
    );
    line("disks", format!("{} of {} block devices free", info.disks_free, info.disks_total));
    line("memory", memory_text(info));
    line("clock", format!("{} MHz", info.tsc_hz / 1_000_000));
    line(
        "boot",
        format!(
            "ready after {}, {} of them the supervisor's",
            human::maybe_duration_ns(view.ready_us.map(|us| us * 1000)),
            human::duration_ns(info.boot_ns)
        ),
    );
    line("uptime", human::age(std::time::Duration::from_nanos(info.uptime_ns)));
    if let Some(pid) = view.pid {
        line("process", pid.to_string());
    }
    let name_of = |owner: &str| {
        let cell = cells.iter().find(|cell| cell.id.to_string() == owner);
        cell.map_or_else(|| owner.to_owned(), |cell| format!("cell {}", cell.spec.name))
    };
    if let Some(supervisor) = &view.supervisor {
        let _ = write!(text, "\n{}", cores_text(&supervisor.cores, name_of));
    }
    text
}

fn memory_text(info: &MachineInfo) -> String {
    let mut text = format!("{} of {} free", info.memory_free, info.memory_total);
    if info.memory_dirty.0 > 0 {
        let _ = write!(text, ", {} of that not scrubbed yet", info.memory_dirty);
    }
    if info.restarts > 0 {
        let _ = write!(text, "; the supervisor has restarted {} times", info.restarts);
    }
    if info.memory_quarantined.0 > 0 {
        let _ = write!(text, "; {} in quarantine", info.memory_quarantined);
    }
    let _ = write!(text, "; supervisor {}, images {}", info.memory_supervisor, info.memory_images);
    text
}

fn cell_text(cell: &CellInfo, view: &CellView, info: &MachineInfo, at_switch: &str) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: String| {
        let _ = writeln!(text, "{name:<12}{value}");
    };
    line("cell", format!("{} (id {}, machine {})", view.name, view.id, view.machine));
    line("state", format!("{}; uptime {}", show::state(cell), show::uptime(cell)));
    line("image", [std::slice::from_ref(&view.image), &view.arguments[..]].concat().join(" "));
    line(
        "sha256",
        format!("{}{}", view.image_sha256, if view.image_is_pinned { ", as demanded" } else { "" }),
    );
    if let Some(key) = &view.image_signed_by {
        line("signed by", key.clone());
    }
    line("created", human::local_time(cell.created_unix_ns));
    let MemoryUsage { total, used, peak, room: _, pressure } = cell.memory_usage;
    let most = match cell.spec.memory_max {
        Some(_) => format!(" of at most {}", most_memory(cell)),
        None => String::new(),
    };
    let short = match pressure {
        MemoryPressure::None => "",
        MemoryPressure::Low => ", low",
        MemoryPressure::Critical => ", critical",
    };
    let image = match cell.text.0 {
        0 => format!("image {}", cell.image),
        _ => format!("image {} (and {} that it shares)", cell.image, cell.text),
    };
    line(
        "memory",
        match cell.state.has_ended() {
            false => {
                format!("{}{most}: {image}, pool {total} ({used} used, {peak} at most){short}", cell.memory)
            }
            true => format!(
                "none now; it had {}: {image}, pool {total} ({used} used in the end, {peak} at most)",
                cell.memory_given
            ),
        },
    );
    if cell.state.has_ended() {
        let ids: Vec<String> = cell.cores.iter().map(|core| core.id.to_string()).collect();
        line("cores", format!("none now; it had {}", ids.join(", ")));
    }
    line("placement", placement_text(cell));
    line("address", format!("{} ({})", view.address.as_deref().unwrap_or("-"), view.network));
    let ports: Vec<String> =
        view.ports.iter().map(|port| format!("{} -> {}/{}", port.host, port.cell, port.protocol)).collect();
    line("ports", if ports.is_empty() { "-".to_owned() } else { ports.join(", ") });
    let volume = |volume: &VolumeView| {
        let suffix = if volume.read_only { " (read-only)" } else { "" };
        format!("{} at {}{suffix}", volume.volume, volume.path)
    };
    if !view.volumes.is_empty() {
        line("volumes", view.volumes.iter().map(volume).collect::<Vec<_>>().join(", "));
    }
    line("traffic", view.traffic.to_string());
    if !at_switch.is_empty() {
        line("switch", at_switch.to_owned());
    }
    if view.service.count > 0 {
        let time = |cycles| maybe_time(cycles, info.tsc_hz);
        let LatencyView { count, p50_cycles, p99_cycles, p999_cycles } = view.service;
        line(
            "requests",
            format!(
                "{}; p50 {}, p99 {}, p99.9 {}",
                human::count(count),
                time(p50_cycles),
                time(p99_cycles),
                time(p999_cycles)
            ),
        );
    }
    if cell.spec.restart != RestartPolicy::No {
        let next =
            cell.restarts.next_unix_ns.map(|next| format!("; next try at {}", human::local_time(next)));
        let RestartView { policy, count, ends_in_row, .. } = &view.restart;
        let text =
            format!("{policy}: {count} so far, {ends_in_row} ends in a row{}", next.unwrap_or_default());
        line("restart", text);
    }
    let low = cell.spec.lending.memory_low;
    if view.priority > 0 || view.lends > 0 || low.is_some() {
        let memory = low.map(|low| format!(", and memory beyond {low}")).unwrap_or_default();
        line("priority", format!("{}; lends {} of its cores at most{memory}", view.priority, view.lends));
    }
    for loan in &view.loans {
        let from = loan.from.as_deref().unwrap_or("the free cores");
        line(
            "borrowed",
            format!("core {} of {from}, for another {}", loan.core, human::duration_ns(loan.left_ns)),
        );
    }
    for loan in &cell.memory_loans {
        let from = loan.from.as_deref().unwrap_or("the free memory");
        let left = human::duration_ns(loan.left_ns);
        let renewal = if loan.renews { ", and as long as it is used" } else { "" };
        line("borrowed", format!("{} of {from}, for another {left}{renewal}", loan.memory));
    }
    if cell.memory_lent.0 > 0 {
        line("lent", cell.memory_lent.to_string());
    }
    if view.watchdog_ms > 0 {
        line("watchdog", format!("{} ms", view.watchdog_ms));
    }
    line(
        "took",
        format!(
            "create {}, start {}, first sign {}, reclaim {}",
            human::maybe_duration_ns(view.create_ns),
            human::maybe_duration_ns(view.start_ns),
            human::maybe_duration_ns(view.first_sign_ns),
            human::maybe_duration_ns(view.reclaim_ns),
        ),
    );
    if !view.cores.is_empty() {
        let _ = write!(text, "\n{}", cores_table(view, info.tsc_hz));
        text.push_str("\n\n");
        text.push_str(&activities_table(view, info.tsc_hz));
        text.push('\n');
    }
    if let Some(crash) = &view.crash {
        text.push('\n');
        text.push_str(&show::crash_text(&view.name, crash));
    }
    text
}

/// Describes the placement of a cell's cores.
fn placement_text(cell: &CellInfo) -> String {
    let placement = &cell.spec.placement;
    let node = placement.node.map_or_else(String::new, |node| format!(", node {}", node.0));
    let ids = if placement.ids.is_empty() {
        String::new()
    } else {
        format!(", of cores {}", ranges(&placement.ids))
    };
    format!("{}{node}{ids}", placement.policy)
}

fn cores_table(view: &CellView, tsc_hz: u64) -> String {
    let rows = view.cores.iter().map(|core| {
        vec![
            core.id.to_string(),
            core.phase.to_owned(),
            human::count(core.interrupts),
            human::count(core.event_cycles),
            human::count(core.longest_event_cycles),
            human::count(core.long_events),
            maybe_time(core.queueing.p99_cycles, tsc_hz),
            human::count(core.interrupt_cycles),
            human::count(core.loop_cycles),
            human::count(core.idle_cycles),
        ]
    });
    table(
        &[
            "CORE",
            "PHASE",
            "INTERRUPTS",
            "EVENT CYCLES",
            "LONGEST",
            "TOO LONG",
            "WAIT P99",
            "INTERRUPT",
            "LOOP",
            "IDLE",
        ],
        rows,
    )
}

/// Formats a cell's usage by activity as a table.
pub(super) fn activities_table(view: &CellView, tsc_hz: u64) -> String {
    let ended = &view.ended_activities;
    let ended = (ended.events > 0 || ended.memory_bytes != 0)
        .then(|| ActivityView { name: "(ended)".to_owned(), ..ended.clone() });
    let activities = || view.activities.iter().chain(&ended);
    let all: u64 = activities().fold(0, |all, activity| all.saturating_add(activity.cycles));
    let rows = activities().map(|activity| {
        let share = if all == 0 { 0.0 } else { 100.0 * activity.cycles as f64 / all as f64 };
        let time = cycles_ns(activity.cycles, tsc_hz).map_or_else(|| "-".to_owned(), human::duration_ns);
        vec![
            activity.name.clone(),
            human::count(activity.cycles),
            time,
            format!("{share:.1} %"),
            human::count(activity.events),
            human::signed_size(activity.memory_bytes),
        ]
    });
    table(&["ACTIVITY", "CYCLES", "TIME", "SHARE", "EVENTS", "MEMORY"], rows)
}

/// Formats the duration of a number of cycles.
fn maybe_time(cycles: Option<u64>, tsc_hz: u64) -> String {
    human::maybe_duration_ns(cycles.and_then(|cycles| cycles_ns(cycles, tsc_hz)))
}

/// Converts cycles to ns.
pub(super) fn cycles_ns(cycles: u64, tsc_hz: u64) -> Option<u64> {
    let ns = u128::from(cycles) * 1_000_000_000;
    u64::try_from(ns.checked_div(u128::from(tsc_hz))?).ok()
}
