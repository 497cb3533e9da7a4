//! Clocks, sleeps and times.

use super::{CallResult, unsupported};
use crate::Errno;
use crate::exec::TICKS_PER_SECOND;
use crate::family::ProcessorTime;
use crate::process::Process;
use crate::system::System;
use crate::thread::{Restart, Thread, thread_time};
use core::future::poll_fn;
use core::sync::atomic::Ordering;
use core::task::Poll;
use isola_linux_abi::numbers::{
    CLOCK_BOOTTIME, CLOCK_BOOTTIME_ALARM, CLOCK_MONOTONIC, CLOCK_MONOTONIC_COARSE, CLOCK_MONOTONIC_RAW,
    CLOCK_PROCESS_CPUTIME_ID, CLOCK_REALTIME, CLOCK_REALTIME_ALARM, CLOCK_REALTIME_COARSE, CLOCK_TAI,
    CLOCK_THREAD_CPUTIME_ID, RUSAGE_CHILDREN, RUSAGE_SELF, RUSAGE_THREAD, TIMER_ABSTIME,
};

/// Nanoseconds of a second.
pub const SECOND: u64 = 1_000_000_000;

/// A clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// Time since 1970.
    RealTime,
    /// Time since the start of the cell.
    Monotonic,
    /// Processor time of a process.
    Process(u32),
    /// Processor time of a thread.
    Thread(u32),
}

/// The bits of a negative clock number (Linux's `posix-timers.h`): the rest is the complement of a process or thread id.
const CLOCK_KIND: i32 = 3;
const CLOCK_OF_THREAD: i32 = 4;
/// The kind of clock numbers that are descriptors.
const CLOCK_OF_DESCRIPTOR: i32 = 3;

impl Clock {
    /// Returns the clock with Linux's number, also that of `clock_getcpuclockid`.
    ///
    /// # Errors
    /// [`Errno::EINVAL`].
    pub fn from_number(thread: &Thread, number: u32) -> Result<Self, Errno> {
        match number {
            CLOCK_REALTIME | CLOCK_REALTIME_COARSE | CLOCK_REALTIME_ALARM | CLOCK_TAI => Ok(Self::RealTime),
            CLOCK_MONOTONIC
            | CLOCK_MONOTONIC_RAW
            | CLOCK_MONOTONIC_COARSE
            | CLOCK_BOOTTIME
            | CLOCK_BOOTTIME_ALARM => Ok(Self::Monotonic),
            CLOCK_PROCESS_CPUTIME_ID => Ok(Self::Process(thread.process.pid)),
            CLOCK_THREAD_CPUTIME_ID => Ok(Self::Thread(thread.state.tid())),
            _ if (number as i32) < 0 => Self::of_processor(thread, number as i32),
            _ => Err(unsupported(thread, &alloc::format!("clock {number}"), Errno::EINVAL)),
        }
    }

    /// Returns the clock of processor time with a negative number.
    fn of_processor(thread: &Thread, number: i32) -> Result<Self, Errno> {
        let id = !(number >> 3) as u32;
        if number & CLOCK_KIND == CLOCK_OF_DESCRIPTOR {
            return Err(unsupported(thread, "clocks of descriptors", Errno::EINVAL));
        }
        if number & CLOCK_OF_THREAD != 0 {
            let tid = if id == 0 { thread.state.tid() } else { id };
            return thread.process.thread(tid).map(|_| Self::Thread(tid)).ok_or(Errno::EINVAL);
        }
        let pid = if id == 0 { thread.process.pid } else { id };
        thread.system.family.lock().process(pid).map(|_| Self::Process(pid)).ok_or(Errno::EINVAL)
    }

    /// Returns the clock's time, in nanoseconds.
    pub fn now(self, thread: &Thread) -> u64 {
        let environment = &thread.system.environment;
        let sum = |time: ProcessorTime| time.user_ns + time.system_ns;
        match self {
            Self::RealTime => environment.unix_ns(),
            Self::Monotonic => environment.monotonic_ns(),
            Self::Process(pid) => {
                let process = thread.system.family.lock().process(pid);
                process.map_or(0, |process| sum(process_time(&thread.system, &process)))
            }
            Self::Thread(tid) => {
                let clock = environment.cycles();
                thread.process.thread(tid).map_or(0, |other| sum(thread_time(&other, clock)))
            }
        }
    }
}

/// Returns the processor time of a process: of its threads, ended ones as well.
pub fn process_time(system: &System, process: &Process) -> ProcessorTime {
    let clock = system.environment.cycles();
    let running = process.threads();
    running.iter().map(|thread| thread_time(thread, clock)).fold(process.ended_time(), ProcessorTime::plus)
}

