//! Assignment of flows to the cores' stacks.
//!
//! ```text
//!   frame ─> flow ─> Toeplitz hash, keyed ─> lowest seven bits: one of 128 buckets ─> the core that owns it
//! ```
//!
//! This is the indirection table of RSS. A device with one receives the same key and owners, and delivers frames to the
//! owning cores. All code uses the same table: the forwarding of received frames, and the search for a local port whose
//! replies reach the calling core. Load moves between cores by a change of buckets' owners (`stack/moving.rs`).
//!
//! A flow may be *left behind*: its bucket has moved, but its connection could not. Its frames are forwarded to the
//! core that has the connection. Only frames of a bucket with left-behind flows are compared with these.
//!
//! Readers of the table need no lock and no read-modify-write operation, and may see a change late. The code that moves
//! a bucket must take that into account: see `steering.rs` of `isola-net`.

mod flow;
mod share;
mod toeplitz;

pub use flow::{continues_connection, datagram_port, fast_path_flow_of, flow_of};
pub use share::CoreShare;
pub use toeplitz::KEY_LEN;

use crate::base::Flow;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::fmt;
use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, Ordering};
use flow::fast_path_ends_of;
use spin::Mutex;
use toeplitz::{Toeplitz, evened};

/// The number of buckets. Every device with RSS supports this number of entries (virtio 1.2, 5.1.4).
pub const BUCKETS: usize = 128;

/// The most cores with flows.
pub const MAX_CORES: u16 = 64;

/// Flag of an owner's byte: some flows of the bucket belong to another core.
const HAS_LEFT_BEHIND: u8 = 0x80;

/// A group of flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bucket(u8);

impl Bucket {
    /// Iterates over all buckets.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..BUCKETS as u8).map(Self)
    }

    /// Returns the bucket's index, below [`BUCKETS`].
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// A set of buckets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Buckets(u128);

impl Buckets {
    /// Returns whether the set contains a bucket.
    #[inline]
    pub const fn contains(self, bucket: Bucket) -> bool {
        self.0 >> bucket.0 & 1 != 0
    }

    /// Returns whether the set is empty.
    #[inline]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns the union of two sets.
    #[must_use]
    pub const fn and(self, others: Self) -> Self {
        Self(self.0 | others.0)
    }

    /// Returns the set without the buckets of another.
    #[must_use]
    pub const fn without(self, others: Self) -> Self {
        Self(self.0 & !others.0)
    }

    /// Iterates over the buckets.
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
const NO_CORE: u16 = u16::MAX;

/// The table that all stacks of an interface share.
pub struct Steering {
    key: [u8; KEY_LEN],
    hash: Toeplitz,
    cores: u16,
    owners: [AtomicU8; BUCKETS],
    /// The core that owns all flows, or [`NO_CORE`] if there is none.
    sole: AtomicU16,
    /// Incremented with each change of an owner.
    version: AtomicU32,
    left_behind: Mutex<LeftBehindFlows>,
}

/// Flows that did not move with their buckets.
#[derive(Default)]
struct LeftBehindFlows {
    cores: BTreeMap<Flow, u16>,
    /// The number of flows by bucket.
    counts: BTreeMap<Bucket, usize>,
}

impl Steering {
    /// Returns a table for `cores` cores, at most [`MAX_CORES`], with equal shares. A peer without the key cannot
    /// choose a flow's core. Some bits of the key are changed, so that consecutive ports spread evenly.
    pub fn new(cores: u16, key: [u8; KEY_LEN]) -> Self {
        Self::begun_by(cores, cores, key)
    }

