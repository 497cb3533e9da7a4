//! Handling of ^C and of termination signals. Code that waits calls [`check`] at intervals, and unwinds by its error:
//! owners of machines and temporary files clean up on drop.

use crate::error::BenchError;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

static ASKED: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

/// Makes the first termination signal set a flag instead of ending the process; a second one ends it.
///
/// # Errors
/// As the registration of the handlers.
pub fn listen() -> io::Result<()> {
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register_conditional_default(signal, ASKED.clone())?;
        signal_hook::flag::register(signal, ASKED.clone())?;
    }
    Ok(())
}

/// Returns whether the process has received a termination signal.
pub fn is_requested() -> bool {
    ASKED.load(Ordering::Relaxed)
}

/// Fails once the process has received a termination signal.
///
/// # Errors
/// [`BenchError::Interrupted`].
pub fn check() -> Result<(), BenchError> {
    if is_requested() { Err(BenchError::Interrupted) } else { Ok(()) }
}
