//! Waiting for a condition.

use std::thread::sleep;
use std::time::{Duration, Instant};

/// The longest wait. Generous, because emulated machines on a busy host are slow.
pub const TIMEOUT: Duration = Duration::from_secs(120);

/// Polls `look` until it returns a value.
///
/// # Panics
/// If it returns none within [`TIMEOUT`].
pub fn until<T>(what: &str, look: impl FnMut() -> Option<T>) -> T {
    until_or_report(what, look, String::new)
}

/// Does the same; the panic's message ends with `report`.
///
/// # Panics
/// As [`until`].
pub fn until_or_report<T>(
    what: &str,
    mut look: impl FnMut() -> Option<T>,
    report: impl FnOnce() -> String,
) -> T {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        if let Some(found) = look() {
            return found;
        }
        if Instant::now() >= deadline {
            panic!("timeout: {what}\n{}", report());
        }
        sleep(Duration::from_millis(10));
    }
}

/// Polls a condition until it is true.
///
/// # Panics
/// As [`until`].
pub fn until_true(what: &str, mut is_so: impl FnMut() -> bool) {
    until(what, || is_so().then_some(()));
}
