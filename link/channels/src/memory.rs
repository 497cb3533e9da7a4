//! Memory for peers: halves of rings, and shared memory.

use crate::ChannelError;
use crate::runtime::{LinkSlot, pool, runtime};
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::RefCell;
use core::fmt;
use core::ops::Deref;
use core::sync::atomic::{AtomicU64, Ordering};
use isola_abi::layout::PAGE_SIZE;
use isola_abi::links::{LinkAccess, MAX_LENT_BYTES};
use isola_ebbs::platform;
use isola_events::spawn_task;
use isola_link_rings::bytes::load_words;

/// The most pages of a [`SharedMemory`]: 16 MiB.
pub const MOST_SHARED_PAGES: usize = (MAX_LENT_BYTES / PAGE_SIZE) as usize;

/// The words of a page.
pub(crate) const PAGE_WORDS: usize = PAGE_SIZE as usize / size_of::<AtomicU64>();

type Page = [AtomicU64; PAGE_WORDS];

/// The numbers of pages of a block: powers of two up to [`MOST_SHARED_PAGES`].
const SIZES: usize = MOST_SHARED_PAGES.ilog2() as usize + 1;

/// Blocks of whole pages that no peer maps, by the binary logarithm of their number of pages. They stay in the pool, so that
/// references to their words are valid for good.
#[derive(Default)]
pub(crate) struct Pool {
    blocks: RefCell<[Vec<&'static [AtomicU64]>; SIZES]>,
}

impl Pool {
    /// Takes a block of at least that many pages, of zeros: a free one, or memory of the heap.
    fn take(&self, pages: usize) -> Result<&'static [AtomicU64], ChannelError> {
        if !(1..=MOST_SHARED_PAGES).contains(&pages) {
            return Err(ChannelError::BadSize { most_pages: MOST_SHARED_PAGES });
        }
        let size = pages.next_power_of_two().ilog2() as usize;
        let free = self.blocks.borrow_mut().get_mut(size).and_then(Vec::pop);
        match free {
            Some(words) => {
                // Another peer may have read the former contents.
                words.iter().for_each(|word| word.store(0, Ordering::Relaxed));
                Ok(words)
            }
            None => allocate(1 << size),
        }
    }

    fn put(&self, words: &'static [AtomicU64]) {
        let size = (words.len() / PAGE_WORDS).ilog2() as usize;
        if let Some(blocks) = self.blocks.borrow_mut().get_mut(size) {
            blocks.push(words);
        }
    }
}

/// Allocates whole pages of zeros that a peer can map. They are never freed.
fn allocate(pages: usize) -> Result<&'static [AtomicU64], ChannelError> {
    let port = platform().links().ok_or(ChannelError::Unsupported)?;
    // Memory of the image, which is small, is freed when the heap has given out other memory.
    let mut of_image = Vec::new();
    loop {
        let (memory, first) = allocate_aligned(pages)?;
        let words = memory.as_flattened().get(first..first + pages * PAGE_WORDS);
        if words.is_some_and(|words| port.can_share(words)) {
            let words: &'static [AtomicU64] = Vec::leak(memory).as_flattened();
            return words.get(first..first + pages * PAGE_WORDS).ok_or(ChannelError::NoMemory);
        }
        of_image.push(memory);
    }
}

/// Allocates at least that many pages of zeros. Returns them with the index of the first word that begins a page.
fn allocate_aligned(pages: usize) -> Result<(Vec<Page>, usize), ChannelError> {
    let zeros = |pages: usize| -> Result<Vec<Page>, ChannelError> {
        let mut memory = Vec::new();
        memory.try_reserve_exact(pages).map_err(|_| ChannelError::NoMemory)?;
        memory.resize_with(pages, || [const { AtomicU64::new(0) }; PAGE_WORDS]);
        Ok(memory)
    };
    let mut memory = zeros(pages)?;
    if !memory.as_ptr().addr().is_multiple_of(PAGE_SIZE as usize) {
        // The heap of a cell aligns objects of whole pages, but that of another platform may not.
        memory = zeros(pages + 1)?;
    }
    let skip = memory.as_ptr().addr().next_multiple_of(PAGE_SIZE as usize) - memory.as_ptr().addr();
    Ok((memory, skip / size_of::<AtomicU64>()))
}

