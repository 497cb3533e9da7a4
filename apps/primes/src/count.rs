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
    /// 1 for each odd number of a piece that is composite.
    composite: Vec<u8>,
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
        Self { divisors, composite: vec![0; PIECE as usize / 2] }
    }

    /// Returns the number of primes in a piece: a range of at most [`PIECE`] numbers that starts at a multiple of it,
    /// below the bound.
    pub fn count(&mut self, piece: Range<u64>) -> u64 {
        let mut sieve = self.begin(piece);
        while sieve.step() == Progress::Unfinished {}
        sieve.primes()
    }

    /// Does the same in steps of some two thousand instructions, and awaits `pause` between them, so that other work can
    /// run.
    pub async fn count_in_steps(&mut self, piece: Range<u64>, mut pause: impl AsyncFnMut()) -> u64 {
        let mut sieve = self.begin(piece);
        while sieve.step() == Progress::Unfinished {
            pause().await;
        }
        sieve.primes()
    }

    fn begin(&mut self, piece: Range<u64>) -> Sieve<'_> {
        let slots = (piece.end.saturating_sub(piece.start) as usize / 2).min(self.composite.len());
        let composite = &mut self.composite[..slots];
        composite.fill(0);
        Sieve { divisors: &self.divisors, composite, piece, counted: 0, odd_primes: 0 }
    }
}

/// Whether a piece's count needs another step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    Unfinished,
    Finished,
}

/// The work of a step: a divisor counts as some slots, and each of its multiples as one.
const STEP_WORK: usize = 512;
const DIVISOR_WORK: usize = 16;

/// The slots that a step counts: as many words of eight as a byte can count.
const STEP_SLOTS: usize = u8::MAX as usize * 8;

/// A piece that is being counted.
struct Sieve<'a> {
    /// The divisors that are left.
    divisors: &'a [u64],
    /// Slot `i` represents the odd number `piece.start + 2 * i + 1`.
    composite: &'a mut [u8],
    piece: Range<u64>,
    /// The slots that are counted, after the last divisor, and the primes among them.
    counted: usize,
    odd_primes: usize,
}

impl Sieve<'_> {
    /// Marks the multiples of the next divisors, or counts the next primes.
    fn step(&mut self) -> Progress {
        let mut work = 0;
        while work < STEP_WORK {
            let Some(divisor) = self.next_divisor() else {
                // A step that has marked many multiples does not count as well.
                return if work > STEP_WORK / 4 { Progress::Unfinished } else { self.count_step() };
            };
            let multiple = self.piece.start.next_multiple_of(divisor);
            let odd_multiple = if multiple.is_multiple_of(2) { multiple + divisor } else { multiple };
            let first = ((divisor * divisor).max(odd_multiple) - self.piece.start) as usize / 2;
            let slots = self.composite.iter_mut().skip(first).step_by(divisor as usize);
            slots.for_each(|slot| *slot = 1);
            work += DIVISOR_WORK + self.composite.len() / divisor as usize;
        }
        Progress::Unfinished
    }

    /// Takes the next divisor with multiples in the piece that no smaller divisor marks.
    fn next_divisor(&mut self) -> Option<u64> {
        let (&divisor, rest) = self.divisors.split_first()?;
        if divisor * divisor >= self.piece.end {
            return None;
        }
        self.divisors = rest;
        Some(divisor)
    }

    fn count_step(&mut self) -> Progress {
        let slots = &self.composite[self.counted..];
        let slots = &slots[..slots.len().min(STEP_SLOTS)];
        let (words, rest) = slots.as_chunks::<8>();
        // Each byte of the sum counts the slots at its place in the words.
        let sum = words.iter().fold(0, |sum, word| sum + u64::from_ne_bytes(*word));
        let composite: usize = sum.to_ne_bytes().iter().chain(rest).map(|count| usize::from(*count)).sum();
        self.odd_primes += slots.len() - composite;
        self.counted += slots.len();
        if self.counted == self.composite.len() { Progress::Finished } else { Progress::Unfinished }
    }

    /// Returns the number of primes, after the last step.
    fn primes(self) -> u64 {
        let odd_primes = self.odd_primes as u64;
        // The first piece contains 1, which is not prime, and 2, which is not odd.
        match self.piece.start {
            0 => odd_primes.saturating_sub(1) + u64::from(self.piece.end > 2),
            _ => odd_primes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::cell::Cell;
    use core::pin::pin;
    use core::task::{Context, Poll, Waker};

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
    fn a_count_in_steps_is_the_same_and_has_steps_of_limited_work() {
        let mut counter = Counter::new(100_000_000);
        // Few divisors with many multiples each, 1,228 with few, and a long piece.
        for (piece, least, most) in [(0..4_096, 5, 8), (99_995_648..99_999_744, 36, 60), (0..65_536, 40, 80)]
        {
            let pauses = Cell::new(0);
            let count = counter.clone().count(piece.clone());
            let pause = async || pauses.set(pauses.get() + 1);
            let mut stepped = pin!(counter.count_in_steps(piece.clone(), pause));
            let mut context = Context::from_waker(Waker::noop());
            assert_eq!(stepped.as_mut().poll(&mut context), Poll::Ready(count), "{piece:?}");
            assert!((least..=most).contains(&pauses.get()), "{} pauses in {piece:?}", pauses.get());
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
