//! Suites of other projects in Linux cells: the kernel's selftests, CPython's and Go's tests, those of the crate `nix`,
//! `stress-ng --verify`. They take long: without `--long` they run only if `ISOLA_SUITE` names one.
//!
//! `cargo xtask suite` sets the variables: `ISOLA_SUITE_PROGRAMS` (names, separated by spaces), `ISOLA_SUITE_LINUX` (runs
//! on this host, not in a cell), `ISOLA_SUITE_WRITE` (writes the results into the list).

use isola_need::{LONG, Need, need};
use isola_tests::isola::Isola;
use isola_tests::suites::{CaseResult, List, Outcome, ProgramRun, Suite};
use std::collections::{BTreeMap, BTreeSet};
use std::env::var;
use std::fs;
use std::sync::{Mutex, PoisonError};

/// The reason that a written list has for a failure that a person has yet to explain. The list cannot be parsed with it.
const UNEXPLAINED: &str = "?";

fn run(name: &str) {
    if var("ISOLA_SUITE").map_or_else(|_| var(LONG).is_err(), |wanted| wanted != name) {
        return;
    }
    // A suite has two cores, as many as a small host.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    if [Need::E2fsprogs, Need::Busybox].into_iter().any(|needed| !need(needed)) {
        return;
    }
    let suite = Suite::named(name);
    let text = fs::read_to_string(suite.list_path()).unwrap_or_default();
    let list = List::parse(&text).unwrap();
    suite.build();
    let names: Vec<String> =
        var("ISOLA_SUITE_PROGRAMS").unwrap_or_default().split_whitespace().map(str::to_owned).collect();
    let known: BTreeSet<String> = suite.programs().into_iter().map(|program| program.name).collect();
    for name in &names {
        assert!(known.contains(name), "the suite has no program {name}");
    }
    let ran: Vec<String> = if names.is_empty() { known.into_iter().collect() } else { names.clone() };
    if var("ISOLA_SUITE_LINUX").is_ok() {
        let results = results(suite, &suite.run_on_linux(&names));
        let failures = results.iter().filter(|(_, result)| result.outcome != Outcome::Passes);
        let lines = failures.map(|(case, result)| format!("{case} {:?} {}\n", result.outcome, result.hint));
        let lines = lines.collect::<String>();
        fs::write(suite.work().join("failures-on-linux"), &lines).unwrap();
        println!("on this host, of {} cases:\n{lines}", results.len());
        return;
    }
    let isola = Isola::up(&["--cores", "3", "--memory", "3G"]);
    let results = results(suite, &suite.run_in_cells(&isola, &names));
    if var("ISOLA_SUITE_WRITE").is_ok() {
        let on_linux = fs::read_to_string(suite.work().join("failures-on-linux")).unwrap_or_default();
        let on_linux: BTreeSet<&str> = on_linux.lines().filter_map(|line| line.split(' ').next()).collect();
        let updated = list.updated(&results, &ran, |case, result| {
            let kind = if on_linux.contains(case) { "linux:" } else { UNEXPLAINED };
            format!("{kind} {}", result.hint)
        });
        let head: String =
            text.lines().take_while(|line| line.starts_with('#')).map(|line| format!("{line}\n")).collect();
        fs::write(suite.list_path(), head + &updated.text()).unwrap();
        return;
    }
    println!("{:#?}", list.tally());
    let differences: Vec<String> = list
        .compare(&results, &ran)
        .into_iter()
        .map(|difference| format!("{} {}", difference.case, difference.text))
        .collect();
    assert!(
        differences.is_empty(),
        "{} of the suite {name} differ from {}; the output is in {}:\n{}",
        differences.len(),
        suite.list_path().display(),
        suite.work().join("cell.log").display(),
        differences.join("\n")
    );
}

/// Returns the results of all cases.
fn results(suite: &Suite, runs: &[ProgramRun]) -> BTreeMap<String, CaseResult> {
    runs.iter().flat_map(|run| run.cases(suite.skip_codes)).collect()
}

#[test]
fn the_kernels_selftests_end_as_listed() {
    run("kernel");
}

#[test]
fn cpythons_tests_end_as_listed() {
    run("cpython");
}

#[test]
fn the_tests_of_the_crate_nix_end_as_listed() {
    run("nix");
}

#[test]
fn stressors_find_no_wrong_result() {
    run("stress-ng");
}

#[test]
fn gos_standard_library_ends_as_listed() {
    run("go");
}
