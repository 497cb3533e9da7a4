//! `futex`.

mod locks;

use super::time::{Clock, deadline_ns, read_timespec};
use super::{AtOnce, CallResult, unsupported};
use crate::Errno;
use crate::direct_switch::CallWait;
use crate::futex::FutexWait;
use crate::thread::{Restart, Thread};
use alloc::vec::Vec;
use core::future::{Future, poll_fn};
use core::pin::pin;
use core::task::{Poll, Waker};
use isola_linux_abi::numbers::{
    CLOCK_MONOTONIC, CLOCK_REALTIME, FUTEX_BITSET_MATCH_ANY, FUTEX_CLOCK_REALTIME, FUTEX_CMP_REQUEUE,
    FUTEX_CMP_REQUEUE_PI, FUTEX_LOCK_PI, FUTEX_LOCK_PI2, FUTEX_PRIVATE_FLAG, FUTEX_REQUEUE, FUTEX_TRYLOCK_PI,
    FUTEX_UNLOCK_PI, FUTEX_WAIT, FUTEX_WAIT_BITSET, FUTEX_WAIT_REQUEUE_PI, FUTEX_WAKE, FUTEX_WAKE_BITSET,
    FUTEX_WAKE_OP,
};
use isola_user_mode::Access;

/// The bits of the operation that are flags.
const FLAGS: u32 = FUTEX_PRIVATE_FLAG | FUTEX_CLOCK_REALTIME;

pub async fn futex(
    thread: &mut Thread,
    word: u64,
    operation: u32,
    value: u32,
    timeout: u64,
    second: u64,
    third: u32,
) -> CallResult {
    let is_private = operation & FUTEX_PRIVATE_FLAG != 0;
    let is_real_time = operation & FUTEX_CLOCK_REALTIME != 0;
    if is_real_time
        && !matches!(operation & !FLAGS, FUTEX_WAIT_BITSET | FUTEX_WAIT_REQUEUE_PI | FUTEX_LOCK_PI2)
    {
        return Err(Errno::ENOSYS);
    }
    match operation & !FLAGS {
        command @ (FUTEX_WAIT | FUTEX_WAIT_BITSET) => {
            let bits = if command == FUTEX_WAIT { FUTEX_BITSET_MATCH_ANY } else { third };
            let until_ns = match timeout {
                0 => None,
                // The time of FUTEX_WAIT is relative.
                _ if command == FUTEX_WAIT => {
                    let time = read_timespec(thread, timeout).await?;
                    Some(thread.system.environment.monotonic_ns().saturating_add(time))
                }
                _ => {
                    let clock = if is_real_time { Clock::RealTime } else { Clock::Monotonic };
                    until(thread, timeout, clock).await?
                }
            };
            let result = wait(thread, word, value, bits, is_private, until_ns).await;
            match (result, until_ns) {
                (Err(Errno::ERESTARTSYS), Some(until_ns)) => {
                    let flags = operation & FUTEX_PRIVATE_FLAG;
                    thread.restart = Some(Restart::Futex { word, expected: value, bits, flags, until_ns });
                    Err(Errno::ERESTART_RESTARTBLOCK)
                }
                (result, _) => result,
            }
        }
        FUTEX_WAKE => wake(thread, word, value, FUTEX_BITSET_MATCH_ANY, is_private),
        FUTEX_WAKE_BITSET if third == 0 => Err(Errno::EINVAL),
        FUTEX_WAKE_BITSET => wake(thread, word, value, third, is_private),
        command @ (FUTEX_REQUEUE | FUTEX_CMP_REQUEUE) => {
            let expected = (command == FUTEX_CMP_REQUEUE).then_some(third);
            // The fourth register has the second number.
            requeue(thread, word, second, value, timeout as u32, expected, is_private).await
        }
        FUTEX_WAKE_OP => wake_operation(thread, word, second, value, timeout as u32, third, is_private).await,
        command @ (FUTEX_LOCK_PI | FUTEX_LOCK_PI2) => {
            let clock =
                if command == FUTEX_LOCK_PI || is_real_time { Clock::RealTime } else { Clock::Monotonic };
            let until_ns = until(thread, timeout, clock).await?;
            locks::lock(thread, word, is_private, true, until_ns).await
        }
        FUTEX_TRYLOCK_PI => locks::lock(thread, word, is_private, false, None).await,
        FUTEX_UNLOCK_PI => locks::unlock(thread, word, is_private).await,
        FUTEX_WAIT_REQUEUE_PI => {
            let clock = if is_real_time { Clock::RealTime } else { Clock::Monotonic };
            let until_ns = until(thread, timeout, clock).await?;
            locks::wait_for_requeue(thread, word, second, value, is_private, until_ns).await
        }
        FUTEX_CMP_REQUEUE_PI => {
            if value != 1 {
                return Err(Errno::EINVAL);
            }
            locks::requeue(thread, word, second, timeout as u32, third, is_private).await
        }
        other => Err(unsupported(thread, &alloc::format!("futex operation {other}"), Errno::ENOSYS)),
    }
}

