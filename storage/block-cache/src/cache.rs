//! The cache on its device.

use crate::BLOCK_LEN;
use crate::account::{Budget, CacheUse};
use crate::blocks::{Blocks, DirtySelection, Found, Run, part_of};
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use core::fmt;
use core::future::poll_fn;
use core::sync::atomic::Ordering;
use core::task::{Poll, Waker};
use isola_abi::id::ActivityId;
use isola_abi::report::MemoryPressure;
use isola_activities::INFRASTRUCTURE;
use isola_block::{BlockDevice, BlockError};
use isola_ebbs::platform;
use isola_events::future::join_all;
use isola_events::{current_activity, memory_pressure, spawn_task, spawn_task_for, yield_now};
use isola_iobuf::{Chain, IoBuf, IoBufMut};
use isola_platform::VacatedMemory;
use isola_platform::block::{BlockRefusal, SECTOR_LEN};

/// The most blocks of a request to the device.
const MOST_RUN: usize = 128;

/// The fewest blocks of a cache, and of a hard budget: an access must find room.
const FEWEST: usize = 64;

/// The memory of a block in bytes: the next size of the heap's objects, as a buffer has a count of its references.
const BLOCK_MEMORY: usize = BLOCK_LEN / 4 * 5;

/// The sectors of a block.
const SECTORS: u64 = BLOCK_LEN as u64 / SECTOR_LEN as u64;

/// The settings of a cache.
#[derive(Clone, Copy, Debug)]
pub struct CacheSettings {
    /// The most bytes of blocks; at least 256 KiB. Each takes some 150 bytes more. While the cell has less memory than
    /// when the cache was created, the capacity is less in proportion. While memory is short, the cache does not grow.
    pub capacity: usize,
    /// The most bytes of dirty blocks: a write beyond waits for write-back. At most half of the capacity.
    pub dirty: usize,
    /// The seed of the table's hash, from the platform's entropy.
    pub seed: u64,
}

impl Default for CacheSettings {
    fn default() -> Self {
        Self { capacity: 16 << 20, dirty: 4 << 20, seed: 0 }
    }
}

/// The cached blocks of a device. Clones are handles of the same cache.
#[derive(Clone)]
pub struct BlockCache {
    shared: Rc<Shared>,
}

struct Shared {
    device: BlockDevice,
    blocks: RefCell<Blocks>,
    /// The most blocks, and the memory of the cell in bytes, when the cache was created.
    capacity: usize,
    memory_bytes: u64,
    most_dirty: usize,
    /// The whole blocks of the device.
    device_blocks: u64,
    /// Whether blocks are being written back. One write-back at a time, so that writes of a block keep their order.
    is_writing_back: Cell<bool>,
    /// The futures that wait for the end of a write-back.
    write_back_waiting: RefCell<Vec<Waker>>,
}

impl Shared {
    /// Returns the most blocks that the cache may have with the memory that the cell has now.
    fn most_blocks(&self) -> usize {
        let now = memory_bytes();
        if now >= self.memory_bytes {
            return self.capacity;
        }
        let part = self.capacity as u128 * u128::from(now) / u128::from(self.memory_bytes);
        (part as usize).max(FEWEST)
    }
}

/// Returns the cell's memory in bytes, with the part that it can still request.
fn memory_bytes() -> u64 {
    let memory = &platform().report().memory;
    memory.total_bytes.load(Ordering::Relaxed).saturating_add(memory.room_bytes.load(Ordering::Relaxed))
}

impl BlockCache {
    /// Creates an empty cache of a device. A device whose length is not a multiple of [`BLOCK_LEN`] loses the rest.
    ///
    /// # Errors
    /// [`BlockError::Unsupported`] if the device's blocks are longer than [`BLOCK_LEN`].
    pub fn new(device: BlockDevice, settings: CacheSettings) -> Result<Self, BlockError> {
        if device.limits().block_len as usize > BLOCK_LEN {
            return Err(BlockError::Unsupported);
        }
        let capacity = (settings.capacity / BLOCK_LEN).max(FEWEST);
        let shared = Shared {
            device_blocks: device.capacity() / SECTORS,
            device,
            blocks: RefCell::new(Blocks::new(capacity, settings.seed)),
            capacity,
            memory_bytes: memory_bytes(),
            most_dirty: (settings.dirty / BLOCK_LEN).clamp(1, capacity / 2),
            is_writing_back: Cell::new(false),
            write_back_waiting: RefCell::default(),
        };
        Ok(Self { shared: Rc::new(shared) })
    }

