//! The cached blocks, without the device.

use crate::BLOCK_LEN;
use crate::account::{Account, Accounts, CacheUse, Owner};
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use core::task::Waker;
use foldhash::fast::SeedableRandomState;
use hashbrown::HashMap;
use isola_abi::id::ActivityId;
use isola_iobuf::{Chain, IoBuf, IoBufMut};
use isola_platform::VacatedMemory;

/// A block.
struct Block {
    /// `None` while the device reads it.
    data: Option<IoBuf>,
    owner: Owner,
    activity: ActivityId,
    /// Whether it was used since the hand of the clock was here.
    is_referenced: bool,
    /// Whether the device writes it now.
    is_writing: bool,
    /// The number of changes.
    version: u64,
}

pub(crate) struct Blocks {
    blocks: HashMap<u64, Block, SeedableRandomState>,
    pub accounts: Accounts,
    dirty: BTreeSet<u64>,
    /// The most blocks.
    pub capacity: usize,
    /// The futures that wait for the device to read a block, or for room.
    waiting: Vec<Waker>,
    /// The number of blocks that the device reads.
    loading: usize,
}

/// The state of a block for an access.
pub(crate) enum Found {
    Data(IoBuf),
    /// The device reads it.
    Loading,
    Missing,
}

/// Adjacent dirty blocks of an owner, to be written by one request.
pub(crate) struct Run {
    pub first: u64,
    owner: Owner,
    pub activity: ActivityId,
    pub data: Chain,
    versions: Vec<u64>,
}

impl Run {
    /// Divides the run into runs of one block.
    pub fn single_blocks(&self) -> impl Iterator<Item = Run> {
        self.versions.iter().enumerate().map(|(index, version)| Run {
            first: self.first + index as u64,
            owner: self.owner,
            activity: self.activity,
            data: self.data.slice(index * BLOCK_LEN, BLOCK_LEN).unwrap_or_default(),
            versions: Vec::from([*version]),
        })
    }
}

/// The dirty blocks to write.
#[derive(Clone, Copy)]
pub(crate) enum DirtySelection {
    All,
    Of(Owner),
}

/// Returns a view of up to `len` of the device's bytes from position `at` within the block of that position.
pub(crate) fn part_of(block: &IoBuf, at: u64, len: usize) -> Option<IoBuf> {
    let offset = (at % BLOCK_LEN as u64) as usize;
    match len.min(BLOCK_LEN - offset) {
        BLOCK_LEN => Some(block.clone()),
        part => block.slice(offset..offset + part),
    }
}

impl Blocks {
    pub fn new(capacity: usize, seed: u64) -> Self {
        let state = SeedableRandomState::with_seed(seed, foldhash::SharedSeed::global_fixed());
        Self {
            blocks: HashMap::with_hasher(state),
            accounts: Accounts::default(),
            dirty: BTreeSet::new(),
            capacity,
            waiting: Vec::new(),
            loading: 0,
        }
    }

    /// Returns whether the device reads blocks.
    pub fn is_loading(&self) -> bool {
        self.loading > 0
    }

    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    pub fn dirty_len(&self) -> usize {
        self.dirty.len()
    }

    pub fn contains(&self, number: u64) -> bool {
        self.blocks.contains_key(&number)
    }

    /// Returns the data of a block for the access that has brought it in.
    pub fn find_loaded(&self, number: u64) -> Found {
        match self.blocks.get(&number) {
            Some(Block { data: Some(data), .. }) => Found::Data(data.clone()),
            Some(_) => Found::Loading,
            None => Found::Missing,
        }
    }

    /// Returns the data of a block, and counts a hit.
    pub fn find(&mut self, number: u64, activity: ActivityId) -> Found {
        let found = self.find_loaded(number);
        if let Found::Data(_) = found {
            // The block was just found.
            if let Some(block) = self.blocks.get_mut(&number) {
                block.is_referenced = true;
            }
            self.accounts.of(activity).hits += 1;
        }
        found
    }

