//! Samples: the call stacks of a cell's cores at moments that the supervisor chooses, for profiles
//! (docs/decisions/0131-profiles-by-nmi.md).
//!
//! ```text
//!   supervisor: samples + 1, NMI to each core ---> handler: stores a sample in the ring of its core slot
//!                                                  event:   copies samples, releases the ring's words
//! ```
//!
//! A ring has one writer, the NMI handler of the core at its slot, and one reader, an event on any core. Both sides are
//! lock-free. The handler allocates nothing, and executes no code that can fault: it reads only the main stack of the
//! interrupted context, which is always mapped, and fiber stacks by their physical memory. A slot gets its ring at its
//! first profile and keeps it, so that no handler can use a freed ring.

use super::live;
use crate::backtrace::{main_stack_of_slot, walk_interrupted};
use crate::interrupts::ExceptionFrame;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use isola_abi::id::MAX_CORES;
use isola_abi::query::{MAX_SAMPLE_DEPTH, SampleAccount, StackSample};
use spin::Once;

/// The words of a ring: 32 KiB, at least 128 samples.
const RING_WORDS: usize = 4096;

/// The functions of the platform that a sample needs. They may be called at any point of the interrupted code, so they
/// neither lock nor allocate nor fault.
#[derive(Clone, Copy, Debug)]
pub struct SampleSource {
    /// Returns the account to which the interrupted code is charged, if this core runs the context of this core slot.
    pub account: fn(usize) -> SampleAccount,
    /// Returns the word at an address of the region area, if its page is present.
    pub region_word: fn(u64) -> Option<u64>,
}

/// The samples of a core slot.
#[derive(Debug)]
struct SampleRing {
    words: Box<[AtomicU64]>,
    /// The number of words ever written; stored (release) by the writer after the words.
    written: AtomicU64,
    /// The number of words ever read; stored (release) by the reader.
    read: AtomicU64,
    /// The number of the last sample request that the writer has seen.
    seen: AtomicU32,
    /// The numbers of samples ever taken of an idle core, and without room in the ring.
    idle: AtomicU64,
    lost: AtomicU64,
}

/// The memory for a ring is not available.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoSampleMemory;

/// The counters of a core slot, since its first profile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SampleCounts {
    /// Samples of the idle core.
    pub idle: u64,
    /// Samples without room in the ring.
    pub lost: u64,
}

/// By core slot: its ring. Allocated at the first profile, as few cells have one.
static RINGS: Once<Box<[Once<SampleRing>]>> = Once::new();

/// The core slots that are sampled: bit n for slot n.
static SAMPLED: AtomicU64 = AtomicU64::new(0);

/// Returns the ring of a core slot, if it has one.
fn ring(slot: usize) -> Option<&'static SampleRing> {
    RINGS.get()?.get(slot)?.get()
}

/// Begins to sample the core at a slot. Samples of an earlier profile are discarded.
///
/// # Errors
/// [`NoSampleMemory`].
pub fn start(slot: usize) -> Result<(), NoSampleMemory> {
    if RINGS.get().is_none() {
        let mut rings = Vec::new();
        rings.try_reserve_exact(MAX_CORES).map_err(|_| NoSampleMemory)?;
        rings.resize_with(MAX_CORES, Once::new);
        RINGS.call_once(|| rings.into_boxed_slice());
    }
    let own = RINGS.get().and_then(|rings| rings.get(slot)).ok_or(NoSampleMemory)?;
    let ring = match own.get() {
        Some(ring) => ring,
        None => {
            let new = SampleRing::new().ok_or(NoSampleMemory)?;
            own.call_once(|| new)
        }
    };
    ring.discard();
    ring.seen.store(live().samples.load(Ordering::Acquire), Ordering::Relaxed);
    SAMPLED.fetch_or(1 << slot, Ordering::Release);
    Ok(())
}

/// Ends the sampling of all core slots.
pub fn stop() {
    SAMPLED.store(0, Ordering::Release);
}

