//! Which core's stack serves which flow.
//!
//! ```text
//!   frame ─> flow ─> Toeplitz hash, keyed ─> lowest seven bits: one of 128 buckets ─> the core that owns it
//! ```
//!
//! This is a device's indirection table (RSS), and where the device has one it is told the same key and the same owners: then
//! frames arrive where they belong. Everybody asks the same table: who hands frames on, and who looks for a port whose
//! answers come back to its core. Load moves between cores by giving buckets away (`moving.rs`).
//!
//! A flow may be *left behind*: its bucket has moved, but its connection could not go along. Its frames go on to the core that has it.
//! Only frames of a bucket with left-behind flows are compared with them.
//!
//! The table is read without a lock, and read-modify-write operations; a reader sees a change a moment later. Who moves a
//! bucket bears that: see `isola-net`'s `steering.rs`.

use crate::address::Flow;
use crate::flow::{fast_path_ends_of, fast_path_flow_of, flow_of};
use crate::toeplitz::{KEY_LEN, Toeplitz, evened};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::fmt;
use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, Ordering};
use spin::Mutex;

/// Parts that the flows fall into. Every device that steers has room for so many entries (virtio 1.2, 5.1.4).
pub const BUCKETS: usize = 128;

/// Most cores that flows can be spread over.
pub const MAX_CORES: u16 = 64;

/// In an owner's byte: some flows of the bucket are another core's.
const HAS_LEFT_BEHIND: u8 = 0x80;

/// A part of the flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bucket(u8);

impl Bucket {
    /// All of them.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..BUCKETS as u8).map(Self)
    }

    /// Its number, below [`BUCKETS`].
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Some of the buckets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Buckets(u128);

impl Buckets {
    /// Whether a bucket is among them.
    #[inline]
    pub const fn contains(self, bucket: Bucket) -> bool {
        self.0 >> bucket.0 & 1 != 0
    }

    /// Whether there are none.
    #[inline]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// These and others.
    #[must_use]
    pub const fn and(self, others: Self) -> Self {
        Self(self.0 | others.0)
    }

    /// These without others.
    #[must_use]
    pub const fn without(self, others: Self) -> Self {
        Self(self.0 & !others.0)
    }

    /// Each of them.
    pub fn iter(self) -> impl Iterator<Item = Bucket> {
        let mut left = self.0;
        core::iter::from_fn(move || {
            let bucket = left.trailing_zeros();
            left &= left.checked_sub(1)?;
            Some(Bucket(bucket as u8))
        })
    }
}

impl FromIterator<Bucket> for Buckets {
    fn from_iter<I: IntoIterator<Item = Bucket>>(buckets: I) -> Self {
        Self(buckets.into_iter().fold(0, |all, bucket| all | 1 << bucket.0))
    }
}

/// No core.
const NOBODY: u16 = u16::MAX;

/// The table that all stacks of an interface share.
pub struct Steering {
    key: [u8; KEY_LEN],
    hash: Toeplitz,
    cores: u16,
    owners: [AtomicU8; BUCKETS],
    /// The core that all flows belong to, where there is one; else [`NOBODY`].
    sole: AtomicU16,
    /// Moves on with each change of an owner.
    version: AtomicU32,
    left_behind: Mutex<LeftBehindFlows>,
}

/// Flows that did not go along with their buckets.
#[derive(Default)]
struct LeftBehindFlows {
    cores: BTreeMap<Flow, u16>,
    /// How many there are of each bucket.
    counts: BTreeMap<Bucket, usize>,
}

impl Steering {
    /// A table for so many cores, at most [`MAX_CORES`], each of which gets the same share. Who does not know the key cannot
    /// choose a flow's core. Some of its bits are changed, so that ports one after the other spread evenly.
    pub fn new(cores: u16, key: [u8; KEY_LEN]) -> Self {
        Self::begun_by(cores, cores, key)
    }

    /// A table for so many cores, of which the first `present` get the same share, and the others none so far.
    pub fn begun_by(present: u16, cores: u16, key: [u8; KEY_LEN]) -> Self {
        let cores = cores.clamp(1, MAX_CORES);
        let present = present.clamp(1, cores);
        let key = evened(key);
        let hash = if cores > 1 { Toeplitz::new(&key) } else { Toeplitz::none() };
        Self {
            key,
            hash,
            cores,
            owners: core::array::from_fn(|bucket| AtomicU8::new((bucket % usize::from(present)) as u8)),
            sole: AtomicU16::new(if present == 1 { 0 } else { NOBODY }),
            version: AtomicU32::new(0),
            left_behind: Mutex::default(),
        }
    }

