//! Counts the tests of `cargo test` by its output.

use crate::check;

/// The numbers of tests by outcome.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Tests that passed.
    pub passed: u64,
    /// Tests that failed, and stages that ended with an error.
    pub failed: u64,
    /// The failures, one line each.
    pub failures: Vec<String>,
    /// Checks of the tree that passed; they are not tests, and not in the sum. A failed check is in `failed`.
    pub checks: u64,
    /// Tests that were skipped because of `ISOLA_SKIP`, one line each.
    pub skipped: Vec<String>,
}

impl From<check::Tally> for Tally {
    fn from(tally: check::Tally) -> Self {
        let failures: Vec<String> =
            tally.failed.iter().map(|name| format!("cargo xtask check {name}")).collect();
        let failed = failures.len() as u64;
        Self { checks: tally.passed, failed, failures, ..Self::default() }
    }
}

impl Tally {
    /// Returns the tally of a stage that ended before it could count: one failure.
    pub fn broken(reason: String) -> Self {
        Self { failed: 1, failures: vec![reason], ..Self::default() }
    }

    /// Adds the tests of `other`.
    pub fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.failures.extend(other.failures);
        self.checks += other.checks;
        self.skipped.extend(other.skipped);
    }

    /// Moves skipped tests from the passed ones: libtest counts a test that returns as passed.
    pub fn skip(&mut self, tests: impl IntoIterator<Item = String>) {
        for test in tests {
            self.passed = self.passed.saturating_sub(1);
            self.skipped.push(test);
        }
    }

    /// Counts a line of a test program's output: `test NAME ... FAILED`, or
    /// `test result: ok. 3 passed; 0 failed; 0 ignored; ...`.
    pub fn take(&mut self, line: &str) {
        if let Some(result) = line.strip_prefix("test result: ") {
            let (_, counts) = result.split_once(". ").unwrap_or(("", result));
            for part in counts.split("; ") {
                match part.split_once(' ') {
                    Some((count, "passed")) => self.passed += count.parse::<u64>().unwrap_or(0),
                    Some((count, "failed")) => self.failed += count.parse::<u64>().unwrap_or(0),
                    _ => {}
                }
            }
        } else if let Some(name) =
            line.strip_prefix("test ").and_then(|rest| rest.strip_suffix(" ... FAILED"))
        {
            self.failures.push(name.to_owned());
        }
    }

    /// Returns `N passed, N failed`, with `, N skipped` if tests were skipped.
    pub fn line(&self) -> String {
        let skipped = match self.skipped.len() {
            0 => String::new(),
            count => format!(", {count} skipped"),
        };
        format!("{} passed, {} failed{skipped}", self.passed, self.failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_of_several_programs_are_summed() {
        let mut tally = Tally::default();
        for line in [
            "running 3 tests",
            "test shard::tests::evicts ... ok",
            "test shard::tests::expires ... FAILED",
            "test result: FAILED. 2 passed; 1 failed; 4 ignored; 0 measured; 7 filtered out; finished in 0.01s",
            "test result: ok. 40 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.20s",
        ] {
            tally.take(line);
        }
        let failures = vec!["shard::tests::expires".into()];
        assert_eq!(tally, Tally { passed: 42, failed: 1, failures, ..Tally::default() });
        assert_eq!(tally.line(), "42 passed, 1 failed");
    }

    #[test]
    fn a_stage_that_ends_with_an_error_counts_as_a_failure() {
        let mut tally = Tally { passed: 2, ..Tally::default() };
        tally.add(Tally::broken("it did not compile".into()));
        assert_eq!(tally.line(), "2 passed, 1 failed");
    }
    #[test]
    fn skipped_tests_do_not_count_as_passed_and_are_named() {
        let mut tally = Tally { passed: 5, ..Tally::default() };
        tally.skip(["a (tap)".into(), "b (tap)".into()]);
        assert_eq!(tally.line(), "3 passed, 0 failed, 2 skipped");
        assert_eq!(tally.skipped, ["a (tap)", "b (tap)"]);
    }

    #[test]
    fn checks_are_not_tests_but_a_failed_one_is_a_failure() {
        let tally = Tally::from(check::Tally { passed: 11, failed: vec!["layering"] });
        assert_eq!((tally.checks, tally.line().as_str()), (11, "0 passed, 1 failed"));
    }
}
