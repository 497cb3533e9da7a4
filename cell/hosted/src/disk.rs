//! A file of the host, or a block device of it, as a cell's disk.
//!
//! A thread beside the cores executes requests, as they block; it interrupts the core when one is complete.

use crate::core::HostedCore;
use isola_ebbs::{cycles, platform};
use isola_iobuf::IoBufMut;
use isola_platform::Instant;
use isola_platform::block::{
    BlockCompletion, BlockControl, BlockLimits, BlockOutcome, BlockPort, BlockQueue, BlockRefusal,
    BlockRequest, CompletionsPending, RejectedBlockRequest, SECTOR_LEN, Writability, WriteCache,
};
use rustix::fs::{FallocateFlags, FlockOperation, fallocate, flock};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::ops::RangeInclusive;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

/// The vectors of disks, behind those of network devices. A process with more disks than vectors uses them again.
const VECTORS: RangeInclusive<u8> = 0xb0..=0xbf;

/// The most requests of the queue.
const QUEUE_LEN: usize = 128;

/// The most bytes of a request.
const DATA_LEN: u32 = 4 << 20;

/// Whether a cell may write to its disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskAccess {
    /// It may. The file is locked: no other cell can open it.
    ReadWrite,
    /// It may not. Others can read the file as well.
    ReadOnly,
}

/// Opens a file as a disk. A rest shorter than a sector is not a part of it.
///
/// # Errors
/// The error of Linux; [`io::ErrorKind::WouldBlock`] if another process has locked the file.
pub fn open(path: impl AsRef<Path>, access: DiskAccess) -> io::Result<BlockPort> {
    let is_writable = access == DiskAccess::ReadWrite;
    let mut file = File::options().read(true).write(is_writable).open(path)?;
    let lock = if is_writable {
        FlockOperation::NonBlockingLockExclusive
    } else {
        FlockOperation::NonBlockingLockShared
    };
    flock(&file, lock)?;
    let sectors = file.seek(SeekFrom::End(0))? / u64::from(SECTOR_LEN);
    let completed: Arc<Mutex<Completed>> = Arc::default();
    let (requests, next) = channel();
    let there = completed.clone();
    static OPENED: AtomicU8 = AtomicU8::new(0);
    let vector = VECTORS.start() + OPENED.fetch_add(1, Ordering::Relaxed) % VECTORS.len() as u8;
    thread::Builder::new().name("disk".into()).spawn(move || serve(&file, &next, &there, vector))?;
    let limits = BlockLimits {
        block_len: SECTOR_LEN,
        physical_block_len: 4096,
        optimal_len: None,
        data_len: DATA_LEN,
        pieces: 1024,
        piece_len: DATA_LEN,
        writability: if is_writable { Writability::Writable } else { Writability::ReadOnly },
        cache: WriteCache::Volatile,
        discard_sectors: Some(u32::MAX),
        write_zeroes_sectors: Some(DATA_LEN / SECTOR_LEN),
    };
    let queue =
        DiskQueue { vector, limits, sectors, requests, completed, in_flight: Vec::new(), has_failed: false };
    Ok(BlockPort { limits, control: Box::new(Capacity(sectors)), queues: vec![Box::new(queue)] })
}

struct Capacity(u64);

impl BlockControl for Capacity {
    fn capacity(&mut self) -> u64 {
        self.0
    }
}

/// The completed requests, on their way from the thread to the core.
#[derive(Default)]
struct Completed {
    requests: VecDeque<BlockCompletion>,
    core: Option<&'static HostedCore>,
    /// Whether the next completion interrupts the core.
    armed: bool,
}

/// Ignores poisoning: this is plain data, valid even if a thread panicked with the lock held.
fn lock(completed: &Mutex<Completed>) -> MutexGuard<'_, Completed> {
    completed.lock().unwrap_or_else(PoisonError::into_inner)
}

struct DiskQueue {
    vector: u8,
    limits: BlockLimits,
    sectors: u64,
    requests: Sender<BlockCompletion>,
    completed: Arc<Mutex<Completed>>,
    in_flight: Vec<InFlight>,
    /// Whether the device was given up, or its thread has ended.
    has_failed: bool,
}

/// A request that the thread has.
#[derive(Clone, Copy)]
struct InFlight {
    id: u64,
    data_len: u32,
    submitted: Instant,
    ahead: u16,
}

/// Executes requests until the queue is dropped.
fn serve(file: &File, requests: &Receiver<BlockCompletion>, completed: &Mutex<Completed>, vector: u8) {
    while let Ok(mut completion) = requests.recv() {
        let executed = completion.request.as_mut().map_or(Ok(()), |request| execute(file, request));
        completion.outcome = match executed {
            Ok(()) => BlockOutcome::Done,
            Err(error) if error.kind() == io::ErrorKind::Unsupported => BlockOutcome::Unsupported,
            Err(_) => BlockOutcome::IoError,
        };
        let mut completed = lock(completed);
        completed.requests.push_back(completion);
        if std::mem::take(&mut completed.armed)
            && let Some(core) = completed.core
        {
            core.interrupt(vector);
        }
    }
}

