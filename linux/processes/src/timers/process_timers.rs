//! The timers of a process.

use super::Alarms;
use super::processor::{IntervalTimers, ProcessorClock, Sleepers};
use crate::Errno;
use crate::calls::process_time;
use crate::process::Process;
use crate::signals::{SI_TIMER, Signal, SignalFacts, SignalInfo};
use crate::system::System;
use crate::thread::thread_time;
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};
use isola_linux_abi::numbers::{CLOCK_MONOTONIC, ITIMER_PROF, ITIMER_REAL, ITIMER_VIRTUAL};
use isola_linux_files::{AlarmKey, AlarmService, Countdown, TimerSetting, TimerStart};
use spin::Mutex;

/// The most overruns that a program learns of (`DELAYTIMER_MAX`).
const MOST_OVERRUNS: u64 = i32::MAX as u64;

/// The clock of a timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimerClock {
    /// A clock with alarms (`CLOCK_*`).
    Wall(u32),
    /// Processor time of the process.
    Process,
    /// Processor time of a thread of the process.
    Thread(u32),
}

/// The signal of a timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimerSignal {
    /// Its number.
    pub signal: Signal,
    /// The value that the handler gets; none for the timer's id.
    pub value: Option<u64>,
    /// The thread that gets it; none for the process.
    pub thread: Option<u32>,
}

/// The effect of a timer's expiration.
pub type TimerNotice = Option<TimerSignal>;

/// An interval timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IntervalClock {
    /// Time that passes, with SIGALRM.
    Real,
    /// Time in user mode, with SIGVTALRM.
    Virtual,
    /// Processor time, with SIGPROF.
    Profile,
}

impl IntervalClock {
    /// Returns the timer with Linux's number.
    ///
    /// # Errors
    /// [`Errno::EINVAL`].
    pub fn from_number(number: u32) -> Result<Self, Errno> {
        match number {
            ITIMER_REAL => Ok(Self::Real),
            ITIMER_VIRTUAL => Ok(Self::Virtual),
            ITIMER_PROF => Ok(Self::Profile),
            _ => Err(Errno::EINVAL),
        }
    }
}

/// The timers of a process.
#[derive(Debug, Default)]
pub struct ProcessTimers {
    pub(super) state: Mutex<State>,
    /// Whether there are timers by processor time.
    pub(super) has_processor_timers: AtomicBool,
}

#[derive(Debug, Default)]
pub(super) struct State {
    timers: BTreeMap<i32, PosixTimer>,
    real: RealTimer,
    pub(super) intervals: IntervalTimers,
    pub(super) sleepers: Sleepers,
    /// The number of settings of all timers: an alarm of an earlier one has no effect.
    settings: u64,
}

#[derive(Debug)]
struct PosixTimer {
    clock: TimerClock,
    notice: TimerNotice,
    countdown: Countdown,
    /// Whether its signal was sent and not delivered.
    is_signalled: bool,
    /// The overruns of the signal that was delivered last.
    overrun: i32,
    alarm: Option<AlarmKey>,
    settings: u64,
}

/// The timer of `ITIMER_REAL` and `alarm`.
#[derive(Debug, Default)]
struct RealTimer {
    countdown: Countdown,
    alarm: Option<AlarmKey>,
    settings: u64,
}

impl ProcessTimers {
    /// Returns whether a thread that has attention calls [`processor::check`](super::processor::check).
    #[inline]
    pub fn has_processor_timers(&self) -> bool {
        self.has_processor_timers.load(Ordering::Relaxed)
    }

    /// Creates a timer, and returns its id. `most` is the limit of the number of timers.
    ///
    /// # Errors
    /// [`Errno::EAGAIN`] at the limit.
    pub fn create(&self, clock: TimerClock, notice: TimerNotice, most: u64) -> Result<i32, Errno> {
        let mut state = self.state.lock();
        if state.timers.len() as u64 >= most.min(i32::MAX as u64) {
            return Err(Errno::EAGAIN);
        }
        // The lowest free id. Programs have few timers.
        let id = (0..).zip(state.timers.keys()).find(|(id, used)| id != *used).map(|(id, _)| id);
        let id = id.unwrap_or(state.timers.len() as i32);
        let timer = PosixTimer {
            clock,
            notice,
            countdown: Countdown::default(),
            is_signalled: false,
            overrun: 0,
            alarm: None,
            settings: 0,
        };
        state.timers.insert(id, timer);
        Ok(id)
    }

