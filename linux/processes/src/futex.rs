//! Futexes: threads that wait for a change of a word of their memory (futex(2)).
//!
//! A waiter is in the bucket of its word's key. The word is read with the bucket's lock held, as are wake-ups, so no
//! wake-up between the check and the wait is lost. The lock is held for a few instructions and never over an `await`.
//!
//! Locks that the kernel passes from one thread to the next (priority inheritance) are in [`locks`].

use crate::Errno;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::future::poll_fn;
use core::sync::atomic::{AtomicUsize, Ordering};
use core::task::{Poll, Waker};
use isola_linux_memory::FutexKey;
use spin::{Mutex, MutexGuard};

pub mod locks;

use locks::LockWaiter;

/// The number of buckets: a power of two. With many waiters a bucket has several keys.
const BUCKETS: usize = 256;

/// The waiting threads.
#[derive(Debug)]
pub struct Futexes {
    buckets: Vec<Mutex<Bucket>>,
    /// The number of waits for locks: without any, the end of a thread does not look for them.
    lock_waiters: AtomicUsize,
}

#[derive(Debug, Default)]
struct Bucket {
    /// In the order of their arrival.
    waiters: Vec<Waiter>,
}

#[derive(Debug)]
struct Waiter {
    key: FutexKey,
    bits: u32,
    state: Arc<WaitState>,
    kind: WaiterKind,
}

/// The event for which a thread waits.
#[derive(Clone, Debug)]
enum WaiterKind {
    /// A wake-up.
    WakeUp,
    /// The lock in the word.
    Lock(LockWaiter),
    /// A move to the lock in another word (`FUTEX_WAIT_REQUEUE_PI`), which the move names.
    Condition(LockWaiter, FutexKey),
}

/// The state of a waiter, which a requeue moves to another bucket.
#[derive(Debug)]
struct WaitState(Mutex<WaitPhase>);

#[derive(Debug)]
enum WaitPhase {
    /// In that bucket, with the waker of its thread.
    Waiting { bucket: usize, waker: Option<Waker> },
    /// Woken.
    Woken,
}

/// The result of [`Futexes::requeue`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Requeued {
    /// Threads that were woken.
    pub woken: usize,
    /// Threads that now wait for the other word.
    pub moved: usize,
}

impl Default for Futexes {
    fn default() -> Self {
        Self { buckets: (0..BUCKETS).map(|_| Mutex::default()).collect(), lock_waiters: AtomicUsize::new(0) }
    }
}

