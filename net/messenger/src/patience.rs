//! The time limit for a machine that hardly reads.

use alloc::boxed::Box;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll};
use core::time::Duration;
use isola_events::sleep;
use isola_events::timer::Sleep;

/// The limit that the first machine applies to others.
pub(crate) const WITH_OTHERS: Duration = Duration::from_secs(10);

/// The limit that others apply to the first machine, which may itself be waiting for a third machine to read.
pub(crate) const WITH_THE_FIRST: Duration = Duration::from_secs(60);

/// The bytes that the machine must take within the limit.
const LEAST: usize = 64 << 10;

/// The progress of a machine while data waits for it.
pub(crate) struct Patience {
    limit: Duration,
    wait: Option<Wait>,
}

struct Wait {
    until: Pin<Box<Sleep>>,
    taken: usize,
}

impl Patience {
    pub fn of(limit: Duration) -> Self {
        Self { limit, wait: None }
    }

    /// Records that the machine has taken `len` bytes.
    pub fn taken(&mut self, len: usize) {
        if let Some(wait) = &mut self.wait {
            wait.taken += len;
            if wait.taken >= LEAST {
                self.wait = None;
            }
        }
    }

    /// Records that no data waits for the machine.
    pub fn rest(&mut self) {
        self.wait = None;
    }

    /// Records that data waits for the machine. Ready when it has waited for too long.
    pub fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let begin = || Wait { until: Box::pin(sleep(self.limit)), taken: 0 };
        self.wait.get_or_insert_with(begin).until.as_mut().poll(context)
    }
}