/// Returns the time of the monotonic clock at which `clock` reaches a time.
pub fn deadline_ns(thread: &Thread, clock: Clock, time_ns: u64) -> u64 {
    let now = thread.system.environment.monotonic_ns();
    match clock {
        Clock::Monotonic => time_ns,
        _ => now.saturating_add(time_ns.saturating_sub(clock.now(thread))),
    }
}

/// Reads a `timespec`, in nanoseconds.
///
/// # Errors
/// [`Errno::EINVAL`] for negative times, and for nanoseconds of a second and more.
pub async fn read_timespec(thread: &Thread, address: u64) -> Result<u64, Errno> {
    let bytes = thread.memory.read_bytes::<16>(address).await?;
    timespec_ns(&bytes)
}

/// Returns the nanoseconds of a `timespec`.
///
/// # Errors
/// As [`read_timespec`].
pub fn timespec_ns(bytes: &[u8; 16]) -> Result<u64, Errno> {
    let (seconds, ns) = words(bytes);
    if (seconds as i64) < 0 || ns >= SECOND {
        return Err(Errno::EINVAL);
    }
    Ok(seconds.saturating_mul(SECOND).saturating_add(ns))
}

fn words(bytes: &[u8; 16]) -> (u64, u64) {
    let word = |at: usize| u64::from_le_bytes(core::array::from_fn(|index| bytes[at + index]));
    (word(0), word(8))
}

/// Returns a `timespec`; with `unit` 1,000 a `timeval`.
fn pair(ns: u64, unit: u64) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&(ns / SECOND).to_le_bytes());
    bytes[8..].copy_from_slice(&(ns % SECOND / unit).to_le_bytes());
    bytes
}

/// Returns the bytes of a `timespec`.
pub fn timespec(ns: u64) -> [u8; 16] {
    pair(ns, 1)
}

/// Returns the bytes of a `timeval`.
pub fn timeval(ns: u64) -> [u8; 16] {
    pair(ns, 1000)
}

pub async fn clock_gettime(thread: &mut Thread, clock: u32, time: u64) -> CallResult {
    let now = Clock::from_number(thread, clock)?.now(thread);
    thread.memory.write_bytes(time, &timespec(now)).await?;
    Ok(0)
}

pub async fn clock_getres(thread: &mut Thread, clock: u32, resolution: u64) -> CallResult {
    Clock::from_number(thread, clock)?;
    if resolution != 0 {
        thread.memory.write_bytes(resolution, &timespec(1)).await?;
    }
    Ok(0)
}

/// The clock cannot be set: it is that of the machine. Other clocks are EINVAL, as in Linux.
pub async fn clock_settime(thread: &mut Thread, clock: u32, time: u64) -> CallResult {
    read_timespec(thread, time).await?;
    if clock != CLOCK_REALTIME {
        return Err(Errno::EINVAL);
    }
    Err(unsupported(thread, "a change of the clock", Errno::EPERM))
}

pub async fn settimeofday(thread: &mut Thread, time: u64, zone: u64) -> CallResult {
    if time != 0 {
        let (seconds, microseconds) = words(&thread.memory.read_bytes::<16>(time).await?);
        if (seconds as i64) < 0 || microseconds > 1_000_000 {
            return Err(Errno::EINVAL);
        }
    }
    if zone != 0 {
        thread.memory.read_bytes::<8>(zone).await?;
    }
    Err(unsupported(thread, "a change of the clock", Errno::EPERM))
}

/// The length of `struct timex`.
const TIMEX_LEN: usize = 208;

/// Returns the state of the clock, which no program adjusts.
pub async fn adjtimex(thread: &mut Thread, buffer: u64) -> CallResult {
    /// `ADJ_OFFSET_SS_READ`: what is left of an adjustment.
    const READ_OFFSET: u32 = 0xa001;
    /// `STA_UNSYNC`, and the result that belongs to it (`TIME_ERROR`).
    const UNSYNCHRONISED: u32 = 0x40;
    const TIME_ERROR: u64 = 5;
    /// The microseconds of a tick of 100 Hz, and the largest frequency change, as in Linux.
    const TICK: u64 = 10_000;
    const TOLERANCE: u64 = 32_768_000;
    const MOST_ERROR: u64 = 16_000_000;
    let mut bytes = thread.memory.read_bytes::<TIMEX_LEN>(buffer).await?;
    let modes = u32::from_le_bytes(core::array::from_fn(|index| bytes[index]));
    if !matches!(modes, 0 | READ_OFFSET) {
        return Err(unsupported(thread, "a change of the clock", Errno::EPERM));
    }
    bytes[4..].fill(0);
    let mut put = |at: usize, word: u64| bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
    put(24, MOST_ERROR);
    put(32, MOST_ERROR);
    put(40, UNSYNCHRONISED.into());
    put(48, 2);
    put(56, 1);
    put(64, TOLERANCE);
    let now = thread.system.environment.unix_ns();
    put(72, now / SECOND);
    put(80, now % SECOND / 1000);
    put(88, TICK);
    thread.memory.write_bytes(buffer, &bytes).await?;
    Ok(TIME_ERROR)
}

