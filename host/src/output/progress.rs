//! A sign of life for what takes longer than a second, on the error output, where that is a terminal.

use super::{Output, Talk};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::time::{Duration, Instant};

/// What takes less than this shows nothing.
const PATIENCE: Duration = Duration::from_secs(1);

/// A sign of life; it disappears when dropped.
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
    talk: Talk,
    begun: Instant,
}

impl Progress {
    /// Of something whose end is not known.
    pub fn waiting(output: &Output, what: &str) -> Self {
        Self::new(output, ProgressBar::no_length(), "{spinner} {msg} ({elapsed})", what)
    }

    /// Of `total` bytes being sent.
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
        Self { bar, talk: output.talk, begun: Instant::now() }
    }

    /// Shows that it goes on. To be called several times a second.
    pub fn tick(&self) {
        if self.bar.is_hidden() && self.talk == Talk::Notes && self.begun.elapsed() > PATIENCE {
            // A target that is no terminal stays hidden.
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
        }
        self.bar.tick();
    }

    /// Shows how far it is.
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
