//! A simulated disk for tests.
//!
//! - [`SimDisk`]: the test's side. It has the contents, a log of all writes and flushes, and faults to inject.
//! - [`SimDisk::port`]: the device's side, for the block layer.
//! - [`power`]: the contents that a power failure can leave, from a log.
//!
//! The disk has a volatile write cache: a write becomes permanent with the next flush, and before that at any time or
//! never. It executes requests in random order from a seed.
#![forbid(unsafe_code)]

pub mod power;
mod queue;

use crate::queue::{SimControl, SimQueue};
use isola_events::{spawn_task, yield_now};
use isola_hosted::core::HostedCore;
use isola_platform::block::{
    BlockCompletion, BlockLimits, BlockPort, BlockRequest, SECTOR_LEN, Writability, WriteCache,
};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The vector of the queue's interrupt.
pub const VECTOR: u8 = 0x70;

/// The time at which a request completes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timing {
    /// At its submission.
    Immediate,
    /// When the test calls [`SimDisk::complete`].
    Manual,
}

/// A write or a flush, in the order of execution.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Logged {
    /// A write.
    Write {
        /// The position in bytes.
        at: usize,
        /// The data.
        bytes: Vec<u8>,
    },
    /// A flush: all writes before it are permanent.
    Flush,
}

/// A simulated disk. Clones are handles of the same disk.
#[derive(Clone)]
pub struct SimDisk {
    state: Arc<Mutex<State>>,
    limits: BlockLimits,
}

struct State {
    contents: Vec<u8>,
    log: Vec<Logged>,
    timing: Timing,
    random: fastrand::Rng,
    queue_len: usize,
    submitted: Vec<BlockCompletion>,
    completed: Vec<BlockCompletion>,
    /// Completed requests: reads, writes, others.
    counts: (u64, u64, u64),
    /// The bytes of reads and writes that succeeded.
    bytes: (u64, u64),
    /// The sectors of accepted reads and writes, in the order of submission, while they are recorded.
    order: Option<Vec<u64>>,
    /// Bytes of the device that cannot be read or written.
    bad: Option<Range<usize>>,
    failed: bool,
    core: Option<&'static HostedCore>,
    armed: bool,
}

/// Returns limits like those of a virtio device of QEMU: 512-byte blocks, a volatile cache, 1 MiB in 128 pieces.
pub fn limits() -> BlockLimits {
    BlockLimits {
        block_len: SECTOR_LEN,
        physical_block_len: 4096,
        optimal_len: None,
        data_len: 1 << 20,
        pieces: 128,
        piece_len: 1 << 20,
        writability: Writability::Writable,
        cache: WriteCache::Volatile,
        discard_sectors: Some(8192),
        write_zeroes_sectors: Some(8192),
    }
}

impl SimDisk {
    /// Creates a disk with these contents and [`limits`], which executes requests at submission.
    pub fn new(contents: Vec<u8>) -> Self {
        Self::with_limits(contents, limits())
    }

    /// Creates a disk with these contents and limits.
    ///
    /// # Panics
    /// If the contents do not consist of whole blocks.
    pub fn with_limits(contents: Vec<u8>, limits: BlockLimits) -> Self {
        assert!(contents.len().is_multiple_of(limits.block_len as usize));
        let state = State {
            contents,
            log: Vec::new(),
            timing: Timing::Immediate,
            random: fastrand::Rng::with_seed(1),
            queue_len: 64,
            submitted: Vec::new(),
            completed: Vec::new(),
            counts: (0, 0, 0),
            bytes: (0, 0),
            order: None,
            bad: None,
            failed: false,
            core: None,
            armed: false,
        };
        Self { state: Arc::new(Mutex::new(state)), limits }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the device.
    pub fn port(&self) -> BlockPort {
        BlockPort {
            limits: self.limits,
            control: Box::new(SimControl(self.clone())),
            queues: vec![Box::new(SimQueue(self.clone()))],
        }
    }

    /// Sets when requests complete.
    pub fn set_timing(&self, timing: Timing) {
        self.lock().timing = timing;
    }

    /// Sets the most requests in the device.
    pub fn set_queue_len(&self, requests: usize) {
        self.lock().queue_len = requests;
    }

    /// Makes requests that touch these bytes fail; `None` ends that.
    pub fn set_bad(&self, bytes: Option<Range<usize>>) {
        self.lock().bad = bytes;
    }

    /// Makes the device fail: all requests in it complete as failed, and it rejects all further ones.
    pub fn fail(&self) {
        let mut state = self.lock();
        state.fail();
        state.interrupt();
    }

    /// Executes up to `most` of the submitted requests in random order, and interrupts. Returns their number.
    pub fn complete(&self, most: usize) -> usize {
        let mut state = self.lock();
        let count = most.min(state.submitted.len());
        for _ in 0..count {
            state.execute_one();
        }
        state.interrupt();
        count
    }

    /// Completes the requests of the calling cell one by one, in random order, as a slow device does.
    pub fn complete_slowly(&self) {
        self.set_timing(Timing::Manual);
        let disk = self.clone();
        spawn_task(async move {
            loop {
                disk.complete(1);
                yield_now().await;
            }
        })
        .detach();
    }

    /// Returns the ids and requests in the device, in the order of submission.
    pub fn in_device(&self) -> Vec<(bool, u64, u32)> {
        let describe = |completion: &BlockCompletion| {
            let (is_write, sector) = match &completion.request {
                Some(BlockRequest::Write { sector, .. }) => (true, *sector),
                Some(BlockRequest::Read { sector, .. }) => (false, *sector),
                _ => (false, u64::MAX),
            };
            (is_write, sector, completion.data_len)
        };
        self.lock().submitted.iter().map(describe).collect()
    }

    /// Returns the number of executed reads, writes and other requests.
    pub fn counts(&self) -> (u64, u64, u64) {
        self.lock().counts
    }

    /// Returns the number of bytes of executed reads and writes that succeeded.
    pub fn bytes(&self) -> (u64, u64) {
        self.lock().bytes
    }

    /// Returns the first sectors of the reads and writes that were submitted since the last call, in their order;
    /// nothing at the first call, which begins to record them.
    pub fn take_order(&self) -> Vec<u64> {
        self.lock().order.replace(Vec::new()).unwrap_or_default()
    }

    /// Returns a copy of the contents.
    pub fn contents(&self) -> Vec<u8> {
        self.lock().contents.clone()
    }

    /// Changes the contents behind the back of all caches.
    pub fn edit(&self, change: impl FnOnce(&mut [u8])) {
        change(&mut self.lock().contents);
    }

    /// Returns and empties the log.
    pub fn take_log(&self) -> Vec<Logged> {
        std::mem::take(&mut self.lock().log)
    }
}