    /// Sets a timer, and returns the former setting.
    ///
    /// # Errors
    /// [`Errno::EINVAL`] if there is no such timer.
    pub fn set(
        &self,
        system: &Arc<System>,
        process: &Arc<Process>,
        id: i32,
        setting: TimerSetting,
        start: TimerStart,
    ) -> Result<TimerSetting, Errno> {
        let former = {
            let mut state = self.state.lock();
            state.settings += 1;
            let settings = state.settings;
            let timer = state.timers.get_mut(&id).ok_or(Errno::EINVAL)?;
            let now = now_ns(system, process, timer.clock);
            let former = timer.countdown.setting(now);
            timer.cancel(&system.alarms);
            timer.countdown = Countdown::new(setting, start, now);
            (timer.settings, timer.is_signalled, timer.overrun) = (settings, false, 0);
            if timer.clock.is_wall() {
                timer.arm(system, process, id);
            } else if timer.countdown.next_ns().is_some() {
                self.has_processor_timers.store(true, Ordering::Relaxed);
            }
            former
        };
        // A signal of the former setting is not delivered.
        discard_signal(process, id);
        interrupt_all(process, self.has_processor_timers());
        Ok(former)
    }

    /// Returns the setting of a timer, with the time until its next expiration.
    ///
    /// # Errors
    /// [`Errno::EINVAL`] if there is no such timer.
    pub fn setting(&self, system: &System, process: &Process, id: i32) -> Result<TimerSetting, Errno> {
        let mut state = self.state.lock();
        let timer = state.timers.get_mut(&id).ok_or(Errno::EINVAL)?;
        Ok(timer.countdown.setting(now_ns(system, process, timer.clock)))
    }

    /// Returns the overruns of the signal of a timer that was delivered last.
    ///
    /// # Errors
    /// [`Errno::EINVAL`] if there is no such timer.
    pub fn overrun(&self, id: i32) -> Result<i32, Errno> {
        self.state.lock().timers.get(&id).map(|timer| timer.overrun).ok_or(Errno::EINVAL)
    }

    /// Deletes a timer.
    ///
    /// # Errors
    /// [`Errno::EINVAL`] if there is no such timer.
    pub fn delete(&self, system: &System, process: &Process, id: i32) -> Result<(), Errno> {
        let mut timer = self.state.lock().timers.remove(&id).ok_or(Errno::EINVAL)?;
        timer.cancel(&system.alarms);
        discard_signal(process, id);
        Ok(())
    }

    /// Deletes the POSIX timers, as the process executes a new program. Interval timers stay.
    pub fn delete_all(&self, system: &System, process: &Process) {
        let timers = core::mem::take(&mut self.state.lock().timers);
        for (id, mut timer) in timers {
            timer.cancel(&system.alarms);
            discard_signal(process, id);
        }
    }

    /// Ends all timers with the process.
    pub fn end(&self, system: &System, process: &Process) {
        self.delete_all(system, process);
        let alarm = self.state.lock().real.alarm.take();
        if let Some(alarm) = alarm {
            system.alarms.cancel_alarm(alarm);
        }
    }

    /// Sets an interval timer, and returns the former setting.
    pub fn set_interval(
        &self,
        system: &Arc<System>,
        process: &Arc<Process>,
        which: IntervalClock,
        setting: TimerSetting,
    ) -> TimerSetting {
        let former = {
            let mut state = self.state.lock();
            if let Some(clock) = which.processor() {
                let now = clock.now_ns(process_time(system, process));
                let countdown = state.intervals.of(clock);
                let former = countdown.setting(now);
                *countdown = Countdown::new(setting, TimerStart::Relative, now);
                if countdown.next_ns().is_some() {
                    self.has_processor_timers.store(true, Ordering::Relaxed);
                }
                former
            } else {
                let now = system.environment.monotonic_ns();
                state.settings += 1;
                let settings = state.settings;
                let real = &mut state.real;
                let former = real.countdown.setting(now);
                if let Some(alarm) = real.alarm.take() {
                    system.alarms.cancel_alarm(alarm);
                }
                real.countdown = Countdown::new(setting, TimerStart::Relative, now);
                real.settings = settings;
                real.arm(system, process);
                former
            }
        };
        interrupt_all(process, self.has_processor_timers());
        former
    }

