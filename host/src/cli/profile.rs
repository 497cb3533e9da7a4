//! `isola profile`: the functions in which a cell's cores spend their time.
//!
//! The supervisor interrupts the cell's cores by NMI, and the cell stores their call stacks, which the command reads as a
//! [`Stream`]. It finds the names of functions in the machine's copy of the cell's image.

use super::interrupt::Interrupts;
use super::stream::{Progress, Stream};
use super::trace::TraceTime;
use super::{Context, Failure, complete, failure, output_file, show};
use crate::cellctl::look_up;
use crate::hosted_cells;
use crate::image::CellImage;
use crate::machine::LockedMachine;
use crate::machine::cells::CellStore;
use crate::output::view::is_running;
use crate::output::{Format, human, table};
use crate::placement::CellCores;
use crate::profile::folded::{Grouping, folded};
use crate::profile::functions::{FunctionSamples, functions};
use crate::profile::named::NamedProfile;
use crate::profile::{Account, Profile, speedscope};
use crate::symbols::Symbols;
use clap::{Args, ValueEnum};
use isola_abi::integrity::ImageDigest;
use isola_abi::management::MAX_SAMPLE_HZ;
use isola_abi::query::{ProfileRecord, ProfileSpec, Query};
use serde::Serialize;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread::sleep;
use std::time::Duration;

/// The time after which the cell has written all samples until now.
const LAST_SAMPLES: Duration = Duration::from_millis(400);

/// Shows the functions in which a running cell's cores spend their time
#[derive(Debug, Args)]
#[command(after_help = "\
Samples the call stacks of the cell's cores, and prints the functions with most samples: SELF is the part of the samples in \
the function itself, TOTAL the part in it and in the functions that it calls. Inlined calls are included. Samples of a core \
without work count as idle, and are in no part.

-w also writes all stacks: to FILE.json for the viewer at https://www.speedscope.app, which runs in the browser and uploads \
nothing; to any other file as folded stacks, a line each, which flame graph programs read.

Examples:
  isola profile kv
  isola profile kv --duration 30s --rate 499 -w kv.speedscope.json
  isola profile kv --by activity -w kv.folded
  isola profile kv -w - -q | inferno-flamegraph > kv.svg
  isola profile kv -o json | jq '.functions[:5]'")]
pub(super) struct Arguments {
    /// The cell
    #[arg(add = complete::cells())]
    cell: String,
    /// Samples per second and core
    #[arg(long, value_name = "HZ", default_value_t = 99)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_SAMPLE_HZ)))]
    rate: u32,
    /// Ends after this time, as in 500ms or 5s, or at ^C
    #[arg(short, long, value_name = "TIME", default_value = "10s")]
    duration: TraceTime,
    /// Writes the stacks to this file; `-` is the standard output, as folded stacks instead of the table
    #[arg(short, long, value_name = "FILE")]
    write: Vec<PathBuf>,
    /// Only these cores, by index in the cell, as in 0,2-3
    #[arg(long, value_name = "CORES")]
    cores: Option<CellCores>,
    /// Divides the samples further
    #[arg(long, value_name = "WHAT")]
    by: Option<SampleDivision>,
    /// Number of functions in the table
    #[arg(long, value_name = "NUMBER", default_value_t = 25)]
    top: usize,
    /// An image with symbols, instead of the machine's copy; its SHA-256 must be that of the cell's image
    #[arg(long, value_name = "FILE")]
    image: Option<PathBuf>,
}

/// The division of the samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum SampleDivision {
    /// By activity, event loop and interrupts
    Activity,
}

/// The result of a profile: the JSON form.
#[derive(Serialize)]
struct ProfileView<'a> {
    /// The cell.
    cell: &'a str,
    /// The requested rate, per second and core.
    rate_hz: u32,
    /// The sampled cores.
    cores: &'a [u32],
    /// The number of samples of cores with work.
    samples: u64,
    /// The number of samples of cores without work.
    idle: u64,
    /// The number of samples that are in no count.
    lost: u64,
    /// The samples by account.
    accounts: Vec<AccountView>,
    /// The functions, those with most samples of their own first.
    functions: Vec<FunctionView<'a>>,
}

/// The samples of an account: the JSON form.
#[derive(Serialize)]
struct AccountView {
    /// `activity`, `loop` or `interrupts`.
    kind: &'static str,
    /// The activity's name.
    name: Option<String>,
    /// The number of samples.
    samples: u64,
}

