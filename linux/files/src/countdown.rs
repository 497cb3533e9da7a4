//! The expirations of a timer, as `timerfd`, POSIX timers and interval timers count them.

/// The setting of a timer, in nanoseconds: `struct itimerspec`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimerSetting {
    /// The interval between expirations after the first one; 0 for a single one.
    pub interval_ns: u64,
    /// The time until the next expiration, or its absolute time when it is set; 0 if the timer is not armed.
    pub value_ns: u64,
}

/// Whether the value of a setting is a time of the clock or a time from now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimerStart {
    /// From now.
    Relative,
    /// A time of the clock.
    Absolute,
}

/// The expirations of a timer. It has no clock of its own: a method gets the present time of the timer's clock, and counts
/// the expirations until then. So a timer that no thread waits for needs no event when it expires.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Countdown {
    /// The time of the next expiration that was not counted; 0 if the timer is not armed.
    next_ns: u64,
    interval_ns: u64,
    expirations: u64,
}

impl Countdown {
    /// Returns the countdown of a setting.
    pub fn new(setting: TimerSetting, start: TimerStart, now_ns: u64) -> Self {
        let next_ns = match (setting.value_ns, start) {
            (0, _) => 0,
            (value, TimerStart::Relative) => now_ns.saturating_add(value),
            (value, TimerStart::Absolute) => value,
        };
        Self { next_ns, interval_ns: setting.interval_ns, expirations: 0 }
    }

    /// Counts the expirations until now. Returns their number since the latest [`Self::take`].
    pub fn count(&mut self, now_ns: u64) -> u64 {
        if self.next_ns != 0 && now_ns >= self.next_ns {
            let more = (now_ns - self.next_ns).checked_div(self.interval_ns);
            self.expirations = self.expirations.saturating_add(1 + more.unwrap_or(0));
            self.next_ns = match more {
                Some(more) => self.next_ns.saturating_add((more + 1).saturating_mul(self.interval_ns)),
                None => 0,
            };
        }
        self.expirations
    }

    /// Returns the number of expirations since the latest call.
    pub fn take(&mut self, now_ns: u64) -> u64 {
        self.count(now_ns);
        core::mem::take(&mut self.expirations)
    }

    /// Returns the setting, with the time until the next expiration.
    pub fn setting(&mut self, now_ns: u64) -> TimerSetting {
        self.count(now_ns);
        let value_ns = if self.next_ns == 0 { 0 } else { self.next_ns - now_ns };
        TimerSetting { interval_ns: self.interval_ns, value_ns }
    }

    /// Returns the time of the next expiration that was not counted; `None` if the timer is not armed.
    pub fn next_ns(&self) -> Option<u64> {
        (self.next_ns != 0).then_some(self.next_ns)
    }

    /// Returns whether it expires repeatedly.
    pub fn is_periodic(&self) -> bool {
        self.interval_ns != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts the expirations one by one.
    fn counted(first: u64, interval: u64, now: u64) -> (u64, u64) {
        let (mut next, mut count) = (first, 0);
        while next != 0 && next <= now {
            count += 1;
            next = if interval == 0 { 0 } else { next + interval };
        }
        (count, if next == 0 { 0 } else { next - now })
    }

    #[test]
    fn random_settings_expire_as_if_counted_one_by_one() {
        let mut random = 1_u64;
        let mut below = |limit: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % limit
        };
        for _ in 0..2000 {
            let (start, value, interval) = (below(1000), below(50), below(20));
            let mode = if below(2) == 0 { TimerStart::Relative } else { TimerStart::Absolute };
            let setting = TimerSetting { value_ns: value, interval_ns: interval };
            let mut countdown = Countdown::new(setting, mode, start);
            let first = match (value, mode) {
                (0, _) => 0,
                (value, TimerStart::Relative) => start + value,
                (value, TimerStart::Absolute) => value,
            };
            let (mut now, mut taken) = (start, 0);
            for _ in 0..6 {
                now += below(60);
                let (count, left) = counted(first, interval, now);
                assert_eq!(countdown.setting(now).value_ns, left, "{setting:?} from {start} at {now}");
                if below(2) == 0 {
                    assert_eq!(countdown.take(now), count - taken);
                    taken = count;
                }
            }
        }
    }

    #[test]
    fn extreme_times_do_not_overflow() {
        let setting = TimerSetting { value_ns: u64::MAX, interval_ns: u64::MAX };
        let mut countdown = Countdown::new(setting, TimerStart::Relative, 5);
        assert_eq!((countdown.next_ns(), countdown.count(u64::MAX)), (Some(u64::MAX), 1));
        let mut fast = Countdown::new(TimerSetting { value_ns: 1, interval_ns: 1 }, TimerStart::Absolute, 0);
        assert_eq!(fast.take(u64::MAX - 1), u64::MAX - 1);
        assert_eq!((fast.take(u64::MAX - 1), fast.next_ns()), (0, Some(u64::MAX)));
    }
}
