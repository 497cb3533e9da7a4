//! The run of all checks, one after the other.

use crate::check::BrokenGuarantee;
use crate::checks::CHECKS;
use core::fmt;
use core::time::Duration;
use isola_events::timeout;

/// The time after which a check counts as hung. Generous, because emulated machines are slow and share their host.
const LIMIT: Duration = Duration::from_secs(120);

/// The numbers of checks that passed and failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// The number of checks that passed.
    pub passed: usize,
    /// The number of checks that failed.
    pub failed: usize,
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} checks hold, {} are broken, on {} cores", self.passed, self.failed, crate::cores())
    }
}

/// Runs all checks in a task of the first core, and passes a line about each to `print`.
pub async fn run_all(print: impl Fn(fmt::Arguments<'_>)) -> Summary {
    run_some(|_| true, print).await
}

/// Runs the checks whose names `is_wanted` accepts, like [`run_all`].
pub async fn run_some(is_wanted: impl Fn(&str) -> bool, print: impl Fn(fmt::Arguments<'_>)) -> Summary {
    let mut summary = Summary::default();
    for check in CHECKS.iter().filter(|check| is_wanted(check.name)) {
        match timeout(LIMIT, (check.run)()).await {
            Ok(Ok(())) => {
                summary.passed += 1;
                print(format_args!("{}: ok", check.name));
            }
            Ok(Err(BrokenGuarantee(description))) => {
                summary.failed += 1;
                print(format_args!("{}: BROKEN: {description}", check.name));
            }
            Err(_) => {
                summary.failed += 1;
                print(format_args!("{}: BROKEN: it does not end", check.name));
            }
        }
    }
    print(format_args!("{summary}"));
    summary
}
