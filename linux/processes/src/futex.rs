//! Futexes: threads that wait for a change of a word of their memory (futex(2)).
//!
//! A waiter is in the bucket of its word's key. The word is read with the bucket's lock held, as are wake-ups, so no
//! wake-up between the check and the wait is lost. The lock is held for a few instructions and never over an `await`.

use crate::Errno;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::future::poll_fn;
use core::task::{Poll, Waker};
use isola_memory::frame::Frame;
use spin::Mutex;

/// The number of buckets: a power of two. With many waiters a bucket has several keys.
const BUCKETS: usize = 256;

/// The word of a futex, as threads of different processes name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FutexKey {
    /// A word of one process: the number of its memory, and the address.
    Private {
        /// Number of the memory.
        memory: u64,
        /// Address of the word.
        address: u64,
    },
    /// A word of a frame that several processes may have mapped.
    Shared {
        /// The frame's address in the kernel.
        frame: u64,
        /// Offset of the word.
        offset: u32,
    },
}

/// A word of a program's memory that is resolved.
#[derive(Clone, Debug)]
pub struct FutexWord {
    /// The frame that contains it.
    pub frame: Frame,
    /// Its offset, a multiple of 4.
    pub offset: usize,
    /// Its name.
    pub key: FutexKey,
}

/// The waiting threads.
#[derive(Debug)]
pub struct Futexes {
    buckets: Vec<Mutex<Bucket>>,
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
        Self { buckets: (0..BUCKETS).map(|_| Mutex::default()).collect() }
    }
}

