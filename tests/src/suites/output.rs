//! The output of a suite's driver, and the results of cases that it shows.
//!
//! A program is a case. Lines of its output `=ok NAME`, `=fail NAME` and `=skip NAME` are cases within it; `ok N ...` and
//! `not ok N ...` (TAP) are counted, but have no names.

use std::collections::BTreeMap;
use std::fmt;

/// How a program ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProgramEnd {
    /// With an exit code.
    Exit(i32),
    /// By a signal.
    Signal(i32),
    /// It was killed at its time limit.
    TimeLimit,
    /// The cell ended, or showed no sign of life.
    CellLost,
}

/// A program's run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProgramRun {
    /// The program's name.
    pub name: String,
    /// Its end.
    pub end: ProgramEnd,
    /// The time that it took by the cell's clock, in milliseconds.
    pub took_ms: u64,
    /// Its output.
    pub lines: Vec<String>,
}

/// The result of a case.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// It passed.
    Passes,
    /// It failed.
    Fails,
    /// It says that it cannot run here.
    Skips,
}

/// The result of a case with its details.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CaseResult {
    /// The result.
    pub outcome: Outcome,
    /// The number of nameless cases within it, or of those with names, that passed.
    pub passed: usize,
    /// The reason of a failure, as far as the output shows it.
    pub hint: String,
}

impl fmt::Display for ProgramEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exit(code) => write!(f, "exit code {code}"),
            Self::Signal(number) => write!(f, "signal {number}"),
            Self::TimeLimit => write!(f, "time limit"),
            Self::CellLost => write!(f, "the cell ended"),
        }
    }
}

/// Reads a driver's output line by line.
#[derive(Debug, Default)]
pub struct DriverOutput {
    open: Option<(String, Vec<String>)>,
    /// The ended programs.
    pub runs: Vec<ProgramRun>,
    /// Whether the driver has come to its end.
    pub done: bool,
}

impl DriverOutput {
    /// The name of the running program.
    pub fn running(&self) -> Option<&str> {
        self.open.as_ref().map(|(name, _)| name.as_str())
    }

    /// Takes the next line. Other lines than the driver's are the cell's own messages.
    pub fn take(&mut self, line: &str) {
        if let Some(text) = line.strip_prefix('|') {
            if let Some((_, lines)) = &mut self.open {
                lines.push(text.to_owned());
            }
        } else if let Some(name) = line.strip_prefix("@start ") {
            self.open = Some((name.to_owned(), Vec::new()));
        } else if let Some(rest) = line.strip_prefix("@end ") {
            let words: Vec<&str> = rest.split(' ').collect();
            let [name, how, number, took] = words[..] else { return };
            let number = number.parse().unwrap_or(-1);
            let end = match how {
                "exit" => ProgramEnd::Exit(number),
                "signal" => ProgramEnd::Signal(number),
                _ => ProgramEnd::TimeLimit,
            };
            self.close(name, end, took.parse().unwrap_or(0));
        } else if line == "@done" {
            self.done = true;
        }
    }

    /// Ends the running program with its cell. Returns its name.
    pub fn lose_cell(&mut self) -> Option<String> {
        let (name, _) = self.open.as_ref()?;
        let name = name.clone();
        self.close(&name, ProgramEnd::CellLost, 0);
        Some(name)
    }

    fn close(&mut self, name: &str, end: ProgramEnd, took_ms: u64) {
        let lines = self.open.take().map(|(_, lines)| lines).unwrap_or_default();
        self.runs.push(ProgramRun { name: name.to_owned(), end, took_ms, lines });
    }
}

