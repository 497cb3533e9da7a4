//! Alarms and sleeping, without a periodic tick. The core arms its one-shot timer for the next alarm when it halts. It
//! does not arm the timer while it runs, as the loop reads the cycle counter in each pass anyway.

use crate::accounting::{Accounting, Charge};
use crate::alarms::{ActionKind, AlarmAction, AlarmKey, AlarmTree, Alarms};
use crate::halt::MayHalt;
use alloc::boxed::Box;
use alloc::rc::Rc;
use core::cell::{Cell, RefCell};
use core::future::{Future, poll_fn};
use core::marker::PhantomData;
use core::pin::{Pin, pin};
use core::task::{Context, Poll};
use core::time::Duration;
use isola_ebbs::{Ebb, Representative, cycles, platform};
use isola_platform::Instant;

/// The timers of each core.
pub static TIMERS: Ebb<Timers> = Ebb::new();

/// The timers of a core.
pub struct Timers {
    alarms: RefCell<Box<dyn Alarms>>,
    /// The cycle count at which the first alarm is due; `u64::MAX` if there is none.
    next: Cell<u64>,
    /// The deadline for which the hardware timer was last armed.
    armed: Cell<ArmedFor>,
    serial: Cell<u64>,
}

/// The state of the hardware timer.
#[derive(Clone, Copy)]
enum ArmedFor {
    Nothing,
    Deadline(Armed),
    /// Another core may have armed it since.
    Unknown,
}

/// A deadline for which the hardware timer was armed, in cycles.
#[derive(Clone, Copy)]
struct Armed {
    deadline: u64,
    /// The cycle count from which on the timer may have fired before the deadline.
    unsure_from: u64,
}

/// Longer delays than this, in cycles, may exceed the hardware timer's range, which then fires early: some tens of
/// seconds.
const LONG_DELAY: u64 = 1 << 36;

impl Armed {
    /// Describes a timer armed at `now`. The timer may fire before its deadline: it runs on a separate clock with a
    /// measured frequency, and its range is limited. The error is assumed to be less than half the delay.
    fn at(now: u64, deadline: u64) -> Self {
        let delay = deadline.saturating_sub(now);
        Self { deadline, unsure_from: now.saturating_add((delay / 2).min(LONG_DELAY)) }
    }
}

impl Representative for Timers {
    fn create() -> Self {
        Self::with_alarms(AlarmTree::default())
    }
}

impl Timers {
    /// Creates timers that keep their alarms in `alarms`.
    pub fn with_alarms(alarms: impl Alarms + 'static) -> Self {
        let (alarms, next) = (RefCell::new(Box::new(alarms) as _), Cell::new(u64::MAX));
        Self { alarms, next, armed: Cell::new(ArmedFor::Nothing), serial: Cell::new(0) }
    }

    fn set(&self, deadline: Instant, kind: ActionKind) -> AlarmKey {
        let deadline_cycles = platform().clock().cycles(deadline);
        let key = AlarmKey { deadline_cycles, serial: self.serial.get() };
        self.serial.set(key.serial + 1);
        self.alarms.borrow_mut().insert(key, AlarmAction(kind));
        self.next.set(self.next.get().min(deadline_cycles));
        key
    }

    fn cancel(&self, key: AlarmKey) {
        let mut alarms = self.alarms.borrow_mut();
        let removed = alarms.remove(key);
        if removed.is_some() && key.deadline_cycles == self.next.get() {
            self.next.set(first_deadline(&**alarms));
        }
        // No borrow is held here: dropping a waker may cancel alarms as well.
        drop(alarms);
        drop(removed);
    }

    fn pop_due(&self, now: u64) -> Option<ActionKind> {
        if now < self.next.get() {
            return None;
        }
        let mut alarms = self.alarms.borrow_mut();
        let action = alarms.pop_due(now);
        self.next.set(first_deadline(&**alarms));
        action.map(|AlarmAction(kind)| kind)
    }

    /// Rings all due alarms.
    #[inline]
    pub(crate) fn run_due(&self, accounting: &Accounting) {
        // The last boundary is only a few instructions old, and saves a reading of the cycle counter.
        let now = accounting.last_boundary();
        if now >= self.next.get() {
            self.run_all_due(now, accounting);
        }
    }

    #[inline(never)]
    fn run_all_due(&self, now: u64, accounting: &Accounting) {
        accounting.switch(Charge::Interrupt);
        while let Some(action) = self.pop_due(now) {
            match action {
                ActionKind::Call(handler) => handler(),
                ActionKind::Wake(waker) => waker.wake(),
            }
        }
        accounting.end_handlers();
        accounting.switch(Charge::Loop);
    }

    /// Returns the cycle count at which the first alarm is due; `u64::MAX` if there is none.
    pub(crate) fn next(&self) -> u64 {
        self.next.get()
    }