/// The samples of a function: the JSON form.
#[derive(Serialize)]
struct FunctionView<'a> {
    /// The function, or its address.
    function: &'a str,
    /// With `--by activity`, the name of the account.
    #[serde(skip_serializing_if = "Option::is_none")]
    account: Option<&'a str>,
    /// The samples in the function itself.
    own: u64,
    /// The samples in it and in its callees.
    total: u64,
}

pub(super) fn profile(context: &Context, arguments: &Arguments) -> Result<ExitCode, Failure> {
    let to_output = arguments.write.iter().any(|path| path == Path::new("-"));
    if to_output && context.output.format == Format::Json {
        let what = "the standard output cannot have both the stacks and -o json: write the stacks to a file";
        return Err(Failure::new(failure::USAGE, what));
    }
    let interrupts = Interrupts::count()?;
    let symbols = symbols(context, arguments)?;
    // Opened first: a profile that cannot be written is not begun.
    let files = arguments.write.iter().map(|path| Ok((path, output_file::open(path)?)));
    let files = files.collect::<Result<Vec<_>, Failure>>()?;
    let profile = record(context, arguments, &interrupts)?;
    let named = NamedProfile::new(&profile, symbols.as_ref());
    if symbols.is_some() && !named.has_names() && profile.busy() > 0 {
        context.output.note("the cell's image has no symbols: functions are shown as addresses, see --image");
    }
    let grouping = if arguments.by.is_some() { Grouping::ByAccount } else { Grouping::None };
    for (path, mut file) in files {
        let text = if path.extension().is_some_and(|extension| extension == "json") {
            speedscope::file(&arguments.cell, &named, grouping)?
        } else {
            folded(&named, grouping)
        };
        file.write_all(text.as_bytes())
            .and_then(|()| file.flush())
            .map_err(|error| output_file::unwritable(path, &error))?;
    }
    report(context, arguments, &profile, &functions(&named, grouping), to_output)?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the symbols of the running cell's image; `None`, with a note, if there are none.
fn symbols(context: &Context, arguments: &Arguments) -> Result<Option<Symbols>, Failure> {
    let name = &arguments.cell;
    if hosted_cells::find(&context.root, name)?.is_some() {
        let what =
            format!("{name:?} runs in a Linux process, which has no supervisor: profile it with `perf`");
        return Err(Failure::new(failure::REFUSED, what));
    }
    let locked = LockedMachine::take_supervised(&context.root, &context.dir())?;
    let info = look_up(&locked, &mut locked.client()?, name)?;
    if !is_running(&info) {
        let what = format!("{name:?} is {}: a profile needs a cell that runs", show::state(&info));
        return Err(Failure::new(failure::REFUSED, what));
    }
    let store = CellStore::of(&locked.dir);
    let copy = store.load(name, info.id).is_some().then(|| store.image(name));
    let Some(path) = arguments.image.clone().or(copy) else {
        context.output.note("the machine has no copy of the cell's image: functions are shown as addresses");
        return Ok(None);
    };
    match (checked_symbols(&path, &info.spec.image), &arguments.image) {
        (Ok(symbols), _) => Ok(Some(symbols)),
        (Err(reason), Some(_)) => Err(Failure::new(failure::REFUSED, reason)),
        (Err(reason), None) => {
            context.output.note(&format!("functions are shown as addresses: {reason}"));
            Ok(None)
        }
    }
}

/// Returns the symbols of an image, if it has this digest.
fn checked_symbols(path: &Path, digest: &ImageDigest) -> Result<Symbols, String> {
    let image = CellImage::read(path.to_owned()).map_err(|error| error.to_string())?;
    if image.digest != *digest {
        let (path, found) = (path.display(), image.digest);
        return Err(format!(
            "{path} is not the image of the cell: its SHA-256 is {found}, the cell's {digest}"
        ));
    }
    Symbols::open(path).map_err(|error| error.to_string())
}

/// Records until the end of the duration, ^C, or the end of the cell.
fn record(context: &Context, arguments: &Arguments, interrupts: &Interrupts) -> Result<Profile, Failure> {
    let cores = arguments.cores.map_or(u64::MAX, |cores| cores.0);
    let query = Query::Profile(ProfileSpec { cores });
    let mut stream = Stream::begin(context, &arguments.cell, &query, "profile")?;
    let mut profile = Profile::default();
    let outcome = fill(&mut profile, &mut stream, arguments, interrupts);
    stream.end();
    outcome?;
    Ok(profile)
}

fn fill(
    profile: &mut Profile,
    stream: &mut Stream<'_>,
    arguments: &Arguments,
    interrupts: &Interrupts,
) -> Result<(), Failure> {
    let TraceTime(limit) = arguments.duration;
    let take = |profile: &mut Profile, stream: &mut Stream<'_>| -> Result<(), Failure> {
        for (record, _) in stream.take() {
            profile.add(&ProfileRecord::decode(&record)?);
        }
        Ok(())
    };
    if stream.sample(arguments.rate)? == Progress::Ended {
        return Ok(());
    }
    loop {
        let turn = stream.turn();
        take(profile, stream)?;
        if turn? == Progress::Ended {
            return Ok(());
        }
        if profile.is_unsupported {
            let what = "the cell's platform cannot sample call stacks";
            return Err(Failure::new(failure::REFUSED, what));
        }
        if !profile.without_memory.is_empty() {
            let what = format!(
                "the cell has no memory to sample its cores {:?}: see `isola resize`",
                profile.without_memory
            );
            return Err(Failure::new(failure::REFUSED, what));
        }
        if interrupts.so_far() > 0 || stream.age() >= limit {
            if stream.sample(0)? == Progress::Continues {
                sleep(LAST_SAMPLES);
                stream.turn()?;
            }
            return take(profile, stream);
        }
        stream.pause()?;
    }
}

