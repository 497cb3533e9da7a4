//! Timers: POSIX timers, interval timers, timers with descriptors.

use super::time::{Clock, SECOND, timespec, timespec_ns, timeval};
use super::{CallResult, unsupported};
use crate::Errno;
use crate::signals::Signal;
use crate::thread::Thread;
use crate::timers::{IntervalClock, TimerClock, TimerNotice, TimerSignal};
use alloc::sync::Arc;
use isola_linux_abi::numbers::{
    CAP_WAKE_ALARM, CLOCK_BOOTTIME, CLOCK_BOOTTIME_ALARM, CLOCK_MONOTONIC, CLOCK_REALTIME,
    CLOCK_REALTIME_ALARM, CLOCK_TAI, RLIMIT_SIGPENDING, SIGEV_NONE, SIGEV_SIGNAL, SIGEV_THREAD,
    SIGEV_THREAD_ID, TIMER_ABSTIME,
};
use isola_linux_files::{OpenFile, Timer, TimerSetting, TimerStart};

/// The length of `struct itimerspec` and `struct itimerval`: the interval, and the time until the next expiration.
const SETTING_LEN: usize = 32;
/// The bytes of `struct sigevent` that are read.
const EVENT_LEN: usize = 24;

fn halves(bytes: &[u8; SETTING_LEN]) -> [[u8; 16]; 2] {
    [core::array::from_fn(|index| bytes[index]), core::array::from_fn(|index| bytes[16 + index])]
}

async fn read_setting(thread: &Thread, address: u64) -> Result<TimerSetting, Errno> {
    let [interval, value] = halves(&thread.memory.read_bytes(address).await?);
    Ok(TimerSetting { interval_ns: timespec_ns(&interval)?, value_ns: timespec_ns(&value)? })
}

fn setting_bytes(setting: TimerSetting, half: fn(u64) -> [u8; 16]) -> [u8; SETTING_LEN] {
    let mut bytes = [0; SETTING_LEN];
    bytes[..16].copy_from_slice(&half(setting.interval_ns));
    bytes[16..].copy_from_slice(&half(setting.value_ns));
    bytes
}

/// Reads a `timeval`, in nanoseconds.
fn timeval_ns(bytes: &[u8; 16]) -> Result<u64, Errno> {
    let word = |at: usize| u64::from_le_bytes(core::array::from_fn(|index| bytes[at + index]));
    let (seconds, microseconds) = (word(0), word(8));
    if (seconds as i64) < 0 || microseconds >= 1_000_000 {
        return Err(Errno::EINVAL);
    }
    Ok(seconds.saturating_mul(SECOND).saturating_add(1000 * microseconds))
}

/// Returns the bytes of a `timeval`; a time that has not passed is not zero.
fn timeval_up(ns: u64) -> [u8; 16] {
    timeval(ns.saturating_add(999))
}

/// Checks the right to use a clock that wakes a sleeping machine.
fn check_alarm_clock(thread: &Thread, clock: u32) -> Result<(), Errno> {
    let wakes = matches!(clock, CLOCK_REALTIME_ALARM | CLOCK_BOOTTIME_ALARM);
    if wakes && !thread.credentials.has(CAP_WAKE_ALARM) { Err(Errno::EPERM) } else { Ok(()) }
}

/// Returns the clock of a POSIX timer.
fn timer_clock(thread: &Thread, clock: u32) -> Result<TimerClock, Errno> {
    check_alarm_clock(thread, clock)?;
    match clock {
        CLOCK_REALTIME | CLOCK_MONOTONIC | CLOCK_BOOTTIME | CLOCK_TAI | CLOCK_REALTIME_ALARM
        | CLOCK_BOOTTIME_ALARM => Ok(TimerClock::Wall(clock)),
        _ => match Clock::from_number(thread, clock)? {
            Clock::Process(pid) if pid == thread.process.pid => Ok(TimerClock::Process),
            Clock::Thread(tid) => Ok(TimerClock::Thread(tid)),
            Clock::Process(_) => Err(unsupported(thread, "timers of others' time", Errno::EINVAL)),
            // The coarse and raw clocks have no timers in Linux either.
            Clock::RealTime | Clock::Monotonic => Err(Errno::EOPNOTSUPP),
        },
    }
}

/// Reads a `struct sigevent`.
async fn read_notice(thread: &Thread, address: u64) -> Result<TimerNotice, Errno> {
    if address == 0 {
        return Ok(Some(TimerSignal { signal: Signal::SIGALRM, value: None, thread: None }));
    }
    let bytes = thread.memory.read_bytes::<EVENT_LEN>(address).await?;
    let value = u64::from_le_bytes(core::array::from_fn(|index| bytes[index]));
    let word = |at: usize| u32::from_le_bytes(core::array::from_fn(|index| bytes[at + index]));
    let (number, kind, tid) = (word(8), word(12), word(16));
    let target = match kind {
        SIGEV_NONE => return Ok(None),
        SIGEV_SIGNAL | SIGEV_THREAD => None,
        SIGEV_THREAD_ID => {
            thread.process.thread(tid).ok_or(Errno::EINVAL)?;
            Some(tid)
        }
        _ => return Err(Errno::EINVAL),
    };
    let signal = Signal::from_number(number.into())?;
    Ok(Some(TimerSignal { signal, value: Some(value), thread: target }))
}