pub async fn clock_adjtime(thread: &mut Thread, clock: u32, buffer: u64) -> CallResult {
    match clock {
        CLOCK_REALTIME => adjtimex(thread, buffer).await,
        _ => {
            Clock::from_number(thread, clock)?;
            Err(Errno::EOPNOTSUPP)
        }
    }
}

pub async fn gettimeofday(thread: &mut Thread, time: u64, zone: u64) -> CallResult {
    if time != 0 {
        let now = thread.system.environment.unix_ns();
        thread.memory.write_bytes(time, &timeval(now)).await?;
    }
    if zone != 0 {
        thread.memory.write_bytes(zone, &[0; 8]).await?;
    }
    Ok(0)
}

pub async fn time(thread: &mut Thread, address: u64) -> CallResult {
    let now = thread.system.environment.unix_ns() / SECOND;
    if address != 0 {
        thread.memory.write_bytes(address, &now.to_le_bytes()).await?;
    }
    Ok(now)
}

pub async fn nanosleep(thread: &mut Thread, request: u64, remaining: u64) -> CallResult {
    let time = read_timespec(thread, request).await?;
    let until_ns = thread.system.environment.monotonic_ns().saturating_add(time);
    sleep(thread, until_ns, remaining).await
}

pub async fn clock_nanosleep(
    thread: &mut Thread,
    clock: u32,
    flags: u32,
    request: u64,
    remaining: u64,
) -> CallResult {
    let clock = Clock::from_number(thread, clock)?;
    if matches!(clock, Clock::Thread(_)) || flags & !TIMER_ABSTIME != 0 {
        return Err(Errno::EINVAL);
    }
    if let Clock::Process(pid) = clock {
        return sleep_by_process(thread, pid, flags, request, remaining).await;
    }
    let time = read_timespec(thread, request).await?;
    if flags & TIMER_ABSTIME == 0 {
        let until_ns = thread.system.environment.monotonic_ns().saturating_add(time);
        return sleep(thread, until_ns, remaining).await;
    }
    let until_ns = deadline_ns(thread, clock, time);
    let timer = thread.system.environment.sleep_until(until_ns);
    thread.interruptible(timer).await.map_err(|_| Errno::ERESTARTNOHAND)?;
    Ok(0)
}

/// Sleeps until a process has used a time.
async fn sleep_by_process(
    thread: &mut Thread,
    pid: u32,
    flags: u32,
    request: u64,
    remaining: u64,
) -> CallResult {
    let time = read_timespec(thread, request).await?;
    let clock = Clock::Process(pid);
    let is_absolute = flags & TIMER_ABSTIME != 0;
    let until_ns = if is_absolute { time } else { clock.now(thread).saturating_add(time) };
    let process = thread.system.family.lock().process(pid).ok_or(Errno::EINVAL)?;
    let reached = poll_fn(|context| {
        // As in Linux, the sleep by the time of a process that has ended lasts until a signal.
        if clock.now(thread) >= until_ns {
            return Poll::Ready(());
        }
        process.timers.wake_at(until_ns, context.waker());
        process
            .threads()
            .iter()
            .filter(|other| other.tid() != thread.state.tid())
            .for_each(|other| other.interrupt());
        Poll::Pending
    });
    if thread.interruptible(reached).await.is_ok() {
        return Ok(0);
    }
    if !is_absolute && remaining != 0 {
        let left = until_ns.saturating_sub(clock.now(thread));
        thread.memory.write_bytes(remaining, &timespec(left)).await?;
    }
    Err(if is_absolute { Errno::ERESTARTNOHAND } else { Errno::EINTR })
}

