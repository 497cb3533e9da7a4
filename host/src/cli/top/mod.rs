//! `isola top`: the load of the cells in each interval, on an interactive screen or as tables.
//!
//! | module | contents |
//! |---|---|
//! | this | the arguments, and the tables one after the other |
//! | `sample` | samples: the running cells, and their answers to queries |
//! | `load` | the load between two samples, by cell and core |
//! | `grid_load` | the load by activity and resource |
//! | `plain` | the load as a table |
//! | `interactive` | the interactive screen: terminal, keys, samples |
//! | `screen` | its state, and the effects of keys |
//! | `pages` | the rows and columns of each view |
//! | `draw` | the drawing |

mod draw;
#[cfg(test)]
mod draw_tests;
mod grid_load;
mod interactive;
mod load;
mod pages;
mod plain;
mod sample;
mod screen;
#[cfg(test)]
mod test_samples;

use super::interrupt::Interrupts;
use super::{Context, Failure, complete};
use crate::elastic::MeasurementInterval;
use crate::output::Format;
use clap::Args;
use load::{LoadDivision, load};
use sample::{SampleSpec, Source};
use std::env;
use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The interval of checks for ^C.
const GLANCE: Duration = Duration::from_millis(50);

/// Shows the load of the running cells in each interval until ^C: cores, use, requests and latencies
#[derive(Debug, Args)]
#[command(after_help = "\
On a terminal, an interactive screen: views by cell, activity, resource and core, sorted by any column, with the use of the \
last intervals. `?` shows the keys, `q` ends. A pipe, --plain and --intervals get a table per interval, and -o json one array \
per interval.

USE is the share of its cores' time in which a cell did not halt. REQUESTS are those that the application counts: kv, web \
and echo do. WAIT P99 is how long events wait until they run, on the core with the longest waits. The cells \
write all of it as they run: reading it costs them nothing. The views by activity and by resource need a query to each \
cell; a cell that does not answer is shown from its report. The activity VOLUME@CELL of a cell is the work of a service \
cell for its volume.

Examples:
  isola top
  isola top kv --by activity
  isola top --plain --interval 100ms
  isola top --intervals 1 -o json | jq '.[] | {name, use_percent, p99_ns}'")]
pub(super) struct Arguments {
    /// Only this cell
    #[arg(add = complete::cells())]
    cell: Option<String>,
    /// The view; on the interactive screen, the first
    #[arg(long, value_enum, default_value_t)]
    by: LoadDivision,
    /// The interval of measurements
    #[arg(long, value_name = "TIME", default_value = "1s")]
    interval: MeasurementInterval,
    /// Ends after this number of intervals instead of at ^C; prints tables
    #[arg(long, value_name = "NUMBER")]
    intervals: Option<u64>,
    /// Prints a table per interval on a terminal also
    #[arg(long)]
    plain: bool,
}

pub(super) fn top(context: &Context, arguments: &Arguments) -> Result<ExitCode, Failure> {
    let interrupts = Interrupts::count()?;
    let source = Source::new(context.root.clone(), context.dir());
    if let Some(name) = &arguments.cell {
        source.verify(name)?;
    }
    if arguments.is_interactive(context) {
        interactive::run(context, arguments, &interrupts)
    } else {
        tables(context, arguments, source, &interrupts)
    }
}

impl Arguments {
    /// Returns whether the user sees the output and can press keys.
    fn is_interactive(&self, context: &Context) -> bool {
        let is_plain = self.plain || self.intervals.is_some() || context.output.format == Format::Json;
        let is_dumb = env::var("TERM").is_ok_and(|term| term == "dumb");
        !is_plain && !is_dumb && io::stdout().is_terminal() && io::stdin().is_terminal()
    }

    fn wanted(&self) -> SampleSpec {
        SampleSpec { by: self.by, cell: self.cell.clone() }
    }
}

/// Prints the load of each interval.
fn tables(
    context: &Context,
    arguments: &Arguments,
    mut source: Source,
    interrupts: &Interrupts,
) -> Result<ExitCode, Failure> {
    let wanted = arguments.wanted();
    let mut before = source.sample(&wanted)?;
    for _ in 0..arguments.intervals.unwrap_or(u64::MAX) {
        let next = Instant::now() + arguments.interval.0;
        while Instant::now() < next {
            if interrupts.so_far() > 0 {
                return Ok(ExitCode::SUCCESS);
            }
            sleep(GLANCE.min(next.saturating_duration_since(Instant::now())));
        }
        let now = source.sample(&wanted)?;
        let load = load(arguments.by, &now, &before, arguments.cell.as_deref());
        match context.output.format {
            Format::Json => context.output.json_line(&load)?,
            Format::Table => context.output.screen(&format!("{}\n", plain::text(&load)))?,
        }
        before = now;
    }
    Ok(ExitCode::SUCCESS)
}
