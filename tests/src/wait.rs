//! Waiting until something is the case.

use std::thread::sleep;
use std::time::{Duration, Instant};

/// Longer than anything takes that happens at all; emulated machines on a busy host are slow.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Waits until `look` finds something.
///
/// # Panics
/// Where it finds nothing within [`PATIENCE`].
pub fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "waited in vain: {what}");
        sleep(Duration::from_millis(10));
    }
}

/// Waits until something is so.
///
/// # Panics
/// As [`until`].
pub fn until_true(what: &str, mut is_so: impl FnMut() -> bool) {
    until(what, || is_so().then_some(()));
}
