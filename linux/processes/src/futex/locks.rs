//! Locks in words of memory that the kernel passes on (`FUTEX_LOCK_PI`).
//!
//! The word has the id of the owner's thread. `FUTEX_WAITERS` makes the owner unlock by a call, which writes the id of the
//! first waiter to the word and wakes it. If the owner ends, the first waiter gets the lock with `FUTEX_OWNER_DIED`.
//!
//! All threads have the same priority here, so nothing is inherited: these locks differ from others in their protocol alone.
//!
//! Words change with their bucket locked, or by programs, which compare and exchange the whole word.

use super::{Bucket, FutexWait, Futexes, Requeued, WaiterKind, bucket_of};
use crate::Errno;
use alloc::sync::Weak;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use core::task::Waker;
use isola_linux_abi::numbers::{FUTEX_OWNER_DIED, FUTEX_TID_MASK, FUTEX_WAITERS};
use isola_linux_memory::{FutexKey, FutexWord, ProcessMemory};

/// A thread that waits for a lock.
#[derive(Clone, Debug)]
pub struct LockWaiter {
    /// Its id, which the word gets.
    pub tid: u32,
    /// Its memory, which has the word.
    pub memory: Weak<ProcessMemory>,
    /// The address of the word.
    pub address: u64,
}

/// The result of an attempt to take a lock.
#[derive(Debug)]
pub enum LockAttempt<'a> {
    /// The thread has the lock.
    Taken,
    /// It waits for it.
    Waiting(FutexWait<'a>),
}

/// A wait for a lock: its word's key, and where the word is.
pub type LockPlace = (FutexKey, Weak<ProcessMemory>, u64);

impl Bucket {
    fn waits_for_lock(&self, key: FutexKey) -> bool {
        self.waiters.iter().any(|waiter| waiter.key == key && matches!(waiter.kind, WaiterKind::Lock(_)))
    }

    /// Gives the lock to the first waiter, with further bits, if the word still is `current`. Returns the waiter's waker;
    /// `None` if there is no waiter.
    fn pass_lock(
        &mut self,
        key: FutexKey,
        word: &FutexWord,
        current: u32,
        bits: u32,
    ) -> Result<Option<Option<Waker>>, u32> {
        let is_waiter =
            |waiter: &super::Waiter| waiter.key == key && matches!(waiter.kind, WaiterKind::Lock(_));
        let Some(index) = self.waiters.iter().position(is_waiter) else { return Ok(None) };
        let WaiterKind::Lock(LockWaiter { tid, .. }) = self.waiters[index].kind else { return Ok(None) };
        let others = self.waiters[index + 1..].iter().any(is_waiter);
        word.compare_exchange(current, tid | bits | if others { FUTEX_WAITERS } else { 0 })?;
        Ok(Some(self.waiters.remove(index).state.wake()))
    }

    /// Takes a lock for a thread, or marks the word as waited for.
    ///
    /// # Errors
    /// [`Errno::EDEADLK`] if the thread has it; [`Errno::ESRCH`] if the owner has ended; [`Errno::EAGAIN`] if it has another
    /// owner and `marks` is false.
    fn try_lock(
        &self,
        key: FutexKey,
        tid: u32,
        word: &FutexWord,
        marks: bool,
        is_alive: &dyn Fn(u32) -> bool,
    ) -> Result<bool, Errno> {
        loop {
            let value = word.load();
            let owner = value & FUTEX_TID_MASK;
            let new = match owner {
                0 => {
                    let waiters = if self.waits_for_lock(key) { FUTEX_WAITERS } else { 0 };
                    tid | value & FUTEX_OWNER_DIED | waiters
                }
                _ if owner == tid => return Err(Errno::EDEADLK),
                _ if !is_alive(owner) => return Err(Errno::ESRCH),
                _ if !marks => return Err(Errno::EAGAIN),
                _ => value | FUTEX_WAITERS,
            };
            // A program may have changed the word.
            if word.compare_exchange(value, new).is_ok() {
                return Ok(owner == 0);
            }
        }
    }
}