    /// Returns the device.
    pub fn device(&self) -> &BlockDevice {
        &self.shared.device
    }

    /// Returns the length of the device in bytes, in whole blocks.
    pub fn device_len(&self) -> u64 {
        self.shared.device_blocks * BLOCK_LEN as u64
    }

    /// Sets the budget of an activity, until it ends. The hard one is at least 256 KiB.
    pub fn set_budget(&self, activity: ActivityId, budget: Budget) {
        let hard = budget.hard.max(FEWEST * BLOCK_LEN);
        self.shared.blocks.borrow_mut().accounts.of(activity).budget = Budget { hard, ..budget };
    }

    /// Returns the use of the cache by an activity.
    pub fn usage(&self, activity: ActivityId) -> CacheUse {
        self.shared.blocks.borrow().usage(activity)
    }

    /// Returns the bytes of all blocks, and of the dirty ones.
    pub fn len_bytes(&self) -> (usize, usize) {
        let blocks = self.shared.blocks.borrow();
        (blocks.len() * BLOCK_LEN, blocks.dirty_len() * BLOCK_LEN)
    }

    /// Returns the memory of all blocks in bytes, with what the heap adds to each.
    pub fn memory_bytes(&self) -> usize {
        self.shared.blocks.borrow().len() * BLOCK_MEMORY
    }

    /// Returns a view of a block. It keeps its contents when the block is changed or evicted.
    ///
    /// # Errors
    /// The errors of the device.
    pub async fn block(&self, number: u64) -> Result<IoBuf, BlockError> {
        self.blocks(number, 1).await.map(|(block, _)| block)
    }

    /// Fills `into` with the device's bytes from position `at`.
    ///
    /// # Errors
    /// [`BlockRefusal::OutsideDevice`], and the errors of the device.
    pub async fn read(&self, at: u64, into: &mut [u8]) -> Result<(), BlockError> {
        self.check(at, into.len())?;
        let (mut filled, mut loaded_until) = (0, 0);
        while filled < into.len() {
            let (number, offset) = split(at + filled as u64);
            let ahead = (offset + into.len() - filled).div_ceil(BLOCK_LEN);
            // Blocks that were read for this access are misses.
            let read_before = match number < loaded_until {
                true => self.shared.blocks.borrow().find_loaded(number),
                false => Found::Missing,
            };
            let block = match read_before {
                Found::Data(block) => block,
                Found::Loading | Found::Missing => {
                    let (block, loaded) = self.blocks(number, ahead).await?;
                    loaded_until = number + loaded;
                    block
                }
            };
            let part = (BLOCK_LEN - offset).min(into.len() - filled);
            into[filled..filled + part].copy_from_slice(&block[offset..offset + part]);
            filled += part;
        }
        Ok(())
    }

    /// Returns views of the device's bytes from position `at`: parts of the cached blocks, which keep their contents
    /// when the blocks are changed or evicted. Nothing is copied. Adjacent missing blocks are read by one request, and
    /// the requests of several callers are in the device at the same time.
    ///
    /// # Errors
    /// [`BlockRefusal::OutsideDevice`], and the errors of the device.
    pub async fn views(&self, at: u64, len: usize) -> Result<Chain, BlockError> {
        self.check(at, len)?;
        let activity = current_activity();
        let mut views = Chain::new();
        while views.len() < len {
            let cached = len - views.len();
            let position = at + views.len() as u64;
            let found = self.shared.blocks.borrow_mut().append_views(position, cached, activity, &mut views);
            if found == cached {
                break;
            }
            let (number, offset) = split(at + views.len() as u64);
            // The device may read the block for another caller.
            let is_loading = matches!(self.shared.blocks.borrow().find_loaded(number), Found::Loading);
            if is_loading {
                self.wait().await;
                continue;
            }
            let ahead = (offset + len - views.len()).div_ceil(BLOCK_LEN);
            for block in self.load(number, ahead, activity).await? {
                let (position, left) = (at + views.len() as u64, len - views.len());
                views.push_back(part_of(&block, position, left).unwrap_or(block));
            }
        }
        Ok(views)
    }

