//! Counts primes in pieces small enough that a core can run other events in between.

use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

/// The numbers of one piece: half as many bytes, as only odd numbers are stored.
pub const PIECE: u64 = 1 << 16;

/// Returns the pieces of the numbers below `number` that part `part` of `parts` counts. The parts are disjoint and
/// cover all numbers.
///
/// Pieces are assigned round-robin, not in contiguous halves, as pieces of larger numbers take longer.
pub fn pieces(number: u64, part: usize, parts: usize) -> impl Iterator<Item = Range<u64>> {
    (0..number.div_ceil(PIECE))
        .skip(part)
        .step_by(parts.max(1))
        .map(move |piece| piece * PIECE..((piece + 1) * PIECE).min(number))
}

/// Counts primes below a given bound.
#[derive(Clone, Debug)]
pub struct Counter {
    /// The odd primes up to the bound's square root.
    divisors: Vec<u64>,
    composite: Vec<bool>,
}

impl Counter {
    /// Creates a counter for numbers below `bound`.
    pub fn new(bound: u64) -> Self {
        let root = bound.isqrt() + 1;
        let mut composite = vec![false; root as usize + 1];
        let mut divisors = Vec::new();
        for candidate in (3..=root).step_by(2) {
            if !composite[candidate as usize] {
                divisors.push(candidate);
                let multiples = (candidate * candidate..=root).step_by(candidate as usize);
                multiples.for_each(|multiple| composite[multiple as usize] = true);
            }
        }
        Self { divisors, composite: vec![false; PIECE as usize / 2] }
    }

    /// Returns the number of primes in a piece: a range of at most [`PIECE`] numbers that starts at a multiple of it,
    /// below the bound.
    pub fn count(&mut self, piece: Range<u64>) -> u64 {
        // Slot `i` represents the odd number `piece.start + 2 * i + 1`.
        let slots = (piece.end.saturating_sub(piece.start) as usize / 2).min(self.composite.len());
        let composite = &mut self.composite[..slots];
        composite.fill(false);
        for &divisor in &self.divisors {
            let square = divisor * divisor;
            if square >= piece.end {
                break;
            }
            let multiple = piece.start.next_multiple_of(divisor);
            let odd_multiple = if multiple.is_multiple_of(2) { multiple + divisor } else { multiple };
            let first = (square.max(odd_multiple) - piece.start) as usize / 2;
            composite.iter_mut().skip(first).step_by(divisor as usize).for_each(|slot| *slot = true);
        }
        let odd_primes = composite.iter().filter(|composite| !**composite).count() as u64;
        // The first piece contains 1, which is not prime, and 2, which is not odd.
        match piece.start {
            0 => odd_primes.saturating_sub(1) + u64::from(piece.end > 2),
            _ => odd_primes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(number: u64, parts: usize) -> u64 {
        (0..parts)
            .map(|part| {
                let mut counter = Counter::new(number);
                pieces(number, part, parts).map(|piece| counter.count(piece)).sum::<u64>()
            })
            .sum()
    }

    #[test]
    fn small_numbers_agree_with_trial_division() {
        let prime = |n: u64| n >= 2 && (2..n).take_while(|d| d * d <= n).all(|d| !n.is_multiple_of(d));
        for number in 0..2_000 {
            assert_eq!(count(number, 1), (0..number).filter(|&n| prime(n)).count() as u64, "below {number}");
        }
    }

    #[test]
    fn known_counts_do_not_depend_on_the_parts() {
        for parts in [1, 2, 3, 7, 64] {
            assert_eq!(count(1_000_000, parts), 78_498);
            assert_eq!(count(PIECE, parts), 6_542);
            assert_eq!(count(PIECE + 2, parts), 6_543);
        }
    }
}
