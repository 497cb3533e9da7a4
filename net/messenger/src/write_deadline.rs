//! The time limit for a machine that hardly reads.

use alloc::boxed::Box;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll};
use core::time::Duration;
use isola_events::sleep;
use isola_events::timer::Sleep;

/// The limit that the first machine applies to others.
pub(crate) const MACHINE_WRITE_LIMIT: Duration = Duration::from_secs(10);

/// The limit that others apply to the first machine, which may itself be waiting for a third machine to read.
pub(crate) const FIRST_MACHINE_WRITE_LIMIT: Duration = Duration::from_secs(60);

/// The bytes that the machine must take within the limit.
const MIN_PROGRESS: usize = 64 << 10;

/// The progress of a machine while data waits for it.
pub(crate) struct WriteDeadline {
    limit: Duration,
    wait: Option<Wait>,
}

struct Wait {
    until: Pin<Box<Sleep>>,
    taken: usize,
}

impl WriteDeadline {
    pub fn new(limit: Duration) -> Self {
        Self { limit, wait: None }
    }

    /// Records that the machine has taken `len` bytes.
    pub fn progress(&mut self, len: usize) {
        if let Some(wait) = &mut self.wait {
            wait.taken += len;
            if wait.taken >= MIN_PROGRESS {
                self.wait = None;
            }
        }
    }

    /// Records that no data waits for the machine.
    pub fn clear(&mut self) {
        self.wait = None;
    }

    /// Records that data waits for the machine. Ready when it has waited for too long.
    pub fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let begin = || Wait { until: Box::pin(sleep(self.limit)), taken: 0 };
        self.wait.get_or_insert_with(begin).until.as_mut().poll(context)
    }
}