    /// Appends such views to `into` without waiting, up to the first block that is not in the cache. Returns the number
    /// of bytes.
    pub fn append_cached(&self, at: u64, len: usize, into: &mut Chain) -> usize {
        if self.check(at, len).is_err() {
            return 0;
        }
        self.shared.blocks.borrow_mut().append_views(at, len, current_activity(), into)
    }

    /// Removes the blocks of a part of the device that are clean, for a caller that keeps their contents itself.
    pub fn forget(&self, at: u64, len: usize) {
        if self.check(at, len).is_ok() {
            let end = (at + len as u64).div_ceil(BLOCK_LEN as u64);
            self.shared.blocks.borrow_mut().forget(at / BLOCK_LEN as u64, end);
        }
    }

    /// Writes `from` at position `at`, into the cache.
    ///
    /// # Errors
    /// [`BlockRefusal::OutsideDevice`], [`BlockRefusal::ReadOnly`], and the errors of the device: of reading the rest of
    /// a block, or of writing others back to make room. A part may have been written.
    pub async fn write(&self, at: u64, from: &[u8]) -> Result<(), BlockError> {
        self.check(at, from.len())?;
        if self.shared.device.is_read_only() {
            return Err(BlockRefusal::ReadOnly.into());
        }
        let activity = current_activity();
        let mut written = 0;
        while written < from.len() {
            let (number, offset) = split(at + written as u64);
            let part = (BLOCK_LEN - offset).min(from.len() - written);
            self.limit_dirty().await?;
            let bytes = &from[written..written + part];
            if !self.shared.blocks.borrow().contains(number) {
                if part == BLOCK_LEN {
                    self.make_room(1, activity).await?;
                } else {
                    self.blocks(number, 1).await?;
                }
            }
            // No other event runs between this and the check above, unless the device reads the block at present.
            if self.shared.blocks.borrow_mut().change(number, offset, bytes, activity) {
                written += part;
            } else {
                self.blocks(number, 1).await?;
            }
        }
        Ok(())
    }

    /// Writes all dirty blocks and flushes the device: all completed writes are permanent afterwards.
    ///
    /// # Errors
    /// The errors of the device. Blocks that could not be written stay dirty.
    pub async fn flush(&self) -> Result<(), BlockError> {
        self.write_back(DirtySelection::All).await?;
        self.shared.device.flush().await.map(drop)
    }

    /// Evicts clean blocks of up to `bytes` in total, of the activity furthest above its budget first, and returns the
    /// number of bytes. If there are too few, dirty blocks are written back in the background: a later call finds them
    /// clean.
    pub fn shrink(&self, bytes: usize) -> usize {
        let wanted = bytes.div_ceil(BLOCK_LEN);
        let (evicted, has_dirty) = {
            let mut blocks = self.shared.blocks.borrow_mut();
            (blocks.evict_by_excess(wanted), blocks.dirty_len() > 0)
        };
        if evicted < wanted && has_dirty {
            self.write_back_later();
        }
        evicted * BLOCK_LEN
    }

    fn write_back_later(&self) {
        let cache = self.clone();
        // An error is reported by the next flush.
        spawn_task_for(INFRASTRUCTURE, async move {
            let _ = cache.write_back(DirtySelection::All).await;
        })
        .detach();
    }

    /// Evicts clean blocks of an activity, of up to `bytes` in total; see [`Self::shrink`]. Returns the number of bytes.
    pub fn shrink_activity(&self, activity: ActivityId, bytes: usize) -> usize {
        let wanted = bytes.div_ceil(BLOCK_LEN);
        let (evicted, has_dirty) = {
            let mut blocks = self.shared.blocks.borrow_mut();
            let owner = blocks.accounts.owner(activity);
            (blocks.evict(owner, wanted), blocks.dirty_len() > 0)
        };
        if evicted < wanted && has_dirty {
            self.write_back_later();
        }
        evicted * BLOCK_LEN
    }

    /// Returns the activities that have blocks, with the bytes of each.
    pub fn held(&self) -> Vec<(ActivityId, usize)> {
        self.shared.blocks.borrow().held()
    }

