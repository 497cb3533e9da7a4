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

/// Interrupt vectors that arrived, of one quarter of all vectors: a bit each. Fits into two registers, as the loop takes one
/// in each pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PendingVectors {
    bits: u64,
    quarter: u8,
    others: Others,
}

/// Whether vectors of other quarters arrived, too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Others {
    /// None did.
    #[default]
    None,
    /// Some did: [`Platform::take_interrupts`] returns them next.
    Arrived,
}

impl PendingVectors {
    /// Returns the vectors `64 * quarter + bit` for the bits that are set.
    #[inline]
    pub const fn of_quarter(quarter: u8, bits: u64, others: Others) -> Self {
        Self { bits, quarter, others }
    }

    /// Whether none arrived.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.bits == 0
    }

    /// Whether vectors of other quarters arrived, too.
    #[inline]
    pub const fn others(&self) -> Others {
        self.others
    }
}

impl Iterator for PendingVectors {
    type Item = u8;

    /// Takes the lowest vector out.
    #[inline]
    fn next(&mut self) -> Option<u8> {
        if self.bits == 0 {
            return None;
        }
        let bit = self.bits.trailing_zeros() as u8;
        self.bits &= self.bits - 1;
        Some(64 * (self.quarter & 3) + bit)
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

    /// Returns the vectors of interrupts that came while the core was halted or during this call, one quarter of all vectors at
    /// a time. Lets interrupts in for a moment if none is pending.
    fn take_interrupts(&self) -> PendingVectors;

    /// This core has nothing to do and may not be run for a while: what it keeps to itself, and what others would wait
    /// for it with, is given up.
    fn rest(&self);

    /// Halts the processor core that runs this core until an interrupt comes for any of those that it carries; returns at
    /// once where one is pending already. All of them rest.
    fn halt(&self);

    /// This core runs again: the end of [`Platform::rest`].
    fn rise(&self);

    /// Does [`Self::rest`], [`Self::halt`], [`Self::rise`] and [`Self::take_interrupts`], for a processor core that runs one
    /// core.
    fn sleep(&self) -> PendingVectors {
        self.rest();
        self.halt();
        self.rise();
        self.take_interrupts()
    }

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
        assert!(PendingVectors::default().is_empty());
        let vectors =
            |quarter, bits| PendingVectors::of_quarter(quarter, bits, Others::None).collect::<Vec<_>>();
        assert_eq!(vectors(0, 1 << 0x20 | 1 << 63), [0x20, 63]);
        assert_eq!(vectors(1, 1), [64]);
        assert_eq!(vectors(3, 1 << 63 | 1), [192, 255]);
    }
}
