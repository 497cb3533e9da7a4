//! The bound on events that other cores have sent to a core, and who wants to be told when there is room again.
//!
//! ```text
//! sender                                 receiver
//!   waiting < limit? waiting += 1, push    pop events; waiting -= their number
//!   else: wants |= its bit                 fence
//!         fence                            waiting <= limit / 2 and wants != 0?
//!         waiting < limit? try again         wake all who are in wants, wants := 0
//! ```
//!
//! With the fences, a sender that found no room either finds some when it looks again, or is seen when the receiver
//! has worked off half. `waiting` is ahead of the queue for moments, never behind it: the bound is exact.

use crate::sync::{AtomicU64, AtomicUsize, Ordering, fence};

/// Whether there is room for an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum HasRoom {
    Yes,
    No,
}

/// Places for the events of other cores.
pub(crate) struct Room {
    limit: usize,
    waiting: AtomicUsize,
    /// A bit a core.
    wants: AtomicU64,
}

impl Room {
    /// Places for `limit` events. At least twice as many as there are cores.
    pub fn new(limit: usize) -> Self {
        Self { limit, waiting: AtomicUsize::new(0), wants: AtomicU64::new(0) }
    }

    /// Whether there is room now.
    pub fn look(&self) -> HasRoom {
        if self.waiting.load(Ordering::Relaxed) < self.limit { HasRoom::Yes } else { HasRoom::No }
    }

    /// Takes a place, where there is one.
    pub fn take(&self) -> HasRoom {
        if self.look() == HasRoom::No {
            return HasRoom::No;
        }
        if self.waiting.fetch_add(1, Ordering::Relaxed) < self.limit {
            return HasRoom::Yes;
        }
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        HasRoom::No
    }

    /// Says that the core of that bit wants to be told of room. Returns whether there is some already.
    pub fn want(&self, core_bit: u64) -> HasRoom {
        self.wants.fetch_or(core_bit, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.look()
    }

    /// Gives back `count` places. Returns the bits of the cores to be told.
    pub fn give_back(&self, count: usize) -> u64 {
        let left = self.waiting.fetch_sub(count, Ordering::Relaxed) - count;
        fence(Ordering::SeqCst);
        if left > self.limit / 2 || self.wants.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        self.wants.swap(0, Ordering::Relaxed)
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use alloc::vec::Vec;
    use loom::sync::Arc;
    use loom::thread;

    #[test]
    fn places_are_never_more_than_the_limit() {
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
            assert!(taken <= 1, "{taken} places of 1 were taken");
        });
    }

    #[test]
    fn whoever_found_no_room_finds_some_or_is_told() {
        loom::model(|| {
            let room = Arc::new(Room::new(2));
            assert_eq!((room.take(), room.take()), (HasRoom::Yes, HasRoom::Yes));
            let sender = {
                let room = room.clone();
                thread::spawn(move || room.take() == HasRoom::Yes || room.want(1) == HasRoom::Yes)
            };
            let told = room.give_back(1) | room.give_back(1);
            let found = sender.join().unwrap();
            assert!(found || told == 1, "a core waits for room that there is");
        });
    }
}
