//! Quick calls: system calls without arguments and effects, which the platform answers by itself while a program runs.

use core::sync::atomic::{AtomicU64, Ordering};

/// The numbers of quick calls are below this one.
const NUMBERS: usize = 256;

/// The most answers of a thread.
const ANSWERS: usize = 8;

/// The mark of a quick call. The position of its answer is above the bits of an offset within it.
const QUICK: u8 = 0x80;
const POSITION_SHIFT: u32 = 3;

/// The results of a thread's quick calls, which others may change while its program runs.
#[derive(Debug, Default)]
pub struct QuickAnswers([AtomicU64; ANSWERS]);

impl QuickAnswers {
    /// Creates answers, all 0.
    pub const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; ANSWERS])
    }

    /// Returns an answer.
    #[inline]
    pub fn get(&self, position: usize) -> u64 {
        self.0[position].load(Ordering::Relaxed)
    }

    /// Sets an answer.
    #[inline]
    pub fn set(&self, position: usize, answer: u64) {
        self.0[position].store(answer, Ordering::Relaxed);
    }

    /// Returns all answers, for the platform.
    #[inline]
    pub fn all(&self) -> &[AtomicU64; ANSWERS] {
        &self.0
    }
}

/// Which system calls are quick: they return one of a thread's [`QuickAnswers`].
#[derive(Debug)]
pub struct QuickNumbers([u8; NUMBERS]);

impl QuickNumbers {
    /// No call is quick.
    pub const NONE: &'static Self = &Self::new(&[]);

    /// Creates the table from numbers of calls and the positions of their answers.
    ///
    /// # Panics
    /// If a number or a position is too large.
    pub const fn new(calls: &[(u32, usize)]) -> Self {
        let mut table = [0; NUMBERS];
        let mut index = 0;
        while index < calls.len() {
            let (number, position) = calls[index];
            assert!((number as usize) < NUMBERS && position < ANSWERS);
            table[number as usize] = QUICK | (position as u8) << POSITION_SHIFT;
            index += 1;
        }
        Self(table)
    }

    /// Returns the table, for the platform. By number: 0 for another call, or 0x80 and the offset of the answer in bytes.
    #[inline]
    pub fn table(&'static self) -> &'static [u8; NUMBERS] {
        &self.0
    }
}

/// The quick calls of a thread.
#[derive(Clone, Copy, Debug)]
pub struct QuickCalls<'a> {
    /// Which calls are quick.
    pub numbers: &'static QuickNumbers,
    /// Their results.
    pub answers: &'a QuickAnswers,
}

impl QuickCalls<'_> {
    /// Returns the result of a call, if it is quick.
    pub fn answer(&self, number: u64) -> Option<u64> {
        let entry = *self.numbers.0.get(usize::try_from(number).ok()?)?;
        (entry & QUICK != 0).then(|| self.answers.get((entry & !QUICK) as usize >> POSITION_SHIFT))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_of_the_table_are_answered_and_no_others() {
        static NUMBERS: QuickNumbers = QuickNumbers::new(&[(39, 0), (255, 7)]);
        let answers = QuickAnswers::default();
        let quick = QuickCalls { numbers: &NUMBERS, answers: &answers };
        answers.set(0, 5);
        answers.set(7, u64::MAX);
        assert_eq!((quick.answer(39), quick.answer(255)), (Some(5), Some(u64::MAX)));
        for number in [0, 38, 40, 256, 39 + (1 << 32), u64::MAX] {
            assert_eq!(quick.answer(number), None);
        }
        assert_eq!((NUMBERS.table()[39], NUMBERS.table()[255]), (0x80, 0xb8));
    }
}