    /// Records that the hardware timer's state is unknown, or that another core's timer is in use.
    pub(crate) fn forget_armed(&self) {
        self.armed.set(ArmedFor::Unknown);
    }

    /// Arms the hardware timer for `next`, in cycles. The core may not halt if the reading `now` has already reached
    /// it.
    #[inline]
    pub(crate) fn arm(&self, next: u64, now: u64) -> MayHalt {
        if next <= now {
            return MayHalt::No;
        }
        let wanted = (next != u64::MAX).then_some(next);
        let is_armed = match self.armed.get() {
            ArmedFor::Deadline(armed) => wanted == Some(armed.deadline) && now < armed.unsure_from,
            ArmedFor::Nothing => wanted.is_none(),
            ArmedFor::Unknown => false,
        };
        if !is_armed {
            platform().arm_timer(wanted);
            let armed = wanted.map(|deadline| ArmedFor::Deadline(Armed::at(now, deadline)));
            self.armed.set(armed.unwrap_or(ArmedFor::Nothing));
        }
        MayHalt::Yes
    }

    /// As [`Self::arm`], for a program in user mode, which an early interrupt only delays: a timer that is armed for an
    /// earlier time stays so. Programs that take turns then arm it once in a slice, not at each turn.
    #[inline]
    pub(crate) fn arm_by(&self, next: u64) -> MayHalt {
        // The time does not matter.
        if next == u64::MAX {
            return MayHalt::Yes;
        }
        let now = cycles();
        match self.armed.get() {
            ArmedFor::Deadline(armed) if armed.deadline <= next && now < armed.unsure_from => MayHalt::Yes,
            _ => self.arm(next, now),
        }
    }
}

fn first_deadline(alarms: &dyn Alarms) -> u64 {
    alarms.first().map_or(u64::MAX, |first| first.deadline_cycles)
}

/// Returns the current time.
pub fn now() -> Instant {
    platform().clock().instant(cycles())
}

/// An alarm that calls a handler on this core and can be set repeatedly.
pub struct Alarm {
    handler: Rc<dyn Fn()>,
    set: Rc<Cell<Option<AlarmKey>>>,
}

impl Alarm {
    /// Creates an alarm that is not set. The handler runs in the loop, between events, and should spawn events for
    /// longer work.
    pub fn new(handler: impl Fn() + 'static) -> Self {
        let set = Rc::new(Cell::new(None));
        let ringing = set.clone();
        let handler = Rc::new(move || {
            ringing.set(None);
            handler();
        });
        Self { handler, set }
    }

    /// Sets the alarm to ring at `deadline`, or never for `None`. Replaces the earlier deadline.
    pub fn set(&self, deadline: Option<Instant>) {
        if let Some(key) = self.set.take() {
            TIMERS.cancel(key);
        }
        let ring = |deadline| TIMERS.set(deadline, ActionKind::Call(self.handler.clone()));
        self.set.set(deadline.map(ring));
    }

    /// Returns whether the alarm is set and has not rung.
    pub fn is_set(&self) -> bool {
        self.set.get().is_some()
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        self.set(None);
    }
}

/// Completes at `deadline`.
pub fn sleep_until(deadline: Instant) -> Sleep {
    Sleep { deadline, set: None, _core: PhantomData }
}

/// Completes after `duration`.
pub fn sleep(duration: Duration) -> Sleep {
    sleep_until(now() + duration)
}

/// A future that completes at its deadline.
#[derive(Debug)]
#[must_use = "futures do nothing until they are awaited"]
pub struct Sleep {
    deadline: Instant,
    set: Option<AlarmKey>,
    /// The alarm belongs to the core that polled the future, so the future must stay there.
    _core: PhantomData<*const ()>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if let Some(key) = self.set.take() {
            TIMERS.cancel(key);
        }
        if now() >= self.deadline {
            return Poll::Ready(());
        }
        self.set = Some(TIMERS.set(self.deadline, ActionKind::Wake(context.waker().clone())));
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(key) = self.set.take() {
            TIMERS.cancel(key);
        }
    }
}

/// The error of a [`timeout`] that expired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Elapsed;

impl core::fmt::Display for Elapsed {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("the time for it ran out")
    }
}

impl core::error::Error for Elapsed {}

/// Completes with the output of `future`, or with [`Elapsed`] after `duration`; then `future` is dropped.
///
/// # Errors
/// [`Elapsed`] if the future does not complete in time.
pub async fn timeout<F: Future>(duration: Duration, future: F) -> Result<F::Output, Elapsed> {
    let mut future = pin!(future);
    let mut sleep = pin!(sleep(duration));
    poll_fn(|context| {
        if let Poll::Ready(output) = future.as_mut().poll(context) {
            return Poll::Ready(Ok(output));
        }
        sleep.as_mut().poll(context).map(|()| Err(Elapsed))
    })
    .await
}
