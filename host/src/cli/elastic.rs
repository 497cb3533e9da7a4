//! `isola elastic`: keeps a service's latency between two bounds, by loans of cores that it renews.

use super::failure::{REFUSED, USAGE};
use super::inspect::cycles_ns;
use super::interrupt::Interrupts;
use super::{Context, Failure, complete};
use crate::cellctl::look_up;
use crate::client::{Client, ClientError};
use crate::elastic::{
    Bounds, Controller, Figure, LatencyWindow, MeasurementInterval, Observation, REPLACED, Reason, Step,
    WindowLatency,
};
use crate::machine::LockedMachine;
use crate::manifest::Manifest;
use crate::output::view::is_running;
use crate::output::{Format, human};
use clap::Args;
use isola_abi::management::{
    CellInfo, CoreOwner, Decision, LoanInfo, MAX_DECISION_WORDS, MAX_LEASE_MS, MAX_NAME_LEN, Mode,
};
use serde::Serialize;
use std::convert::Infallible;
use std::mem;
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The interval of checks for ^C.
const GLANCE: Duration = Duration::from_millis(50);

/// The percentile of the service's latency, per mille.
const PER_MILLE: u32 = 990;

/// The lease of borrowed cores, in intervals, and the shortest lease. The command renews a loan when half of its lease
/// is over, so another command may occupy the machine meanwhile.
const LEASE_INTERVALS: u32 = 10;
const MIN_LEASE: Duration = Duration::from_secs(2);

/// The author of the decisions in the journal.
const NAME: &str = "elastic";

/// Borrows cores for a service and gives them back, so that its latency stays between two bounds
#[derive(Debug, Args)]
#[command(after_help = "\
Once per interval it computes the 99th percentile of the latency of the service's requests. Above the upper \
bound the service borrows a core, as by `isola borrow`: a free one, or one of a cell of lower priority that lends \
(`isola run --priority` and `--lend`). Below the lower bound for three intervals it gives one back. The service keeps \
its own cores.

The command renews the service's loans, for ten intervals each time. So all borrowed cores return soon after it ends, \
for whatever reason. Decisions are entered in the journal: see `isola events`. With -o json, it prints one object per \
interval.

The application defines and counts its requests: kv, web and echo do. For others, --figure queueing uses the time that \
events waited until they ran.

A manifest has the same under [elastic]: p99, interval, max.

Examples:
  isola run -d --name primes --cores 3 --lend 2 primes
  isola run -d --name kv --priority 9 kv
  isola elastic kv --p99 2ms..5ms
  isola elastic kv --p99 2ms..5ms --max 4 --dry-run
  isola elastic -f isola.toml
  isola elastic kv --p99 2ms..5ms -o json | jq -c '[.cores, .figure_ns]'")]
pub(super) struct Arguments {
    /// The service
    #[arg(add = complete::cells(), required_unless_present = "file")]
    service: Option<String>,
    /// The bounds of the service's 99th percentile, as in 2ms..5ms
    #[arg(long, value_name = "LOWER..UPPER", required_unless_present = "file")]
    p99: Option<Bounds>,
    /// The interval of decisions [default: 1s]
    #[arg(long, value_name = "TIME")]
    interval: Option<MeasurementInterval>,
    /// The most cores of the service [default: all of the machine]
    #[arg(long, value_name = "CORES")]
    max: Option<u32>,
    /// The quantity to keep between the bounds
    #[arg(long, value_enum, default_value_t = Figure::Requests)]
    figure: Figure,
    /// Prints the decisions, and borrows nothing
    #[arg(long)]
    dry_run: bool,
    /// Ends after this number of intervals instead of at ^C
    #[arg(long, value_name = "NUMBER")]
    intervals: Option<u64>,
    /// A manifest with the settings that the command line lacks
    #[arg(short, long, value_name = "MANIFEST")]
    file: Option<PathBuf>,
    /// Options that lending has replaced
    #[arg(long = "batch", hide = true, value_parser = replaced)]
    _batch: Option<Infallible>,
    #[arg(long = "batch-min", hide = true, value_parser = replaced)]
    _batch_min: Option<Infallible>,
    #[arg(long = "min", hide = true, value_parser = replaced)]
    _min: Option<Infallible>,
}

/// Refuses an option that lending has replaced.
fn replaced(_: &str) -> Result<Infallible, &'static str> {
    Err(REPLACED)
}

/// The settings, from the arguments and the manifest.
struct Plan {
    service: String,
    bounds: Bounds,
    interval: Duration,
    lease_ms: u32,
    max: u32,
    mode: Mode,
}

/// The decision, the kind of reason and the refusal that were printed last.
type PrintedStep = (&'static str, mem::Discriminant<Reason>, Option<String>);

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
    /// The cell that a core comes from or goes to; `None` for the free cores and if no core moves.
    lender: Option<&'a str>,
    /// Whether a core moves: not in a dry run, and not if the supervisor rejected it.
    done: bool,
    /// The reason.
    reason: String,
}

