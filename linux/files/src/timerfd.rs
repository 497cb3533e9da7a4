//! Timers as open files (`timerfd_create`).

use crate::Errno;
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
    /// Returns the time of a clock (`CLOCK_*`) in nanoseconds; `None` if there is no such clock.
    fn now_ns(&self, clock: u32) -> Option<u64>;

    /// Calls `ring` once, when the clock has reached the deadline. Alarms are not cancelled: a late one has no effect.
    fn ring_at(&self, clock: u32, deadline_ns: u64, ring: Box<dyn FnOnce() + Send>);
}

/// The shortest time between alarms, in nanoseconds: expirations of a shorter interval are counted, several at once.
const SHORTEST_NS: u64 = 50_000;

/// The setting of a timer, in nanoseconds: `struct itimerspec`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimerSetting {
    /// The interval between expirations after the first one; 0 for a single one.
    pub interval_ns: u64,
    /// The time until the next expiration, or its absolute time when it is set; 0 if the timer is not armed.
    pub value_ns: u64,
}

/// A timer.
pub struct Timer {
    alarms: Arc<dyn AlarmService>,
    clock: u32,
    state: Mutex<TimerState>,
    pollee: Pollee,
    this: Weak<Self>,
}

#[derive(Default)]
struct TimerState {
    /// The time of the next expiration that was not counted; 0 if the timer is not armed.
    next_ns: u64,
    interval_ns: u64,
    expirations: u64,
    /// The number of settings: an alarm of an earlier one has no effect.
    settings: u64,
}

impl TimerState {
    /// Counts the expirations until now.
    fn count(&mut self, now_ns: u64) {
        if self.next_ns == 0 || now_ns < self.next_ns {
            return;
        }
        let more = (now_ns - self.next_ns).checked_div(self.interval_ns);
        self.expirations = self.expirations.saturating_add(1 + more.unwrap_or(0));
        self.next_ns = match more {
            Some(more) => self.next_ns.saturating_add((more + 1).saturating_mul(self.interval_ns)),
            None => 0,
        };
    }
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
        let now = self.now_ns();
        let former = self.setting();
        let next_ns = match (setting.value_ns, flags & linux::TFD_TIMER_ABSTIME) {
            (0, _) => 0,
            (value, 0) => now.saturating_add(value),
            (value, _) => value,
        };
        let mut state = self.state.lock();
        let settings = state.settings + 1;
        *state = TimerState { next_ns, interval_ns: setting.interval_ns, expirations: 0, settings };
        drop(state);
        self.arm(0);
        Ok(former)
    }

    /// Returns the setting: the time until the next expiration.
    pub fn setting(&self) -> TimerSetting {
        let now = self.now_ns();
        let mut state = self.state.lock();
        state.count(now);
        let value_ns = if state.next_ns == 0 { 0 } else { state.next_ns - now };
        TimerSetting { interval_ns: state.interval_ns, value_ns }
    }

    /// Requests the alarm of the next expiration, but not before `earliest_ns`.
    fn arm(&self, earliest_ns: u64) {
        let (next_ns, settings) = {
            let state = self.state.lock();
            (state.next_ns, state.settings)
        };
        if next_ns == 0 {
            return;
        }
        let this = self.this.clone();
        let ring = move || {
            let Some(timer) = this.upgrade() else { return };
            if timer.state.lock().settings == settings {
                let now = timer.now_ns();
                timer.state.lock().count(now);
                timer.pollee.notify(Events::IN);
                timer.arm(now.saturating_add(SHORTEST_NS));
            }
        };
        self.alarms.ring_at(self.clock, next_ns.max(earliest_ns), Box::new(ring));
    }
}

impl FileObject for Timer {
    fn read(&self, buffer: &mut UserBuffer) -> Result<usize, Errno> {
        if buffer.len() < 8 {
            return Err(Errno::EINVAL);
        }
        let now = self.now_ns();
        let mut state = self.state.lock();
        state.count(now);
        let count = core::mem::take(&mut state.expirations);
        drop(state);
        if count == 0 { Err(Errno::EAGAIN) } else { Ok(buffer.write(&count.to_ne_bytes())) }
    }

    fn ready(&self) -> Events {
        let now = self.now_ns();
        let mut state = self.state.lock();
        state.count(now);
        if state.expirations > 0 { Events::IN } else { Events::NONE }
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
