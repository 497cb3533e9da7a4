//! ^C and its kin. Whatever waits asks [`check`] now and then, and what is under way ends in good order: machines are
//! ended and temporary files removed where their owners are dropped.

use crate::error::BenchError;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

static ASKED: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

/// From now on, a request to end is noted instead of ending the process; a second one ends it.
///
/// # Errors
/// What the system says.
pub fn listen() -> io::Result<()> {
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register_conditional_default(signal, ASKED.clone())?;
        signal_hook::flag::register(signal, ASKED.clone())?;
    }
    Ok(())
}

/// Whether the process was asked to end.
pub fn asked() -> bool {
    ASKED.load(Ordering::Relaxed)
}

/// Fails once the process was asked to end.
///
/// # Errors
/// [`BenchError::Interrupted`].
pub fn check() -> Result<(), BenchError> {
    if asked() { Err(BenchError::Interrupted) } else { Ok(()) }
}
