//! The tables at the end of the demo.

use super::DemoView;
use crate::cli::inspect::activities_table;
use crate::output::view::{CellView, EventView};
use crate::output::{human, table};
use isola_abi::size::ByteSize;
use std::fmt::Write;

/// Formats all tables.
pub(super) fn text(view: &DemoView) -> String {
    let tsc_hz = view.machine.supervisor.as_ref().map_or(0, |supervisor| supervisor.tsc_hz);
    let mut text = format!("\nUsage of each cell\n\n{}\n", cells(&view.cells));
    for cell in view.cells.iter().filter(|cell| cell.crash.is_none()) {
        let _ =
            write!(text, "\nCycles of {:?} by activity\n\n{}\n", cell.name, activities_table(cell, tsc_hz));
    }
    let _ = write!(text, "\nDuration of each step\n\n{}\n", steps(view));
    let requests = view.kv.requests.max(1);
    let _ = write!(
        text,
        "\nkey-value server: {} requests, none missed, {} of them from the crash on; {} on average, {} at most\n",
        human::count(view.kv.requests),
        human::count(view.kv_requests_during_crash),
        human::duration_ns(view.kv.total_ns / requests),
        human::duration_ns(view.kv.slowest_ns),
    );
    text
}

fn cells(cells: &[CellView]) -> String {
    let rows = cells.iter().map(|cell| {
        let sum =
            |field: fn(&crate::output::view::CoreView) -> u64| cell.cores.iter().map(field).sum::<u64>();
        vec![
            cell.name.clone(),
            cell.crash
                .as_ref()
                .map_or_else(|| cell.state.clone(), |crash| format!("crashed ({})", crash.kind)),
            cell.cores.len().to_string(),
            format!("{} of {}", ByteSize(cell.peak_bytes), ByteSize(cell.memory_bytes)),
            ByteSize(cell.image_bytes).to_string(),
            human::count(sum(|core| core.event_cycles)),
            human::count(sum(|core| core.loop_cycles + core.interrupt_cycles)),
            human::count(sum(|core| core.idle_cycles)),
            human::count(cell.traffic.received_frames),
            human::count(cell.traffic.sent_frames),
        ]
    });
    let headings = [
        "CELL",
        "STATE",
        "CORES",
        "MEMORY",
        "IMAGE",
        "CYCLES OF EVENTS",
        "OF THE SYSTEM",
        "IDLE",
        "PACKETS IN",
        "PACKETS OUT",
    ];
    table(&headings, rows)
}

fn steps(view: &DemoView) -> String {
    let ready = view.machine.ready_us.map(|us| us * 1000);
    let first = vec!["start QEMU, until the supervisor answers".into(), human::maybe_duration_ns(ready)];
    let signs = view.cells.iter().filter(|cell| cell.first_sign_ns.is_some()).map(|cell| {
        let step = format!("from the start of {:?} until it reports that it runs", cell.name);
        vec![step, human::maybe_duration_ns(cell.first_sign_ns)]
    });
    let events = view.events.iter().map(|event| vec![step(event), human::duration_ns(event.duration_ns)]);
    table(&["STEP", "TOOK"], [first].into_iter().chain(events).chain(signs))
}

fn step(event: &EventView) -> String {
    let cell = event.cell.as_deref().unwrap_or_default();
    match event.event {
        "boot" => "boot the supervisor".to_owned(),
        "exit" | "kill" => format!("stop {cell:?}, and reclaim its resources"),
        "crash" => format!("reclaim the resources of {cell:?} after its crash"),
        other => format!("{other} {cell:?}"),
    }
}