    /// The table of an interface with one stack.
    pub fn alone() -> Self {
        Self::new(1, [0; KEY_LEN])
    }

    /// The key of the hash, for a device that computes it.
    pub fn key(&self) -> &[u8; KEY_LEN] {
        &self.key
    }

    /// How many cores the flows may be spread over.
    pub const fn cores(&self) -> u16 {
        self.cores
    }

    /// The hash of a flow's incoming frames, as a device computes it.
    pub fn hash_of(&self, flow: &Flow) -> u32 {
        self.hash.hash(flow)
    }

    /// The bucket of a flow.
    #[inline]
    pub fn bucket_of(&self, flow: &Flow) -> Bucket {
        Bucket((self.hash.hash(flow) as usize % BUCKETS) as u8)
    }

    /// The core that a bucket belongs to.
    pub fn owner(&self, bucket: Bucket) -> u16 {
        u16::from(self.owners[bucket.index()].load(Ordering::Relaxed) & !HAS_LEFT_BEHIND)
    }

    /// The cores that the buckets belong to.
    pub fn owners(&self) -> [u16; BUCKETS] {
        core::array::from_fn(|bucket| self.owner(Bucket(bucket as u8)))
    }

    /// Whether all flows belong to that core.
    #[inline]
    pub fn is_sole(&self, core: u16) -> bool {
        self.sole.load(Ordering::Relaxed) == core
    }

    /// Finds out whether all flows belong to one core. To be called with the lock of left-behind flows held, after each change.
    fn look_for_sole(&self) {
        let first = self.owners[0].load(Ordering::Relaxed);
        let has_all = first & HAS_LEFT_BEHIND == 0
            && self.owners.iter().all(|owner| owner.load(Ordering::Relaxed) == first);
        self.sole.store(if has_all { first.into() } else { NOBODY }, Ordering::Relaxed);
    }

    /// The core that serves a flow.
    #[inline]
    pub fn core_of(&self, flow: &Flow) -> u16 {
        let bucket = self.bucket_of(flow);
        let owner = self.owners[bucket.index()].load(Ordering::Relaxed);
        if owner & HAS_LEFT_BEHIND != 0 {
            return self.core_of_left_behind(flow).unwrap_or(u16::from(owner & !HAS_LEFT_BEHIND));
        }
        owner.into()
    }

    /// The core that a fast-path frame is for, a TCP segment over IPv4; `None` says nothing.
    #[inline]
    pub fn core_of_fast(&self, frame: &[u8]) -> Option<u16> {
        let ends = fast_path_ends_of(frame)?;
        let owner = self.owners[self.hash.hash_bytes(ends) as usize % BUCKETS].load(Ordering::Relaxed);
        if owner & HAS_LEFT_BEHIND != 0 {
            return fast_path_flow_of(frame).map(|flow| self.core_of(&flow));
        }
        Some(owner.into())
    }

    /// The core that a received frame is for: the first, where it belongs to no flow.
    #[inline]
    pub fn core_of_frame(&self, frame: &[u8]) -> u16 {
        if self.cores == 1 { 0 } else { flow_of(frame).map_or(0, |flow| self.core_of(&flow)) }
    }

    /// How often owners have changed. Whoever reads it, and then the table, finds the changes that it counts.
    pub fn version(&self) -> u32 {
        self.version.load(Ordering::Acquire)
    }

    /// Gives buckets to another core.
    pub fn give(&self, buckets: impl IntoIterator<Item = Bucket>, to: u16) {
        let left_behind = self.left_behind.lock();
        // Before the first of them is another's. Once for all: it looks at every owner.
        self.sole.store(NOBODY, Ordering::Relaxed);
        for bucket in buckets {
            let flag = if left_behind.counts.contains_key(&bucket) { HAS_LEFT_BEHIND } else { 0 };
            self.owners[bucket.index()].store(to.min(self.cores - 1) as u8 | flag, Ordering::Relaxed);
        }
        self.look_for_sole();
        self.version.fetch_add(1, Ordering::Release);
    }

