//! The list of a suite's cases: the file `cases`, with a line for each program, and one for each case in it that does not
//! pass.
//!
//! ```text
//! futex/futex_wait  passes 3
//! clone3/set_tid    fails 12 missing: set_tid
//! test_os/X.test_y  fails linux: needs a user with a home
//! ```
//!
//! The number is that of cases within the program that pass. The reason starts with its kind ([`KINDS`]).

use super::output::{CaseResult, Outcome};
use std::collections::BTreeMap;
use std::fmt::Write;

/// The kinds of reasons.
pub const KINDS: [(&str, &str); 6] = [
    ("linux", "fails or is skipped on Linux too, with the same kernel or in a namespace"),
    ("missing", "a part of Linux that docs/linux.md names as missing"),
    ("differs", "Isola behaves otherwise on purpose"),
    ("defect", "Isola behaves otherwise, and should not"),
    ("slow", "takes longer than its time limit in the emulator"),
    ("suite", "needs a file, a program, a network or a device that the root file system does not have"),
];

/// What the list says of a case.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Expected {
    /// This outcome.
    Always(Outcome),
    /// Any outcome: it depends on time, or on other programs.
    Varies,
}

/// A line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The expectation.
    pub expected: Expected,
    /// The number of cases in it that pass; 0 if there are none.
    pub passed: usize,
    /// Why it does not pass.
    pub reason: String,
}

/// The cases of a suite with their expected results.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct List {
    entries: BTreeMap<String, Entry>,
}

/// A difference between a list and a run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Difference {
    /// The case.
    pub case: String,
    /// The difference, for a person.
    pub text: String,
}

impl List {
    /// Parses a list.
    ///
    /// # Errors
    /// A message with the line that is wrong.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut entries = BTreeMap::new();
        for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let (name, entry) = parse_line(line).map_err(|error| format!("{line:?}: {error}"))?;
            if entries.insert(name.to_owned(), entry).is_some() {
                return Err(format!("{line:?}: the case is listed twice"));
            }
        }
        Ok(Self { entries })
    }

    /// Compares the list with results. Programs that `ran` does not contain are not compared.
    pub fn compare(&self, results: &BTreeMap<String, CaseResult>, ran: &[String]) -> Vec<Difference> {
        let mut differences = Vec::new();
        for (case, result) in results {
            let is_program = ran.contains(case);
            let expected = match self.entries.get(case) {
                Some(entry) => entry.clone(),
                None if is_program => {
                    differences.push(difference(case, format!("is not listed; {}", describe(result))));
                    continue;
                }
                // Cases within a program that are not listed pass.
                None => {
                    Entry { expected: Expected::Always(Outcome::Passes), passed: 0, reason: String::new() }
                }
            };
            let Expected::Always(outcome) = expected.expected else { continue };
            if outcome != result.outcome {
                differences
                    .push(difference(case, format!("is listed as {}; {}", word(outcome), describe(result))));
            } else if is_program && expected.passed != result.passed {
                let text = format!("{} cases of it pass, {} are listed", result.passed, expected.passed);
                differences.push(difference(case, text));
            }
        }
        for case in self.entries.keys() {
            let program = ran.iter().any(|program| case == program || is_within(case, program));
            if program && !results.contains_key(case) && self.entries[case].expected != Expected::Varies {
                differences.push(difference(case, "is listed, but was not run".into()));
            }
        }
        differences
    }

    /// Returns the list with these results: entries whose outcome differs get a reason by `reason`.
    pub fn updated(
        &self,
        results: &BTreeMap<String, CaseResult>,
        ran: &[String],
        reason: impl Fn(&str, &CaseResult) -> String,
    ) -> Self {
        let mut entries = self.entries.clone();
        entries.retain(|case, _| {
            results.contains_key(case)
                || !ran.iter().any(|program| case == program || is_within(case, program))
        });
        for (case, result) in results {
            let is_program = ran.contains(case);
            match entries.get_mut(case) {
                Some(Entry { expected: Expected::Varies, .. }) => {}
                Some(entry) if entry.expected == Expected::Always(result.outcome) => {
                    entry.passed = result.passed
                }
                _ if result.outcome == Outcome::Passes && !is_program => {
                    entries.remove(case);
                }
                _ => {
                    let expected = Expected::Always(result.outcome);
                    let passes = result.outcome == Outcome::Passes;
                    let reason = if passes { String::new() } else { reason(case, result) };
                    entries.insert(case.clone(), Entry { expected, passed: result.passed, reason });
                }
            }
        }
        Self { entries }
    }

    /// Returns the list as text, without the comments at its head.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for (case, entry) in &self.entries {
            let verdict = match entry.expected {
                Expected::Always(outcome) => word(outcome),
                Expected::Varies => "varies",
            };
            let number = if entry.passed == 0 { String::new() } else { format!(" {}", entry.passed) };
            let reason = if entry.reason.is_empty() { String::new() } else { format!(" {}", entry.reason) };
            writeln!(text, "{case} {verdict}{number}{reason}").expect("a string takes everything");
        }
        text
    }

    /// Returns the number of programs and cases by expectation and kind of reason.
    pub fn tally(&self) -> BTreeMap<String, usize> {
        let mut tally = BTreeMap::new();
        for entry in self.entries.values() {
            let key = match entry.expected {
                Expected::Always(Outcome::Passes) => {
                    *tally.entry("passing cases within programs".to_owned()).or_default() += entry.passed;
                    "passes".to_owned()
                }
                Expected::Always(outcome) => format!("{}, {}", word(outcome), kind(&entry.reason)),
                Expected::Varies => format!("varies, {}", kind(&entry.reason)),
            };
            *tally.entry(key).or_default() += 1;
        }
        tally
    }
}

