//! Waiting for a condition.

use std::thread::sleep;
use std::time::{Duration, Instant};

/// The longest wait. Generous, because emulated machines on a busy host are slow.
pub const TIMEOUT: Duration = Duration::from_secs(120);

/// Polls `look` until it returns a value.
///
/// # Panics
/// If it returns none within [`TIMEOUT`].
pub fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "timeout: {what}");
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