    /// Returns a table for `cores` cores, the first `present` of which get equal shares, and the others none so far.
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
            sole: AtomicU16::new(if present == 1 { 0 } else { NO_CORE }),
            version: AtomicU32::new(0),
            left_behind: Mutex::default(),
        }
    }

    /// Returns the table of an interface with one stack.
    pub fn alone() -> Self {
        Self::new(1, [0; KEY_LEN])
    }

    /// Returns the key of the hash, for a device that computes it.
    pub fn key(&self) -> &[u8; KEY_LEN] {
        &self.key
    }

    /// Returns the number of cores that can have flows.
    pub const fn cores(&self) -> u16 {
        self.cores
    }

    /// Returns the hash of a flow's incoming frames, as a device computes it.
    pub fn hash_of(&self, flow: &Flow) -> u32 {
        self.hash.hash(flow)
    }

    /// Returns the bucket of a flow.
    #[inline]
    pub fn bucket_of(&self, flow: &Flow) -> Bucket {
        Bucket((self.hash.hash(flow) as usize % BUCKETS) as u8)
    }

    /// Returns the core that owns a bucket.
    pub fn owner(&self, bucket: Bucket) -> u16 {
        u16::from(self.owners[bucket.index()].load(Ordering::Relaxed) & !HAS_LEFT_BEHIND)
    }

    /// Returns the cores that own the buckets.
    pub fn owners(&self) -> [u16; BUCKETS] {
        core::array::from_fn(|bucket| self.owner(Bucket(bucket as u8)))
    }

    /// Returns whether all flows belong to this core.
    #[inline]
    pub fn is_sole(&self, core: u16) -> bool {
        self.sole.load(Ordering::Relaxed) == core
    }

    /// Updates the core that owns all flows. Must be called after each change, with the lock of the left-behind flows.
    fn look_for_sole(&self) {
        let first = self.owners[0].load(Ordering::Relaxed);
        let has_all = first & HAS_LEFT_BEHIND == 0
            && self.owners.iter().all(|owner| owner.load(Ordering::Relaxed) == first);
        self.sole.store(if has_all { first.into() } else { NO_CORE }, Ordering::Relaxed);
    }

    /// Returns the core that processes a flow.
    #[inline]
    pub fn core_of(&self, flow: &Flow) -> u16 {
        let bucket = self.bucket_of(flow);
        let owner = self.owners[bucket.index()].load(Ordering::Relaxed);
        if owner & HAS_LEFT_BEHIND != 0 {
            return self.core_of_left_behind(flow).unwrap_or(u16::from(owner & !HAS_LEFT_BEHIND));
        }
        owner.into()
    }

    /// Returns the core of a fast-path frame, a TCP segment over IPv4; `None` if the frame is of another kind.
    #[inline]
    pub fn core_of_fast(&self, frame: &[u8]) -> Option<u16> {
        let ends = fast_path_ends_of(frame)?;
        let owner = self.owners[self.hash.hash_bytes(ends) as usize % BUCKETS].load(Ordering::Relaxed);
        if owner & HAS_LEFT_BEHIND != 0 {
            return fast_path_flow_of(frame).map(|flow| self.core_of(&flow));
        }
        Some(owner.into())
    }

    /// Returns the core of a received frame: the first core if it has no flow.
    #[inline]
    pub fn core_of_frame(&self, frame: &[u8]) -> u16 {
        if self.cores == 1 { 0 } else { flow_of(frame).map_or(0, |flow| self.core_of(&flow)) }
    }

    /// Returns the version of the table. A reader that reads it before the table sees all changes that it counts.
    pub fn version(&self) -> u32 {
        self.version.load(Ordering::Acquire)
    }

    /// Gives buckets to another core.
    pub fn give(&self, buckets: impl IntoIterator<Item = Bucket>, to: u16) {
        let left_behind = self.left_behind.lock();
        // Cleared before the first bucket has a new owner. `look_for_sole` reads all owners, and so runs once at the end.
        self.sole.store(NO_CORE, Ordering::Relaxed);
        for bucket in buckets {
            let flag = if left_behind.counts.contains_key(&bucket) { HAS_LEFT_BEHIND } else { 0 };
            self.owners[bucket.index()].store(to.min(self.cores - 1) as u8 | flag, Ordering::Relaxed);
        }
        self.look_for_sole();
        self.version.fetch_add(1, Ordering::Release);
    }

    /// Assigns a flow to a core, independently of its bucket, until [`Self::forget`].
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

    /// Assigns a flow to its bucket's core again.
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

    /// Returns the number of left-behind flows.
    pub fn left_behind(&self) -> usize {
        self.left_behind.lock().cores.len()
    }

    #[cold]
    fn core_of_left_behind(&self, flow: &Flow) -> Option<u16> {
        self.left_behind.lock().cores.get(flow).copied()
    }

    /// Returns the fewest moves that distribute the buckets evenly over `cores`: other cores lose all buckets, cores
    /// with too many lose their last ones, and cores with too few get these, in order. Empty if `cores` has no valid
    /// core.
    pub fn plan(&self, cores: &[u16]) -> Vec<Move> {
        let wanted: Vec<u16> = (0..self.cores).filter(|core| cores.contains(core)).collect();
        let Some((share, extra)) = BUCKETS.checked_div(wanted.len()).zip(BUCKETS.checked_rem(wanted.len()))
        else {
            return Vec::new();
        };
        let owners = self.owners();
        let held = |core: u16| owners.iter().filter(|&&owner| owner == core).count();
        // The cores with the most buckets keep the remainder of the division, so that the fewest move.
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

/// A planned change of a bucket's owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// The bucket.
    pub bucket: Bucket,
    /// The present owner.
    pub from: u16,
    /// The new owner.
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
    fn a_core_is_sole_if_it_owns_all_flows_and_none_is_left_behind() {
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
    fn joining_and_leaving_cores_move_the_fewest_buckets() {
        let steering = Steering::new(4, [7; KEY_LEN]);
        assert_eq!(steering.plan(&[0, 1, 2, 3]), []);
        let leave = steering.plan(&[0, 1, 2]);
        assert_eq!(leave.len(), 32);
        carry_out(&steering, &leave);
        assert_eq!(shares(&steering), [43, 43, 42, 0]);
        assert_eq!(steering.plan(&[2, 1, 0, 1]), [], "a move without need");
        let come = steering.plan(&[0, 1, 2, 3]);
        assert_eq!(come.len(), 32);
        carry_out(&steering, &come);
        assert_eq!(shares(&steering), [32; 4]);
        carry_out(&steering, &steering.plan(&[2]));
        assert_eq!(shares(&steering), [0, 0, 128, 0]);
        assert_eq!(steering.plan(&[]), []);
        assert_eq!(steering.plan(&[9]), []);
        assert_eq!(steering.plan(&[4]), [], "the number of cores is no core");
    }

    #[test]
    fn a_left_behind_flow_keeps_its_core_until_it_is_forgotten() {
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
            "the flag of left-behind flows is still set"
        );
    }

    #[test]
    fn fast_and_general_check_steer_a_frame_to_the_core_of_its_flow() {
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
    fn a_single_stack_owns_every_flow() {
        let steering = Steering::alone();
        assert!((0..1000).all(|port| steering.core_of(&flow(port)) == 0));
    }
}
