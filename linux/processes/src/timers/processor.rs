//! Timers by processor time: `ITIMER_VIRTUAL`, `ITIMER_PROF`, POSIX timers of processor clocks, sleeps by them, and
//! `RLIMIT_CPU`.

use super::process_timers::{earlier, send};
use crate::exit_status::ExitStatus;
use crate::family::ProcessorTime;
use crate::limits::{Limit, UNLIMITED};
use crate::signals::{Signal, SignalInfo};
use crate::thread::Thread;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use core::task::Waker;
use isola_linux_abi::numbers::CLOCK_MONOTONIC;
use isola_linux_files::{AlarmService, Countdown};

/// The shortest time that a program runs between two checks, in nanoseconds: 1 ms.
const SHORTEST_NS: u64 = 1_000_000;
const SECOND: u64 = 1_000_000_000;

/// A clock of processor time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessorClock {
    /// Time in user mode.
    User,
    /// Time in user mode and in calls.
    Total,
}

impl ProcessorClock {
    /// Returns the clock's time.
    pub fn now_ns(self, time: ProcessorTime) -> u64 {
        match self {
            Self::User => time.user_ns,
            Self::Total => time.user_ns + time.system_ns,
        }
    }
}

/// The interval timers by processor time, and the limit of processor time.
#[derive(Debug, Default)]
pub(super) struct IntervalTimers {
    virtual_time: Countdown,
    profile: Countdown,
    /// The seconds after which SIGXCPU is sent again, once the soft limit was reached.
    next_limit_signal: u64,
}

impl IntervalTimers {
    pub(super) fn is_armed(&self) -> bool {
        self.virtual_time.next_ns().is_some() || self.profile.next_ns().is_some()
    }

    pub(super) fn of(&mut self, clock: ProcessorClock) -> &mut Countdown {
        match clock {
            ProcessorClock::User => &mut self.virtual_time,
            ProcessorClock::Total => &mut self.profile,
        }
    }

    /// Adds the signals of expired timers. Returns the least time until a next expiration.
    pub(super) fn check(
        &mut self,
        time: ProcessorTime,
        signals: &mut Vec<(SignalInfo, Option<u32>)>,
    ) -> Option<u64> {
        let mut left = None;
        let timers = [(ProcessorClock::User, Signal::SIGVTALRM), (ProcessorClock::Total, Signal::SIGPROF)];
        for (clock, signal) in timers {
            let now = clock.now_ns(time);
            let countdown = self.of(clock);
            if countdown.take(now) > 0 {
                signals.push((SignalInfo::kernel(signal), None));
            }
            left = earlier(left, countdown.next_ns().map(|next| next - now));
        }
        left
    }

    /// Returns the signal of the limit of processor time, if it is reached, and the time until the next one.
    fn check_limit(&mut self, time: ProcessorTime, limit: Limit) -> (Option<Signal>, Option<u64>) {
        let now = ProcessorClock::Total.now_ns(time);
        let seconds = now / SECOND;
        if seconds >= limit.hard {
            return (Some(Signal::SIGKILL), None);
        }
        if limit.soft == UNLIMITED {
            return (None, None);
        }
        let is_reached = seconds >= limit.soft.max(self.next_limit_signal);
        if is_reached {
            // As in Linux, the signal comes again after each further second.
            self.next_limit_signal = seconds + 1;
        }
        let next = limit.soft.max(self.next_limit_signal).saturating_mul(SECOND);
        (is_reached.then_some(Signal::SIGXCPU), Some(next.saturating_sub(now)))
    }
}

/// The threads that sleep until the process has used a time (`clock_nanosleep`).
#[derive(Debug, Default)]
pub(super) struct Sleepers(Vec<(u64, Waker)>);

impl Sleepers {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Wakes the threads whose time has come.
    pub(super) fn check(&mut self, time: ProcessorTime) {
        let now = ProcessorClock::Total.now_ns(time);
        self.0.extract_if(.., |(until, _)| *until <= now).for_each(|(_, waker)| waker.wake());
    }

