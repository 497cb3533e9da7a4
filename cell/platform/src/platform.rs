//! The machine below a cell, as an interface for the cell's cores.

use crate::block::VolumePort;
use crate::network::NetworkPort;
use crate::{Clock, CoreIndex, CoreSet, LinkPort, MemoryDemand, PlatformMemory, Sampler};
use alloc::vec::Vec;
use core::sync::atomic::AtomicU64;
use isola_abi::core_slots::{CoreSlots, Order};
use isola_abi::descriptor::{Descriptor, Request};
use isola_abi::id::ActivityId;
use isola_abi::ledger::Ledger;
use isola_abi::query::Queries;
use isola_abi::report::Report;

/// The state of a core after [`Platform::resume_suspended`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResumeOutcome {
    /// The core resumed no suspended context.
    NoneResumed,
    /// The core resumed suspended contexts, and no more are left. The timer is not armed as before.
    AllEnded,
    /// The core resumed suspended contexts, and will resume others after a few of its own events. The timer is not
    /// armed as before.
    MoreLeft,
}

/// Pending interrupt vectors of one quarter of all vectors, one bit each. The value fits into two registers, because
/// the loop takes one in each pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PendingVectors {
    bits: u64,
    quarter: u8,
    others: OtherVectors,
}

/// Whether vectors of other quarters are pending.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OtherVectors {
    /// No others are pending.
    #[default]
    None,
    /// Others are pending: [`Platform::take_interrupts`] returns them next.
    Arrived,
}

impl PendingVectors {
    /// Returns the vectors `64 * quarter + bit` for the bits that are set.
    #[inline]
    pub const fn of_quarter(quarter: u8, bits: u64, others: OtherVectors) -> Self {
        Self { bits, quarter, others }
    }

    /// Returns whether no vector of this quarter is pending.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.bits == 0
    }

    /// Returns whether vectors of other quarters are pending.
    #[inline]
    pub const fn others(&self) -> OtherVectors {
        self.others
    }
}

impl Iterator for PendingVectors {
    type Item = u8;

    /// Removes and returns the lowest vector.
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

/// The machine below a cell. All cores of the cell share one value; a method acts on the calling vcore unless it says
/// otherwise.
///
/// Interrupts are disabled on a core except within [`Platform::take_interrupts`], [`Platform::has_interrupts`],
/// [`Platform::halt`] and [`Platform::sleep`].
pub trait Platform: Sync {
    /// Returns the cell's resources.
    fn descriptor(&self) -> &Descriptor;

    /// Returns the cell's report.
    fn report(&self) -> &Report;

    /// Returns the ledger of the cell's activities.
    fn ledger(&self) -> Ledger<'_>;

    /// Returns the clock, the same for all cores.
    fn clock(&self) -> &Clock;

    /// Returns the pending interrupt vectors, one quarter of all vectors at a time. Enables interrupts for a moment if
    /// none is pending.
    fn take_interrupts(&self) -> PendingVectors;

    /// Returns whether an interrupt is pending, which [`Self::take_interrupts`] will return. Enables interrupts for a
    /// moment if none is. Unlike the other, it may be called within an event.
    fn has_interrupts(&self) -> bool;

    /// Prepares the calling vcore for a time in which it may not run: returns its cached memory if memory is short, and
    /// ends its part in the grace periods of unmapped pages, for which other cores would wait.
    fn enter_idle(&self);

    /// Halts the core until an interrupt arrives for any of its vcores. Returns at once if one is pending. All vcores
    /// of the core must have called [`Platform::enter_idle`].
    fn halt(&self);

    /// Ends [`Platform::enter_idle`]: the calling vcore runs again.
    fn exit_idle(&self);

    /// Calls [`Self::enter_idle`], [`Self::halt`], [`Self::exit_idle`] and [`Self::take_interrupts`], for a core that
    /// runs one vcore.
    fn sleep(&self) -> PendingVectors {
        self.enter_idle();
        self.halt();
        self.exit_idle();
        self.take_interrupts()
    }

    /// Returns the cell's core slots and their orders.
    fn core_slots(&self) -> &CoreSlots;