    /// Has a flow be served by a core, whichever its bucket belongs to, until [`Self::forget`].
    pub fn keep(&self, flow: Flow, core: u16) {
        let bucket = self.bucket_of(&flow);
        let mut left_behind = self.left_behind.lock();
        if left_behind.cores.insert(flow, core).is_none() {
            *left_behind.counts.entry(bucket).or_default() += 1;
        }
        self.owners[bucket.index()].fetch_or(HAS_LEFT_BEHIND, Ordering::Relaxed);
        self.look_for_sole();
        self.version.fetch_add(1, Ordering::Release);
    }

    /// Has a flow be served by its bucket's core again.
    pub fn forget(&self, flow: &Flow) {
        let bucket = self.bucket_of(flow);
        let mut left_behind = self.left_behind.lock();
        let left_behind = &mut *left_behind;
        if left_behind.cores.remove(flow).is_none() {
            return;
        }
        if let Some(count) = left_behind.counts.get_mut(&bucket) {
            *count -= 1;
            if *count == 0 {
                left_behind.counts.remove(&bucket);
                self.owners[bucket.index()].fetch_and(!HAS_LEFT_BEHIND, Ordering::Relaxed);
                self.look_for_sole();
            }
        }
        self.version.fetch_add(1, Ordering::Release);
    }

    /// How many flows are left behind.
    pub fn left_behind(&self) -> usize {
        self.left_behind.lock().cores.len()
    }

    #[cold]
    fn core_of_left_behind(&self, flow: &Flow) -> Option<u16> {
        self.left_behind.lock().cores.get(flow).copied()
    }

    /// The moves that spread the buckets evenly over `cores`, as few as can be: cores that are not among them give all they
    /// have, those that have too many the last of theirs, and those that have too few get them, in order. None, where
    /// `cores` names none that there is.
    pub fn plan(&self, cores: &[u16]) -> Vec<Move> {
        let mut wanted: Vec<u16> = cores.iter().copied().filter(|&core| core < self.cores).collect();
        wanted.sort_unstable();
        wanted.dedup();
        let Some((share, extra)) = BUCKETS.checked_div(wanted.len()).zip(BUCKETS.checked_rem(wanted.len()))
        else {
            return Vec::new();
        };
        let owners = self.owners();
        let held = |core: u16| owners.iter().filter(|&&owner| owner == core).count();
        // Who has most keeps what does not divide, so that the fewest move.
        let mut by_load = wanted.clone();
        by_load.sort_by_cached_key(|&core| core::cmp::Reverse(held(core)));
        let quota = |core: u16| share + usize::from(by_load.iter().take(extra).any(|&one| one == core));
        let mut kept: BTreeMap<u16, usize> = wanted.iter().map(|&core| (core, 0)).collect();
        let mut free = Vec::new();
        for (bucket, from) in Bucket::all().zip(owners) {
            match kept.get_mut(&from) {
                Some(count) if *count < quota(from) => *count += 1,
                _ => free.push((bucket, from)),
            }
        }
        let takers = wanted.iter().flat_map(|&core| core::iter::repeat_n(core, quota(core) - kept[&core]));
        free.into_iter().zip(takers).map(|((bucket, from), to)| Move { bucket, from, to }).collect()
    }
}

/// A bucket that is to change hands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// The bucket.
    pub bucket: Bucket,
    /// Who has it.
    pub from: u16,
    /// Who gets it.
    pub to: u16,
}

impl fmt::Debug for Steering {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Steering").field("owners", &self.owners()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::Ipv4Addr;

    fn flow(port: u16) -> Flow {
        Flow::new(Ipv4Addr::new(10, 0, 0, 1).into(), 80, Ipv4Addr::new(10, 0, 0, 2).into(), port)
    }

    #[test]
    fn a_core_is_sole_while_all_flows_belong_to_it_and_none_is_left_behind() {
        let steering = Steering::begun_by(1, 4, [1; KEY_LEN]);
        assert!(steering.is_sole(0) && !steering.is_sole(1));
        assert_eq!(steering.owners(), [0; BUCKETS]);
        let left_behind = flow(7);
        steering.keep(left_behind, 2);
        assert!(!steering.is_sole(0));
        steering.forget(&left_behind);
        assert!(steering.is_sole(0));
        carry_out(&steering, &steering.plan(&[0, 3]));
        assert!(!steering.is_sole(0) && !steering.is_sole(3));
        carry_out(&steering, &steering.plan(&[3]));
        assert!(steering.is_sole(3));
        assert!(!Steering::new(2, [1; KEY_LEN]).is_sole(0));
    }

