//! One deadline for each of many owners: a heap with the position of each owner's entry.
//!
//! An owner (a connection, by its number) has at most one entry, so the heap is never larger than the table that it
//! serves. Most deadlines of TCP move to a later time before they expire. An owner therefore does not update the heap
//! when its deadline moves *later*, and the code that reads the heap's top asks the owner for its current deadline.
//! Deadlines are exact to the nanosecond: no timer fires for a deadline that has moved. Decision 0026 explains why this
//! is not a timer wheel.

use super::time::Instant;
use alloc::vec::Vec;

/// Children of a heap node: four entries share a cache line.
const ARITY: usize = 4;

/// The position of an owner without an entry.
const ABSENT: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Entry {
    at: Instant,
    owner: u32,
}

/// A heap of deadlines with at most one entry per owner.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    heap: Vec<Entry>,
    /// The position in `heap` of each owner's entry.
    positions: Vec<u32>,
}

impl Timers {
    pub const fn new() -> Self {
        Self { heap: Vec::new(), positions: Vec::new() }
    }

    /// Returns time and owner of the earliest entry.
    #[inline]
    pub fn first(&self) -> Option<(Instant, u32)> {
        self.heap.first().map(|entry| (entry.at, entry.owner))
    }

    /// Ensures that the owner's entry is no later than `at`.
    #[inline(always)]
    pub fn no_later_than(&mut self, owner: u32, at: Instant) {
        match self.position(owner).and_then(|position| self.heap.get(position).map(|entry| entry.at)) {
            Some(entry) if entry <= at => {}
            _ => self.set(owner, at),
        }
    }

    /// Sets the owner's entry to exactly `at`, and creates one if there is none.
    pub fn set(&mut self, owner: u32, at: Instant) {
        if let Some(position) = self.position(owner) {
            if let Some(entry) = self.heap.get_mut(position) {
                entry.at = at;
            }
            let position = self.rise(position);
            self.sink(position);
            return;
        }
        let index = owner as usize;
        if self.positions.len() <= index {
            self.positions.resize(index + 1, ABSENT);
        }
        let position = self.heap.len();
        self.heap.push(Entry { at, owner });
        self.note(position);
        self.rise(position);
    }

    /// Removes the owner's entry, if it has one.
    pub fn remove(&mut self, owner: u32) {
        let Some(position) = self.position(owner) else { return };
        self.heap.swap_remove(position);
        if let Some(slot) = self.positions.get_mut(owner as usize) {
            *slot = ABSENT;
        }
        if position < self.heap.len() {
            self.note(position);
            let position = self.rise(position);
            self.sink(position);
        }
    }

    fn position(&self, owner: u32) -> Option<usize> {
        self.positions
            .get(owner as usize)
            .filter(|&&position| position != ABSENT)
            .map(|&position| position as usize)
    }

    /// Records the position of the entry that is there now.
    fn note(&mut self, position: usize) {
        let owner = self.heap[position].owner as usize;
        if let Some(slot) = self.positions.get_mut(owner) {
            *slot = position as u32;
        }
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.heap.swap(a, b);
        self.note(a);
        self.note(b);
    }

    fn rise(&mut self, mut position: usize) -> usize {
        while position > 0 {
            let parent = (position - 1) / ARITY;
            if self.heap[parent].at <= self.heap[position].at {
                break;
            }
            self.swap(parent, position);
            position = parent;
        }
        position
    }

    fn sink(&mut self, mut position: usize) {
        loop {
            let first = position * ARITY + 1;
            let last = (first + ARITY).min(self.heap.len());
            let Some(least) = (first..last).min_by_key(|&child| self.heap[child].at) else { return };
            if self.heap[position].at <= self.heap[least].at {
                return;
            }
            self.swap(position, least);
            position = least;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeMap;

    fn at(nanos: u64) -> Instant {
        Instant::from_nanos(nanos)
    }

    #[test]
    fn random_operations_agree_with_a_sorted_map() {
        let mut timers = Timers::new();
        let mut model: BTreeMap<u32, u64> = BTreeMap::new();
        let mut state = 1u64;
        for _ in 0..20_000 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let (owner, nanos, action) = ((state >> 33) as u32 % 50, (state >> 20) % 1000, (state >> 60) % 4);
            match action {
                0 => {
                    timers.remove(owner);
                    model.remove(&owner);
                }
                1 => {
                    timers.no_later_than(owner, at(nanos));
                    let entry = model.entry(owner).or_insert(nanos);
                    *entry = nanos.min(*entry);
                }
                _ => {
                    timers.set(owner, at(nanos));
                    model.insert(owner, nanos);
                }
            }
            let least = model.values().min().map(|&nanos| at(nanos));
            assert_eq!(timers.first().map(|(at, _)| at), least);
            if let Some((first, owner)) = timers.first() {
                assert_eq!(model.get(&owner).map(|&nanos| at(nanos)), Some(first));
            }
            assert_eq!(timers.heap.len(), model.len());
        }
    }
}