    /// Appends views of the device's bytes from position `at`, up to the first block that is not in the cache, and
    /// counts hits. Returns the number of bytes.
    pub fn append_views(&mut self, at: u64, len: usize, activity: ActivityId, into: &mut Chain) -> usize {
        let (mut appended, mut hits) = (0, 0);
        while appended < len {
            let position = at + appended as u64;
            let Some(block) = self.blocks.get_mut(&(position / BLOCK_LEN as u64)) else { break };
            let Some(data) = &block.data else { break };
            let Some(view) = part_of(data, position, len - appended) else { break };
            block.is_referenced = true;
            hits += 1;
            appended += view.len();
            into.push_back(view);
        }
        if hits > 0 {
            self.accounts.of(activity).hits += hits;
        }
        appended
    }

    /// Adds a block that the device is going to read.
    pub fn add_loading(&mut self, number: u64, activity: ActivityId) {
        self.add(number, None, activity);
        self.loading += 1;
    }

    fn add(&mut self, number: u64, data: Option<IoBuf>, activity: ActivityId) {
        let owner = self.accounts.owner(activity);
        let block = Block { data, owner, activity, is_referenced: false, is_writing: false, version: 0 };
        self.blocks.insert(number, block);
        let account = self.accounts.of(activity);
        account.misses += 1;
        account.clock.push_back(number);
    }

    /// Ends the reading of blocks from `first` on; `None` if it failed. Returns the blocks that were read, and the
    /// futures to wake.
    pub fn loaded(
        &mut self,
        first: u64,
        count: u64,
        data: Option<Vec<IoBufMut>>,
    ) -> (Vec<IoBuf>, Vec<Waker>) {
        let mut views = Vec::with_capacity(data.as_ref().map_or(0, Vec::len));
        let mut data = data.map(Vec::into_iter);
        self.loading -= count as usize;
        for number in first..first + count {
            match data.as_mut().and_then(Iterator::next) {
                Some(buffer) => {
                    let view = buffer.freeze();
                    views.push(view.clone());
                    if let Some(block) = self.blocks.get_mut(&number) {
                        block.data = Some(view);
                    }
                }
                None => self.remove(number),
            }
        }
        (views, core::mem::take(&mut self.waiting))
    }

    fn remove(&mut self, number: u64) {
        let Some(block) = self.blocks.remove(&number) else { return };
        self.dirty.remove(&number);
        if let Some(account) = self.accounts.get_mut(block.owner) {
            // A block that leaves is mostly one that came a short time ago.
            if let Some(position) = account.clock.iter().rposition(|other| *other == number) {
                account.clock.remove(position);
            }
        }
    }

    /// Removes those of the blocks from `first` on, before `end`, that the device has as well.
    pub fn forget(&mut self, first: u64, end: u64) {
        for number in first..end {
            let Some(block) = self.blocks.get(&number) else { continue };
            if block.data.is_some() && !block.is_writing && !self.dirty.contains(&number) {
                self.remove(number);
            }
        }
    }

    pub fn wait(&mut self, waker: &Waker) {
        self.waiting.push(waker.clone());
    }

    pub fn take_waiting(&mut self) -> Vec<Waker> {
        core::mem::take(&mut self.waiting)
    }

    /// Changes bytes of a block that is in the cache, or adds it if `from` is the whole block. Returns whether it was.
    pub fn change(&mut self, number: u64, at: usize, from: &[u8], activity: ActivityId) -> bool {
        let is_whole = from.len() == BLOCK_LEN;
        if !self.blocks.contains_key(&number) {
            if !is_whole {
                return false;
            }
            self.add(number, Some(IoBuf::copy_from_slice(from)), activity);
            self.dirty.insert(number);
            return true;
        }
        let Some(block) = self.blocks.get_mut(&number) else { return false };
        let Some(data) = block.data.take() else { return false };
        // A block of which views exist is replaced: the device may be writing it.
        let mut buffer = match data.try_into_mut() {
            Ok(buffer) => buffer,
            Err(shared) => {
                let mut copy = IoBufMut::with_room(0, BLOCK_LEN);
                copy.extend();
                copy.data_mut().copy_from_slice(&shared);
                copy
            }
        };
        buffer.data_mut()[at..at + from.len()].copy_from_slice(from);
        block.data = Some(buffer.freeze());
        block.version += 1;
        block.is_referenced = true;
        self.dirty.insert(number);
        self.accounts.of(activity).hits += 1;
        true
    }