    fn carry_out(steering: &Steering, moves: &[Move]) {
        for one in moves {
            assert_eq!(steering.owner(one.bucket), one.from);
            assert_ne!(one.from, one.to);
            steering.give([one.bucket], one.to);
        }
    }

    fn shares(steering: &Steering) -> Vec<usize> {
        let share = |core| steering.owners().iter().filter(|&&owner| owner == core).count();
        (0..steering.cores()).map(share).collect()
    }

    #[test]
    fn flows_spread_evenly_over_the_cores() {
        let steering = Steering::new(3, core::array::from_fn(|byte| (byte * 37 + 11) as u8));
        let mut share = [0u32; 3];
        (0..3000).for_each(|port| share[usize::from(steering.core_of(&flow(10_000 + port)))] += 1);
        assert!(share.iter().all(|&count| (800..1200).contains(&count)), "{share:?}");
    }

    #[test]
    fn cores_that_come_and_go_move_only_the_buckets_they_must() {
        let steering = Steering::new(4, [7; KEY_LEN]);
        assert_eq!(steering.plan(&[0, 1, 2, 3]), []);
        let leave = steering.plan(&[0, 1, 2]);
        assert_eq!(leave.len(), 32);
        carry_out(&steering, &leave);
        assert_eq!(shares(&steering), [43, 43, 42, 0]);
        assert_eq!(steering.plan(&[2, 1, 0, 1]), [], "nothing is left to do, however it is asked");
        let come = steering.plan(&[0, 1, 2, 3]);
        assert_eq!(come.len(), 32);
        carry_out(&steering, &come);
        assert_eq!(shares(&steering), [32; 4]);
        carry_out(&steering, &steering.plan(&[2]));
        assert_eq!(shares(&steering), [0, 0, 128, 0]);
        assert_eq!(steering.plan(&[]), []);
        assert_eq!(steering.plan(&[9]), []);
    }

    #[test]
    fn a_flow_left_behind_is_found_until_it_is_forgotten() {
        let steering = Steering::new(4, core::array::from_fn(|byte| (byte * 37 + 11) as u8));
        let (left_behind, bucket) = (flow(1), steering.bucket_of(&flow(1)));
        let other = (2..).map(flow).find(|flow| steering.bucket_of(flow) == bucket).unwrap();
        steering.keep(left_behind, 3);
        steering.keep(left_behind, 2);
        steering.give([bucket], 1);
        assert_eq!((steering.core_of(&left_behind), steering.core_of(&other)), (2, 1));
        steering.forget(&other);
        assert_eq!((steering.core_of(&left_behind), steering.left_behind()), (2, 1));
        steering.forget(&left_behind);
        assert_eq!((steering.core_of(&left_behind), steering.left_behind()), (1, 0));
        assert_eq!(
            steering.owners[bucket.index()].load(Ordering::Relaxed),
            1,
            "no look at left_behind is left"
        );
    }

    #[test]
    fn a_frame_goes_where_its_flow_goes_however_it_is_looked_at() {
        let steering = Steering::new(4, core::array::from_fn(|byte| (byte * 37 + 11) as u8));
        steering.keep(flow(7), 0);
        for port in 0..500 {
            let mut frame = Vec::new();
            etherparse::PacketBuilder::ethernet2([2; 6], [4; 6])
                .ipv4([10, 0, 0, 2], [10, 0, 0, 1], 64)
                .tcp(port, 80, 1, 1000)
                .write(&mut std::io::Cursor::new(&mut frame), b"x")
                .unwrap();
            let core = steering.core_of(&flow(port));
            assert_eq!((steering.core_of_fast(&frame), steering.core_of_frame(&frame)), (Some(core), core));
        }
    }

    #[test]
    fn a_stack_that_is_alone_serves_every_flow() {
        let steering = Steering::alone();
        assert!((0..1000).all(|port| steering.core_of(&flow(port)) == 0));
    }
}
