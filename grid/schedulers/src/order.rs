//! The members of a group that have waiting requests, in the order of a key.

use crate::policy::Entity;
use alloc::collections::BTreeSet;

/// Members ordered by a key, each at most once. Equal keys are in the order of the members' numbers.
///
/// The first member is outside of the set: a single member is inserted, found and removed with a few comparisons.
#[derive(Debug)]
pub struct Order<K> {
    first: Option<(K, Entity)>,
    /// All others. Empty if there is no first member.
    rest: BTreeSet<(K, Entity)>,
}

impl<K> Default for Order<K> {
    fn default() -> Self {
        Self { first: None, rest: BTreeSet::new() }
    }
}

impl<K: Copy + Ord> Order<K> {
    /// Returns the first member and its key.
    #[inline]
    pub fn first(&self) -> Option<(K, Entity)> {
        self.first
    }

    /// Returns the first member other than this one, and its key.
    #[inline]
    pub fn first_other(&self, entity: Entity) -> Option<(K, Entity)> {
        self.first.filter(|(_, first)| *first != entity).or_else(|| self.rest.first().copied())
    }

    /// Adds a member that is not in the order.
    #[inline]
    pub fn insert(&mut self, key: K, entity: Entity) {
        let new = (key, entity);
        match self.first {
            None => self.first = Some(new),
            Some(first) if new < first => {
                self.first = Some(new);
                self.rest.insert(first);
            }
            Some(_) => {
                self.rest.insert(new);
            }
        }
    }

    /// Removes a member with that key; no effect if it is not in the order.
    #[inline]
    pub fn remove(&mut self, key: K, entity: Entity) {
        if self.first == Some((key, entity)) {
            self.first = self.rest.pop_first();
        } else {
            self.rest.remove(&(key, entity));
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
}
