//! ^C and its kin, counted: the first is a request, which commands look for while they wait.

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::io;
use std::ops::ControlFlow;
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// So many requests to end, and a command ends wherever it is.
const AT_ONCE: usize = 4;

/// Exit code of a command that was interrupted: what a shell gives a program that ^C ended.
pub(super) const INTERRUPTED: u8 = 130;

/// Requests to end that this process got since the count began.
#[derive(Clone, Debug)]
pub(super) struct Interrupts {
    count: Arc<AtomicUsize>,
}

impl Interrupts {
    /// Begins to count. Without it, the first request ends the process, which leaves nothing behind either:
    /// it is for commands that would rather tidy up themselves.
    pub(super) fn count() -> io::Result<Self> {
        let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
        let count = Arc::new(AtomicUsize::new(0));
        let shared = Arc::clone(&count);
        thread::spawn(move || {
            for _ in signals.forever() {
                if shared.fetch_add(1, Ordering::Relaxed) + 1 >= AT_ONCE {
                    process::exit(i32::from(INTERRUPTED));
                }
            }
        });
        Ok(Self { count })
    }

    /// How many there were.
    pub(super) fn so_far(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Breaks where there was one.
    pub(super) fn check(&self) -> ControlFlow<()> {
        if self.so_far() == 0 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    }
}