pub(super) fn elastic(context: &Context, arguments: Arguments) -> Result<ExitCode, Failure> {
    let intervals = arguments.intervals.unwrap_or(u64::MAX);
    let mut window = LatencyWindow::new(arguments.figure);
    let plan = Plan::new(arguments)?;
    let mut controller = Controller::new(plan.bounds);
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
    window: &mut LatencyWindow,
    controller: Option<&mut Controller>,
    said: &mut Option<PrintedStep>,
) -> Result<(), Failure> {
    let began = Instant::now();
    let held = LockedMachine::take_supervised(&context.root, &context.dir())?;
    let mut client = held.client()?;
    let service = running(&held, &mut client, &plan.service)?;
    let machine = client.machine()?;
    let seen = match window.look(&service, PER_MILLE) {
        WindowLatency::Percentile(cycles) => {
            WindowLatency::Percentile(cycles_ns(cycles, machine.tsc_hz).unwrap_or(u64::MAX))
        }
        other => other,
    };
    let Some(controller) = controller else { return Ok(()) };
    let owners = [CoreOwner::Cell(service.id), CoreOwner::InTransfer(service.id)];
    let cores = machine.cores.iter().filter(|core| owners.contains(&core.owner)).count() as u32;
    let look = Observation { seen, cores, borrowed: service.loans.len() as u32, most: plan.max };
    let step = controller.decide(&look);
    let (decision, reason) = match step {
        Step::Take(reason) => ("take", reason),
        Step::Give(reason) => ("give", reason),
        Step::Stay(reason) => ("stay", reason),
    };
    let moved = match plan.mode {
        Mode::Apply => act(&mut client, plan, &service, step),
        Mode::DryRun => Ok(None),
    };
    match &moved {
        Err(_) => controller.failed(),
        // Counts from before the move do not apply to the new cores.
        Ok(Some(_)) => window.begin(&running(&held, &mut client, &plan.service)?),
        Ok(None) => {}
    }
    let lender = moved.as_ref().ok().and_then(|moved| moved.as_ref()?.from.as_deref());
    let what = match (step, &moved) {
        (Step::Stay(_), _) => "no core moved".to_owned(),
        (Step::Take(_), Ok(None)) => "would borrow a core".to_owned(),
        (Step::Give(_), Ok(None)) => "would give a core back".to_owned(),
        (Step::Take(_), Ok(Some(_))) => format!("borrowed a core of {}", lender.unwrap_or("the free cores")),
        (Step::Give(_), Ok(Some(_))) => format!("gave a core back to {}", lender.unwrap_or("the free cores")),
        (Step::Take(_), Err(refusal)) => format!("borrowed no core: {refusal}"),
        (Step::Give(_), Err(refusal)) => format!("gave no core back: {refusal}"),
    };
    // Prints no repeated decision, and none while the service settles or has too few requests.
    let done = matches!(moved, Ok(Some(_)));
    let now = Some((decision, mem::discriminant(&reason), moved.as_ref().err().map(ToString::to_string)));
    let is_new = done || (*said != now && !matches!(reason, Reason::Settling | Reason::Little));
    if is_new {
        *said = now;
    }
    if is_new && (decision != "stay" || matches!(reason, Reason::HasMost(_))) {
        let why = reason.to_string();
        let decision = Decision { by: NAME.to_owned(), what: cut(&what), why: cut(&why) };
        client.note(Some(&plan.service), began.elapsed(), decision)?;
    }
    let unix_ns = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
    if context.output.format == Format::Json {
        return Ok(context.output.json_line(&IntervalView {
            time: human::rfc3339(unix_ns),
            service: &plan.service,
            cores: look.cores,
            figure_ns: reason.figure_ns(),
            decision,
            lender,
            done,
            reason: reason.to_string(),
        })?);
    }
    if is_new {
        let line = format!("{}  {} cores  {what}: {reason}", human::local_time(unix_ns), look.cores);
        context.output.text(&line)?;
    }
    Ok(())
}

/// Borrows a core or gives one back, and renews the service's other loans. Returns the loan of the core that moves.
fn act(
    client: &mut Client,
    plan: &Plan,
    service: &CellInfo,
    step: Step,
) -> Result<Option<LoanInfo>, ClientError> {
    let moved = match step {
        Step::Take(_) => client.borrow_core(&plan.service, plan.lease_ms).map(Some),
        Step::Give(_) => client.give_core_back(&plan.service).map(Some),
        Step::Stay(_) => Ok(None),
    };
    let half_ns = u64::from(plan.lease_ms) * 500_000;
    for loan in service.loans.iter().filter(|loan| loan.left_ns < half_ns) {
        // The supervisor refuses to renew the loan of a core that is returning.
        let _ = client.renew_loan(&plan.service, loan.core, plan.lease_ms);
    }
    moved
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
    text[..text.floor_char_boundary(MAX_DECISION_WORDS)].to_owned()
}

impl Plan {
    fn new(arguments: Arguments) -> Result<Self, Failure> {
        let manifest = arguments.file.as_deref().map(Manifest::read).transpose()?.unwrap_or_default();
        let elastic = manifest.elastic.unwrap_or_default();
        let missing = |what: &str| {
            Failure::new(USAGE, format!("neither the manifest nor the command line names a {what}"))
        };
        let service = arguments.service.or(manifest.name).ok_or_else(|| missing("service"))?;
        let bounds = arguments.p99.or(elastic.p99).ok_or_else(|| missing("p99"))?;
        let interval =
            arguments.interval.or(elastic.interval).map_or(Duration::from_secs(1), |every| every.0);
        let lease = (interval * LEASE_INTERVALS).max(MIN_LEASE).as_millis();
        Ok(Self {
            service,
            bounds,
            interval,
            lease_ms: u32::try_from(lease).map_or(MAX_LEASE_MS, |lease| lease.min(MAX_LEASE_MS)),
            max: arguments.max.or(elastic.max).unwrap_or(u32::MAX),
            mode: if arguments.dry_run { Mode::DryRun } else { Mode::Apply },
        })
    }
}

const _: () = assert!(NAME.len() <= MAX_NAME_LEN);