    /// Moves up to `most` blocks that are in this memory to other memory. Returns the originals; an empty list if
    /// there are no more. Views of a block that others have keep its original.
    pub fn vacate(&self, memory: &VacatedMemory, most: usize) -> Vec<IoBuf> {
        self.shared.blocks.borrow_mut().vacate(memory, most)
    }

    fn check(&self, at: u64, len: usize) -> Result<(), BlockError> {
        match at.checked_add(len as u64) {
            Some(end) if end <= self.device_len() => Ok(()),
            _ => Err(BlockRefusal::OutsideDevice.into()),
        }
    }

    /// Returns a block, and the number of blocks from it on that were read for that: none if it was in the cache. Up to
    /// `ahead` blocks are read, up to the next cached one.
    async fn blocks(&self, number: u64, ahead: usize) -> Result<(IoBuf, u64), BlockError> {
        let activity = current_activity();
        let mut loaded = 0;
        loop {
            let found = match loaded {
                0 => self.shared.blocks.borrow_mut().find(number, activity),
                _ => self.shared.blocks.borrow().find_loaded(number),
            };
            match found {
                Found::Data(data) => return Ok((data, loaded)),
                Found::Loading => self.wait().await,
                Found::Missing if number >= self.shared.device_blocks => {
                    return Err(BlockRefusal::OutsideDevice.into());
                }
                Found::Missing => loaded = self.load(number, ahead, activity).await?.len() as u64,
            }
        }
    }

    /// Waits until the device has read a block, or a write-back has ended.
    async fn wait(&self) {
        let mut has_waited = false;
        poll_fn(|context| {
            if core::mem::replace(&mut has_waited, true) {
                return Poll::Ready(());
            }
            self.shared.blocks.borrow_mut().wait(context.waker());
            Poll::Pending
        })
        .await;
    }

    /// Reads missing blocks, and returns views of them: none if another future has added the first meanwhile. The
    /// views keep the contents even if the blocks are evicted before the caller runs.
    async fn load(&self, first: u64, ahead: usize, activity: ActivityId) -> Result<Vec<IoBuf>, BlockError> {
        let left = usize::try_from(self.shared.device_blocks - first).unwrap_or(usize::MAX);
        let (capacity, hard) = {
            let mut blocks = self.shared.blocks.borrow_mut();
            (blocks.capacity, blocks.accounts.of(activity).budget.hard / BLOCK_LEN)
        };
        let most = ahead.clamp(1, MOST_RUN).min(left).min(capacity / 4).min(hard);
        self.make_room(most, activity).await?;
        let count = {
            let mut blocks = self.shared.blocks.borrow_mut();
            let numbers = first..first + most as u64;
            let count = numbers.take_while(|number| !blocks.contains(*number)).count() as u64;
            (first..first + count).for_each(|number| blocks.add_loading(number, activity));
            count
        };
        if count == 0 {
            return Ok(Vec::new());
        }
        let cache = self.clone();
        // In a task, as the blocks have to be marked as read even if the caller drops this future.
        let task = spawn_task(async move {
            let buffers = (0..count).map(|_| {
                let mut buffer = IoBufMut::with_room(0, BLOCK_LEN);
                buffer.extend();
                buffer
            });
            let read = cache.shared.device.read(first * SECTORS, buffers.collect()).await;
            let (buffers, outcome) = match read {
                Ok(buffers) => (Some(buffers), Ok(())),
                Err(error) => (None, Err(error)),
            };
            let mut blocks = cache.shared.blocks.borrow_mut();
            let (views, wakers) = blocks.loaded(first, count, buffers);
            drop(blocks);
            wakers.into_iter().for_each(Waker::wake);
            outcome.map(|()| views)
        });
        task.await
    }