impl Futexes {
    /// Waits until a wake-up of the key for one of `bits`, if the word is as expected. `is_expected` is called with the
    /// bucket locked, and must not wait.
    ///
    /// Dropping the future ends the wait. A wake-up that has already counted the thread is then lost for others, as in
    /// Linux, where a thread that was woken and interrupted at the same time returns 0: see [`FutexWait::is_woken`].
    ///
    /// # Errors
    /// [`Errno::EAGAIN`] if the word is another; [`Errno::EINVAL`] for no bits.
    pub fn wait(
        &self,
        key: FutexKey,
        bits: u32,
        is_expected: impl FnOnce() -> bool,
    ) -> Result<FutexWait<'_>, Errno> {
        if bits == 0 {
            return Err(Errno::EINVAL);
        }
        let mut bucket = self.buckets[bucket_of(key)].lock();
        if !is_expected() {
            return Err(Errno::EAGAIN);
        }
        Ok(self.add(&mut bucket, key, bits, WaiterKind::WakeUp))
    }

    /// As [`Self::wait`] for a wake-up, for a thread that waits without a future: `waker` is woken. The waiter is to be
    /// [withdrawn](Self::withdraw) unless it was woken. A `spare` one is used again.
    ///
    /// # Errors
    /// [`Errno::EAGAIN`] if the word is another.
    pub fn enlist(
        &self,
        key: FutexKey,
        bits: u32,
        (spare, waker): (Option<FutexWaiter>, Waker),
        is_expected: impl FnOnce() -> bool,
    ) -> Result<FutexWaiter, Errno> {
        let index = bucket_of(key);
        let mut bucket = self.buckets[index].lock();
        if !is_expected() {
            return Err(Errno::EAGAIN);
        }
        let waiting = WaitPhase::Waiting { bucket: index, waker: Some(waker) };
        // The thread that has woken a spare one may still have it.
        let spare =
            spare.and_then(|FutexWaiter(mut state)| Arc::get_mut(&mut state).is_some().then_some(state));
        let state = match spare {
            Some(state) => {
                *state.0.lock() = waiting;
                state
            }
            None => Arc::new(WaitState(Mutex::new(waiting))),
        };
        bucket.waiters.push(Waiter { key, bits, state: state.clone(), kind: WaiterKind::WakeUp });
        Ok(FutexWaiter(state))
    }

    /// Ends the wait of a waiter. Returns whether it was woken before.
    pub fn withdraw(&self, FutexWaiter(state): &FutexWaiter) -> bool {
        self.remove(state)
    }

    /// Removes a waiter from its bucket. Returns whether it was woken before.
    fn remove(&self, state: &Arc<WaitState>) -> bool {
        loop {
            let index = match &*state.0.lock() {
                WaitPhase::Waiting { bucket, .. } => *bucket,
                WaitPhase::Woken => return true,
            };
            let mut bucket = self.buckets[index].lock();
            let before = bucket.waiters.len();
            bucket.waiters.retain(|waiter| !Arc::ptr_eq(&waiter.state, state));
            if bucket.waiters.len() < before {
                return false;
            }
            // Woken or moved to another bucket meanwhile.
        }
    }

    /// Adds a waiter to its bucket.
    fn add(&self, bucket: &mut Bucket, key: FutexKey, bits: u32, kind: WaiterKind) -> FutexWait<'_> {
        let waiting = WaitPhase::Waiting { bucket: bucket_of(key), waker: None };
        let state = Arc::new(WaitState(Mutex::new(waiting)));
        let is_lock = !matches!(kind, WaiterKind::WakeUp);
        if is_lock {
            self.lock_waiters.fetch_add(1, Ordering::SeqCst);
        }
        bucket.waiters.push(Waiter { key, bits, state: state.clone(), kind });
        FutexWait { futexes: self, state, is_lock }
    }

    /// Wakes at most `most` threads that wait for the key with one of `bits`. Returns their number.
    pub fn wake(&self, key: FutexKey, most: usize, bits: u32) -> usize {
        if most == 1 {
            return self.wake_one(key, bits);
        }
        let mut wakers = Vec::new();
        self.buckets[bucket_of(key)]
            .lock()
            .take(most, |waiter| waiter.is_for_wake_up(key) && waiter.bits & bits != 0)
            .into_iter()
            .for_each(|waiter| wakers.push(waiter.state.wake()));
        let count = wakers.len();
        // Without the bucket's lock: a waker may send a message.
        wakers.into_iter().flatten().for_each(Waker::wake);
        count
    }

    /// Wakes the first thread that waits for the key with one of `bits`, as most calls do: without a list.
    fn wake_one(&self, key: FutexKey, bits: u32) -> usize {
        let woken = {
            let mut bucket = self.buckets[bucket_of(key)].lock();
            let first = bucket
                .waiters
                .iter()
                .position(|waiter| waiter.is_for_wake_up(key) && waiter.bits & bits != 0);
            first.map(|index| {
                let waiter = bucket.waiters.remove(index);
                (waiter.state.wake(), waiter)
            })
        };
        let Some((waker, waiter)) = woken else { return 0 };
        // Without the bucket's lock: a waker may send a message.
        drop(waiter);
        if let Some(waker) = waker {
            waker.wake();
        }
        1
    }

    /// Wakes at most `wake` threads that wait for `from`, and makes at most `moves` others wait for `to`, if the
    /// word of `from` is as expected. `is_expected` is called with the buckets locked.
    ///
    /// # Errors
    /// [`Errno::EAGAIN`] if the word is another.
    pub fn requeue(
        &self,
        from: FutexKey,
        to: FutexKey,
        wake: usize,
        moves: usize,
        is_expected: impl FnOnce() -> bool,
    ) -> Result<Requeued, Errno> {
        let (first, second) = (bucket_of(from), bucket_of(to));
        let mut wakers = Vec::new();
        let mut requeued = Requeued::default();
        {
            let (mut source, mut target) = self.lock_two(first, second);
            if !is_expected() {
                return Err(Errno::EAGAIN);
            }
            for waiter in source.take(wake, |waiter| waiter.is_for_wake_up(from)) {
                wakers.push(waiter.state.wake());
            }
            requeued.woken = wakers.len();
            if from != to {
                for mut waiter in source.take(moves, |waiter| waiter.is_for_wake_up(from)) {
                    waiter.key = to;
                    waiter.state.move_to(second);
                    requeued.moved += 1;
                    target.as_deref_mut().unwrap_or(&mut source).waiters.push(waiter);
                }
            }
        }
        wakers.into_iter().flatten().for_each(Waker::wake);
        Ok(requeued)
    }

    /// Locks two buckets, or one if they are the same. Returns them in the order of the arguments.
    fn lock_two(
        &self,
        first: usize,
        second: usize,
    ) -> (MutexGuard<'_, Bucket>, Option<MutexGuard<'_, Bucket>>) {
        // The lower bucket first, so that two calls never wait for each other.
        let lower = self.buckets[first.min(second)].lock();
        let upper = (first != second).then(|| self.buckets[first.max(second)].lock());
        match (upper, first < second) {
            (None, _) => (lower, None),
            (Some(upper), true) => (lower, Some(upper)),
            (Some(upper), false) => (upper, Some(lower)),
        }
    }

    /// Returns the number of waiting threads.
    pub fn waiter_count(&self) -> usize {
        self.buckets.iter().map(|bucket| bucket.lock().waiters.len()).sum()
    }
}

