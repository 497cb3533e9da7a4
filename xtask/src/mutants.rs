//! `cargo xtask mutants PACKAGE [--sample N] [--seed S]`: changes a package in one place at a time, and lists the
//! changes that no test detects.
//!
//! All mutants of the sample are compiled into one copy of the tree in `target/mutants` ([`copy`]), and an environment
//! variable selects one of them in each run. A first run of every test without a mutant records the mutants that it
//! reaches, so that each mutant needs few tests and no build (docs/decisions/0061-mutants-compiled-in-at-once.md).
//!
//! docs/mutation.md has the results and the treatment of survivors. Not here: documentation tests, and models.

mod copy;
mod find;
mod tests;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use self::copy::TreeCopy;
use self::find::Mutant;
use self::tests::{Test, TestOutcome};
use crate::Verdict;
use crate::error::Error;
use crate::workspace::{Workspace, read};

/// The command-line arguments.
#[derive(clap::Args)]
pub struct Args {
    /// The package to change, such as isola-memory
    package: String,
    /// The number of mutants, drawn at random; without it, all
    #[arg(long, value_name = "N")]
    sample: Option<usize>,
    /// The seed of the random numbers; printed, so that a run can be repeated
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
    /// The time limit, in minutes
    #[arg(long, value_name = "N", default_value_t = 60)]
    minutes: u64,
    /// Only mutants whose position (`path:line:column:`) contains this text; may be repeated
    #[arg(long, value_name = "TEXT")]
    only: Vec<String>,
    /// Another package whose tests count as well; may be repeated
    #[arg(long, value_name = "PACKAGE")]
    with: Vec<String>,
    /// Prints the mutants and exits
    #[arg(long)]
    list: bool,
}

/// The numbers of mutants by outcome.
#[derive(Default)]
struct MutantTally {
    refused: usize,
    unreached: usize,
    killed: usize,
    timed_out: usize,
    survived: usize,
}

/// Draws mutants, and runs the tests that reach them.
pub fn run(args: &Args, workspace: &Workspace) -> Result<Verdict, Error> {
    let mut members = workspace.members();
    members.retain(|package| *package.name == args.package);
    let [package] = members[..] else {
        let known =
            workspace.members().iter().map(|package| package.name.as_str()).collect::<Vec<_>>().join(", ");
        return Err(Error::Unknown { kind: "package", name: args.package.clone(), known });
    };
    let folder = PathBuf::from(workspace.folder(package));
    let mut files = workspace.files_ending_in(&["rs"])?;
    let sources = workspace.root().join(&folder).join("src");
    files.retain(|path| {
        path.strip_prefix(&sources).is_ok_and(|path| !path.starts_with("bin") && !path.ends_with("main.rs"))
    });

    let mut mutants = find::find(workspace.root(), &files)?;
    let total = mutants.len();
    mutants.retain(|mutant| {
        args.only.is_empty() || args.only.iter().any(|text| location(mutant).contains(text))
    });
    let seed = args.seed.unwrap_or_else(|| fastrand::u64(..));
    let mut random = fastrand::Rng::with_seed(seed);
    random.shuffle(&mut mutants);
    mutants.truncate(args.sample.unwrap_or(usize::MAX));
    mutants.sort_by(|a, b| (&a.path, a.range.start).cmp(&(&b.path, b.range.start)));
    println!("{}: {} of {total} mutants, seed {seed}", args.package, mutants.len());
    if args.list {
        for mutant in &mutants {
            println!("{}", line(workspace, mutant)?);
        }
        return Ok(Verdict::Passed);
    }

    let copy = TreeCopy::new(workspace, &args.package, &folder, &mutants)?;
    let alive = compiled(&copy, workspace, &mutants)?;
    let tests = recorded(&copy, workspace, &args.with)?;
    let mut sum =
        MutantTally { refused: alive.iter().filter(|alive| !**alive).count(), ..MutantTally::default() };
    // In random order, so that the mutants before the time limit are a sample as well.
    let mut order: Vec<usize> = (0..mutants.len()).filter(|number| alive[*number]).collect();
    random.shuffle(&mut order);
    let start = Instant::now();
    let mut left = order.len();
    for number in order.into_iter().take_while(|_| start.elapsed().as_secs() < 60 * args.minutes) {
        let mutant = &mutants[number];
        let (count, word) = match outcome(&tests, number)? {
            None => (&mut sum.unreached, "unreached"),
            Some(TestOutcome::Failed) => (&mut sum.killed, "killed"),
            Some(TestOutcome::TimedOut) => (&mut sum.timed_out, "timed out"),
            Some(TestOutcome::Passed) => (&mut sum.survived, "SURVIVED"),
        };
        *count += 1;
        left -= 1;
        println!("{word:9} {}", line(workspace, mutant)?);
    }
    let MutantTally { refused, unreached, killed, timed_out, survived } = sum;
    println!(
        "{}, seed {seed}: {} mutants: {refused} rejected by the compiler, {killed} killed, {timed_out} timed out, \
         {survived} survived, {unreached} unreached, {left} not tried",
        args.package,
        mutants.len()
    );
    Ok(if survived + unreached == 0 { Verdict::Passed } else { Verdict::Failed })
}