/// Serves a call that wakes threads, or waits without a limit of time for a word whose page is mapped. Other calls are not
/// served.
pub fn futex_at_once(thread: &mut Thread, words: [u64; 6]) -> AtOnce {
    let [word, operation, value, timeout, _, third] = words;
    let (operation, value) = (operation as u32, value as u32);
    let is_private = operation & FUTEX_PRIVATE_FLAG != 0;
    match operation & !FUTEX_PRIVATE_FLAG {
        FUTEX_WAKE => AtOnce::Served(wake(thread, word, value, FUTEX_BITSET_MATCH_ANY, is_private)),
        FUTEX_WAIT if timeout == 0 => wait_at_once(thread, word, value, FUTEX_BITSET_MATCH_ANY, is_private),
        command
            if command & !FUTEX_CLOCK_REALTIME == FUTEX_WAIT_BITSET && timeout == 0 && third as u32 != 0 =>
        {
            wait_at_once(thread, word, value, third as u32, is_private)
        }
        _ => AtOnce::Unserved,
    }
}

fn wait_at_once(thread: &mut Thread, address: u64, expected: u32, bits: u32, is_private: bool) -> AtOnce {
    let key = match thread.memory.futex_key(address, is_private) {
        Ok(key) => key,
        Err(errno) => return AtOnce::Served(Err(errno)),
    };
    let Some(word) = thread.memory.try_futex_word(address, Access::Write) else { return AtOnce::Unserved };
    let (spare, waker) = (thread.spare_waiter.take(), Waker::from(thread.state.clone()));
    match thread.system.futexes.enlist(key, bits, (spare, waker), || word.load() == expected) {
        Ok(waiter) => {
            thread.wait = Some(CallWait::Futex(waiter));
            AtOnce::Waits
        }
        Err(errno) => AtOnce::Served(Err(errno)),
    }
}

/// Returns the time of the monotonic clock at which a clock reaches the time at an address; `None` for a null pointer.
async fn until(thread: &Thread, timeout: u64, clock: Clock) -> Result<Option<u64>, Errno> {
    match timeout {
        0 => Ok(None),
        address => Ok(Some(deadline_ns(thread, clock, read_timespec(thread, address).await?))),
    }
}

/// The most words of `futex_waitv`, from Linux's `linux/futex.h`.
const MOST_WORDS: usize = 128;
/// The flag of a word of 32 bits.
const FUTEX2_SIZE_U32: u32 = 2;

pub async fn futex_waitv(
    thread: &mut Thread,
    words: u64,
    count: u32,
    flags: u32,
    timeout: u64,
    clock: u32,
) -> CallResult {
    /// The length of `struct futex_waitv`: value, address, flags, a reserved word.
    const LEN: usize = 24;
    let count = count as usize;
    if flags != 0 || count == 0 || count > MOST_WORDS || words == 0 {
        return Err(Errno::EINVAL);
    }
    let clock = match clock {
        _ if timeout == 0 => Clock::Monotonic,
        CLOCK_MONOTONIC => Clock::Monotonic,
        CLOCK_REALTIME => Clock::RealTime,
        _ => return Err(Errno::EINVAL),
    };
    let until_ns = until(thread, timeout, clock).await?;
    let mut bytes = alloc::vec![0; LEN * count];
    thread.memory.read_to(words, &mut bytes).await?;
    let mut wanted = Vec::new();
    for entry in bytes.chunks_exact(LEN) {
        let word = |at: usize| u64::from_le_bytes(core::array::from_fn(|index| entry[at + index]));
        let (value, address, flags, reserved) = (word(0), word(8), word(16) as u32, word(16) >> 32);
        let is_private = flags & FUTEX_PRIVATE_FLAG != 0;
        if flags & !FUTEX_PRIVATE_FLAG != FUTEX2_SIZE_U32 || reserved != 0 {
            return Err(Errno::EINVAL);
        }
        let key = thread.memory.futex_key(address, is_private)?;
        let word = thread.memory.futex_word(address, Access::Read).await?;
        wanted.push((key, word, value as u32));
    }
    let mut waits = Vec::new();
    for (key, word, value) in &wanted {
        match thread.system.futexes.wait(*key, FUTEX_BITSET_MATCH_ANY, || word.load() == *value) {
            Ok(wait) => waits.push(wait),
            Err(error) => return woken_index(&waits).ok_or(error),
        }
    }
    let woken = poll_fn(|context| {
        for wait in &waits {
            if pin!(wait.woken()).poll(context).is_ready() {
                return Poll::Ready(());
            }
        }
        Poll::Pending
    });
    let result = thread.interruptible_until(until_ns, woken).await;
    match (woken_index(&waits), result) {
        (Some(index), _) => Ok(index),
        (None, Err(interrupted)) => Err(interrupted.into()),
        (None, Ok(_)) => Err(Errno::ETIMEDOUT),
    }
}

