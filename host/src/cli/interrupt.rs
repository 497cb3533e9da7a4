//! Signals that request an end (^C and others), counted: commands check the count while they wait.

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::io;
use std::ops::ControlFlow;
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// The number of signals at which the command exits at once.
const AT_ONCE: usize = 4;

/// Exit code of an interrupted command, as a shell reports it for a program that ^C ended.
pub(super) const INTERRUPTED: u8 = 130;

/// The signals that this process received since the count began.
#[derive(Clone, Debug)]
pub(super) struct Interrupts {
    count: Arc<AtomicUsize>,
}

impl Interrupts {
    /// Begins to count. Without a count the first signal ends the process: use it in commands that must clean up
    /// themselves.
    pub(super) fn count() -> io::Result<Self> {
        let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
        let count = Arc::new(AtomicUsize::new(0));
        let shared = Arc::clone(&count);
        thread::spawn(move || {
            for _ in signals.forever() {
                if shared.fetch_add(1, Ordering::Relaxed) + 1 >= AT_ONCE {
                    let _ = ratatui::crossterm::terminal::disable_raw_mode();
                    process::exit(i32::from(INTERRUPTED));
                }
            }
        });
        Ok(Self { count })
    }

    /// Returns the number of signals.
    pub(super) fn so_far(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Breaks if there was a signal.
    pub(super) fn check(&self) -> ControlFlow<()> {
        if self.so_far() == 0 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    }
}
