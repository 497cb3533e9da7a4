//! The operations of `futex` on locks that the kernel passes on.

use crate::Errno;
use crate::calls::CallResult;
use crate::futex::FutexWait;
use crate::futex::locks::{LockAttempt, LockWaiter};
use crate::thread::Thread;
use alloc::sync::Arc;
use isola_linux_memory::FutexWord;
use isola_user_mode::Access;

/// Returns whether a thread exists and does not end.
fn is_alive(thread: &Thread, tid: u32) -> bool {
    let process = thread.system.family.lock().process_of_thread(tid);
    let owner = process.and_then(|(_, process)| process.thread(tid));
    owner.is_some_and(|owner| !owner.is_ending())
}

fn waiter(thread: &Thread, address: u64) -> LockWaiter {
    LockWaiter { tid: thread.state.tid(), memory: Arc::downgrade(&thread.memory), address }
}

async fn word_at(thread: &Thread, address: u64) -> Result<FutexWord, Errno> {
    thread.memory.futex_word(address, Access::Write).await
}

/// Waits for the lock that another thread passes on.
async fn wait(thread: &Thread, wait: FutexWait<'_>, until_ns: Option<u64>, interrupted: Errno) -> CallResult {
    let result = thread.interruptible_until(until_ns, wait.woken()).await;
    match result {
        // The thread has the lock, whatever happened at the same time.
        _ if wait.is_woken() => Ok(0),
        Err(_) => Err(interrupted),
        Ok(_) => Err(Errno::ETIMEDOUT),
    }
}

pub async fn lock(
    thread: &Thread,
    address: u64,
    is_private: bool,
    waits: bool,
    until_ns: Option<u64>,
) -> CallResult {
    let key = thread.memory.futex_key(address, is_private)?;
    let word = word_at(thread, address).await?;
    let is_alive = |tid| is_alive(thread, tid);
    match thread.system.futexes.lock(key, waiter(thread, address), &word, waits, is_alive)? {
        LockAttempt::Taken => Ok(0),
        // As in Linux, always restarted: the time is absolute.
        LockAttempt::Waiting(waiting) => wait(thread, waiting, until_ns, Errno::ERESTARTNOINTR).await,
    }
}

pub async fn unlock(thread: &Thread, address: u64, is_private: bool) -> CallResult {
    let key = thread.memory.futex_key(address, is_private)?;
    let word = word_at(thread, address).await?;
    thread.system.futexes.unlock(key, thread.state.tid(), &word)?;
    Ok(0)
}

pub async fn wait_for_requeue(
    thread: &Thread,
    address: u64,
    lock: u64,
    expected: u32,
    is_private: bool,
    until_ns: Option<u64>,
) -> CallResult {
    let key = thread.memory.futex_key(address, is_private)?;
    let lock_key = thread.memory.futex_key(lock, is_private)?;
    if key == lock_key {
        return Err(Errno::EINVAL);
    }
    let word = word_at(thread, address).await?;
    let waiter = waiter(thread, lock);
    let waiting =
        thread.system.futexes.wait_for_requeue(key, lock_key, waiter, || word.load() == expected)?;
    // As in Linux, a wait that a signal interrupts ends like one for another value.
    wait(thread, waiting, until_ns, Errno::EAGAIN).await
}

pub async fn requeue(
    thread: &Thread,
    address: u64,
    lock: u64,
    moves: u32,
    expected: u32,
    is_private: bool,
) -> CallResult {
    let moves = usize::try_from(moves as i32).map_err(|_| Errno::EINVAL)?;
    let from = thread.memory.futex_key(address, is_private)?;
    let to = thread.memory.futex_key(lock, is_private)?;
    if from == to {
        return Err(Errno::EINVAL);
    }
    let word = thread.memory.futex_word(address, Access::Read).await?;
    let lock = word_at(thread, lock).await?;
    let is_alive = |tid| is_alive(thread, tid);
    let is_expected = || word.load() == expected;
    let requeued = thread.system.futexes.requeue_to_lock(from, to, &lock, moves, is_expected, is_alive)?;
    Ok((requeued.woken + requeued.moved) as u64)
}