/// Returns the index of a wait that was woken.
fn woken_index(waits: &[FutexWait<'_>]) -> Option<u64> {
    waits.iter().position(FutexWait::is_woken).map(|index| index as u64)
}

/// Waits for a word until a time of the monotonic clock.
pub async fn wait(
    thread: &Thread,
    address: u64,
    expected: u32,
    bits: u32,
    is_private: bool,
    until_ns: Option<u64>,
) -> CallResult {
    let key = thread.memory.futex_key(address, is_private)?;
    // A page that the program may write is its own afterwards: the word does not move to a copy while the thread waits.
    let word = match thread.memory.futex_word(address, Access::Write).await {
        Err(Errno::EFAULT) => thread.memory.futex_word(address, Access::Read).await?,
        other => other?,
    };
    let wait = thread.system.futexes.wait(key, bits, || word.load() == expected)?;
    match thread.interruptible_until(until_ns, wait.woken()).await {
        Ok(Some(())) => Ok(0),
        // A wake-up at the same time counts.
        _ if wait.is_woken() => Ok(0),
        Ok(None) => Err(Errno::ETIMEDOUT),
        Err(interrupted) => Err(interrupted.into()),
    }
}

fn wake(thread: &Thread, address: u64, most: u32, bits: u32, is_private: bool) -> CallResult {
    let key = thread.memory.futex_key(address, is_private)?;
    Ok(thread.system.futexes.wake(key, count(most)?, bits) as u64)
}

/// Returns a number of threads. As in Linux, 0 wakes one.
fn count(number: u32) -> Result<usize, Errno> {
    Ok(usize::try_from(number as i32).map_err(|_| Errno::EINVAL)?.max(1))
}

async fn requeue(
    thread: &Thread,
    from: u64,
    to: u64,
    most: u32,
    moves: u32,
    expected: Option<u32>,
    is_private: bool,
) -> CallResult {
    let number = |value: u32| usize::try_from(value as i32).map_err(|_| Errno::EINVAL);
    let (most, moves) = (number(most)?, number(moves)?);
    let (from_key, to_key) =
        (thread.memory.futex_key(from, is_private)?, thread.memory.futex_key(to, is_private)?);
    let word = thread.memory.futex_word(from, Access::Read).await?;
    let is_expected = || expected.is_none_or(|expected| word.load() == expected);
    let requeued = thread.system.futexes.requeue(from_key, to_key, most, moves, is_expected)?;
    // FUTEX_CMP_REQUEUE also counts those that it moves.
    let moved = if expected.is_some() { requeued.moved } else { 0 };
    Ok((requeued.woken + moved) as u64)
}

/// `FUTEX_WAKE_OP`: changes the second word, wakes waiters of the first, and those of the second if its old value meets a
/// condition.
async fn wake_operation(
    thread: &Thread,
    first: u64,
    second: u64,
    most_first: u32,
    most_second: u32,
    encoded: u32,
    is_private: bool,
) -> CallResult {
    let (first_key, second_key) =
        (thread.memory.futex_key(first, is_private)?, thread.memory.futex_key(second, is_private)?);
    let signed = |bits: u32| ((bits << 20) as i32 >> 20) as u32;
    let (operation, comparison) = (encoded >> 28, encoded >> 24 & 15);
    let (mut operand, compared) = (signed(encoded >> 12 & 0xfff), signed(encoded & 0xfff));
    if operation & 8 != 0 {
        operand = 1_u32.checked_shl(operand).ok_or(Errno::EINVAL)?;
    }
    let word = thread.memory.futex_word(second, Access::Write).await?;
    let old = loop {
        let old = word.load();
        let new = match operation & 7 {
            0 => operand,
            1 => old.wrapping_add(operand),
            2 => old | operand,
            3 => old & !operand,
            4 => old ^ operand,
            _ => return Err(Errno::ENOSYS),
        };
        if word.compare_exchange(old, new).is_ok() {
            break old as i32;
        }
    };
    let compared = compared as i32;
    let is_met = match comparison {
        0 => old == compared,
        1 => old != compared,
        2 => old < compared,
        3 => old <= compared,
        4 => old > compared,
        5 => old >= compared,
        _ => return Err(Errno::ENOSYS),
    };
    let futexes = &thread.system.futexes;
    let mut woken = futexes.wake(first_key, count(most_first)?, FUTEX_BITSET_MATCH_ANY);
    if is_met {
        woken += futexes.wake(second_key, count(most_second)?, FUTEX_BITSET_MATCH_ANY);
    }
    Ok(woken as u64)
}