    /// Evicts up to `most` clean blocks of an owner. Returns their number.
    pub fn evict(&mut self, owner: Owner, most: usize) -> usize {
        let Some(account) = self.accounts.get_mut(owner) else { return 0 };
        let mut evicted = 0;
        // Each block is visited twice: its second chance.
        for _ in 0..2 * account.clock.len() {
            if evicted == most {
                break;
            }
            let Some(number) = account.clock.pop_front() else { break };
            let Some(block) = self.blocks.get_mut(&number) else { continue };
            let is_evictable = block.data.is_some() && !block.is_writing && !self.dirty.contains(&number);
            if !is_evictable || core::mem::take(&mut block.is_referenced) {
                account.clock.push_back(number);
                continue;
            }
            self.blocks.remove(&number);
            evicted += 1;
        }
        account.evicted += evicted as u64;
        evicted
    }

    /// Evicts up to `most` clean blocks, of the activity furthest above its soft budget first.
    pub fn evict_by_excess(&mut self, most: usize) -> usize {
        let mut evicted = 0;
        while evicted < most {
            // In small steps, as each changes the order.
            let step = (most - evicted).min(16);
            let owners = self.accounts.by_excess(self.capacity, BLOCK_LEN);
            let of_first = owners.into_iter().map(|owner| self.evict(owner, step)).find(|count| *count > 0);
            match of_first {
                Some(count) => evicted += count,
                None => break,
            }
        }
        evicted
    }

    /// Returns the activities that have blocks, with the bytes of each.
    pub fn held(&self) -> Vec<(ActivityId, usize)> {
        self.accounts.held(BLOCK_LEN)
    }

    /// Copies up to `most` blocks that are in this memory to other memory. Returns the originals.
    pub fn vacate(&mut self, memory: &VacatedMemory, most: usize) -> Vec<IoBuf> {
        let data = self.blocks.values_mut().filter_map(|block| block.data.as_mut());
        let inside = data.filter(|data| memory.has_some_of(data.as_ptr(), data.len())).take(most);
        inside
            .map(|data| {
                let copy = IoBuf::copy_from_slice(data);
                core::mem::replace(data, copy)
            })
            .collect()
    }

    /// Returns the activity furthest above its soft budget that has blocks.
    pub fn worst(&mut self) -> Option<Owner> {
        self.accounts.by_excess(self.capacity, BLOCK_LEN).first().copied()
    }

    /// Returns dirty blocks as runs of at most `most` blocks, and marks them as being written.
    pub fn take_dirty(&mut self, which: DirtySelection, most: usize) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        for number in &self.dirty {
            let Some(block) = self.blocks.get_mut(number) else { continue };
            let Some(data) = block.data.clone() else { continue };
            if block.is_writing || matches!(which, DirtySelection::Of(owner) if owner != block.owner) {
                continue;
            }
            block.is_writing = true;
            match runs.last_mut() {
                Some(run)
                    if run.first + run.versions.len() as u64 == *number
                        && run.owner == block.owner
                        && run.versions.len() < most =>
                {
                    run.data.push_back(data);
                    run.versions.push(block.version);
                }
                _ => runs.push(Run {
                    first: *number,
                    owner: block.owner,
                    activity: block.activity,
                    data: data.into(),
                    versions: Vec::from([block.version]),
                }),
            }
        }
        runs
    }

    /// Ends the writing of a run. Blocks that were changed meanwhile, and those of a failed run, stay dirty.
    pub fn written(&mut self, run: &Run, succeeded: bool) {
        for (index, version) in run.versions.iter().enumerate() {
            let number = run.first + index as u64;
            let Some(block) = self.blocks.get_mut(&number) else { continue };
            block.is_writing = false;
            if succeeded && block.version == *version {
                self.dirty.remove(&number);
            }
        }
    }

    pub fn usage(&self, activity: ActivityId) -> CacheUse {
        let usage = |account: &Account| CacheUse {
            blocks: account.clock.len(),
            hits: account.hits,
            misses: account.misses,
            evicted: account.evicted,
        };
        self.accounts.get(activity).map(usage).unwrap_or_default()
    }
}
