//! `isola ps`: lists cells.

use super::standalone::StandaloneView;
use super::{Context, Failure, show, standalone};
use crate::cellctl::sweep;
use crate::machine::network::address;
use crate::machine::record::MachineKind;
use crate::machine::state::MachineDir;
use crate::machine::{LockedMachine, MachineError};
use crate::names::DEFAULT_MACHINE;
use crate::output::view::CellView;
use crate::output::{Format, Verbosity, human, table};
use clap::Args;
use serde::Serialize;
use std::process::ExitCode;
use std::time::Duration;

/// Lists the cells of a machine, including ended ones
#[derive(Debug, Args)]
#[command(after_help = "\
An ended cell holds no cores and no memory; `isola inspect` shows its past usage.

Examples:
  isola ps
  isola ps -a                             of all machines, with standalone images
  isola ps -q                             names only
  isola ps -o json | jq '.[] | {name, state}'")]
pub(super) struct Arguments {
    /// Lists the cells of all machines
    #[arg(short, long)]
    all: bool,
}

/// A line of the list.
struct Row {
    machine: String,
    name: String,
    /// All columns except the machine.
    columns: Vec<String>,
    view: RowView,
}

/// The JSON form of a line. A standalone image has the fields `machine` (null), `name`, `state`, `image`,
/// `memory_bytes` and `ports` in common with cells.
#[derive(Serialize)]
#[serde(untagged)]
enum RowView {
    Cell(Box<CellView>),
    Standalone(StandaloneView),
}

const HEADINGS: [&str; 8] = ["NAME", "STATE", "CORES", "MEMORY", "IMAGE", "ADDRESS", "PORTS", "UPTIME"];

pub(super) fn ps(context: &Context, arguments: &Arguments) -> Result<ExitCode, Failure> {
    let mut rows = Vec::new();
    let mut failed = None;
    // A standalone image is not a cell of any machine, so every list contains it.
    let wanted =
        |dir: &&MachineDir| arguments.all || dir.name == context.machine || standalone::is_alone(dir);
    for dir in context.root.machines().iter().filter(wanted) {
        match LockedMachine::take(&context.root, dir) {
            Ok(locked) if locked.record.kind == MachineKind::Supervised => rows.extend(cells(&locked)?),
            Ok(locked) => rows.push(standalone_row(&locked)),
            Err(MachineError::NotUp { .. }) => {}
            Err(error @ (MachineError::Died { .. } | MachineError::Abandoned { .. })) => {
                context.output.note(&format!("note: {error}"));
            }
            // Continue with the other machines.
            Err(error) => failed = Some(Failure::from(error).report(&context.output)),
        }
    }
    if !context.dir().has_record() {
        if context.machine.as_str() != DEFAULT_MACHINE {
            // A machine that the user named and that does not exist is an error.
            LockedMachine::take(&context.root, &context.dir())?;
        } else if rows.is_empty() && !arguments.all {
            context.output.note("note: no machine is up here; start one with `isola up`");
        }
    }
    print(context, arguments, &rows)?;
    Ok(failed.unwrap_or(ExitCode::SUCCESS))
}

fn print(context: &Context, arguments: &Arguments, rows: &[Row]) -> Result<(), Failure> {
    if context.output.format == Format::Json {
        let views: Vec<&RowView> = rows.iter().map(|row| &row.view).collect();
        context.output.json(&views)?;
        return Ok(());
    }
    if context.output.verbosity == Verbosity::Quiet {
        let names: Vec<&str> = rows.iter().map(|row| row.name.as_str()).collect();
        context.output.text(&names.join("\n"))?;
        return Ok(());
    }
    let text = if arguments.all {
        let headings: Vec<&str> = ["MACHINE"].into_iter().chain(HEADINGS).collect();
        table(
            &headings,
            rows.iter().map(|row| [std::slice::from_ref(&row.machine), &row.columns[..]].concat()),
        )
    } else {
        table(&HEADINGS, rows.iter().map(|row| row.columns.clone()))
    };
    context.output.text(&text)?;
    Ok(())
}

fn cells(locked: &LockedMachine) -> Result<Vec<Row>, Failure> {
    let mut client = locked.client()?;
    let mut cells = client.list()?;
    let swept = sweep(locked, &mut client, &cells)?;
    cells.retain(|cell| !swept.contains(&cell.spec.name));
    let row = |cell: &isola_abi::management::CellInfo| Row {
        machine: locked.dir.name.to_string(),
        name: cell.spec.name.clone(),
        columns: vec![
            cell.spec.name.clone(),
            show::state(cell),
            show::locked(cell, cell.core_count()),
            show::memory(cell),
            cell.spec.image_name.clone(),
            address(cell).map_or_else(|| "-".to_owned(), |ip| ip.to_string()),
            show::ports_text(&show::ports(&locked.dir, cell)),
            show::uptime(cell),
        ],
        view: RowView::Cell(Box::new(show::cell(&locked.dir, cell))),
    };
    Ok(cells.iter().map(row).collect())
}

fn standalone_row(locked: &LockedMachine) -> Row {
    let view = standalone::view(locked);
    Row {
        machine: "-".to_owned(),
        name: view.name.clone(),
        columns: vec![
            view.name.clone(),
            view.state.to_owned(),
            view.cores.to_string(),
            locked.record.options.memory.to_string(),
            view.image.clone(),
            "-".to_owned(),
            if locked.is_running() { show::ports_text(&standalone::ports(locked)) } else { "-".to_owned() },
            view.uptime_ms.map_or_else(|| "-".to_owned(), |ms| human::age(Duration::from_millis(ms))),
        ],
        view: RowView::Standalone(view),
    }
}