    /// Returns the setting of an interval timer, with the time until its next expiration.
    pub fn interval(&self, system: &System, process: &Process, which: IntervalClock) -> TimerSetting {
        let mut state = self.state.lock();
        match which.processor() {
            Some(clock) => {
                let now = clock.now_ns(process_time(system, process));
                state.intervals.of(clock).setting(now)
            }
            None => state.real.countdown.setting(system.environment.monotonic_ns()),
        }
    }

    /// Completes a signal that is being delivered, and sets the next alarm of its timer.
    pub fn delivered(&self, system: &Arc<System>, process: &Arc<Process>, info: &mut SignalInfo) {
        if let SignalFacts::Timer { id, overrun, .. } = &mut info.facts {
            let mut state = self.state.lock();
            let Some(timer) = state.timers.get_mut(id) else { return };
            let expirations = timer.countdown.take(now_ns(system, process, timer.clock));
            timer.is_signalled = false;
            timer.overrun = expirations.saturating_sub(1).min(MOST_OVERRUNS) as i32;
            *overrun = timer.overrun;
            match timer.clock {
                TimerClock::Wall(_) => timer.arm(system, process, *id),
                _ => self.has_processor_timers.store(true, Ordering::SeqCst),
            }
        } else if info.signal == Signal::SIGALRM {
            let mut state = self.state.lock();
            state.real.countdown.take(system.environment.monotonic_ns());
            state.real.arm(system, process);
        }
    }

    /// Lets the timers with this signal continue that expired while the signal was ignored.
    pub fn resume(&self, system: &Arc<System>, process: &Arc<Process>, signal: Signal) {
        let ids: Vec<i32> = {
            let state = self.state.lock();
            let has_signal = |timer: &PosixTimer| {
                timer.is_signalled && timer.notice.is_some_and(|notice| notice.signal == signal)
            };
            state.timers.iter().filter(|(_, timer)| has_signal(timer)).map(|(id, _)| *id).collect()
        };
        for id in ids.into_iter().filter(|id| !has_signal(process, *id)) {
            let facts = SignalFacts::Timer { id, overrun: 0, value: 0 };
            self.delivered(system, process, &mut SignalInfo { signal, code: SI_TIMER, errno: 0, facts });
        }
        if signal == Signal::SIGALRM {
            self.delivered(system, process, &mut SignalInfo::kernel(signal));
        }
    }

    /// Returns whether a timer by processor time will send a signal.
    pub(super) fn has_armed_processor_timer(&self) -> bool {
        let state = self.state.lock();
        let waits = |timer: &PosixTimer| {
            !timer.clock.is_wall() && !timer.is_signalled && timer.countdown.next_ns().is_some()
        };
        state.intervals.is_armed() || !state.sleepers.is_empty() || state.timers.values().any(waits)
    }

    /// Counts the expirations of the timers by processor time. Returns the signals to send, with their threads, and the
    /// least time until a next expiration.
    pub(super) fn check_processor_timers(
        &self,
        system: &System,
        process: &Process,
    ) -> (Vec<(SignalInfo, Option<u32>)>, Option<u64>) {
        let time = process_time(system, process);
        let mut signals = Vec::new();
        let mut state = self.state.lock();
        let mut left = state.intervals.check(time, &mut signals);
        state.sleepers.check(time);
        left = earlier(left, state.sleepers.left_ns(time));
        for (id, timer) in state.timers.iter_mut().filter(|(_, timer)| !timer.clock.is_wall()) {
            let now = now_ns(system, process, timer.clock);
            if timer.countdown.count(now) > 0 && !timer.is_signalled {
                timer.is_signalled = true;
                signals.extend(timer.signal(*id));
            }
            let next = timer.countdown.next_ns().filter(|_| !timer.is_signalled);
            left = earlier(left, next.map(|next| next - now));
        }
        (signals, left)
    }
}

/// Returns the lesser of two times.
pub(super) fn earlier(first: Option<u64>, second: Option<u64>) -> Option<u64> {
    first.into_iter().chain(second).min()
}

impl TimerClock {
    fn is_wall(self) -> bool {
        matches!(self, Self::Wall(_))
    }
}

impl IntervalClock {
    /// Returns the clock of a timer by processor time.
    fn processor(self) -> Option<ProcessorClock> {
        match self {
            Self::Real => None,
            Self::Virtual => Some(ProcessorClock::User),
            Self::Profile => Some(ProcessorClock::Total),
        }
    }
}

