//! How long a machine that hardly reads is waited for.

use alloc::boxed::Box;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll};
use core::time::Duration;
use isola_events::sleep;
use isola_events::timer::Sleep;

/// For so long, where it is the first machine that waits.
pub(crate) const WITH_OTHERS: Duration = Duration::from_secs(10);

/// For so long, where it is waited for the first machine: what that does not read is for another, which it waits for.
pub(crate) const WITH_THE_FIRST: Duration = Duration::from_secs(60);

/// Unless it takes so many bytes meanwhile.
const LEAST: usize = 64 << 10;

/// What a machine took while more waited for it.
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

    /// The machine has taken so many bytes.
    pub fn taken(&mut self, len: usize) {
        if let Some(wait) = &mut self.wait {
            wait.taken += len;
            if wait.taken >= LEAST {
                self.wait = None;
            }
        }
    }

    /// Nothing waits for the machine.
    pub fn rest(&mut self) {
        self.wait = None;
    }

    /// Something waits for the machine. Ready: for too long.
    pub fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let begin = || Wait { until: Box::pin(sleep(self.limit)), taken: 0 };
        self.wait.get_or_insert_with(begin).until.as_mut().poll(context)
    }
}
