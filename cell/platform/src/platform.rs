//! The machine below a cell, as its cores see it.

use crate::network::NetworkPort;
use crate::{Clock, CoreSet};
use alloc::vec::Vec;
use isola_abi::descriptor::{Descriptor, Request};
use isola_abi::ledger::Ledger;
use isola_abi::places::{Order, Places};
use isola_abi::query::Questions;
use isola_abi::report::Report;

/// A core of this cell, counted from 0 in the order of the descriptor. Core 0 starts the cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CoreIndex(pub u32);

/// What a processor core finds after it has gone on with what others were in the middle of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnTurn {
    /// All is as it was.
    Undisturbed,
    /// Others had the core: its timer is not as it was armed.
    Last,
    /// Others had it, and will want it again, after a few events of its own.
    Brief,
}

/// Interrupt vectors that arrived, one bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PendingVectors {
    words: [u64; 4],
}

impl PendingVectors {
    /// The vectors whose bits are set: bit `v % 64` of word `v / 64`.
    pub const fn from_words(words: [u64; 4]) -> Self {
        Self { words }
    }

    /// Whether none arrived.
    pub const fn is_empty(&self) -> bool {
        self.words[0] | self.words[1] | self.words[2] | self.words[3] == 0
    }

    /// Adds a vector.
    pub const fn insert(&mut self, vector: u8) {
        self.words[vector as usize / 64] |= 1 << (vector % 64);
    }
}

impl Iterator for PendingVectors {
    type Item = u8;

    /// Takes the lowest vector out.
    fn next(&mut self) -> Option<u8> {
        let (index, word) = self.words.iter_mut().enumerate().find(|(_, word)| **word != 0)?;
        let bit = word.trailing_zeros();
        *word &= *word - 1;
        Some((index as u32 * 64 + bit) as u8)
    }

    /// The same with each, without a look at the words before for each one.
    #[inline]
    fn fold<B, F: FnMut(B, u8) -> B>(self, init: B, mut with: F) -> B {
        let mut folded = init;
        for (index, mut word) in (0_u32..).zip(self.words) {
            while word != 0 {
                folded = with(folded, (index * 64 + word.trailing_zeros()) as u8);
                word &= word - 1;
            }
        }
        folded
    }
}

/// The machine below a cell. One value serves all its cores; "this core" is the one that calls.
///
/// Interrupts are off on a core but within [`Platform::take_interrupts`] and [`Platform::halt`].
pub trait Platform: Sync {
    /// What the cell owns.
    fn descriptor(&self) -> &Descriptor;

    /// Where the cell says what it does.
    fn report(&self) -> &Report;

    /// Returns what the cell's activities used.
    fn ledger(&self) -> Ledger<'_>;

    /// The clock of all cores.
    fn clock(&self) -> &Clock;

    /// Lets interrupts in for a moment and returns the vectors of those that came, here or while halted.
    fn take_interrupts(&self) -> PendingVectors;

    /// This core has nothing to do and may not be run for a while: what it keeps to itself, and what others would wait
    /// for it with, is given up.
    fn rest(&self);

    /// Halts the processor core that runs this core until an interrupt comes for any of those that it carries; returns at
    /// once where one is pending already. All of them rest.
    fn halt(&self);

    /// This core runs again: the end of [`Platform::rest`].
    fn rise(&self);

    /// The places that the cell has for cores, and what is ordered of the cores at them.
    fn places(&self) -> &Places;

    /// The calling processor core runs these cores from here on, or none, and the one that calls is the one whose place it
    /// came to: their interrupts go to it.
    fn carry(&self, cores: CoreSet);

    /// Ends the calling processor core's time in the cell, by that order: it runs no core any more, and allocates nothing.
    /// Says that the order was carried out. Returns where a core is given to the cell again, at the same place, or the cell
    /// has ended.
    fn leave(&self, order: Order);

    /// Goes on with what a processor core was in the middle of that was taken from the cell by force, if there is any, on
    /// this one, which is between two events: until that has left, or it is this one's own turn.
    fn go_on_with_others(&self) -> OwnTurn;

    /// Interrupts this core once, when its cycle counter has reached `deadline`, or not at all for `None`.
    /// Replaces what was armed before.
    fn arm_timer(&self, deadline: Option<u64>);

    /// Interrupts another core, so that it returns from [`Platform::halt`].
    fn wake(&self, core: CoreIndex);

    /// Interrupts a core of this cell, the calling one included, by `vector`: as a device would.
    fn interrupt(&self, core: CoreIndex, vector: u8);

    /// Prints.
    fn print(&self, text: &[u8]);

    /// Tells the supervisor, where there is one, that the report has news.
    fn ring_supervisor(&self);

    /// What the supervisor asks of the cell.
    fn request(&self) -> Request;

    /// What the host tool asks of the cell.
    fn questions(&self) -> &Questions;

    /// Takes the network devices into use. Empty where there are none, and on every call but the first.
    fn open_network(&self) -> Vec<NetworkPort>;

    /// Memory of the cell that nobody uses, in bytes: a few loads.
    fn memory_free(&self) -> usize;

    /// Returns 64 random bits. An attacker cannot guess them where the processor has a generator; a bare cell on one without
    /// RDRAND takes them from the cycle counter.
    fn entropy(&self) -> u64;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_come_out_in_order_and_once() {
        let mut pending = PendingVectors::default();
        assert!(pending.is_empty());
        for vector in [255, 0x20, 64, 63, 0x20] {
            pending.insert(vector);
        }
        assert_eq!(pending.collect::<Vec<_>>(), [0x20, 63, 64, 255]);
    }
}
