//! `isola elastic`: keeps a service's latency between two bounds, by moving cores between cells.

use super::failure::{REFUSED, USAGE};
use super::inspect::cycles_ns;
use super::interrupt::Interrupts;
use super::{Context, Failure, complete};
use crate::cellctl::look_up;
use crate::client::{Client, ClientError};
use crate::elastic::{Bounds, Controller, Donor, Every, Figure, Look, Patience, Reason, Seen, Step, Window};
use crate::machine::Held;
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

/// How often ^C is looked for.
const GLANCE: Duration = Duration::from_millis(50);

/// What is looked at of a service's latency: 990 of 1000.
const PER_MILLE: u32 = 990;

/// Who enters the decisions in the journal.
const NAME: &str = "elastic";

/// Moves cores between a service and other cells, so that the service's latency stays between two bounds
#[derive(Debug, Args)]
#[command(after_help = "\
Looks at the service once an interval. Where the 99th percentile of what its requests took meanwhile is above the upper \
bound, it gets a core of the batch cell that has most; where it is below the lower bound for three intervals, it gives \
one back. Moves are entered in the journal: see `isola events`. With -o json, one object an interval.

The application says what a request is: kv, web and echo do. Of others, --figure queueing looks at how long events \
waited until they ran.

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
    /// A cell that gives cores and gets them back; may be repeated
    #[arg(long, value_name = "CELL", add = complete::cells(), required_unless_present = "file")]
    batch: Vec<String>,
    /// The bounds of the service's 99th percentile, as in 2ms..5ms
    #[arg(long, value_name = "LOWER..UPPER", required_unless_present = "file")]
    p99: Option<Bounds>,
    /// How often it is looked at [default: 1s]
    #[arg(long, value_name = "TIME")]
    interval: Option<Every>,
    /// The fewest cores that the service is left with [default: 1]
    #[arg(long, value_name = "CORES")]
    min: Option<u32>,
    /// The most cores that it gets [default: as many as there are]
    #[arg(long, value_name = "CORES")]
    max: Option<u32>,
    /// The fewest cores that each batch cell is left with [default: 1]
    #[arg(long, value_name = "CORES")]
    batch_min: Option<u32>,
    /// What is kept between the bounds
    #[arg(long, value_enum, default_value_t = Figure::Requests)]
    figure: Figure,
    /// Says what it would do, and moves nothing
    #[arg(long)]
    dry_run: bool,
    /// Ends after so many intervals instead of at ^C
    #[arg(long, value_name = "NUMBER")]
    intervals: Option<u64>,
    /// A manifest that says what is left out here
    #[arg(short, long, value_name = "MANIFEST")]
    file: Option<PathBuf>,
}

/// What is to be done, of the arguments and the manifest.
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

/// The decision and the kind of reason that were told last.
type Said = (&'static str, mem::Discriminant<Reason>);

/// What came of an interval: the JSON form.
#[derive(Serialize)]
struct IntervalView<'a> {
    /// When.
    time: String,
    /// The service.
    service: &'a str,
    /// Cores that it had.
    cores: u32,
    /// The 99th percentile.
    figure_ns: Option<u64>,
    /// `take`, `give` or `stay`.
    decision: &'static str,
    /// The batch cell that a core comes from or goes to.
    batch: Option<&'a str>,
    /// Whether it was done: not in a dry run, and not where it was refused.
    done: bool,
    /// Why.
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

/// One look at the cells, and what follows from it; without a controller, the look alone.
fn turn(
    context: &Context,
    plan: &Plan,
    window: &mut Window,
    controller: Option<&mut Controller>,
    said: &mut Option<Said>,
) -> Result<(), Failure> {
    let began = Instant::now();
    let held = Held::take_supervised(&context.root, &context.dir())?;
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
            // What was seen with other cores says nothing of these.
            None => window.begin(&running(&held, &mut client, &plan.service)?),
        }
    }
    let what = match (names, plan.mode, &refused) {
        (Some((from, to)), Mode::Apply, None) => format!("a core of {from} to {to}"),
        (Some((from, to)), Mode::DryRun, _) => format!("would move a core of {from} to {to}"),
        (Some((from, to)), _, Some(error)) => format!("no core of {from} to {to}: {error}"),
        (None, ..) => "no core moved".to_owned(),
    };
    // What goes on as before is not said again, and what is between two moves says nothing.
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

/// Moves a core; where the one cell has given it and the other does not get it, it goes back.
fn move_core(client: &mut Client, from: &str, to: &str) -> Result<(), ClientError> {
    let cores = client.resize_cores(from, Change::Less(1), Vec::new(), CORE_LIMIT_MS, Mode::Apply)?.cores;
    let came = client.resize_cores(to, Change::More(1), cores.clone(), CORE_LIMIT_MS, Mode::Apply);
    if came.is_err() {
        // Why it was refused matters more than what comes of this.
        let _ = client.resize_cores(from, Change::More(1), cores, CORE_LIMIT_MS, Mode::Apply);
    }
    came.map(|_| ())
}

fn running(held: &Held, client: &mut Client, name: &str) -> Result<CellInfo, Failure> {
    let cell = look_up(held, client, name)?;
    match is_running(&cell) {
        true => Ok(cell),
        false => Err(Failure::new(REFUSED, format!("cell {name:?} is {}: start it first", cell.state))),
    }
}

/// As much of a text as the journal takes.
fn cut(text: &str) -> String {
    text[..text.floor_char_boundary(isola_abi::management::MAX_DECISION_WORDS)].to_owned()
}

impl Plan {
    fn new(arguments: Arguments) -> Result<Self, Failure> {
        let manifest = arguments.file.as_deref().map(Manifest::read).transpose()?.unwrap_or_default();
        let elastic = manifest.elastic.unwrap_or_default();
        let missing = |what: &str| {
            Failure::new(USAGE, format!("the manifest names no {what}, and neither does the command line"))
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