/// Writes the mutants into the copy; returns for each whether the compiler accepts it.
fn compiled(copy: &TreeCopy, workspace: &Workspace, mutants: &[Mutant]) -> Result<Vec<bool>, Error> {
    let mut alive = vec![true; mutants.len()];
    loop {
        copy.instrument(workspace, mutants, &alive)?;
        let refused = copy.check(workspace)?;
        let before = alive.iter().filter(|alive| **alive).count();
        for (alive, mutant) in alive.iter_mut().zip(mutants) {
            *alive &= !refused.iter().any(|(path, lines)| {
                *path == mutant.path && lines.start < mutant.lines.end && mutant.lines.start < lines.end
            });
        }
        let now = alive.iter().filter(|alive| **alive).count();
        if now == before {
            return if refused.is_empty() { Ok(alive) } else { Err(Error::TestsNotBuilt) };
        }
        eprintln!("the compiler rejects {} mutants", before - now);
    }
}

/// Runs each test once without a mutant, and returns the tests, quick ones first. Prints and omits tests that fail.
fn recorded(copy: &TreeCopy, workspace: &Workspace, others: &[String]) -> Result<Vec<Test>, Error> {
    let mut tests = Vec::new();
    for (program, folder) in copy.build(workspace, others)? {
        for mut test in tests::list(&program, &folder)? {
            if test.record(copy)? {
                tests.push(test);
            } else {
                println!("omitted, fails without a mutant: {} of {}", test.name, program.display());
            }
        }
    }
    tests.sort_by_key(|test| test.took);
    let took: Duration = tests.iter().map(|test| test.took).sum();
    println!("{} tests, {:.1} s in sequence", tests.len(), took.as_secs_f64());
    Ok(tests)
}

/// Returns the outcome of the tests that reach mutant `number`; `None` if there is none.
fn outcome(tests: &[Test], number: usize) -> Result<Option<TestOutcome>, Error> {
    let mut outcome = None;
    for test in tests.iter().filter(|test| test.reached.contains(&number)) {
        outcome = Some(test.run(number)?);
        if outcome != Some(TestOutcome::Passed) {
            break;
        }
    }
    Ok(outcome)
}

fn location(mutant: &Mutant) -> String {
    format!("{}:{}:{}:", mutant.path.display(), mutant.lines.start, mutant.column)
}

/// Returns a mutant's position, its change, and its source line.
fn line(workspace: &Workspace, mutant: &Mutant) -> Result<String, Error> {
    let text = read(&workspace.root().join(&mutant.path))?;
    let line = text.lines().nth(mutant.lines.start - 1).unwrap_or_default().trim();
    Ok(format!("{} {}    | {line}", location(mutant), mutant.what))
}
