//! `isola elastic`: keeps a service's latency between two bounds, by moving cores between cells.

use super::failure::{REFUSED, USAGE};
use super::inspect::cycles_ns;
use super::interrupt::Interrupts;
use super::{Context, Failure, complete};
use crate::cellctl::look_up;
use crate::client::{Client, ClientError};
use crate::elastic::{Bounds, Controller, Donor, Every, Figure, Look, Patience, Reason, Seen, Step, Window};
use crate::machine::LockedMachine;
use crate::manifest::Manifest;
use crate::output::view::is_running;
use crate::output::{Format, human};
use clap::Args;
use isola_abi::management::{CORE_LIMIT_MS, CellInfo, Change, CoreOwner, Decision, MAX_NAME_LEN, Mode};
use serde::Serialize;
use std::mem;
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The interval of checks for ^C.
const GLANCE: Duration = Duration::from_millis(50);

/// The percentile of the service's latency, per mille.
const PER_MILLE: u32 = 990;

/// The author of the decisions in the journal.
const NAME: &str = "elastic";

/// Moves cores between a service and other cells, so that the service's latency stays between two bounds
#[derive(Debug, Args)]
#[command(after_help = "\
Once per interval it computes the 99th percentile of the latency of the service's requests. Above the upper \
bound the service gets a core from the batch cell with the most cores; below the lower bound for three intervals it \
returns one. Moves are entered in the journal: see `isola events`. With -o json, it prints one object per interval.

The application defines and counts its requests: kv, web and echo do. For others, --figure queueing uses the time that \
events waited until they ran.

A manifest has the same under [elastic]: p99, batch, interval, min, max, batch_min.

Examples:
  isola elastic kv --batch primes --p99 2ms..5ms
  isola elastic kv --batch primes --p99 2ms..5ms --min 1 --max 4 --dry-run
  isola elastic -f isola.toml
  isola elastic kv --batch primes --p99 2ms..5ms -o json | jq -c '[.cores, .figure_ns]'")]
pub(super) struct Arguments {
    /// The service
    #[arg(add = complete::cells(), required_unless_present = "file")]
    service: Option<String>,
    /// A cell that gives cores and gets them back; repeatable
    #[arg(long, value_name = "CELL", add = complete::cells(), required_unless_present = "file")]
    batch: Vec<String>,
    /// The bounds of the service's 99th percentile, as in 2ms..5ms
    #[arg(long, value_name = "LOWER..UPPER", required_unless_present = "file")]
    p99: Option<Bounds>,
    /// The interval of decisions [default: 1s]
    #[arg(long, value_name = "TIME")]
    interval: Option<Every>,
    /// The fewest cores of the service [default: 1]
    #[arg(long, value_name = "CORES")]
    min: Option<u32>,
    /// The most cores of the service [default: all of the machine]
    #[arg(long, value_name = "CORES")]
    max: Option<u32>,
    /// The fewest cores of each batch cell [default: 1]
    #[arg(long, value_name = "CORES")]
    batch_min: Option<u32>,
    /// The quantity to keep between the bounds
    #[arg(long, value_enum, default_value_t = Figure::Requests)]
    figure: Figure,
    /// Prints the decisions, and moves nothing
    #[arg(long)]
    dry_run: bool,
    /// Ends after this number of intervals instead of at ^C
    #[arg(long, value_name = "NUMBER")]
    intervals: Option<u64>,
    /// A manifest with the settings that the command line lacks
    #[arg(short, long, value_name = "MANIFEST")]
    file: Option<PathBuf>,
}

/// The settings, from the arguments and the manifest.
struct Plan {
    service: String,
    batch: Vec<String>,
    bounds: Bounds,
    interval: Duration,
    min: u32,
    max: u32,
    batch_min: u32,
    mode: Mode,
}