    /// Evicts blocks until the cache has room for `count` more, and the activity is within its hard budget with them.
    async fn make_room(&self, count: usize, activity: ActivityId) -> Result<(), BlockError> {
        let had = self.shared.blocks.borrow().len().max(FEWEST);
        loop {
            let write_back = {
                let mut blocks = self.shared.blocks.borrow_mut();
                let owner = blocks.accounts.owner(activity);
                let account = blocks.accounts.of(activity);
                let own = account.clock.len() + count;
                let over_hard = own.saturating_sub(account.budget.hard / BLOCK_LEN);
                if over_hard > 0 && account.clock.len() >= over_hard {
                    if blocks.evict(owner, over_hard) >= over_hard {
                        continue;
                    }
                    Some(owner)
                } else {
                    blocks.capacity = self.shared.most_blocks();
                    let most = match memory_pressure() {
                        MemoryPressure::None => blocks.capacity,
                        MemoryPressure::Low | MemoryPressure::Critical => blocks.capacity.min(had),
                    };
                    let over = (blocks.len() + count).saturating_sub(most);
                    if over == 0 {
                        return Ok(());
                    }
                    if blocks.evict_by_excess(over) >= over {
                        continue;
                    }
                    blocks.worst()
                }
            };
            let (before, is_loading) = {
                let blocks = self.shared.blocks.borrow();
                (blocks.dirty_len(), blocks.is_loading())
            };
            if before == 0 && is_loading {
                // Only blocks that the device reads are left.
                self.wait().await;
                continue;
            }
            // An error is the next flush's, unless it prevents progress.
            let outcome = match write_back {
                Some(owner) => self.write_back(DirtySelection::Of(owner)).await,
                None => Ok(()),
            };
            if self.shared.blocks.borrow().dirty_len() >= before {
                outcome?;
                // The device reads that activity's other blocks, or they change all the time.
                self.write_back(DirtySelection::All).await?;
                yield_now().await;
            }
        }
    }

    async fn limit_dirty(&self) -> Result<(), BlockError> {
        let most = self.shared.most_dirty.min(self.shared.most_blocks() / 2);
        if self.shared.blocks.borrow().dirty_len() < most {
            return Ok(());
        }
        let outcome = self.write_back(DirtySelection::All).await;
        // An error is the next flush's, unless it prevents progress.
        if self.shared.blocks.borrow().dirty_len() < most { Ok(()) } else { outcome }
    }

    /// Writes dirty blocks.
    async fn write_back(&self, which: DirtySelection) -> Result<(), BlockError> {
        let cache = self.clone();
        // In a task, as the blocks have to be marked as written even if the caller drops this future.
        spawn_task(async move { cache.write_back_alone(which).await }).await
    }

    async fn write_back_alone(&self, which: DirtySelection) -> Result<(), BlockError> {
        poll_fn(|context| {
            if self.shared.is_writing_back.replace(true) {
                self.shared.write_back_waiting.borrow_mut().push(context.waker().clone());
                return Poll::Pending;
            }
            Poll::Ready(())
        })
        .await;
        let runs = self.shared.blocks.borrow_mut().take_dirty(which, MOST_RUN);
        let outcomes = join_all(runs.iter().map(|run| self.write_run(run)).collect::<Vec<_>>()).await;
        self.shared.is_writing_back.set(false);
        let wakers = self.shared.blocks.borrow_mut().take_waiting();
        wakers.into_iter().chain(self.shared.write_back_waiting.take()).for_each(Waker::wake);
        outcomes.into_iter().collect()
    }
}

impl BlockCache {
    /// Writes a run. If that fails, its blocks are written one by one, so that only those that cannot be written stay
    /// dirty.
    async fn write_run(&self, run: &Run) -> Result<(), BlockError> {
        let outcome = self.write_once(run).await;
        if outcome != Err(BlockError::Io) {
            self.shared.blocks.borrow_mut().written(run, outcome.is_ok());
            return outcome;
        }
        let mut outcome = Ok(());
        for block in run.single_blocks() {
            let written = self.write_once(&block).await;
            self.shared.blocks.borrow_mut().written(&block, written.is_ok());
            outcome = outcome.and(written);
        }
        outcome
    }

    async fn write_once(&self, run: &Run) -> Result<(), BlockError> {
        let write = self.shared.device.write_for(run.activity, run.first * SECTORS, run.data.clone());
        write.await.map(drop)
    }
}

/// Returns the block of a position, and the position within it.
fn split(at: u64) -> (u64, usize) {
    (at / BLOCK_LEN as u64, (at % BLOCK_LEN as u64) as usize)
}

impl fmt::Debug for BlockCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (bytes, dirty) = self.len_bytes();
        f.debug_struct("BlockCache").field("bytes", &bytes).field("dirty_bytes", &dirty).finish()
    }
}