impl Bucket {
    /// Removes at most `most` waiters that match, in the order of their arrival.
    fn take(&mut self, most: usize, matches: impl Fn(&Waiter) -> bool) -> Vec<Waiter> {
        let mut left = most;
        let wanted = |waiter: &mut Waiter| {
            let takes = left > 0 && matches(waiter);
            left -= usize::from(takes);
            takes
        };
        self.waiters.extract_if(.., wanted).collect()
    }
}

impl Waiter {
    /// Returns whether it waits for a wake-up of this key.
    fn is_for_wake_up(&self, key: FutexKey) -> bool {
        self.key == key && matches!(self.kind, WaiterKind::WakeUp)
    }
}

impl WaitState {
    /// Marks the thread as woken, and returns its waker.
    fn wake(&self) -> Option<Waker> {
        match core::mem::replace(&mut *self.0.lock(), WaitPhase::Woken) {
            WaitPhase::Waiting { waker, .. } => waker,
            WaitPhase::Woken => None,
        }
    }

    fn move_to(&self, to: usize) {
        if let WaitPhase::Waiting { bucket, .. } = &mut *self.0.lock() {
            *bucket = to;
        }
    }
}

/// A thread's wait for a futex.
#[derive(Debug)]
pub struct FutexWait<'a> {
    futexes: &'a Futexes,
    state: Arc<WaitState>,
    /// Whether it counts as a wait for a lock.
    is_lock: bool,
}

impl FutexWait<'_> {
    /// Waits until the thread is woken.
    pub async fn woken(&self) {
        poll_fn(|context| match &mut *self.state.0.lock() {
            WaitPhase::Woken => Poll::Ready(()),
            WaitPhase::Waiting { waker, .. } => {
                match waker {
                    Some(waker) => waker.clone_from(context.waker()),
                    None => *waker = Some(context.waker().clone()),
                }
                Poll::Pending
            }
        })
        .await;
    }

    /// Returns whether the thread was woken.
    pub fn is_woken(&self) -> bool {
        matches!(*self.state.0.lock(), WaitPhase::Woken)
    }
}

impl Drop for FutexWait<'_> {
    fn drop(&mut self) {
        if self.is_lock {
            self.futexes.lock_waiters.fetch_sub(1, Ordering::SeqCst);
        }
        let _was_woken = self.futexes.remove(&self.state);
    }
}

/// A thread among the waiters of a futex, without a future.
#[derive(Debug)]
pub struct FutexWaiter(Arc<WaitState>);

impl FutexWaiter {
    /// Returns whether the thread was woken.
    pub fn is_woken(&self) -> bool {
        matches!(*self.0.0.lock(), WaitPhase::Woken)
    }
}