/// Returns the first samples of a core slot, at most `max`, and a position for [`release`]. For one caller at a time.
pub fn first(slot: usize, max: usize) -> (Vec<StackSample>, u64) {
    ring(slot).map(|ring| ring.first(max)).unwrap_or_default()
}

/// Releases the samples of a core slot before a position that [`first`] has returned.
pub fn release(slot: usize, position: u64) {
    if let Some(ring) = ring(slot) {
        ring.read.store(position, Ordering::Release);
    }
}

/// Returns the counters of a core slot.
pub fn counts(slot: usize) -> SampleCounts {
    let read = |ring: &SampleRing| SampleCounts {
        idle: ring.idle.load(Ordering::Relaxed),
        lost: ring.lost.load(Ordering::Relaxed),
    };
    ring(slot).map(read).unwrap_or_default()
}

/// Forgets the sample requests before a core entered a slot.
pub(super) fn enter(slot: usize) {
    if let Some(ring) = ring(slot) {
        ring.seen.store(live().samples.load(Ordering::Acquire), Ordering::Relaxed);
    }
}

/// Stores a sample of the core at a slot, whose NMI handler calls this, if the supervisor has requested one since the
/// last call. `stack_slot` is the slot whose context the core runs, on that slot's main stack. Returns whether it took one.
pub(super) fn take(frame: &ExceptionFrame, slot: usize, stack_slot: usize, source: &SampleSource) -> bool {
    if SAMPLED.load(Ordering::Acquire) & 1 << slot == 0 {
        return false;
    }
    let Some(ring) = ring(slot) else { return false };
    let number = live().samples.load(Ordering::Acquire);
    if ring.seen.load(Ordering::Relaxed) == number {
        return false;
    }
    ring.seen.store(number, Ordering::Relaxed);
    ring.sample((source.account)(stack_slot), |addresses| {
        addresses[0] = frame.rip;
        let stack = main_stack_of_slot(stack_slot);
        1 + walk_interrupted(frame, stack, source.region_word, &mut addresses[1..])
    });
    true
}

impl SampleRing {
    fn new() -> Option<Self> {
        let mut words = Vec::new();
        words.try_reserve_exact(RING_WORDS).ok()?;
        words.resize_with(RING_WORDS, || AtomicU64::new(0));
        Some(Self {
            words: words.into_boxed_slice(),
            written: AtomicU64::new(0),
            read: AtomicU64::new(0),
            seen: AtomicU32::new(0),
            idle: AtomicU64::new(0),
            lost: AtomicU64::new(0),
        })
    }

    fn word(&self, position: u64) -> &AtomicU64 {
        &self.words[position as usize % RING_WORDS]
    }

    fn discard(&self) {
        self.read.store(self.written.load(Ordering::Acquire), Ordering::Release);
    }

    /// Stores a sample. `walk` stores the sample's addresses, and returns their number; it is not called for an idle
    /// core.
    fn sample(&self, account: SampleAccount, walk: impl FnOnce(&mut [u64; MAX_SAMPLE_DEPTH]) -> usize) {
        if account == SampleAccount::Idle {
            return increment(&self.idle);
        }
        let mut addresses = [0; MAX_SAMPLE_DEPTH];
        let count = walk(&mut addresses).min(MAX_SAMPLE_DEPTH);
        let written = self.written.load(Ordering::Relaxed);
        let used = written.wrapping_sub(self.read.load(Ordering::Acquire));
        if used + 1 + count as u64 > RING_WORDS as u64 {
            return increment(&self.lost);
        }
        self.word(written).store((count as u64) << 32 | u64::from(account.to_u32()), Ordering::Relaxed);
        for (position, address) in (written + 1..).zip(&addresses[..count]) {
            self.word(position).store(*address, Ordering::Relaxed);
        }
        self.written.store(written + 1 + count as u64, Ordering::Release);
    }

