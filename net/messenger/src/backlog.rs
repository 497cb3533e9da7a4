//! The limit on the memory of all connections of this machine: queued frames, frames in transmission, and incomplete
//! received frames.
//!
//! The limit is an eighth of the machine's memory, half of that while memory is low, and a quarter while it is
//! critical. If the connections exceed it, those that use the most end, until the others fit.

use crate::send_queue::SendQueue;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicUsize, Ordering};
use isola_ebbs::{CellEbb, Representative, platform};
use isola_events::memory_pressure;
use spin::Mutex;

/// The divisor of the machine's memory that gives the limit.
const SHARE: u64 = 8;

/// The backlog of this machine.
pub(crate) static CELL_BACKLOG: CellEbb<Backlog> = CellEbb::new();

pub(crate) struct Backlog {
    bytes: AtomicUsize,
    connections: Mutex<Vec<Weak<SendQueue>>>,
    /// Returns the present limit, in bytes.
    room: fn() -> usize,
}

impl Representative for Backlog {
    fn create() -> Self {
        Self::with_room(|| {
            let memory = platform().report().memory.total_bytes.load(Ordering::Relaxed);
            room(memory, memory_pressure() as u32)
        })
    }
}

/// Returns the limit for a machine with `memory_bytes` at a level of memory pressure.
fn room(memory_bytes: u64, pressure: u32) -> usize {
    ((memory_bytes / SHARE) >> pressure) as usize
}

impl Backlog {
    /// Returns a backlog with the limit that `room` returns.
    pub const fn with_room(room: fn() -> usize) -> Self {
        Self { bytes: AtomicUsize::new(0), connections: Mutex::new(Vec::new()), room }
    }

    /// Creates the queue of a connection.
    pub fn open(&'static self) -> Arc<SendQueue> {
        let send_queue = Arc::new(SendQueue::new(self));
        let mut connections = self.connections.lock();
        connections.retain(|connection| connection.strong_count() > 0);
        connections.push(Arc::downgrade(&send_queue));
        send_queue
    }

    /// Records that a connection uses `after` bytes instead of `before`. The caller must not hold the lock of a queue.
    pub fn update(&self, before: usize, after: usize) {
        if after > before {
            self.bytes.fetch_add(after - before, Ordering::Relaxed);
            self.shed();
        } else {
            self.bytes.fetch_sub(before - after, Ordering::Relaxed);
        }
    }

    /// Ends the connections that use the most, until the others are within the limit.
    pub fn shed(&self) {
        let room = (self.room)();
        if self.bytes.load(Ordering::Relaxed) <= room {
            return;
        }
        let connections = self.connections.lock().clone();
        let connections = connections.iter().filter_map(Weak::upgrade);
        // An ended connection does not count: it frees its memory when its core runs its task.
        let mut live: Vec<_> =
            connections.filter_map(|connection| Some((connection.used_bytes()?, connection))).collect();
        live.sort_unstable_by_key(|(bytes, _)| *bytes);
        let mut sum: usize = live.iter().map(|(bytes, _)| bytes).sum();
        while sum > room
            && let Some((bytes, connection)) = live.pop()
        {
            connection.end();
            sum -= bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MAX_PAYLOAD;
    use crate::machines::MAX_MACHINES;
    use crate::send_queue::SendAction;
    use alloc::boxed::Box;
    use core::task::Waker;
    use isola_iobuf::{Chain, IoBuf};

    /// The limit for 64 MiB: an eighth.
    const ROOM: usize = 8 << 20;

    fn backlog(room: fn() -> usize) -> &'static Backlog {
        Box::leak(Box::new(Backlog::with_room(room)))
    }

    fn frame(len: usize) -> Chain {
        Chain::from(IoBuf::from(alloc::vec![7; len]))
    }

    fn sum(connections: &[Arc<SendQueue>]) -> usize {
        connections.iter().filter_map(|connection| connection.used_bytes()).sum()
    }

    #[test]
    fn queues_of_machines_that_do_not_read_stay_within_the_limit() {
        let backlog = backlog(|| ROOM);
        let machines: Vec<_> = (0..MAX_MACHINES).map(|_| backlog.open()).collect();
        for _ in 0..8 {
            for machine in &machines {
                let _ = machine.push(frame(64 << 10));
                let used_bytes = backlog.bytes.load(Ordering::Relaxed);
                assert!(used_bytes <= ROOM, "{used_bytes} bytes");
            }
        }
        assert!(sum(&machines) > ROOM / 2, "most of the room is used");
    }

    #[test]
    fn incomplete_frames_and_frames_in_transmission_count() {
        let backlog = backlog(|| ROOM);
        let machines: Vec<_> = (0..MAX_MACHINES).map(|_| backlog.open()).collect();
        for machine in &machines {
            machine.set_partial(MAX_PAYLOAD / 2);
            assert!(sum(&machines) <= ROOM);
        }
        assert_eq!(sum(&machines), ROOM);
        drop(machines);
        assert_eq!(backlog.bytes.load(Ordering::Relaxed), 0, "dropped connections use no memory");

        let one = backlog.open();
        one.push(frame(MAX_PAYLOAD)).unwrap();
        assert!(matches!(one.take(Waker::noop()), SendAction::Send(_)));
        assert_eq!(one.used_bytes(), Some(MAX_PAYLOAD), "unsent bytes count");
        one.set_sending(100);
        assert_eq!((one.used_bytes(), backlog.bytes.load(Ordering::Relaxed)), (Some(100), 100));
    }

    #[test]
    fn the_connection_that_uses_the_most_ends() {
        let backlog = backlog(|| ROOM);
        let (modest, greedy) = (backlog.open(), backlog.open());
        modest.push(frame(MAX_PAYLOAD)).unwrap();
        greedy.set_partial(ROOM - MAX_PAYLOAD);
        modest.push(frame(1)).unwrap();
        assert_eq!((modest.used_bytes(), greedy.used_bytes()), (Some(MAX_PAYLOAD + 1), None));
        assert!(greedy.push(frame(1)).is_err(), "it has ended");
        modest.push(frame(1)).unwrap();
    }

    #[test]
    fn memory_pressure_lowers_the_limit() {
        static PRESSURE: AtomicUsize = AtomicUsize::new(0);
        let backlog = backlog(|| room(64 << 20, PRESSURE.load(Ordering::Relaxed) as u32));
        let machines: Vec<_> = (0..8).map(|_| backlog.open()).collect();
        machines.iter().for_each(|machine| machine.set_partial(MAX_PAYLOAD));
        for (pressure, left) in [(0, 8), (1, 4), (2, 2)] {
            PRESSURE.store(pressure, Ordering::Relaxed);
            backlog.shed();
            assert_eq!(sum(&machines), left * MAX_PAYLOAD, "at pressure {pressure}");
        }
    }
}