fn parse_line(line: &str) -> Result<(&str, Entry), String> {
    let (name, rest) = line.split_once(' ').ok_or("a name and a result are needed")?;
    let (verdict, rest) = rest.trim_start().split_once(' ').unwrap_or((rest.trim_start(), ""));
    let expected = match verdict {
        "passes" => Expected::Always(Outcome::Passes),
        "fails" => Expected::Always(Outcome::Fails),
        "skips" => Expected::Always(Outcome::Skips),
        "varies" => Expected::Varies,
        _ => return Err(format!("{verdict:?} is neither passes, fails, skips nor varies")),
    };
    let (first, others) = rest.split_once(' ').unwrap_or((rest, ""));
    let (passed, reason) = match first.parse() {
        Ok(number) => (number, others),
        Err(_) => (0, rest),
    };
    if expected != Expected::Always(Outcome::Passes) && !KINDS.iter().any(|(known, _)| *known == kind(reason))
    {
        return Err("a reason of a known kind is needed, such as `missing: rseq`".into());
    }
    Ok((name, Entry { expected, passed, reason: reason.to_owned() }))
}

fn kind(reason: &str) -> &str {
    reason.split_once(':').map_or("", |(kind, _)| kind)
}

/// Whether a case is one within a program.
fn is_within(case: &str, program: &str) -> bool {
    case.strip_prefix(program).is_some_and(|rest| rest.starts_with('/'))
}

fn word(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Passes => "passes",
        Outcome::Fails => "fails",
        Outcome::Skips => "skips",
    }
}

fn describe(result: &CaseResult) -> String {
    format!("{} ({})", word(result.outcome), result.hint)
}

fn difference(case: &str, text: String) -> Difference {
    Difference { case: case.to_owned(), text }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "a passes 3\nb fails 2 missing: rseq\nb/x fails defect: EPERM\nc varies slow: time\nd skips linux: root\n";

    fn result(outcome: Outcome, passed: usize) -> CaseResult {
        CaseResult { outcome, passed, hint: "why".into() }
    }

    fn results(cases: &[(&str, Outcome, usize)]) -> BTreeMap<String, CaseResult> {
        cases.iter().map(|(case, outcome, passed)| ((*case).to_owned(), result(*outcome, *passed))).collect()
    }

    fn differences(cases: &[(&str, Outcome, usize)], ran: &[&str]) -> Vec<String> {
        let ran: Vec<String> = ran.iter().map(|name| (*name).to_owned()).collect();
        let found = List::parse(TEXT).unwrap().compare(&results(cases), &ran);
        found.into_iter().map(|found| format!("{} {}", found.case, found.text)).collect()
    }

    #[test]
    fn a_list_is_written_as_it_is_read() {
        assert_eq!(List::parse(TEXT).unwrap().text(), TEXT);
    }

    #[test]
    fn a_line_without_a_reason_or_with_an_unknown_word_is_an_error() {
        for wrong in [
            "a",
            "a works",
            "a fails",
            "a fails 3",
            "a fails because",
            "a fails 3 laziness: x",
            "a passes\na passes",
        ] {
            assert!(List::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn results_as_listed_are_no_difference() {
        use Outcome::{Fails, Passes, Skips};
        let all = [
            ("a", Passes, 3),
            ("b", Fails, 2),
            ("b/x", Fails, 0),
            ("b/y", Passes, 0),
            ("c", Fails, 9),
            ("d", Skips, 0),
        ];
        assert_eq!(differences(&all, &["a", "b", "c", "d"]), Vec::<String>::new());
    }

    #[test]
    fn each_other_result_is_a_difference() {
        use Outcome::{Fails, Passes, Skips};
        let only =
            |case, outcome, passed| differences(&[(case, outcome, passed)], &["a", "d", "e"]).join("; ");
        assert!(only("a", Fails, 3).starts_with("a is listed as passes; fails (why)"));
        assert!(only("a", Passes, 2).starts_with("a 2 cases of it pass, 3 are listed"));
        assert!(only("a", Passes, 3).starts_with("d is listed, but was not run"));
        assert!(only("d", Passes, 0).contains("d is listed as skips; passes"));
        assert!(only("e", Passes, 0).contains("e is not listed"));
        assert_eq!(
            differences(&[("a", Passes, 3), ("a/z", Fails, 0)], &["a"]),
            ["a/z is listed as passes; fails (why)"]
        );
        assert_eq!(
            differences(&[("b", Fails, 2), ("b/x", Passes, 0)], &["b"]),
            ["b/x is listed as fails; passes (why)"]
        );
        assert_eq!(differences(&[("b", Skips, 2)], &["b"]).len(), 2);
    }

    #[test]
    fn an_updated_list_agrees_with_the_results() {
        use Outcome::{Fails, Passes};
        let results = results(&[("a", Fails, 1), ("b", Fails, 4), ("b/x", Passes, 0), ("b/z", Fails, 0)]);
        let ran = ["a".to_owned(), "b".to_owned()];
        let updated = List::parse(TEXT).unwrap().updated(&results, &ran, |_, _| "defect: new".into());
        assert_eq!(updated.compare(&results, &ran), []);
        let expected = "a fails 1 defect: new\nb fails 4 missing: rseq\nb/z fails defect: new\nc varies slow: time\nd skips linux: root\n";
        assert_eq!(updated.text(), expected);
    }
}