fn now_ns(system: &System, process: &Process, clock: TimerClock) -> u64 {
    let time = match clock {
        TimerClock::Wall(clock) => return system.alarms.now_ns(clock).unwrap_or(0),
        TimerClock::Process => process_time(system, process),
        TimerClock::Thread(tid) => {
            let clock = system.environment.cycles();
            process.thread(tid).map_or_else(Default::default, |thread| thread_time(&thread, clock))
        }
    };
    ProcessorClock::Total.now_ns(time)
}

impl PosixTimer {
    fn cancel(&mut self, alarms: &Alarms) {
        if let Some(alarm) = self.alarm.take() {
            alarms.cancel_alarm(alarm);
        }
    }

    /// Sets the alarm of the next expiration, if there is one and its signal is delivered.
    fn arm(&mut self, system: &Arc<System>, process: &Arc<Process>, id: i32) {
        // A timer without a signal is only asked for its time.
        let TimerClock::Wall(clock) = self.clock else { return };
        let (Some(next_ns), Some(_), None) = (self.countdown.next_ns(), self.notice, self.alarm) else {
            return;
        };
        let (system_of, process_of) = (Arc::downgrade(system), Arc::downgrade(process));
        let settings = self.settings;
        let ring = move || {
            if let (Some(system), Some(process)) = (system_of.upgrade(), process_of.upgrade()) {
                rang(&system, &process, id, settings);
            }
        };
        self.alarm = Some(system.alarms.set_alarm(clock, next_ns, Box::new(ring)));
    }

    /// Returns the signal of an expiration, and its thread.
    fn signal(&self, id: i32) -> Option<(SignalInfo, Option<u32>)> {
        let TimerSignal { signal, value, thread } = self.notice?;
        let facts = SignalFacts::Timer { id, overrun: 0, value: value.unwrap_or(id as u64) };
        Some((SignalInfo { signal, code: SI_TIMER, errno: 0, facts }, thread))
    }
}

impl RealTimer {
    fn arm(&mut self, system: &Arc<System>, process: &Arc<Process>) {
        let (Some(next_ns), None) = (self.countdown.next_ns(), self.alarm) else { return };
        let (system_of, process_of) = (Arc::downgrade(system), Arc::downgrade(process));
        let settings = self.settings;
        let ring = move || {
            let (Some(system), Some(process)) = (system_of.upgrade(), process_of.upgrade()) else { return };
            {
                let mut state = process.timers.state.lock();
                if state.real.settings != settings {
                    return;
                }
                state.real.alarm = None;
                state.real.countdown.count(system.environment.monotonic_ns());
            }
            // A standard signal never meets a full queue.
            let _ = system.send(&process, SignalInfo::kernel(Signal::SIGALRM));
        };
        self.alarm = Some(system.alarms.set_alarm(CLOCK_MONOTONIC, next_ns, Box::new(ring)));
    }
}

/// Handles the alarm of a timer.
fn rang(system: &Arc<System>, process: &Arc<Process>, id: i32, settings: u64) {
    let signal = {
        let mut state = process.timers.state.lock();
        let Some(timer) = state.timers.get_mut(&id).filter(|timer| timer.settings == settings) else {
            return;
        };
        timer.alarm = None;
        timer.countdown.count(now_ns(system, process, timer.clock));
        timer.is_signalled = true;
        timer.signal(id)
    };
    if let Some((info, thread)) = signal {
        send(system, process, info, thread);
    }
}

/// Sends the signal of a timer.
pub(super) fn send(system: &System, process: &Arc<Process>, info: SignalInfo, thread: Option<u32>) {
    // The signal of a thread that has ended is lost, as in Linux. The queue always has room for timers.
    let _ = match thread {
        None => system.send(process, info),
        Some(tid) => match process.thread(tid) {
            Some(thread) => system.send_to_thread(process, &thread, info),
            None => Ok(()),
        },
    };
}

/// Returns whether a signal of a timer is pending.
fn has_signal(process: &Process, id: i32) -> bool {
    process.signals.lock().pending.has_timer(id)
        || process.threads().iter().any(|thread| thread.signals.lock().pending.has_timer(id))
}

/// Discards the pending signal of a timer.
fn discard_signal(process: &Process, id: i32) {
    process.signals.lock().pending.discard_timer(id);
    for thread in process.threads() {
        thread.signals.lock().pending.discard_timer(id);
    }
}

/// Makes threads check the timers by processor time, if there are any.
fn interrupt_all(process: &Process, has_processor_timers: bool) {
    if has_processor_timers {
        process.threads().iter().for_each(|thread| thread.interrupt());
    }
}