    /// Sets the vcores that the calling core runs from now on, possibly none, and routes their interrupts to this core.
    /// For the vcore of the core's own slot.
    fn run_vcores(&self, cores: CoreSet);

    /// Makes the calling core leave the cell by `order`, and publishes the order's echo. The core must run no vcore,
    /// and allocates nothing. Returns only if a core enters the same core slot again, or the cell has ended.
    fn leave(&self, order: Order);

    /// Resumes suspended contexts on the calling core, between two of its events, if there are any. Returns when the
    /// resumed contexts have ended, or at the rotation to the core's own events.
    fn resume_suspended(&self) -> ResumeOutcome;

    /// Arms the timer: one interrupt when the cycle counter has reached `deadline`, or none for `None`. Replaces the
    /// previous deadline.
    fn arm_timer(&self, deadline: Option<u64>);

    /// Wakes another core, so that it returns from [`Platform::halt`].
    fn wake(&self, core: CoreIndex);

    /// Sends an interrupt with `vector` to a core of this cell, possibly the calling one, as a device does.
    fn interrupt(&self, core: CoreIndex, vector: u8);

    /// Prints on the cell's console.
    fn print(&self, text: &[u8]);

    /// Notifies the supervisor, if there is one, of a change of the report.
    fn notify_supervisor(&self);

    /// Returns the supervisor's request to the cell.
    fn request(&self) -> Request;

    /// Returns the host tool's queries to the cell.
    fn queries(&self) -> &Queries;

    /// Returns the sampler of call stacks, if the platform has one.
    fn sampler(&self) -> Option<&'static dyn Sampler> {
        None
    }

    /// Returns the cell's links to other cells, if it has a supervisor that introduces them.
    fn links(&self) -> Option<&'static dyn LinkPort> {
        None
    }

    /// Initialises the network devices. Returns none if the cell has none, and on every call after the first.
    fn open_network(&self) -> Vec<NetworkPort>;

    /// Initialises the block devices with the cell's volumes, in their order. Returns none if the cell has none, and on
    /// every call after the first; a device that does not work is missing.
    fn open_volumes(&self) -> Vec<VolumePort>;

    /// Returns the cell's free memory, in bytes. Costs a few loads.
    fn memory_free(&self) -> usize;

    /// Returns the memory by use; `None` if the cell has no memory of its own. Takes the lock of each list of the heap in turn.
    fn memory_by_use(&self) -> Option<PlatformMemory> {
        None
    }

    /// Returns the memory that the platform wants back: what is still missing, while the cell frees some. After a new
    /// demand it sets [`RECLAIM`](isola_abi::report::RECLAIM) in the report.
    fn memory_demand(&self) -> MemoryDemand {
        MemoryDemand::None
    }

    /// Reports that the cell has done for a demand what it could.
    fn end_memory_demand(&self, demand: &MemoryDemand) {
        let _ = demand;
    }

    /// Makes the heap watch the memory of activities: an activity of whose slot in the ledger the memory grows beyond the
    /// number in `limits` causes a demand.
    fn watch_memory(&self, limits: &'static [AtomicU64]) {
        let _ = limits;
    }

    /// Charges heap memory of `len_bytes` bytes to the activity `to` in place of `from`, both with slots in the ledger.
    fn move_memory_charge(&self, from: ActivityId, to: ActivityId, len_bytes: usize) {
        let _ = (from, to, len_bytes);
    }

    /// Returns the free objects in the calling core's cache to the heap.
    fn empty_cache(&self) {}

    /// Frees memory that the heap keeps for later objects: the caches of all cores, when each is idle, and unused pages.
    fn release_unused(&self) {}

    /// Returns 64 random bits. They are unpredictable if the processor has a generator; a bare cell without RDRAND
    /// takes them from the cycle counter.
    fn entropy(&self) -> u64;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_are_returned_once_and_in_order() {
        assert!(PendingVectors::default().is_empty());
        let vectors =
            |quarter, bits| PendingVectors::of_quarter(quarter, bits, OtherVectors::None).collect::<Vec<_>>();
        assert_eq!(vectors(0, 1 << 0x20 | 1 << 63), [0x20, 63]);
        assert_eq!(vectors(1, 1), [64]);
        assert_eq!(vectors(3, 1 << 63 | 1), [192, 255]);
    }
}