impl Futexes {
    /// Waits until a wake-up of the word for one of `bits`, if it is `expected`.
    ///
    /// Dropping the future ends the wait. A wake-up that has already counted the thread is then lost for others, as in
    /// Linux, where a thread that was woken and interrupted at the same time returns 0: see [`FutexWait::is_woken`].
    ///
    /// # Errors
    /// [`Errno::EAGAIN`] if the word is another; [`Errno::EINVAL`] for no bits.
    pub fn wait(&self, word: &FutexWord, expected: u32, bits: u32) -> Result<FutexWait<'_>, Errno> {
        if bits == 0 {
            return Err(Errno::EINVAL);
        }
        let index = bucket_of(word.key);
        let state = Arc::new(WaitState(Mutex::new(WaitPhase::Waiting { bucket: index, waker: None })));
        let mut bucket = self.buckets[index].lock();
        if word.frame.load(word.offset) != expected {
            return Err(Errno::EAGAIN);
        }
        bucket.waiters.push(Waiter { key: word.key, bits, state: state.clone() });
        Ok(FutexWait { futexes: self, state })
    }

    /// Wakes at most `most` threads that wait for the key with one of `bits`. Returns their number.
    pub fn wake(&self, key: FutexKey, most: usize, bits: u32) -> usize {
        let mut wakers = Vec::new();
        self.buckets[bucket_of(key)]
            .lock()
            .take(most, |waiter| waiter.key == key && waiter.bits & bits != 0)
            .into_iter()
            .for_each(|waiter| wakers.push(waiter.state.wake()));
        let count = wakers.len();
        // Without the bucket's lock: a waker may send a message.
        wakers.into_iter().flatten().for_each(Waker::wake);
        count
    }

    /// Wakes at most `wake` threads that wait for `from`, and makes at most `moves` others wait for the word `to`. With
    /// `expected`, only if the word of `from` is that.
    ///
    /// # Errors
    /// [`Errno::EAGAIN`] if the word is another.
    pub fn requeue(
        &self,
        from: &FutexWord,
        to: FutexKey,
        wake: usize,
        moves: usize,
        expected: Option<u32>,
    ) -> Result<Requeued, Errno> {
        let (first, second) = (bucket_of(from.key), bucket_of(to));
        let mut wakers = Vec::new();
        let mut requeued = Requeued::default();
        {
            // The lower bucket first, so that two requeues never wait for each other.
            let lower = self.buckets[first.min(second)].lock();
            let upper = (first != second).then(|| self.buckets[first.max(second)].lock());
            let (mut source, mut target) = match (upper, first < second) {
                (None, _) => (lower, None),
                (Some(upper), true) => (lower, Some(upper)),
                (Some(upper), false) => (upper, Some(lower)),
            };
            if expected.is_some_and(|expected| from.frame.load(from.offset) != expected) {
                return Err(Errno::EAGAIN);
            }
            for waiter in source.take(wake, |waiter| waiter.key == from.key) {
                wakers.push(waiter.state.wake());
            }
            requeued.woken = wakers.len();
            if from.key != to {
                for mut waiter in source.take(moves, |waiter| waiter.key == from.key) {
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
        loop {
            let index = match &*self.state.0.lock() {
                WaitPhase::Waiting { bucket, .. } => *bucket,
                WaitPhase::Woken => return,
            };
            let mut bucket = self.futexes.buckets[index].lock();
            let before = bucket.waiters.len();
            bucket.waiters.retain(|waiter| !Arc::ptr_eq(&waiter.state, &self.state));
            if bucket.waiters.len() < before {
                return;
            }
            // Woken or moved to another bucket meanwhile.
        }
    }
}

fn bucket_of(key: FutexKey) -> usize {
    let (first, second) = match key {
        FutexKey::Private { memory, address } => (memory, address),
        FutexKey::Shared { frame, offset } => (frame >> 12, offset.into()),
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

    fn word(value: u32, address: u64) -> FutexWord {
        let frame = Frame::zeroed();
        frame.write(8, &value.to_le_bytes());
        FutexWord { frame, offset: 8, key: FutexKey::Private { memory: 1, address } }
    }

    fn is_ready(wait: &FutexWait<'_>) -> bool {
        pin!(wait.woken()).poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn a_thread_waits_only_for_the_expected_word() {
        let (futexes, word) = (Futexes::default(), word(5, 0x1000));
        assert_eq!(futexes.wait(&word, 6, u32::MAX).err(), Some(Errno::EAGAIN));
        assert_eq!(futexes.wait(&word, 5, 0).err(), Some(Errno::EINVAL));
        let wait = futexes.wait(&word, 5, u32::MAX).unwrap();
        assert!(!is_ready(&wait));
        assert_eq!(futexes.wake(word.key, 1, u32::MAX), 1);
        assert!(is_ready(&wait) && wait.is_woken());
        assert_eq!((futexes.wake(word.key, 1, u32::MAX), futexes.waiter_count()), (0, 0));
    }

    #[test]
    fn wake_ups_go_by_arrival_and_bits() {
        let (futexes, word) = (Futexes::default(), word(0, 0x1000));
        let waits: Vec<_> =
            [1, 2, 1, 3].into_iter().map(|bits| futexes.wait(&word, 0, bits).unwrap()).collect();
        let woken = |waits: &[FutexWait<'_>]| waits.iter().map(FutexWait::is_woken).collect::<Vec<_>>();
        assert_eq!(futexes.wake(word.key, 2, 1), 2);
        assert_eq!(woken(&waits), [true, false, true, false]);
        assert_eq!(futexes.wake(word.key, usize::MAX, 2), 2);
        assert_eq!(woken(&waits), [true; 4]);
    }

    #[test]
    fn a_dropped_wait_takes_no_wake_up() {
        let (futexes, word) = (Futexes::default(), word(0, 0x1000));
        let (first, second) = (futexes.wait(&word, 0, 1).unwrap(), futexes.wait(&word, 0, 1).unwrap());
        drop(first);
        assert_eq!((futexes.waiter_count(), futexes.wake(word.key, 1, 1)), (1, 1));
        assert!(second.is_woken());
    }

    #[test]
    fn requeued_threads_wait_for_the_other_word() {
        let futexes = Futexes::default();
        // Several pairs, so that some are in one bucket, and others in two, in either order.
        for pair in 0..200 {
            let (from, to) = (word(3, 0x1000 + 8 * pair), word(0, 0x9000 + 64 * pair));
            let waits: Vec<_> = (0..4).map(|_| futexes.wait(&from, 3, 1).unwrap()).collect();
            assert_eq!(futexes.requeue(&from, to.key, 1, 2, Some(4)), Err(Errno::EAGAIN));
            assert_eq!(futexes.requeue(&from, to.key, 1, 2, Some(3)), Ok(Requeued { woken: 1, moved: 2 }));
            assert_eq!((futexes.wake(from.key, 9, 1), futexes.wake(to.key, 1, 1)), (1, 1));
            drop(waits);
            assert_eq!(futexes.waiter_count(), 0, "a moved waiter is found when it is dropped");
        }
        let same = word(0, 0x1000);
        let wait = futexes.wait(&same, 0, 1).unwrap();
        let requeued = futexes.requeue(&same, same.key, 0, 9, None).unwrap();
        assert_eq!((requeued, wait.is_woken()), (Requeued::default(), false));
    }

    #[test]
    fn keys_of_neighbouring_words_are_in_different_buckets() {
        let mut used = vec![false; BUCKETS];
        for number in 0..256 {
            used[bucket_of(FutexKey::Private { memory: 1, address: 0x7fff_0000_0000 + 4 * number })] = true;
        }
        assert!(used.iter().filter(|used| **used).count() > 100);
    }
}
