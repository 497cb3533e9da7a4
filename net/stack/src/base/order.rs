//! A queue of small numbers that supports removal from the middle.

use alloc::vec::Vec;

/// The absent number before the first and after the last.
const NONE: u32 = u32::MAX;

/// The predecessor and successor of a queued number.
#[derive(Clone, Copy, Debug)]
struct Link {
    /// The value of [`Link::OUT`] if the number is not queued.
    before: u32,
    after: u32,
}

impl Link {
    /// The link of a number that is not queued.
    const OUT: Self = Self { before: NONE - 1, after: NONE };

    #[inline]
    const fn is_in(self) -> bool {
        self.before != Self::OUT.before
    }
}

/// Numbers in insertion order, each at most once.
#[derive(Debug)]
pub(crate) struct Order {
    links: Vec<Link>,
    first: u32,
    last: u32,
}

impl Order {
    pub const fn new() -> Self {
        Self { links: Vec::new(), first: NONE, last: NONE }
    }

    /// Returns the number that was queued first.
    #[inline]
    pub fn first(&self) -> Option<u32> {
        (self.first != NONE).then_some(self.first)
    }

    /// Returns the successor of a queued number.
    pub fn after(&self, number: u32) -> Option<u32> {
        self.links.get(number as usize).map(|link| link.after).filter(|&after| after != NONE)
    }

    /// Appends a number unless it is queued already.
    #[inline(always)]
    pub fn push_new(&mut self, number: u32) {
        match self.links.get_mut(number as usize) {
            Some(link) if link.is_in() => {}
            Some(link) => {
                *link = Link { before: self.last, after: NONE };
                self.append(number);
            }
            None => self.push_beyond(number),
        }
    }

    /// Appends a number; a queued one moves to the end.
    pub fn push(&mut self, number: u32) {
        self.remove(number);
        self.push_new(number);
    }

    /// Appends a number without a link.
    #[cold]
    fn push_beyond(&mut self, number: u32) {
        self.links.resize(number as usize + 1, Link::OUT);
        self.links[number as usize].before = self.last;
        self.append(number);
    }

    /// Links a number with a link of its own behind the last one.
    #[inline]
    fn append(&mut self, number: u32) {
        match self.links.get_mut(self.last as usize) {
            Some(last) => last.after = number,
            None => self.first = number,
        }
        self.last = number;
    }

    /// Moves the first number to the end.
    #[inline]
    pub fn turn(&mut self) {
        if self.first != self.last {
            self.push(self.first);
        }
    }

    /// Removes a number if it is queued.
    #[inline(always)]
    pub fn remove(&mut self, number: u32) {
        let Some(link) = self.links.get_mut(number as usize).filter(|link| link.is_in()) else { return };
        let Link { before, after } = core::mem::replace(link, Link::OUT);
        if self.first == self.last {
            (self.first, self.last) = (NONE, NONE);
        } else {
            self.join(before, after);
        }
    }

    /// Links the two neighbours of a removed number.
    fn join(&mut self, before: u32, after: u32) {
        match self.links.get_mut(before as usize) {
            Some(neighbour) => neighbour.after = after,
            None => self.first = after,
        }
        match self.links.get_mut(after as usize) {
            Some(neighbour) => neighbour.before = before,
            None => self.last = before,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::VecDeque;

    #[test]
    fn random_operations_agree_with_a_plain_queue() {
        let mut order = Order::new();
        let mut model: VecDeque<u32> = VecDeque::new();
        let mut state = 7u64;
        for _ in 0..10_000 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let number = (state >> 33) as u32 % 20;
            model.retain(|&other| other != number);
            if state >> 62 == 0 {
                order.remove(number);
            } else {
                order.push(number);
                model.push_back(number);
            }
            assert_eq!(order.first(), model.front().copied());
        }
        while let Some(first) = order.first() {
            assert_eq!(model.pop_front(), Some(first));
            order.remove(first);
        }
        assert!(model.is_empty());
    }
}