impl Futexes {
    /// Takes the lock in a word, or waits for it. `is_alive` says whether a thread exists and is not ending; it is called with
    /// the bucket locked.
    ///
    /// # Errors
    /// [`Errno::EDEADLK`], [`Errno::ESRCH`]; [`Errno::EAGAIN`] if the lock is taken and the call does not wait.
    pub fn lock(
        &self,
        key: FutexKey,
        waiter: LockWaiter,
        word: &FutexWord,
        waits: bool,
        is_alive: impl Fn(u32) -> bool,
    ) -> Result<LockAttempt<'_>, Errno> {
        let mut bucket = self.buckets[bucket_of(key)].lock();
        if bucket.try_lock(key, waiter.tid, word, waits, &is_alive)? {
            return Ok(LockAttempt::Taken);
        }
        Ok(LockAttempt::Waiting(self.add(&mut bucket, key, u32::MAX, WaiterKind::Lock(waiter))))
    }

    /// Gives up a lock, to the first waiter if there is one.
    ///
    /// # Errors
    /// [`Errno::EPERM`] if the thread does not have it.
    pub fn unlock(&self, key: FutexKey, tid: u32, word: &FutexWord) -> Result<(), Errno> {
        let waker = {
            let mut bucket = self.buckets[bucket_of(key)].lock();
            loop {
                let value = word.load();
                if value & FUTEX_TID_MASK != tid {
                    return Err(Errno::EPERM);
                }
                match bucket.pass_lock(key, word, value, 0) {
                    Ok(Some(waker)) => break waker,
                    Ok(None) if word.compare_exchange(value, 0).is_ok() => break None,
                    _ => {}
                }
            }
        };
        waker.into_iter().for_each(Waker::wake);
        Ok(())
    }

    /// Passes a lock on whose owner ends.
    pub fn abandon(&self, key: FutexKey, tid: u32, word: &FutexWord) {
        let waker = {
            let mut bucket = self.buckets[bucket_of(key)].lock();
            loop {
                let value = word.load();
                let owner = value & FUTEX_TID_MASK;
                // The end of a robust lock may have cleared the owner before.
                if owner != tid && !(owner == 0 && value & FUTEX_OWNER_DIED != 0) {
                    break None;
                }
                match bucket.pass_lock(key, word, value, FUTEX_OWNER_DIED) {
                    Ok(Some(waker)) => break waker,
                    Ok(None) => break None,
                    Err(_) => {}
                }
            }
        };
        waker.into_iter().for_each(Waker::wake);
    }

    /// Returns the locks for which threads wait.
    pub fn waited_locks(&self) -> Vec<LockPlace> {
        let mut locks: Vec<LockPlace> = Vec::new();
        if self.lock_waiters.load(Ordering::SeqCst) == 0 {
            return locks;
        }
        for bucket in &self.buckets {
            for waiter in &bucket.lock().waiters {
                if let WaiterKind::Lock(LockWaiter { memory, address, .. }) = &waiter.kind
                    && !locks.iter().any(|(key, ..)| *key == waiter.key)
                {
                    locks.push((waiter.key, memory.clone(), *address));
                }
            }
        }
        locks
    }

    /// Waits until a requeue has given the thread the lock of another word (`FUTEX_WAIT_REQUEUE_PI`).
    ///
    /// # Errors
    /// [`Errno::EAGAIN`] if the word is another.
    pub fn wait_for_requeue(
        &self,
        key: FutexKey,
        lock: FutexKey,
        waiter: LockWaiter,
        is_expected: impl FnOnce() -> bool,
    ) -> Result<FutexWait<'_>, Errno> {
        let mut bucket = self.buckets[bucket_of(key)].lock();
        if !is_expected() {
            return Err(Errno::EAGAIN);
        }
        Ok(self.add(&mut bucket, key, u32::MAX, WaiterKind::Condition(waiter, lock)))
    }

    /// Gives the lock in a word to the first thread that waits for that, and makes at most `moves` others wait for it
    /// (`FUTEX_CMP_REQUEUE_PI`).
    ///
    /// # Errors
    /// [`Errno::EAGAIN`] if the word of `from` is another; [`Errno::EINVAL`] if a waiter expects another lock or none; those of
    /// [`Self::lock`].
    pub fn requeue_to_lock(
        &self,
        from: FutexKey,
        to: FutexKey,
        word: &FutexWord,
        moves: usize,
        is_expected: impl FnOnce() -> bool,
        is_alive: impl Fn(u32) -> bool,
    ) -> Result<Requeued, Errno> {
        let (first, second) = (bucket_of(from), bucket_of(to));
        let mut wakers = Vec::new();
        let mut requeued = Requeued::default();
        {
            let (mut source, mut target) = self.lock_two(first, second);
            if !is_expected() {
                return Err(Errno::EAGAIN);
            }
            while requeued.woken + requeued.moved <= moves {
                let is_next = |waiter: &super::Waiter| waiter.key == from;
                let Some(index) = source.waiters.iter().position(is_next) else { break };
                let waiter = match source.waiters[index].kind.clone() {
                    WaiterKind::Condition(waiter, lock) if lock == to => waiter,
                    _ if requeued == Requeued::default() => return Err(Errno::EINVAL),
                    _ => break,
                };
                let bucket = target.as_deref().unwrap_or(&source);
                let taken = match bucket.try_lock(to, waiter.tid, word, true, &is_alive) {
                    Err(error) if requeued == Requeued::default() => return Err(error),
                    Err(_) => break,
                    Ok(taken) => taken,
                };
                let mut moved = source.waiters.remove(index);
                if taken {
                    requeued.woken += 1;
                    wakers.push(moved.state.wake());
                } else {
                    requeued.moved += 1;
                    (moved.key, moved.kind) = (to, WaiterKind::Lock(waiter));
                    moved.state.move_to(second);
                    target.as_deref_mut().unwrap_or(&mut source).waiters.push(moved);
                }
            }
        }
        wakers.into_iter().flatten().for_each(Waker::wake);
        Ok(requeued)
    }
}