    fn first(&self, max: usize) -> (Vec<StackSample>, u64) {
        let (mut position, written) =
            (self.read.load(Ordering::Relaxed), self.written.load(Ordering::Acquire));
        let mut samples = Vec::new();
        while samples.len() < max && position < written {
            let head = self.word(position).load(Ordering::Relaxed);
            let count = (head >> 32).min(MAX_SAMPLE_DEPTH as u64);
            let addresses = (position + 1..=position + count)
                .map(|position| self.word(position).load(Ordering::Relaxed))
                .collect();
            samples.push(StackSample { account: SampleAccount::from_u32(head as u32), addresses });
            position += 1 + count;
        }
        (samples, position)
    }
}

/// Increments a counter that only the NMI handler of one core writes.
fn increment(counter: &AtomicU64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use isola_abi::id::ActivityId;

    const ACTIVITY: SampleAccount = SampleAccount::Activity(ActivityId(5));

    fn fill_with(ring: &SampleRing, first: u64, count: usize) {
        ring.sample(ACTIVITY, |addresses| {
            addresses[..count].iter_mut().zip(first..).for_each(|(to, address)| *to = address);
            count
        });
    }

    #[test]
    fn samples_leave_in_order_also_across_the_ring_s_end() {
        let ring = SampleRing::new().unwrap();
        for round in 0..2000_u64 {
            let count = 1 + round as usize % MAX_SAMPLE_DEPTH;
            fill_with(&ring, round, count);
            fill_with(&ring, round + 7, 1);
            let (samples, position) = ring.first(1);
            assert_eq!(samples[0].account, ACTIVITY);
            assert_eq!(samples[0].addresses, (round..round + count as u64).collect::<Vec<_>>());
            ring.read.store(position, Ordering::Release);
            let (samples, position) = ring.first(10);
            assert_eq!((samples.len(), samples[0].addresses.as_slice()), (1, &[round + 7][..]));
            ring.read.store(position, Ordering::Release);
        }
    }

    #[test]
    fn a_full_ring_keeps_its_samples_and_counts_the_others() {
        let ring = SampleRing::new().unwrap();
        let fit = RING_WORDS / (1 + MAX_SAMPLE_DEPTH);
        (0..fit as u64 + 3).for_each(|number| fill_with(&ring, number, MAX_SAMPLE_DEPTH));
        let (samples, position) = ring.first(usize::MAX);
        assert_eq!((samples.len(), ring.lost.load(Ordering::Relaxed)), (fit, 3));
        assert_eq!(samples[fit - 1].addresses[0], fit as u64 - 1);
        ring.read.store(position, Ordering::Release);
        fill_with(&ring, 9, 2);
        assert_eq!(ring.first(10).0[0].addresses, [9, 10]);
    }

    #[test]
    fn an_idle_core_is_counted_without_a_walk() {
        let ring = SampleRing::new().unwrap();
        ring.sample(SampleAccount::Idle, |_| panic!("an idle core has no stack of interest"));
        assert_eq!((ring.idle.load(Ordering::Relaxed), ring.first(1).0.len()), (1, 0));
    }

    #[test]
    fn a_reader_beside_the_writer_sees_only_whole_samples() {
        let ring = SampleRing::new().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                (0..20_000).for_each(|number| fill_with(&ring, number * 100, 1 + number as usize % 9))
            });
            let (mut seen, mut last) = (0, 0);
            while seen + ring.lost.load(Ordering::Relaxed) < 20_000 {
                let (samples, position) = ring.first(5);
                for StackSample { addresses, .. } in &samples {
                    let first = addresses[0];
                    assert!(first % 100 == 0 && (first > last || seen == 0), "{first} after {last}");
                    assert_eq!(addresses.len() as u64, 1 + first / 100 % 9);
                    assert!(addresses.iter().zip(first..).all(|(address, expected)| *address == expected));
                    (seen, last) = (seen + 1, first);
                }
                ring.read.store(position, Ordering::Release);
            }
        });
    }
}
