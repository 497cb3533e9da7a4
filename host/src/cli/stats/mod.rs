//! `isola stats`: a snapshot of all counts of cells since their start. The module `text` formats it.

mod text;

use super::failure::REFUSED;
use super::{Context, Failure, complete, standalone};
use crate::cellctl::look_up;
use crate::client::{Client, ClientError};
use crate::hosted_cells;
use crate::machine::LockedMachine;
use crate::output::Format;
use crate::output::view::{Answers, StatsView, is_running};
use crate::query::{Extent, QueryAnswer, facts_of_many, unless_refused};
use clap::Args;
use isola_abi::management::CellInfo;
use isola_abi::query::Query;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How long cells may take to answer a query.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// The maximum number of activities of an answer.
const MAX_ACTIVITIES: u32 = 200;

/// Shows all counts of cells since their start, and the overhead: by core, activity and resource
#[derive(Debug, Args)]
#[command(override_usage = "isola stats [OPTIONS] <CELLS>...\n       isola stats [OPTIONS] --all")]
#[command(after_help = "\
A snapshot of totals, not a rate: `isola top` shows rates. Each cycle of a core belongs to one account: activities, the \
event loop with scheduling and accounting, interrupts, or idle. The overhead is (loop + scheduling + accounting) / all \
non-idle cycles.

The figures come from the cells' reports, which the supervisor reads for all cells in a row, and from the cells' answers to \
queries shortly before. A cell runs meanwhile: sums can differ by the events of some microseconds. A cell that does not \
answer within 2 s is shown from its report; an ended cell is shown as it was at its end.

Examples:
  isola stats kv
  isola stats --all -o json | jq '.[] | {name, overhead_percent}'
  isola stats kv -o json | jq .resources")]
pub(super) struct Arguments {
    /// The cells
    #[arg(add = complete::cells(), required_unless_present = "all", conflicts_with = "all")]
    cells: Vec<String>,
    /// All cells of the machine, ended ones included
    #[arg(long)]
    all: bool,
}

/// The snapshot of a cell.
struct Snapshot {
    info: CellInfo,
    /// The answers, if the cell runs.
    answers: Option<Answers>,
}

pub(super) fn stats(context: &Context, arguments: &Arguments) -> Result<ExitCode, Failure> {
    for name in &arguments.cells {
        let kind = if standalone::find(context, name)?.is_some() {
            "a standalone image"
        } else if hosted_cells::find(&context.root, name)?.is_some() {
            "a Linux process"
        } else {
            continue;
        };
        let advice = "only cells of a machine have a report; see `isola inspect`";
        return Err(Failure::new(REFUSED, format!("{name:?} is {kind}: {advice}")));
    }
    let locked = LockedMachine::take_supervised(&context.root, &context.dir())?;
    let mut client = locked.client()?;
    let tsc_hz = client.machine()?.tsc_hz;
    let names: Vec<String> = match arguments.all {
        true => client.list()?.into_iter().map(|cell| cell.spec.name).collect(),
        false => {
            // Verifies the names before the first query.
            for name in &arguments.cells {
                look_up(&locked, &mut client, name)?;
            }
            arguments.cells.clone()
        }
    };
    let snapshots = read(&mut client, &names)?;
    if let Some(missing) = names.iter().find(|name| !snapshots.iter().any(|one| one.info.spec.name == **name))
        && !arguments.all
    {
        return Err(Failure::new(REFUSED, format!("{missing:?} was removed meanwhile")));
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
    let machine = context.machine.as_str();
    let view = |one: &Snapshot| StatsView::new(machine, tsc_hz, now, &one.info, one.answers.as_ref());
    let views: Vec<StatsView> = snapshots.iter().map(view).collect();
    match (context.output.format, &views[..]) {
        // A single cell is not wrapped in an array, as by `isola inspect`.
        (Format::Json, [view]) if !arguments.all => context.output.json(view)?,
        (Format::Json, views) => context.output.json(&views)?,
        (Format::Table, []) => context.output.note("note: the machine has no cells"),
        (Format::Table, views) => {
            let texts: Vec<String> = views.iter().map(text::text).collect();
            context.output.text(&texts.join("\n"))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Reads cells: first the answers of those that run, then all reports in a row. A cell that was removed is left out.
fn read(client: &mut Client, names: &[String]) -> Result<Vec<Snapshot>, ClientError> {
    let mut running = Vec::new();
    for name in names {
        if unless_refused(client.inspect(name))?.is_some_and(|cell| is_running(&cell)) {
            running.push(name.as_str());
        }
    }
    let mut answers: Vec<(&str, Answers)> = running.iter().map(|name| (*name, Answers::default())).collect();
    ask(client, &mut answers, &Query::Counters, |answers, answer| answers.counters = answer)?;
    ask(client, &mut answers, &Query::Grid, |answers, answer| answers.grid = answer)?;
    let query = Query::Activities { most: MAX_ACTIVITIES };
    ask(client, &mut answers, &query, |answers, answer| answers.activities = answer)?;
    let mut snapshots = Vec::new();
    for name in names {
        let Some(mut info) = unless_refused(client.inspect(name))? else { continue };
        if unless_refused(client.add_activities(&mut info))?.is_none() {
            continue;
        }
        let own = answers.iter_mut().find(|(other, _)| other == name).filter(|_| is_running(&info));
        let answers = own.map(|(_, answers)| std::mem::take(answers));
        // A cell that has started meanwhile was not queried.
        let answers = answers.or_else(|| is_running(&info).then(Answers::default));
        snapshots.push(Snapshot { info, answers });
    }
    Ok(snapshots)
}

/// Sends a query to the cells. Those that have not answered the query before would not answer this one either.
fn ask(
    client: &mut Client,
    cells: &mut [(&str, Answers)],
    query: &Query,
    set: impl Fn(&mut Answers, Option<QueryAnswer>),
) -> Result<(), ClientError> {
    let is_silent =
        |answer: &Option<QueryAnswer>| answer.as_ref().is_some_and(|answer| answer.extent == Extent::Nothing);
    let asked = cells.iter_mut().filter(|(_, answers)| !is_silent(&answers.counters));
    let mut asked: Vec<&mut (&str, Answers)> = asked.collect();
    let names: Vec<&str> = asked.iter().map(|(name, _)| *name).collect();
    let answered = facts_of_many(client, &names, query, ANSWER_TIMEOUT)?;
    for ((_, answers), answer) in asked.iter_mut().zip(answered) {
        set(answers, answer);
    }
    Ok(())
}
