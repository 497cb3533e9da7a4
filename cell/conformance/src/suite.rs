//! Running all checks, one after the other.

use crate::checks::CHECKS;
use alloc::boxed::Box;
use alloc::string::String;
use core::fmt;
use core::future::Future;
use core::pin::Pin;
use core::time::Duration;
use isola_events::timeout;

/// A check that takes longer hangs. Generous: emulated machines are slow, and other things run beside them.
const LIMIT: Duration = Duration::from_secs(120);

/// What a check found: that all holds, or what does not.
pub type Outcome = Result<(), Broken>;

/// What does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken(pub String);

/// A named check.
#[derive(Clone, Copy)]
pub struct Check {
    /// Its module and name, as in `timers::a_sleep_is_never_short`.
    pub name: &'static str,
    pub(crate) run: fn() -> Pin<Box<dyn Future<Output = Outcome>>>,
}

/// How many checks hold, and how many do not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Those that hold.
    pub passed: usize,
    /// Those that do not.
    pub failed: usize,
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} checks hold, {} are broken, on {} cores", self.passed, self.failed, crate::cores())
    }
}

/// Runs all checks as part of a task of the first core, and tells `say` of each by a line.
pub async fn run_all(say: impl Fn(fmt::Arguments<'_>)) -> Summary {
    run_some(|_| true, say).await
}

/// As [`run_all`], of the checks whose names `is_wanted` wants.
pub async fn run_some(is_wanted: impl Fn(&str) -> bool, say: impl Fn(fmt::Arguments<'_>)) -> Summary {
    let mut summary = Summary::default();
    for check in CHECKS.iter().filter(|check| is_wanted(check.name)) {
        match timeout(LIMIT, (check.run)()).await {
            Ok(Ok(())) => {
                summary.passed += 1;
                say(format_args!("{}: ok", check.name));
            }
            Ok(Err(Broken(what))) => {
                summary.failed += 1;
                say(format_args!("{}: BROKEN: {what}", check.name));
            }
            Err(_) => {
                summary.failed += 1;
                say(format_args!("{}: BROKEN: it does not end", check.name));
            }
        }
    }
    say(format_args!("{summary}"));
    summary
}