/// Sleeps until a time of the monotonic clock. A signal ends the sleep, and the rest of the time is stored at `remaining`.
async fn sleep(thread: &mut Thread, until_ns: u64, remaining: u64) -> CallResult {
    let timer = thread.system.environment.sleep_until(until_ns);
    if thread.interruptible(timer).await.is_ok() {
        return Ok(0);
    }
    let left = until_ns.saturating_sub(thread.system.environment.monotonic_ns());
    if remaining != 0 {
        thread.memory.write_bytes(remaining, &timespec(left)).await?;
    }
    thread.restart = Some(Restart::Sleep { until_ns, remaining });
    Err(Errno::ERESTART_RESTARTBLOCK)
}

pub async fn restart_syscall(thread: &mut Thread) -> CallResult {
    match thread.restart.take() {
        Some(Restart::Sleep { until_ns, remaining }) => sleep(thread, until_ns, remaining).await,
        Some(Restart::Futex { word, expected, bits, flags, until_ns }) => {
            let result = super::futex::wait(thread, word, expected, bits, flags != 0, Some(until_ns)).await;
            if result == Err(Errno::ERESTARTSYS) {
                thread.restart = Some(Restart::Futex { word, expected, bits, flags, until_ns });
                return Err(Errno::ERESTART_RESTARTBLOCK);
            }
            result
        }
        Some(Restart::Poll { list, count, until_ns }) => {
            super::files::poll_until(thread, list, count, Some(until_ns)).await
        }
        None => Err(Errno::EINTR),
    }
}

pub async fn times(thread: &mut Thread, buffer: u64) -> CallResult {
    let tick = SECOND / TICKS_PER_SECOND;
    if buffer != 0 {
        let own = process_time(&thread.system, &thread.process);
        let children = thread.system.family.lock().children_time(thread.process.pid);
        let mut bytes = [0; 32];
        let values = [own.user_ns, own.system_ns, children.user_ns, children.system_ns];
        for (place, ns) in bytes.chunks_exact_mut(8).zip(values) {
            place.copy_from_slice(&(ns / tick).to_le_bytes());
        }
        thread.memory.write_bytes(buffer, &bytes).await?;
    }
    Ok(thread.system.environment.monotonic_ns() / tick)
}

/// The length of `struct rusage`.
pub const USAGE_LEN: usize = 144;

/// Returns the bytes of `struct rusage`: the times and the largest resident memory in KiB.
pub fn usage(time: ProcessorTime, resident_kib: u64) -> [u8; USAGE_LEN] {
    let mut bytes = [0; USAGE_LEN];
    bytes[..16].copy_from_slice(&timeval(time.user_ns));
    bytes[16..32].copy_from_slice(&timeval(time.system_ns));
    bytes[32..40].copy_from_slice(&resident_kib.to_le_bytes());
    bytes
}

pub async fn getrusage(thread: &mut Thread, who: i32, buffer: u64) -> CallResult {
    let time = match who {
        _ if who == RUSAGE_SELF as i32 => process_time(&thread.system, &thread.process),
        _ if who == RUSAGE_CHILDREN => thread.system.family.lock().children_time(thread.process.pid),
        _ if who == RUSAGE_THREAD as i32 => thread.time(),
        _ => return Err(Errno::EINVAL),
    };
    let resident_kib = thread.memory.usage().peak_resident * 4;
    let mut bytes = usage(time, resident_kib);
    if who == RUSAGE_SELF as i32 || who == RUSAGE_THREAD as i32 {
        let faults = thread.process.control.faults.load(Ordering::Relaxed);
        let turns: u64 = match who == RUSAGE_THREAD as i32 {
            true => thread.state.meter.turns(),
            false => thread.process.threads().iter().map(|thread| thread.meter.turns()).sum(),
        };
        // `ru_minflt` and `ru_nvcsw`.
        bytes[64..72].copy_from_slice(&faults.to_le_bytes());
        bytes[128..136].copy_from_slice(&turns.to_le_bytes());
    }
    thread.memory.write_bytes(buffer, &bytes).await?;
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_checked_and_encoded() {
        assert_eq!(timespec_ns(&timespec(3_000_000_007)), Ok(3_000_000_007));
        assert_eq!(words(&timeval(3_000_007_999)), (3, 7));
        let mut bytes = timespec(0);
        bytes[8..].copy_from_slice(&SECOND.to_le_bytes());
        assert_eq!(timespec_ns(&bytes), Err(Errno::EINVAL));
        bytes = timespec(0);
        bytes[7] = 0x80;
        assert_eq!(timespec_ns(&bytes), Err(Errno::EINVAL));
        bytes[7] = 0x7f;
        assert_eq!(timespec_ns(&bytes), Ok(u64::MAX));
    }
}
