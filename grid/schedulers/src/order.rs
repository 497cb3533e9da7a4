//! The members of a group that have waiting requests, in the order of a key.

use crate::policy::Entity;
use alloc::collections::BTreeSet;
use alloc::vec::Vec;

/// The members outside of the set.
const MOST_FIRST: usize = 8;

/// Members ordered by a key, each at most once. Equal keys are in the order of the members' numbers.
///
/// The first members are outside of the set: a few members are inserted, found and removed with some comparisons.
#[derive(Debug)]
pub struct Order<K> {
    /// At most [`MOST_FIRST`], the last one first.
    first: Vec<(K, Entity)>,
    /// All others. Empty if there are no first members.
    rest: BTreeSet<(K, Entity)>,
}

impl<K> Default for Order<K> {
    fn default() -> Self {
        Self { first: Vec::with_capacity(MOST_FIRST + 1), rest: BTreeSet::new() }
    }
}

impl<K: Copy + Ord> Order<K> {
    /// Returns the first member and its key.
    #[inline]
    pub fn first(&self) -> Option<(K, Entity)> {
        self.first.last().copied()
    }

    /// Returns the first member other than this one, and its key.
    #[inline]
    pub fn first_other(&self, entity: Entity) -> Option<(K, Entity)> {
        let others = self.first.iter().rev().find(|(_, first)| *first != entity);
        others.or_else(|| self.rest.first()).copied()
    }

    /// Adds a member that is not in the order.
    #[inline]
    pub fn insert(&mut self, key: K, entity: Entity) {
        let new = (key, entity);
        let after = self.first.iter().rposition(|other| new < *other);
        // Behind all first members, of which there may be further ones.
        if after.is_none() && !self.rest.is_empty() {
            self.rest.insert(new);
            return;
        }
        self.first.insert(after.map_or(0, |after| after + 1), new);
        if self.first.len() > MOST_FIRST {
            self.rest.insert(self.first.remove(0));
        }
    }

    /// Removes a member with that key; no effect if it is not in the order.
    #[inline]
    pub fn remove(&mut self, key: K, entity: Entity) {
        match self.first.iter().rposition(|first| *first == (key, entity)) {
            Some(index) => {
                self.first.remove(index);
                if self.first.is_empty() {
                    self.refill();
                }
            }
            None => {
                self.rest.remove(&(key, entity));
            }
        }
    }

    /// Moves members from the set.
    fn refill(&mut self) {
        while self.first.len() < MOST_FIRST
            && let Some(next) = self.rest.pop_first()
        {
            self.first.insert(0, next);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn members_leave_in_the_order_of_their_keys() {
        let mut order = Order::default();
        for (number, key) in [5, 1, 4, 1, 9, 0].into_iter().enumerate() {
            order.insert(key, Entity(number as u32));
        }
        order.remove(4, Entity(2));
        // Not in the order.
        order.remove(5, Entity(1));
        assert_eq!(order.first_other(Entity(5)), Some((1, Entity(1))), "number 5 is the first");
        assert_eq!(order.first_other(Entity(1)), Some((0, Entity(5))));
        let mut left = Vec::new();
        while let Some((key, entity)) = order.first() {
            left.push((key, entity.0));
            order.remove(key, entity);
        }
        assert_eq!(left, [(0, 5), (1, 1), (1, 3), (5, 0), (9, 4)]);
    }

    #[test]
    fn the_order_is_that_of_a_set_for_any_number_of_members() {
        let (mut order, mut model) = (Order::default(), BTreeSet::new());
        let mut state = 7_u64;
        let mut below = |bound: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % bound
        };
        let mut keys = [None; 40];
        for step in 0..20_000 {
            // Few members, many, and few again.
            let most = if step % 4_000 < 2_000 { 40 } else { 5 };
            let member = below(40) as usize;
            let entity = Entity(member as u32);
            match keys[member].take() {
                Some(key) => {
                    order.remove(key, entity);
                    model.remove(&(key, entity));
                }
                None if model.len() < most => {
                    let key = below(20);
                    keys[member] = Some(key);
                    order.insert(key, entity);
                    model.insert((key, entity));
                }
                None => {}
            }
            assert_eq!(order.first(), model.first().copied());
            let others = model.iter().find(|(_, other)| *other != entity);
            assert_eq!(order.first_other(entity), others.copied());
        }
    }
}
