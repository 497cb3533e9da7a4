//! The bound on the events that other cores have sent to a core, and the wake-up of senders when there is room again.
//!
//! ```text
//! sender                                 receiver
//!   waiting < limit? waiting += 1, push    pop events; waiting -= their number
//!   else: requests |= its bit              fence
//!         fence                            waiting <= limit / 2 and requests != 0?
//!         waiting < limit? try again         wake all cores in requests, requests := 0
//! ```
//!
//! With the fences, a sender without room either finds some when it checks again, or the receiver sees its bit after
//! working off half. `waiting` is at times ahead of the queue, never behind it: the bound is exact.

use crate::sync::{AtomicU64, AtomicUsize, Ordering, fence};

/// Whether an event finds room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum HasRoom {
    Yes,
    No,
}

/// A counting semaphore for the events of other cores.
pub(crate) struct Room {
    limit: usize,
    waiting: AtomicUsize,
    /// The cores that wait for room, a bit each.
    requests: AtomicU64,
}

impl Room {
    /// Creates room for `limit` events. `limit` must be at least twice the number of cores.
    pub fn new(limit: usize) -> Self {
        Self { limit, waiting: AtomicUsize::new(0), requests: AtomicU64::new(0) }
    }

    /// Returns whether there is room now.
    pub fn check(&self) -> HasRoom {
        if self.waiting.load(Ordering::Relaxed) < self.limit { HasRoom::Yes } else { HasRoom::No }
    }

    /// Reserves an entry, if there is one.
    pub fn take(&self) -> HasRoom {
        if self.check() == HasRoom::No {
            return HasRoom::No;
        }
        if self.waiting.fetch_add(1, Ordering::Relaxed) < self.limit {
            return HasRoom::Yes;
        }
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        HasRoom::No
    }

    /// Registers the core of that bit for a wake-up when there is room. Returns whether there is some already.
    pub fn request(&self, core_bit: u64) -> HasRoom {
        self.requests.fetch_or(core_bit, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.check()
    }

    /// Releases `count` entries. Returns the bits of the cores to wake.
    pub fn release(&self, count: usize) -> u64 {
        let left = self.waiting.fetch_sub(count, Ordering::Relaxed) - count;
        fence(Ordering::SeqCst);
        if left > self.limit / 2 || self.requests.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        self.requests.swap(0, Ordering::Relaxed)
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use alloc::vec::Vec;
    use loom::sync::Arc;
    use loom::thread;

    #[test]
    fn no_more_entries_are_taken_than_the_limit() {
        loom::model(|| {
            let room = Arc::new(Room::new(1));
            let senders: Vec<_> = (0..2)
                .map(|_| {
                    let room = room.clone();
                    thread::spawn(move || room.take())
                })
                .collect();
            let taken = senders
                .into_iter()
                .filter_map(|sender| (sender.join().unwrap() == HasRoom::Yes).then_some(()))
                .count();
            assert!(taken <= 1, "{taken} entries of 1 were taken");
        });
    }

    #[test]
    fn a_sender_without_room_finds_some_or_is_woken() {
        loom::model(|| {
            let room = Arc::new(Room::new(2));
            assert_eq!((room.take(), room.take()), (HasRoom::Yes, HasRoom::Yes));
            let sender = {
                let room = room.clone();
                thread::spawn(move || room.take() == HasRoom::Yes || room.request(1) == HasRoom::Yes)
            };
            let woken = room.release(1) | room.release(1);
            let found = sender.join().unwrap();
            assert!(found || woken == 1, "a core waits although there is room");
        });
    }
}
