//! A progress display on the error output, if that is a terminal, for operations longer than a second.

use super::{Output, Verbosity};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::time::{Duration, Instant};

/// The duration from which an operation shows its progress.
const SHOW_AFTER: Duration = Duration::from_secs(1);

/// A progress display; it disappears when dropped.
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
    verbosity: Verbosity,
    begun: Instant,
}

impl Progress {
    /// Creates the display of an operation of unknown duration.
    pub fn waiting(output: &Output, what: &str) -> Self {
        Self::new(output, ProgressBar::no_length(), "{spinner} {msg} ({elapsed})", what)
    }

    /// Creates the display of an upload of `total` bytes.
    pub fn bytes(output: &Output, what: &str, total: u64) -> Self {
        let bar = ProgressBar::new(total);
        Self::new(output, bar, "{msg} {wide_bar} {bytes}/{total_bytes} ({eta} left)", what)
    }

    fn new(output: &Output, bar: ProgressBar, template: &str, what: &str) -> Self {
        bar.set_draw_target(ProgressDrawTarget::hidden());
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        bar.set_message(what.to_owned());
        Self { bar, verbosity: output.verbosity, begun: Instant::now() }
    }

    /// Advances the spinner. Call it several times a second.
    pub fn tick(&self) {
        if self.bar.is_hidden() && self.verbosity == Verbosity::Notes && self.begun.elapsed() > SHOW_AFTER {
            // A target that is not a terminal remains hidden.
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
        }
        self.bar.tick();
    }

    /// Sets the position.
    pub fn at(&self, position: u64) {
        self.bar.set_position(position);
        self.tick();
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
