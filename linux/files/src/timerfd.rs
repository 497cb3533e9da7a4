//! Timers as open files (`timerfd_create`).

use crate::Errno;
use crate::countdown::{Countdown, TimerSetting, TimerStart};
use crate::events::{Events, Pollee};
use crate::metadata::{InodeKind, Metadata};
use crate::object::FileObject;
use crate::open_file::OpenFile;
use alloc::boxed::Box;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use isola_linux_abi::numbers as linux;
use isola_linux_memory::UserBuffer;
use spin::Mutex;

/// The clocks and alarms of the system.
pub trait AlarmService: Send + Sync {
    /// Returns the time of a clock (`CLOCK_*`) in nanoseconds; `None` if the clock has no alarms.
    fn now_ns(&self, clock: u32) -> Option<u64>;

    /// Calls `ring` once, when the clock has reached the deadline, from any core and without locks.
    fn set_alarm(&self, clock: u32, deadline_ns: u64, ring: Box<dyn FnOnce() + Send>) -> AlarmKey;

    /// Cancels an alarm, if it has not rung.
    fn cancel_alarm(&self, alarm: AlarmKey);
}

/// An alarm that was set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AlarmKey {
    /// The deadline by the monotonic clock, in nanoseconds.
    pub deadline_ns: u64,
    /// The number of the alarm, which no other has.
    pub number: u64,
}

/// A timer. After an expiration its next alarm is set when the program reads or asks for the rest of the time, as in Linux:
/// a timer that is not read causes no work.
pub struct Timer {
    alarms: Arc<dyn AlarmService>,
    clock: u32,
    state: Mutex<TimerState>,
    pollee: Pollee,
    this: Weak<Self>,
}

#[derive(Default)]
struct TimerState {
    countdown: Countdown,
    alarm: Option<AlarmKey>,
    /// The number of settings: an alarm of an earlier one has no effect.
    settings: u64,
}

impl Timer {
    /// Creates a timer, with the flags of `timerfd_create`.
    ///
    /// # Errors
    /// [`Errno::EINVAL`] for unknown flags, or a clock that has no timers.
    pub fn open(alarms: Arc<dyn AlarmService>, clock: u32, flags: u32) -> Result<Arc<OpenFile>, Errno> {
        if flags & !(linux::TFD_CLOEXEC | linux::TFD_NONBLOCK) != 0 || alarms.now_ns(clock).is_none() {
            return Err(Errno::EINVAL);
        }
        let timer = Arc::new_cyclic(|this| Self {
            alarms,
            clock,
            state: Mutex::default(),
            pollee: Pollee::new(),
            this: this.clone(),
        });
        Ok(OpenFile::of_object(timer, linux::O_RDWR | flags & linux::TFD_NONBLOCK))
    }

    fn now_ns(&self) -> u64 {
        self.alarms.now_ns(self.clock).unwrap_or(0)
    }

    /// Sets the timer, with the flags of `timerfd_settime`. Returns the former setting.
    ///
    /// # Errors
    /// [`Errno::EINVAL`] for unknown flags.
    pub fn set(&self, setting: TimerSetting, flags: u32) -> Result<TimerSetting, Errno> {
        if flags & !(linux::TFD_TIMER_ABSTIME | linux::TFD_TIMER_CANCEL_ON_SET) != 0 {
            return Err(Errno::EINVAL);
        }
        let start = match flags & linux::TFD_TIMER_ABSTIME {
            0 => TimerStart::Relative,
            _ => TimerStart::Absolute,
        };
        let now = self.now_ns();
        let mut state = self.state.lock();
        let former = state.countdown.setting(now);
        if let Some(alarm) = state.alarm.take() {
            self.alarms.cancel_alarm(alarm);
        }
        state.settings += 1;
        state.countdown = Countdown::new(setting, start, now);
        self.arm(&mut state);
        Ok(former)
    }

    /// Returns the setting: the time until the next expiration.
    pub fn setting(&self) -> TimerSetting {
        let now = self.now_ns();
        let mut state = self.state.lock();
        let setting = state.countdown.setting(now);
        self.arm(&mut state);
        setting
    }

    /// Sets the alarm of the next expiration, if there is one and it has no alarm.
    fn arm(&self, state: &mut TimerState) {
        let Some(next_ns) = state.countdown.next_ns().filter(|_| state.alarm.is_none()) else { return };
        let (this, settings) = (self.this.clone(), state.settings);
        let ring = move || {
            let Some(timer) = this.upgrade() else { return };
            let now = timer.now_ns();
            let mut state = timer.state.lock();
            if state.settings != settings {
                return;
            }
            state.alarm = None;
            state.countdown.count(now);
            drop(state);
            timer.pollee.notify(Events::IN);
        };
        state.alarm = Some(self.alarms.set_alarm(self.clock, next_ns, Box::new(ring)));
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        if let Some(alarm) = self.state.get_mut().alarm {
            self.alarms.cancel_alarm(alarm);
        }
    }
}

impl FileObject for Timer {
    fn read(&self, buffer: &mut UserBuffer) -> Result<usize, Errno> {
        if buffer.len() < 8 {
            return Err(Errno::EINVAL);
        }
        let now = self.now_ns();
        let mut state = self.state.lock();
        let count = state.countdown.take(now);
        if count > 0 && state.countdown.is_periodic() {
            // The alarm of an expiration that this read has counted may not have rung yet.
            if let Some(alarm) = state.alarm.take() {
                self.alarms.cancel_alarm(alarm);
            }
            self.arm(&mut state);
        }
        drop(state);
        if count == 0 { Err(Errno::EAGAIN) } else { Ok(buffer.write(&count.to_ne_bytes())) }
    }

    fn ready(&self) -> Events {
        let now = self.now_ns();
        if self.state.lock().countdown.count(now) > 0 { Events::IN } else { Events::NONE }
    }

    fn pollee(&self) -> Option<&Pollee> {
        Some(&self.pollee)
    }

    fn metadata(&self) -> Metadata {
        Metadata::anonymous(InodeKind::File, 0, 0o600)
    }

    fn description(&self) -> Vec<u8> {
        b"anon_inode:[timerfd]".to_vec()
    }
}