    /// Returns the least time until a thread is woken.
    pub(super) fn left_ns(&self, time: ProcessorTime) -> Option<u64> {
        let now = ProcessorClock::Total.now_ns(time);
        self.0.iter().map(|(until, _)| until.saturating_sub(now)).min()
    }
}

impl super::ProcessTimers {
    /// Wakes a task when the process has used a time. A task whose wait ends earlier is woken needlessly.
    pub fn wake_at(&self, until_ns: u64, waker: &Waker) {
        let sleepers = &mut self.state.lock().sleepers.0;
        match sleepers.iter_mut().find(|(until, other)| *until == until_ns && other.will_wake(waker)) {
            Some(_) => {}
            None => sleepers.push((until_ns, waker.clone())),
        }
        self.has_processor_timers.store(true, Ordering::Relaxed);
    }

    /// Makes threads check `RLIMIT_CPU`.
    pub fn set_processor_limit(&self, limit: Limit) {
        if limit.soft != UNLIMITED || limit.hard != UNLIMITED {
            self.has_processor_timers.store(true, Ordering::Relaxed);
        }
    }
}

/// Checks the timers by processor time, before a thread runs its program: sends the signals of expired timers, and sets the
/// thread's alarm for the next expiration.
pub fn check(thread: &mut Thread) {
    let (system, process) = (&thread.system, &thread.process);
    let timers = &process.timers;
    let (signals, mut left) = timers.check_processor_timers(system, process);
    let limit = process.limits.lock().processor_time();
    if limit.soft != UNLIMITED || limit.hard != UNLIMITED {
        let time = crate::calls::process_time(system, process);
        let (signal, next) = timers.state.lock().intervals.check_limit(time, limit);
        let hard = limit.hard.saturating_mul(SECOND);
        left = earlier(left, next);
        left = earlier(left, Some(hard.saturating_sub(ProcessorClock::Total.now_ns(time))));
        match signal {
            Some(Signal::SIGKILL) => {
                process.end(ExitStatus::Killed { signal: Signal::SIGKILL, dumps_core: false });
            }
            Some(signal) => send(system, process, SignalInfo::kernel(signal), None),
            None => {}
        }
    }
    for (info, target) in signals {
        send(system, process, info, target);
    }
    let Some(left) = left else {
        timers.has_processor_timers.store(false, Ordering::SeqCst);
        // Another thread may have set a timer before that.
        if timers.has_armed_processor_timer() {
            timers.has_processor_timers.store(true, Ordering::SeqCst);
        }
        timers.set_processor_limit(process.limits.lock().processor_time());
        return;
    };
    // The process's clock advances at most as fast as all its threads run at the same time.
    let threads = process.thread_count().min(system.environment.core_count()).max(1) as u64;
    let now = system.environment.monotonic_ns();
    let deadline_ns = now.saturating_add((left / threads).max(SHORTEST_NS));
    if thread.processor_alarm.is_some_and(|set| now < set.deadline_ns && set.deadline_ns <= deadline_ns) {
        return;
    }
    if let Some(alarm) = thread.processor_alarm.take() {
        system.alarms.cancel_alarm(alarm);
    }
    let state = thread.state.clone();
    let ring = Box::new(move || state.interrupt());
    thread.processor_alarm = Some(system.alarms.set_alarm(CLOCK_MONOTONIC, deadline_ns, ring));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time(user_ns: u64, system_ns: u64) -> ProcessorTime {
        ProcessorTime { user_ns, system_ns }
    }

    #[test]
    fn the_limit_sends_a_signal_each_second_and_then_kills() {
        let mut timers = IntervalTimers::default();
        let limit = Limit { soft: 2, hard: 4 };
        let mut at = |ms: u64| timers.check_limit(time(ms * 1_000_000, 0), limit);
        assert_eq!(at(1_500), (None, Some(500_000_000)));
        assert_eq!(at(2_100), (Some(Signal::SIGXCPU), Some(900_000_000)));
        assert_eq!(at(2_900).0, None);
        assert_eq!(at(3_000).0, Some(Signal::SIGXCPU));
        assert_eq!(at(4_000), (Some(Signal::SIGKILL), None));
    }
}