fn bucket_of(key: FutexKey) -> usize {
    let (first, second) = match key {
        FutexKey::Private { memory, address } => (memory, address),
        FutexKey::Shared { object, index, offset } => {
            (object.0.rotate_left(16) ^ object.1 ^ index << 40, offset)
        }
    };
    // Multiplication by a constant spreads the low bits, of which futexes of a structure differ, over the high bits.
    let hash = (first.rotate_left(32) ^ second).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (hash >> 56) as usize % BUCKETS
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use core::future::Future;
    use core::pin::pin;
    use core::task::Context;

    fn key(address: u64) -> FutexKey {
        FutexKey::Private { memory: 1, address }
    }

    fn is_ready(wait: &FutexWait<'_>) -> bool {
        pin!(wait.woken()).poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    fn wait(futexes: &Futexes, key: FutexKey, bits: u32) -> FutexWait<'_> {
        futexes.wait(key, bits, || true).unwrap()
    }

    #[test]
    fn a_thread_waits_only_for_the_expected_word() {
        let (futexes, key) = (Futexes::default(), key(0x1000));
        assert_eq!(futexes.wait(key, u32::MAX, || false).err(), Some(Errno::EAGAIN));
        assert_eq!(futexes.wait(key, 0, || true).err(), Some(Errno::EINVAL));
        let wait = wait(&futexes, key, u32::MAX);
        assert!(!is_ready(&wait));
        assert_eq!(futexes.wake(key, 1, u32::MAX), 1);
        assert!(is_ready(&wait) && wait.is_woken());
        assert_eq!((futexes.wake(key, 1, u32::MAX), futexes.waiter_count()), (0, 0));
    }

    #[test]
    fn wake_ups_go_by_arrival_and_bits() {
        let (futexes, key) = (Futexes::default(), key(0x1000));
        let waits: Vec<_> = [1, 2, 1, 3].into_iter().map(|bits| wait(&futexes, key, bits)).collect();
        let woken = |waits: &[FutexWait<'_>]| waits.iter().map(FutexWait::is_woken).collect::<Vec<_>>();
        assert_eq!(futexes.wake(key, 2, 1), 2);
        assert_eq!(woken(&waits), [true, false, true, false]);
        assert_eq!(futexes.wake(key, usize::MAX, 2), 2);
        assert_eq!(woken(&waits), [true; 4]);
    }

    #[test]
    fn a_dropped_wait_takes_no_wake_up() {
        let (futexes, key) = (Futexes::default(), key(0x1000));
        let (first, second) = (wait(&futexes, key, 1), wait(&futexes, key, 1));
        drop(first);
        assert_eq!((futexes.waiter_count(), futexes.wake(key, 1, 1)), (1, 1));
        assert!(second.is_woken());
    }

    #[test]
    fn requeued_threads_wait_for_the_other_word() {
        let futexes = Futexes::default();
        // Several pairs, so that some are in one bucket, and others in two, in either order.
        for pair in 0..200 {
            let (from, to) = (key(0x1000 + 8 * pair), key(0x9000 + 64 * pair));
            let waits: Vec<_> = (0..4).map(|_| wait(&futexes, from, 1)).collect();
            assert_eq!(futexes.requeue(from, to, 1, 2, || false), Err(Errno::EAGAIN));
            assert_eq!(futexes.requeue(from, to, 1, 2, || true), Ok(Requeued { woken: 1, moved: 2 }));
            assert_eq!((futexes.wake(from, 9, 1), futexes.wake(to, 1, 1)), (1, 1));
            drop(waits);
            assert_eq!(futexes.waiter_count(), 0, "a moved waiter is found when it is dropped");
        }
        let same = key(0x1000);
        let wait = wait(&futexes, same, 1);
        let requeued = futexes.requeue(same, same, 0, 9, || true).unwrap();
        assert_eq!((requeued, wait.is_woken()), (Requeued::default(), false));
    }

    #[test]
    fn keys_of_neighbouring_words_are_in_different_buckets() {
        let mut used = vec![false; BUCKETS];
        for number in 0..256 {
            used[bucket_of(key(0x7fff_0000_0000 + 4 * number))] = true;
        }
        assert!(used.iter().filter(|used| **used).count() > 100);
    }
}