impl ProgramRun {
    /// Returns the results of the program, and of the cases with names in it, as `PROGRAM/CASE`.
    pub fn cases(&self, skip_codes: &[i32]) -> BTreeMap<String, CaseResult> {
        let mut cases = BTreeMap::new();
        let mut passed = 0;
        let mut has_names = false;
        for line in &self.lines {
            let named = [("=ok ", Outcome::Passes), ("=fail ", Outcome::Fails), ("=skip ", Outcome::Skips)];
            let named =
                named.into_iter().find_map(|(prefix, outcome)| Some((line.strip_prefix(prefix)?, outcome)));
            if let Some((rest, outcome)) = named {
                has_names = true;
                let (name, hint) = rest.split_once(' ').unwrap_or((rest, ""));
                let result = CaseResult { outcome, passed: 0, hint: hint.to_owned() };
                cases.insert(format!("{}/{name}", self.name), result);
            } else if is_nameless_pass(line) {
                passed += 1;
            }
        }
        if has_names {
            passed = cases.values().filter(|case| case.outcome == Outcome::Passes).count();
        }
        let outcome = match self.end {
            ProgramEnd::Exit(0) if self.says_skip() => Outcome::Skips,
            ProgramEnd::Exit(0) => Outcome::Passes,
            // Its cases say which failed.
            ProgramEnd::Exit(1) if has_names => Outcome::Passes,
            ProgramEnd::Exit(code) if skip_codes.contains(&code) => Outcome::Skips,
            _ => Outcome::Fails,
        };
        let last =
            self.lines.iter().rev().find(|line| is_telling(line)).map(|line| line.trim()).unwrap_or_default();
        let hint = format!("{}; {last}", self.end);
        cases.insert(self.name.clone(), CaseResult { outcome, passed, hint });
        cases
    }

    /// Whether Go's test skipped itself.
    fn says_skip(&self) -> bool {
        self.lines.iter().any(|line| line.starts_with("--- SKIP: "))
    }
}

fn is_nameless_pass(line: &str) -> bool {
    let rest = line.strip_prefix("ok ");
    rest.is_some_and(|rest| {
        rest.starts_with(|first: char| first.is_ascii_digit()) && !rest.contains("# SKIP")
    })
}

/// Whether a line of the output is likely to say why a program failed.
fn is_telling(line: &str) -> bool {
    const SUMMARIES: [&str; 10] = [
        "# Totals",
        "# FAILED",
        "FAIL",
        "exit status",
        "TAP version",
        "# Planned",
        "test result:",
        "failures:",
        "test ",
        "note:",
    ];
    !line.trim().is_empty() && !SUMMARIES.iter().any(|summary| line.starts_with(summary))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output(text: &str) -> DriverOutput {
        let mut output = DriverOutput::default();
        text.lines().for_each(|line| output.take(line));
        output
    }

    #[test]
    fn a_program_without_cases_passes_by_its_exit_code() {
        let output = output(
            "@start a\n|x\nnote\n@end a exit 0 5\n@start b\n@end b exit 4 6\n@start c\n@end c signal 11 7\n@done",
        );
        assert!(output.done);
        let outcome = |index: usize, codes| {
            let run: &ProgramRun = &output.runs[index];
            run.cases(codes)[&run.name].outcome
        };
        assert_eq!(outcome(0, &[4]), Outcome::Passes);
        assert_eq!(outcome(1, &[4]), Outcome::Skips);
        assert_eq!(outcome(1, &[]), Outcome::Fails);
        assert_eq!(outcome(2, &[4]), Outcome::Fails);
        assert_eq!(output.runs[0].lines, ["x"]);
    }

    #[test]
    fn cases_in_a_program_are_counted_and_named() {
        let run =
            &output("@start m\n|=ok A.x\n|=fail A.y EPERM\n|=skip A.z no root\n@end m exit 1 5").runs[0];
        let cases = run.cases(&[]);
        assert_eq!((cases["m"].outcome, cases["m"].passed), (Outcome::Passes, 1));
        assert_eq!((cases["m/A.y"].outcome, cases["m/A.y"].hint.as_str()), (Outcome::Fails, "EPERM"));
        assert_eq!(cases["m/A.z"].outcome, Outcome::Skips);
        let run = &output("@start t\n|ok 1 a\n|not ok 2 b\n|ok 3 c # SKIP\n@end t exit 1 5").runs[0];
        assert_eq!((run.cases(&[])["t"].outcome, run.cases(&[])["t"].passed), (Outcome::Fails, 1));
    }

    #[test]
    fn a_program_fails_if_its_cell_ends_or_its_time_is_over() {
        let mut output = output("@start m\n|=ok A.x\n@end m timeout 0 5\n@start n\n|=ok A.x");
        assert_eq!(output.runs[0].cases(&[])["m"].outcome, Outcome::Fails);
        assert_eq!(output.lose_cell().as_deref(), Some("n"));
        assert_eq!(output.runs[1].end, ProgramEnd::CellLost);
        assert_eq!(output.runs[1].cases(&[])["n"].outcome, Outcome::Fails);
        assert_eq!(output.lose_cell(), None);
    }
}