pub async fn timer_create(thread: &mut Thread, clock: u32, event: u64, id: u64) -> CallResult {
    let clock = timer_clock(thread, clock)?;
    let notice = read_notice(thread, event).await?;
    let most = thread.process.limits.lock().soft(RLIMIT_SIGPENDING);
    let process = thread.process.clone();
    let timer = process.timers.create(clock, notice, most)?;
    if let Err(error) = thread.memory.write_bytes(id, &timer.to_le_bytes()).await {
        process.timers.delete(&thread.system, &process, timer)?;
        return Err(error);
    }
    Ok(0)
}

pub async fn timer_settime(thread: &mut Thread, id: i32, flags: u32, new: u64, old: u64) -> CallResult {
    if new == 0 {
        return Err(Errno::EINVAL);
    }
    let setting = read_setting(thread, new).await?;
    // As Linux, the call ignores other flags.
    let start = if flags & TIMER_ABSTIME == 0 { TimerStart::Relative } else { TimerStart::Absolute };
    let process = &thread.process;
    let former = process.timers.set(&thread.system, process, id, setting, start)?;
    if old != 0 {
        thread.memory.write_bytes(old, &setting_bytes(former, timespec)).await?;
    }
    Ok(0)
}

pub async fn timer_gettime(thread: &mut Thread, id: i32, setting: u64) -> CallResult {
    let now = thread.process.timers.setting(&thread.system, &thread.process, id)?;
    thread.memory.write_bytes(setting, &setting_bytes(now, timespec)).await?;
    Ok(0)
}

pub fn timer_getoverrun(thread: &mut Thread, id: i32) -> CallResult {
    thread.process.timers.overrun(id).map(|overrun| overrun as u64)
}

pub fn timer_delete(thread: &mut Thread, id: i32) -> CallResult {
    thread.process.timers.delete(&thread.system, &thread.process, id)?;
    Ok(0)
}

pub async fn setitimer(thread: &mut Thread, which: u32, new: u64, old: u64) -> CallResult {
    let which = IntervalClock::from_number(which)?;
    let setting = match new {
        // As in Linux, no setting at all stops the timer.
        0 => TimerSetting::default(),
        address => {
            let [interval, value] = halves(&thread.memory.read_bytes(address).await?);
            TimerSetting { interval_ns: timeval_ns(&interval)?, value_ns: timeval_ns(&value)? }
        }
    };
    let process = &thread.process;
    let former = process.timers.set_interval(&thread.system, process, which, setting);
    if old != 0 {
        thread.memory.write_bytes(old, &setting_bytes(former, timeval_up)).await?;
    }
    Ok(0)
}

pub async fn getitimer(thread: &mut Thread, which: u32, setting: u64) -> CallResult {
    let which = IntervalClock::from_number(which)?;
    let now = thread.process.timers.interval(&thread.system, &thread.process, which);
    thread.memory.write_bytes(setting, &setting_bytes(now, timeval_up)).await?;
    Ok(0)
}

pub fn alarm(thread: &mut Thread, seconds: u32) -> CallResult {
    let setting = TimerSetting { value_ns: u64::from(seconds) * SECOND, interval_ns: 0 };
    let process = &thread.process;
    let former = process.timers.set_interval(&thread.system, process, IntervalClock::Real, setting);
    // The nearest second, but never 0 for an alarm that is set.
    let left = former.value_ns.saturating_add(SECOND / 2) / SECOND;
    Ok(if former.value_ns == 0 { 0 } else { left.max(1) })
}

pub fn timerfd_create(thread: &mut Thread, clock: u32, flags: u32) -> CallResult {
    if clock == CLOCK_TAI {
        return Err(Errno::EINVAL);
    }
    check_alarm_clock(thread, clock)?;
    let file = Timer::open(thread.system.alarms.clone(), clock, flags)?;
    super::files::install(thread, file, flags)
}

/// Returns the open file of a timer.
fn timer_file(thread: &Thread, descriptor: i32) -> Result<Arc<OpenFile>, Errno> {
    let file = thread.files.get(descriptor)?;
    if file.object_as::<Timer>().is_none() {
        return Err(Errno::EINVAL);
    }
    Ok(file)
}

pub async fn timerfd_settime(
    thread: &mut Thread,
    descriptor: i32,
    flags: u32,
    new: u64,
    old: u64,
) -> CallResult {
    let setting = read_setting(thread, new).await?;
    let file = timer_file(thread, descriptor)?;
    let former = file.object_as::<Timer>().ok_or(Errno::EINVAL)?.set(setting, flags)?;
    if old != 0 {
        thread.memory.write_bytes(old, &setting_bytes(former, timespec)).await?;
    }
    Ok(0)
}

pub async fn timerfd_gettime(thread: &mut Thread, descriptor: i32, setting: u64) -> CallResult {
    let now = timer_file(thread, descriptor)?.object_as::<Timer>().ok_or(Errno::EINVAL)?.setting();
    thread.memory.write_bytes(setting, &setting_bytes(now, timespec)).await?;
    Ok(0)
}
