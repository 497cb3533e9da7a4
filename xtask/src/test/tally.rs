//! Counting the tests of `cargo test` by what it prints.

use crate::check;

/// How many tests ended how.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Tests that passed.
    pub passed: u64,
    /// Tests that failed, and stages that broke down.
    pub failed: u64,
    /// What failed, a line each.
    pub failures: Vec<String>,
    /// Checks of the tree that passed: not tests, and so not in the sum. One that fails is in `failed`.
    pub checks: u64,
    /// Tests that were skipped, as `ISOLA_SKIP` demands, a line each.
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
    /// The tally of something that broke down before it could count: one failure.
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

    /// Takes the tests that skipped themselves out of those that passed: libtest counts a test that returns as passed.
    pub fn skip(&mut self, tests: impl IntoIterator<Item = String>) {
        for test in tests {
            self.passed = self.passed.saturating_sub(1);
            self.skipped.push(test);
        }
    }

    /// Takes note of a line of a test program's output:
    /// `test NAME ... FAILED`, or `test result: ok. 3 passed; 0 failed; 0 ignored; ...`.
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

    /// `N passed, N failed`, and `, N skipped` where tests were skipped.
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
    fn what_breaks_down_counts_as_a_failure() {
        let mut tally = Tally { passed: 2, ..Tally::default() };
        tally.add(Tally::broken("it did not compile".into()));
        assert_eq!(tally.line(), "2 passed, 1 failed");
    }
    #[test]
    fn skipped_tests_did_not_pass_and_are_named() {
        let mut tally = Tally { passed: 5, ..Tally::default() };
        tally.skip(["a (tap)".into(), "b (tap)".into()]);
        assert_eq!(tally.line(), "3 passed, 0 failed, 2 skipped");
        assert_eq!(tally.skipped, ["a (tap)", "b (tap)"]);
    }

    #[test]
    fn checks_are_no_tests_but_one_that_fails_is_a_failure() {
        let tally = Tally::from(check::Tally { passed: 11, failed: vec!["layering"] });
        assert_eq!((tally.checks, tally.line().as_str()), (11, "0 passed, 1 failed"));
    }
}
