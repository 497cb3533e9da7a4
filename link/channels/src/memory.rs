//! Memory for peers: halves of rings, and shared memory.

use crate::runtime::LinkSlot;
use alloc::boxed::Box;
use alloc::rc::Rc;
use core::sync::atomic::{AtomicU64, Ordering};
use isola_abi::links::LinkAccess;

/// The words of a half: 4 pages, of which 128 lines are entries.
pub(crate) const HALF_WORDS: usize = 4 * PAGE_WORDS;

const PAGE_WORDS: usize = 512;

/// Memory of whole pages. It is never freed, as a peer may map it at any time until the supervisor has revoked that;
/// instead it is used again.
#[repr(align(4096))]
struct Pages<const WORDS: usize>([AtomicU64; WORDS]);

impl<const WORDS: usize> Pages<WORDS> {
    fn leak() -> &'static [AtomicU64] {
        &Box::leak(Box::new(Self([const { AtomicU64::new(0) }; WORDS]))).0
    }
}

/// Returns memory for a half.
pub(crate) fn new_half() -> &'static [AtomicU64] {
    Pages::<HALF_WORDS>::leak()
}

/// Memory of this cell that a peer can map: one page.
#[derive(Clone, Copy, Debug)]
pub struct SharedMemory {
    words: &'static [AtomicU64],
}

impl SharedMemory {
    /// Allocates a page of zeros. It is never freed, and can be shared again.
    pub fn new() -> Self {
        Self { words: Pages::<PAGE_WORDS>::leak() }
    }

    /// Returns the words. A peer with write access may change them at any time.
    pub fn words(&self) -> &'static [AtomicU64] {
        self.words
    }
}

impl Default for SharedMemory {
    fn default() -> Self {
        Self::new()
    }
}

/// Memory of a peer. After the peer has revoked it, or ended, loads return other values of this cell, and stores have no
/// effect on the peer.
#[derive(Debug)]
pub struct PeerMemory {
    words: &'static [AtomicU64],
    access: LinkAccess,
    /// Keeps the mapping reserved: the slot of the link is not free before this is dropped.
    _slot: Rc<LinkSlot>,
}

impl PeerMemory {
    pub(crate) fn new(words: &'static [AtomicU64], access: LinkAccess, slot: Rc<LinkSlot>) -> Self {
        Self { words, access, _slot: slot }
    }

    /// Returns the number of words.
    pub fn len(&self) -> usize {
        self.words.len()
    }

    /// Returns whether there are no words.
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
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
}
