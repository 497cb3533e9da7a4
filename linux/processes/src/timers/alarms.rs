//! The alarms of all processes of a cell: a queue with one timer of the event loop.

use crate::environment::{Environment, TaskPlacement};
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::fmt;
use core::future::poll_fn;
use core::task::{Poll, Waker};
use isola_linux_abi::numbers::{
    CLOCK_BOOTTIME, CLOCK_BOOTTIME_ALARM, CLOCK_MONOTONIC, CLOCK_REALTIME, CLOCK_REALTIME_ALARM, CLOCK_TAI,
};
use isola_linux_files::{AlarmKey, AlarmService};
use spin::Mutex;

/// The call of an alarm.
type Ring = Box<dyn FnOnce() + Send>;

/// The queue of alarms. A task serves it while it has alarms; without alarms there is no task and no timer.
///
/// A cancelled alarm leaves the queue at once. The task's timer may still end at its time, once, as a change of the timer
/// would cost more where programs set and cancel alarms around each operation.
pub struct Alarms {
    environment: Arc<dyn Environment>,
    queue: Mutex<Queue>,
    this: Weak<Self>,
}

#[derive(Default)]
struct Queue {
    entries: BTreeMap<AlarmKey, Ring>,
    next_number: u64,
    /// Whether there is a task.
    is_served: bool,
    /// The deadline of the task's timer, and its waker, while it waits.
    waiting: Option<(u64, Waker)>,
}

impl Alarms {
    /// Creates a queue without alarms.
    pub fn new(environment: Arc<dyn Environment>) -> Arc<Self> {
        Arc::new_cyclic(|this| Self { environment, queue: Mutex::default(), this: this.clone() })
    }

    /// Returns the number of alarms.
    pub fn count(&self) -> usize {
        self.queue.lock().entries.len()
    }

    /// Cancels all alarms, as the cell ends.
    pub fn cancel_all(&self) {
        let (removed, waiting) = {
            let mut queue = self.queue.lock();
            (core::mem::take(&mut queue.entries), queue.waiting.take())
        };
        drop(removed);
        if let Some((_, waker)) = waiting {
            waker.wake();
        }
    }

    /// Serves the queue until it is empty.
    async fn serve(self: Arc<Self>) {
        loop {
            let due = self.take_due(self.environment.monotonic_ns());
            due.into_iter().for_each(|ring| ring());
            let next = {
                let mut queue = self.queue.lock();
                let Some(next) = queue.entries.keys().next().map(|key| key.deadline_ns) else {
                    queue.is_served = false;
                    return;
                };
                next
            };
            let mut timer = self.environment.sleep_until(next);
            poll_fn(|context| {
                let mut queue = self.queue.lock();
                let first = queue.entries.keys().next().map(|key| key.deadline_ns);
                if first.is_none_or(|first| first < next) {
                    return Poll::Ready(());
                }
                queue.waiting = Some((next, context.waker().clone()));
                drop(queue);
                timer.as_mut().poll(context)
            })
            .await;
            self.queue.lock().waiting = None;
        }
    }

    fn take_due(&self, now_ns: u64) -> Vec<Ring> {
        let mut queue = self.queue.lock();
        let later = queue.entries.split_off(&AlarmKey { deadline_ns: now_ns.saturating_add(1), number: 0 });
        core::mem::replace(&mut queue.entries, later).into_values().collect()
    }

    /// Returns the time of the monotonic clock at which a clock reaches a time.
    fn monotonic_deadline(&self, clock: u32, deadline_ns: u64) -> u64 {
        match clock {
            CLOCK_REALTIME | CLOCK_REALTIME_ALARM | CLOCK_TAI => {
                let (now, unix) = (self.environment.monotonic_ns(), self.environment.unix_ns());
                now.saturating_add(deadline_ns.saturating_sub(unix))
            }
            _ => deadline_ns,
        }
    }
}

impl AlarmService for Alarms {
    fn now_ns(&self, clock: u32) -> Option<u64> {
        match clock {
            CLOCK_REALTIME | CLOCK_REALTIME_ALARM | CLOCK_TAI => Some(self.environment.unix_ns()),
            CLOCK_MONOTONIC | CLOCK_BOOTTIME | CLOCK_BOOTTIME_ALARM => Some(self.environment.monotonic_ns()),
            _ => None,
        }
    }

    fn set_alarm(&self, clock: u32, deadline_ns: u64, ring: Ring) -> AlarmKey {
        let deadline_ns = self.monotonic_deadline(clock, deadline_ns);
        let (key, starts, waker) = {
            let mut queue = self.queue.lock();
            queue.next_number += 1;
            let key = AlarmKey { deadline_ns, number: queue.next_number };
            queue.entries.insert(key, ring);
            let waker = queue.waiting.take_if(|(next, _)| deadline_ns < *next).map(|(_, waker)| waker);
            (key, !core::mem::replace(&mut queue.is_served, true), waker)
        };
        if starts && let Some(this) = self.this.upgrade() {
            self.environment.spawn(Box::new(move || Box::pin(this.serve())), TaskPlacement::default());
        }
        if let Some(waker) = waker {
            waker.wake();
        }
        key
    }

    fn cancel_alarm(&self, alarm: AlarmKey) {
        let removed = self.queue.lock().entries.remove(&alarm);
        // It may own what another lock protects.
        drop(removed);
    }
}

impl fmt::Debug for Alarms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Alarms({})", self.count())
    }
}