fn report(
    context: &Context,
    arguments: &Arguments,
    profile: &Profile,
    functions: &[FunctionSamples<'_>],
    has_stacks_on_output: bool,
) -> Result<(), Failure> {
    let (busy, idle, lost) = (profile.busy(), profile.idle(), profile.lost());
    if context.output.format == Format::Json {
        let functions = functions.iter();
        return Ok(context.output.json(&ProfileView {
            cell: &arguments.cell,
            rate_hz: arguments.rate,
            cores: &profile.cores,
            samples: busy,
            idle,
            lost,
            accounts: profile.accounts().into_iter().map(AccountView::new).collect(),
            functions: functions
                .map(|&FunctionSamples { account, name, own, total }| FunctionView {
                    function: name,
                    account,
                    own,
                    total,
                })
                .collect(),
        })?);
    }
    if !has_stacks_on_output {
        let percent = |part: u64| format!("{:.1}%", part as f64 * 100.0 / busy.max(1) as f64);
        let rows = functions.iter().take(arguments.top).map(|function| {
            let account = function.account.map(str::to_owned);
            let numbers = [percent(function.own), percent(function.total)].into_iter();
            numbers.chain(account).chain([without_long_parameters(function.name)]).collect()
        });
        let headings: &[&str] = match arguments.by {
            Some(SampleDivision::Activity) => &["SELF", "TOTAL", "ACTIVITY", "FUNCTION"],
            None => &["SELF", "TOTAL", "FUNCTION"],
        };
        context.output.text(&table(headings, rows))?;
    }
    let all = busy.saturating_add(idle).max(1);
    let mut text = format!(
        "{} samples on {} cores, {:.1}% of them idle",
        human::count(busy.saturating_add(idle)),
        profile.cores.len(),
        idle as f64 * 100.0 / all as f64
    );
    if lost > 0 {
        text.push_str(&format!(", {} lost: use a lower --rate", human::count(lost)));
    }
    context.output.note(&text);
    Ok(())
}

/// The length from which on a name is shown without its type parameters.
const LONG_NAME: usize = 80;

/// Returns a name for the table: a long one without its type parameters, unless it begins with them.
fn without_long_parameters(name: &str) -> String {
    if name.len() < LONG_NAME || name.starts_with('<') {
        return name.to_owned();
    }
    let (mut depth, mut short) = (0_usize, String::new());
    for character in name.chars() {
        depth -= usize::from(character == '>' && depth > 0);
        if depth == 0 {
            short.push(character);
        }
        if character == '<' {
            if depth == 0 {
                short.push_str("..");
            }
            depth += 1;
        }
    }
    short
}

impl AccountView {
    fn new((account, samples): (Account, u64)) -> Self {
        let (kind, name) = match account {
            Account::Activity(name) => ("activity", Some(name)),
            Account::Loop => ("loop", None),
            Account::Interrupts => ("interrupts", None),
        };
        Self { kind, name, samples }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_long_names_lose_their_type_parameters() {
        let parameters = "a::B<c::D<e::F>, g::H>".repeat(5);
        assert_eq!(without_long_parameters("map<u8> (option.rs)"), "map<u8> (option.rs)");
        assert_eq!(without_long_parameters(&format!("map<{parameters}> (option.rs)")), "map<..> (option.rs)");
        let method = format!("<{parameters} as a::B>::c");
        assert_eq!(without_long_parameters(&method), method);
    }
}