/// The decision and the kind of reason that were printed last.
type Said = (&'static str, mem::Discriminant<Reason>);

/// The result of an interval: the JSON form.
#[derive(Serialize)]
struct IntervalView<'a> {
    /// The time.
    time: String,
    /// The service.
    service: &'a str,
    /// The number of its cores.
    cores: u32,
    /// The 99th percentile.
    figure_ns: Option<u64>,
    /// `take`, `give` or `stay`.
    decision: &'static str,
    /// The batch cell that a core comes from or goes to.
    batch: Option<&'a str>,
    /// Whether the core was moved: not in a dry run, and not if the supervisor rejected it.
    done: bool,
    /// The reason.
    reason: String,
}

pub(super) fn elastic(context: &Context, arguments: Arguments) -> Result<ExitCode, Failure> {
    let intervals = arguments.intervals.unwrap_or(u64::MAX);
    let mut window = Window::new(arguments.figure);
    let plan = Plan::new(arguments)?;
    let patience = Patience::default();
    let mut controller = Controller::new(plan.bounds, plan.min, plan.max, patience);
    let interrupts = Interrupts::count()?;
    let mut said = None;
    turn(context, &plan, &mut window, None, &mut said)?;
    for _ in 0..intervals {
        let next = Instant::now() + plan.interval;
        while Instant::now() < next {
            if interrupts.so_far() > 0 {
                return Ok(ExitCode::SUCCESS);
            }
            sleep(GLANCE.min(next.saturating_duration_since(Instant::now())));
        }
        turn(context, &plan, &mut window, Some(&mut controller), &mut said)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Reads the cells' counters once, decides, and executes the decision; without a controller, only reads.
fn turn(
    context: &Context,
    plan: &Plan,
    window: &mut Window,
    controller: Option<&mut Controller>,
    said: &mut Option<Said>,
) -> Result<(), Failure> {
    let began = Instant::now();
    let held = LockedMachine::take_supervised(&context.root, &context.dir())?;
    let mut client = held.client()?;
    let service = running(&held, &mut client, &plan.service)?;
    let batch: Vec<CellInfo> =
        plan.batch.iter().map(|name| running(&held, &mut client, name)).collect::<Result<_, Failure>>()?;
    let machine = client.machine()?;
    let tsc_hz = machine.tsc_hz;
    let cores = |cell: &CellInfo| {
        machine.cores.iter().filter(|core| core.owner == CoreOwner::Cell(cell.id)).count() as u32
    };
    let seen = match window.look(&service, PER_MILLE) {
        Seen::Percentile(cycles) => Seen::Percentile(cycles_ns(cycles, tsc_hz).unwrap_or(u64::MAX)),
        other => other,
    };
    let Some(controller) = controller else { return Ok(()) };
    let donor = |cell: &CellInfo| Donor { cores: cores(cell), least: plan.batch_min, most: u32::MAX };
    let look = Look { seen, cores: cores(&service), donors: batch.iter().map(donor).collect() };
    let step = controller.decide(&look);
    let (decision, reason, names) = match step {
        Step::Take(donor, reason) => ("take", reason, Some((&plan.batch[donor], &plan.service))),
        Step::Give(donor, reason) => ("give", reason, Some((&plan.service, &plan.batch[donor]))),
        Step::Stay(reason) => ("stay", reason, None),
    };
    let mut refused = None;
    if let (Some((from, to)), Mode::Apply) = (names, plan.mode) {
        refused = move_core(&mut client, from, to).err();
        match &refused {
            Some(_) => controller.failed(),
            // Counts from before the move do not apply to the new cores.
            None => window.begin(&running(&held, &mut client, &plan.service)?),
        }
    }
    let what = match (names, plan.mode, &refused) {
        (Some((from, to)), Mode::Apply, None) => format!("a core of {from} to {to}"),
        (Some((from, to)), Mode::DryRun, _) => format!("would move a core of {from} to {to}"),
        (Some((from, to)), _, Some(error)) => format!("no core of {from} to {to}: {error}"),
        (None, ..) => "no core moved".to_owned(),
    };
    // Prints no repeated decision, and none while the service settles or has too few requests.
    let now = Some((decision, mem::discriminant(&reason)));
    let moves = names.is_some() && plan.mode == Mode::Apply;
    let is_new = moves || (*said != now && !matches!(reason, Reason::Settling | Reason::Little));
    if is_new {
        *said = now;
    }
    if is_new && (names.is_some() || reason.is_stuck()) {
        let why = reason.to_string();
        let decision = Decision { by: NAME.to_owned(), what: cut(&what), why: cut(&why) };
        client.note(Some(&plan.service), began.elapsed(), decision)?;
    }
    let unix_ns = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
    if context.output.format == Format::Json {
        let batch = names.map(|(from, to)| if *from == plan.service { to } else { from });
        return Ok(context.output.json_line(&IntervalView {
            time: human::rfc3339(unix_ns),
            service: &plan.service,
            cores: look.cores,
            figure_ns: reason.figure_ns(),
            decision,
            batch: batch.map(String::as_str),
            done: moves && refused.is_none(),
            reason: reason.to_string(),
        })?);
    }
    if is_new {
        let line = format!("{}  {} cores  {what}: {reason}", human::local_time(unix_ns), look.cores);
        context.output.text(&line)?;
    }
    Ok(())
}

/// Moves a core. If the first cell has released it and the second one does not get it, returns it to the first.
fn move_core(client: &mut Client, from: &str, to: &str) -> Result<(), ClientError> {
    let cores = client.resize_cores(from, Change::Less(1), Vec::new(), CORE_LIMIT_MS, Mode::Apply)?.cores;
    let came = client.resize_cores(to, Change::More(1), cores.clone(), CORE_LIMIT_MS, Mode::Apply);
    if came.is_err() {
        // The first error is the one to report.
        let _ = client.resize_cores(from, Change::More(1), cores, CORE_LIMIT_MS, Mode::Apply);
    }
    came.map(|_| ())
}

fn running(held: &LockedMachine, client: &mut Client, name: &str) -> Result<CellInfo, Failure> {
    let cell = look_up(held, client, name)?;
    match is_running(&cell) {
        true => Ok(cell),
        false => Err(Failure::new(REFUSED, format!("cell {name:?} is {}: start it first", cell.state))),
    }
}

/// Truncates a text to the length that the journal accepts.
fn cut(text: &str) -> String {
    text[..text.floor_char_boundary(isola_abi::management::MAX_DECISION_WORDS)].to_owned()
}

impl Plan {
    fn new(arguments: Arguments) -> Result<Self, Failure> {
        let manifest = arguments.file.as_deref().map(Manifest::read).transpose()?.unwrap_or_default();
        let elastic = manifest.elastic.unwrap_or_default();
        let missing = |what: &str| {
            Failure::new(USAGE, format!("neither the manifest nor the command line names a {what}"))
        };
        let batch = if arguments.batch.is_empty() { elastic.batch } else { arguments.batch };
        let service = arguments.service.or(manifest.name).ok_or_else(|| missing("service"))?;
        let bounds = arguments.p99.or(elastic.p99).ok_or_else(|| missing("p99"))?;
        if batch.is_empty() {
            return Err(missing("batch cell"));
        }
        if batch.contains(&service) {
            return Err(Failure::new(
                USAGE,
                format!("{service:?} cannot give cores to itself: name another cell"),
            ));
        }
        let interval =
            arguments.interval.or(elastic.interval).map_or(Duration::from_secs(1), |every| every.0);
        let (min, max) = (arguments.min.or(elastic.min).unwrap_or(1), arguments.max.or(elastic.max));
        let max = max.unwrap_or(u32::MAX);
        if min == 0 || min > max {
            return Err(Failure::new(
                USAGE,
                format!("a service has {min} to {max} cores: name at least 1, and no fewer at most"),
            ));
        }
        Ok(Self {
            service,
            batch,
            bounds,
            interval,
            min,
            max,
            batch_min: arguments.batch_min.or(elastic.batch_min).unwrap_or(1),
            mode: if arguments.dry_run { Mode::DryRun } else { Mode::Apply },
        })
    }
}

const _: () = assert!(NAME.len() <= MAX_NAME_LEN);