fn position(sector: u64) -> u64 {
    sector * u64::from(SECTOR_LEN)
}

fn execute(file: &File, request: &mut BlockRequest) -> io::Result<()> {
    match request {
        BlockRequest::Read { sector, into } => {
            let mut at = position(*sector);
            for buffer in into.iter_mut().map(IoBufMut::data_mut) {
                file.read_exact_at(buffer, at)?;
                at += buffer.len() as u64;
            }
        }
        BlockRequest::Write { sector, from } => {
            let mut at = position(*sector);
            for view in from.parts() {
                file.write_all_at(view, at)?;
                at += view.len() as u64;
            }
        }
        BlockRequest::Flush => file.sync_data()?,
        BlockRequest::Discard { sector, sectors } => {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            fallocate(file, flags, position(*sector), position(u64::from(*sectors)))?;
        }
        BlockRequest::WriteZeroes { sector, sectors, .. } => {
            let zeros = vec![0; position(u64::from(*sectors)) as usize];
            file.write_all_at(&zeros, position(*sector))?;
        }
    }
    Ok(())
}

impl DiskQueue {
    fn check(&self, request: &BlockRequest) -> Result<u32, BlockRefusal> {
        let (sector, len, pieces) = match request {
            BlockRequest::Read { sector, into } => {
                (*sector, into.iter().map(|buffer| buffer.len() as u64).sum(), into.len())
            }
            BlockRequest::Write { sector, from } => (*sector, from.len() as u64, from.parts().len()),
            BlockRequest::Flush => return Ok(0),
            BlockRequest::Discard { sector, sectors } | BlockRequest::WriteZeroes { sector, sectors, .. } => {
                (*sector, position(u64::from(*sectors)), 0)
            }
        };
        if self.limits.writability == Writability::ReadOnly && !matches!(request, BlockRequest::Read { .. }) {
            return Err(BlockRefusal::ReadOnly);
        }
        if len == 0 || !len.is_multiple_of(u64::from(SECTOR_LEN)) {
            return Err(BlockRefusal::Misaligned);
        }
        if len > u64::from(DATA_LEN) && !matches!(request, BlockRequest::Discard { .. }) {
            return Err(BlockRefusal::TooLong);
        }
        if pieces > usize::from(self.limits.pieces) {
            return Err(BlockRefusal::TooManyPieces);
        }
        match sector.checked_add(len / u64::from(SECTOR_LEN)) {
            Some(end) if end <= self.sectors => Ok(u32::try_from(len).unwrap_or(u32::MAX)),
            _ => Err(BlockRefusal::OutsideDevice),
        }
    }
}

impl BlockQueue for DiskQueue {
    fn vector(&self) -> Option<u8> {
        Some(self.vector)
    }

    fn attach(&mut self) {
        lock(&self.completed).core = HostedCore::current();
    }

    fn submit(&mut self, request: BlockRequest, id: u64) -> Result<(), RejectedBlockRequest> {
        let checked = match self.check(&request) {
            _ if self.has_failed => Err(BlockRefusal::DeviceFailed),
            Ok(_) if self.in_flight.len() >= QUEUE_LEN => Err(BlockRefusal::Full),
            checked => checked,
        };
        let data_len = match checked {
            Ok(data_len) => data_len,
            Err(reason) => return Err(RejectedBlockRequest { request, reason }),
        };
        let submitted = platform().clock().instant(cycles());
        let ahead = self.in_flight.len() as u16;
        let outcome = BlockOutcome::DeviceFailed;
        let completion = BlockCompletion { id, outcome, request: Some(request), data_len, submitted, ahead };
        match self.requests.send(completion) {
            Ok(()) => self.in_flight.push(InFlight { id, data_len, submitted, ahead }),
            // The thread has panicked.
            Err(unsent) => {
                self.has_failed = true;
                if let Some(request) = unsent.0.request {
                    return Err(RejectedBlockRequest { request, reason: BlockRefusal::DeviceFailed });
                }
            }
        }
        Ok(())
    }

    fn flush(&mut self) {}

    fn take_completion(&mut self) -> Option<BlockCompletion> {
        if self.has_failed {
            // The thread still uses the memory of what it executes, and drops it.
            let InFlight { id, data_len, submitted, ahead } = self.in_flight.pop()?;
            let outcome = BlockOutcome::DeviceFailed;
            return Some(BlockCompletion { id, outcome, request: None, data_len, submitted, ahead });
        }
        let completion = lock(&self.completed).requests.pop_front()?;
        self.in_flight.retain(|in_flight| in_flight.id != completion.id);
        Some(completion)
    }

    fn give_up(&mut self) {
        self.has_failed = true;
    }

    fn in_flight(&self) -> u16 {
        self.in_flight.len() as u16
    }

    fn enable_interrupts(&mut self) -> CompletionsPending {
        let mut completed = lock(&self.completed);
        let has_more =
            if self.has_failed { !self.in_flight.is_empty() } else { !completed.requests.is_empty() };
        if !has_more {
            completed.armed = true;
            CompletionsPending::No
        } else {
            CompletionsPending::Yes
        }
    }

    fn disable_interrupts(&mut self) {
        lock(&self.completed).armed = false;
    }
}