/// A block that returns to the pool of its core when it is dropped.
struct Block(&'static [AtomicU64]);

impl Drop for Block {
    fn drop(&mut self) {
        pool().put(self.0);
    }
}

/// Memory of this cell that a peer can map: whole pages. When all values that refer to it are dropped, and no peer maps it,
/// it is used again for other shared memory of the same core; it does not return to the heap.
#[derive(Clone)]
pub struct SharedMemory {
    block: Rc<Block>,
    words: &'static [AtomicU64],
}

impl SharedMemory {
    /// Allocates `pages` pages of 4 KiB, of zeros, from 1 to [`MOST_SHARED_PAGES`]. Takes the next power of two of pages.
    ///
    /// # Errors
    /// [`ChannelError::BadSize`] or [`ChannelError::NoMemory`].
    pub fn new(pages: usize) -> Result<Self, ChannelError> {
        let block = Block(pool().take(pages)?);
        let words = block.0.get(..pages * PAGE_WORDS).unwrap_or_default();
        Ok(Self { block: Rc::new(block), words })
    }

    /// Returns the words. A peer with write access may change them at any time. The reference is valid for good, but the
    /// words serve other purposes after the memory was dropped.
    pub fn words(&self) -> &'static [AtomicU64] {
        self.words
    }

    /// Returns the number of pages.
    pub fn pages(&self) -> usize {
        self.words.len() / PAGE_WORDS
    }
}

impl fmt::Debug for SharedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let holders = Rc::strong_count(&self.block);
        write!(f, "SharedMemory({} pages, {holders} holders)", self.pages())
    }
}

/// Memory of a peer. After the peer has revoked it, or ended, loads return other values of this cell, and stores have no
/// effect on the peer. If the peer permits it, the contents can [survive it](Self::keep).
#[derive(Debug)]
pub struct PeerMemory {
    words: &'static [AtomicU64],
    access: LinkAccess,
    /// Keeps the mapping reserved: the slot of the link is not free before this is dropped.
    slot: Rc<LinkSlot>,
}

impl PeerMemory {
    pub(crate) fn new(words: &'static [AtomicU64], access: LinkAccess, slot: Rc<LinkSlot>) -> Self {
        Self { words, access, slot }
    }

    /// Returns the number of words.
    pub fn len(&self) -> usize {
        self.words.len()
    }

    /// Returns whether there are no words.
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// Keeps the contents when the peer's cell ends: loads return those of that moment until this is dropped. Takes memory of
    /// this cell of the same length. Is of no effect after the peer has revoked the memory, or closed the channel.
    ///
    /// # Errors
    /// [`LinkRefusal::NotSurviving`](crate::LinkRefusal::NotSurviving) if the peer does not permit that
    /// ([`Channel::map_surviving`](crate::Channel::map_surviving)); another [`ChannelError`].
    pub async fn keep(&self) -> Result<(), ChannelError> {
        let (runtime, slot) = (runtime()?, self.slot.clone());
        let copy = SharedMemory::new(self.words.len() / PAGE_WORDS)?;
        // In a task of its own, which holds the memory until the answer.
        spawn_task(async move { runtime.keep(&slot, copy).await }).await
    }

    /// Returns the permitted access.
    pub fn access(&self) -> LinkAccess {
        self.access
    }

    /// Returns the word at `index`, if there is one.
    pub fn load(&self, index: usize) -> Option<u64> {
        self.words.get(index).map(|word| word.load(Ordering::Acquire))
    }

    /// Stores a word. Returns whether it exists and the access permits that.
    #[must_use]
    pub fn store(&self, index: usize, value: u64) -> bool {
        let word = self.words.get(index).filter(|_| self.access == LinkAccess::ReadWrite);
        word.map(|word| word.store(value, Ordering::Release)).is_some()
    }

    /// Returns the words if the access permits writing.
    pub fn writable_words(&self) -> Option<&[AtomicU64]> {
        (self.access == LinkAccess::ReadWrite).then_some(self.words)
    }

    /// Copies words from `first` on into `to`. Returns whether all exist; if not, `to` is unchanged.
    #[must_use]
    pub fn copy_to(&self, first: usize, to: &mut [u64]) -> bool {
        let exists = first.checked_add(to.len()).is_some_and(|end| end <= self.words.len());
        if exists {
            load_words(self.words, first, to);
        }
        exists
    }
}

/// Memory of a peer that permits writing.
#[derive(Debug)]
pub struct WritableMemory(PeerMemory);

impl PeerMemory {
    /// Returns the memory as words that can be written; `None` if the access does not permit that.
    pub fn into_writable(self) -> Option<WritableMemory> {
        (self.access == LinkAccess::ReadWrite).then_some(WritableMemory(self))
    }
}

impl Deref for WritableMemory {
    type Target = [AtomicU64];

    #[inline]
    fn deref(&self) -> &[AtomicU64] {
        self.0.words
    }
}
