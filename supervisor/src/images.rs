//! The image store: images that were uploaded, from which cells are created and recreated.
//!
//! The SHA-256 identifies an image, which is stored once for all its cells. Cells that have not ended, cells that await
//! a restart, and pending requests *use* their image, and pin it. An *idle* image is evicted if memory is wanted, the
//! least recently used first. At most [`MAX_IDLE`] idle images remain, in at most an eighth of all memory; the newest
//! image is an exception, as it was uploaded just now.
//!
//! Cells map the read-only segments of their image from the store. Each cell *owns a share* of the memory
//! ([`SharedPages`]) until it is dismantled, so the memory cannot be reused before that, whatever the use counts say. A
//! quarantined cell, whose cores may still execute, is not counted as a user; an image that only such cells map is
//! *stuck*.
//!
//! The store has two other kinds of memory for cells that map it, released with the last of them: *copies* of images,
//! on the NUMA nodes of cells that would otherwise fetch code from another node; and the text of images that can no
//! longer be used, because their digest was wrong after a supervisor restart or is not known.
//!
//! So there are at most [`max_cells`](isola_abi::management::max_cells) used images, each of at most
//! [`MAX_IMAGE`](isola_abi::management::MAX_IMAGE), in whole chunks and once per node, besides stuck ones; idle images
//! take no memory from other uses.

use crate::staging::{Complete, Staged};
use alloc::vec::Vec;
use isola_abi::id::{NodeId, PhysRange};
use isola_abi::integrity::ImageDigest;
use isola_abi::layout::PAGE_SIZE;
use isola_abi::management::{ImageInfo, ManagementError};
use isola_abi::size::ByteSize;
use isola_supervisor_core::hardware::{Pages, SharedOf, SharedPages};
use isola_supervisor_core::image::ImagePlan;
use isola_supervisor_core::inventory::CHUNK;
use isola_supervisor_core::{Hardware, TrustedCore};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// The most idle images.
pub const MAX_IDLE: usize = 8;

/// Bytes hashed in a slice: a quarter of a million instructions' work on a processor without SHA instructions.
const SLICE: u64 = 4 << 10;

/// The divisor of all memory that gives the most memory of idle images.
const IDLE_SHARE: u64 = 8;

/// The stored images, and the upload in progress.
pub struct Images<H: Hardware> {
    /// The images, the least recently used or uploaded first.
    stored: Vec<Stored<H>>,
    /// Other memory that cells map.
    other_texts: Vec<OtherText<H>>,
    staged: Option<Staged<H::Memory>>,
    /// The progress of hashing a recovered image.
    verification: Option<Verification>,
}

/// The hash of a part of a recovered image.
struct Verification {
    digest: ImageDigest,
    measured: Sha256,
    done: u64,
}

/// The result of hashing a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// There was nothing to hash.
    Idle,
    /// A part of the image is not hashed yet.
    Begun,
    /// The image is hashed, and stored or discarded.
    Done,
}

/// The location and the digest of a stored image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageRecord {
    /// The memory.
    pub memory: PhysRange,
    /// The image's length.
    pub len_bytes: u64,
    /// The image's SHA-256.
    pub digest: ImageDigest,
}

/// Whether this supervisor has hashed an image's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Measured {
    Yes,
    /// A previous incarnation has hashed them, by its checkpoint.
    Before,
}

struct Stored<H: Hardware> {
    digest: ImageDigest,
    measured: Measured,
    memory: SharedOf<H>,
    len_bytes: u64,
    /// The image's layout, once a cell was created from it.
    plan: Option<ImagePlan>,
    /// The number of cells that use the image.
    cells: u32,
}

/// Memory that cells map, other than stored images.
struct OtherText<H: Hardware> {
    /// The image of which the memory is a copy, if it is one.
    copy_of: Option<ImageDigest>,
    memory: SharedOf<H>,
    /// The number of cells that map the memory.
    cells: u32,
}

impl<H: Hardware> OtherText<H> {
    /// Returns the memory of an image that cannot be used any more.
    fn unknown(memory: SharedOf<H>) -> Self {
        Self { copy_of: None, memory, cells: 0 }
    }
}

impl<H: Hardware> Stored<H> {
    fn memory_bytes(&self) -> u64 {
        self.memory.range().len_bytes
    }

    fn is_idle(&self) -> bool {
        self.cells == 0 && !self.memory.is_shared()
    }

    /// Returns whether only cells in quarantine map the image.
    fn is_stuck(&self) -> bool {
        self.cells == 0 && self.memory.is_shared()
    }
}

impl<H: Hardware> Default for Images<H> {
    fn default() -> Self {
        Self { stored: Vec::new(), other_texts: Vec::new(), staged: None, verification: None }
    }
}

impl<H: Hardware> Images<H> {
    /// Returns an empty store.
    pub fn new() -> Self {
        Self::default()
    }

    /// Allocates memory for an upload, which replaces the one in progress.
    ///
    /// # Errors
    /// Returns [`ManagementError::ImageRejected`] for an invalid length, or [`ManagementError::MemoryExhausted`]; the
    /// upload in progress remains then.
    pub fn begin(&mut self, len_bytes: u64, core: &mut TrustedCore<H>) -> Result<(), ManagementError> {
        Staged::<H::Memory>::check(len_bytes)?;
        let taken = loop {
            if let Some(taken) = core.take_store_memory(len_bytes) {
                break taken;
            }
            if !self.evict_for(len_bytes, core) {
                let free = ByteSize(core.inventory().memory.available());
                return Err(ManagementError::MemoryExhausted { wanted: ByteSize(len_bytes), free });
            }
        };
        self.discard_upload(core);
        self.staged = Some(Staged::begin(len_bytes, taken));
        Ok(())
    }

    /// Adds the next bytes of the upload. Once all are [hashed](Self::measure), the image is stored.
    ///
    /// # Errors
    /// Returns [`ManagementError::NoImage`] if there is no upload, or [`ManagementError::OutOfLimits`].
    pub fn append(&mut self, offset: u64, bytes: &[u8]) -> Result<(), ManagementError> {
        self.staged.as_mut().ok_or(ManagementError::NoImage)?.append(offset, bytes)
    }

    /// Returns whether uploaded bytes are not hashed yet.
    pub fn is_measuring(&self) -> bool {
        self.staged.as_ref().is_some_and(Staged::is_behind)
    }

    /// Returns `false` if the image must still be hashed after a supervisor restart; `true` also for an unknown digest.
    pub fn is_measured(&self, digest: &ImageDigest) -> bool {
        self.unverified(digest).is_none()
    }

    /// Hashes a slice of the upload, or else of the recovered image `wanted`.
    pub fn measure(&mut self, wanted: Option<&ImageDigest>, core: &mut TrustedCore<H>) -> Measure {
        if let Some(mut staged) = self.staged.take_if(|staged| staged.is_behind()) {
            staged.measure(SLICE);
            match staged.complete() {
                Err(staged) => self.staged = Some(staged),
                Ok(complete) => {
                    self.store(complete, core);
                    return Measure::Done;
                }
            }
            return Measure::Begun;
        }
        wanted.map_or(Measure::Idle, |digest| self.verify(digest, core))
    }

    /// Discards the upload in progress.
    pub fn discard_upload(&mut self, core: &mut TrustedCore<H>) {
        if let Some(staged) = self.staged.take() {
            core.put_store_memory(staged.into_memory());
        }
    }

    /// Returns a store with the images of a failed supervisor, none of which is used before it is hashed, and the other
    /// memory that recovered cells map.
    pub fn resume(images: Vec<(ImageRecord, SharedOf<H>)>, texts: Vec<SharedOf<H>>) -> Self {
        let other_texts = texts.into_iter().map(OtherText::unknown).collect();
        let mut all = Self { other_texts, ..Self::new() };
        for (ImageRecord { len_bytes, digest, .. }, memory) in images {
            if (1..=memory.range().len_bytes).contains(&len_bytes) {
                all.stored.push(Stored {
                    digest,
                    measured: Measured::Before,
                    memory,
                    len_bytes,
                    plan: None,
                    cells: 0,
                });
            } else {
                all.other_texts.push(OtherText::unknown(memory));
            }
        }
        all
    }

    /// Returns the locations of all stored images.
    pub fn records(&self) -> Vec<ImageRecord> {
        let stored = |stored: &Stored<H>| {
            let (memory, len_bytes, digest) = (stored.memory.range(), stored.len_bytes, stored.digest);
            ImageRecord { memory, len_bytes, digest }
        };
        self.stored.iter().map(stored).collect()
    }

    /// Hashes a slice of a recovered image. If its digest turns out wrong, discards the image.
    fn verify(&mut self, digest: &ImageDigest, core: &mut TrustedCore<H>) -> Measure {
        let Some(index) = self.unverified(digest) else { return Measure::Idle };
        let Some(stored) = self.stored.get_mut(index) else { return Measure::Idle };
        let mut verification = self
            .verification
            .take()
            .filter(|verification| verification.digest == *digest)
            .unwrap_or_else(|| Verification { digest: *digest, measured: Sha256::new(), done: 0 });
        let end = (verification.done + SLICE).min(stored.len_bytes);
        let bytes = stored.memory.read(end as usize);
        verification.measured.update(bytes.get(verification.done as usize..).unwrap_or_default());
        verification.done = end;
        if end < stored.len_bytes {
            self.verification = Some(verification);
            return Measure::Begun;
        }
        if verification.measured.finalize().as_slice() == digest.0 {
            stored.measured = Measured::Yes;
        } else {
            let stored = self.stored.remove(index);
            self.release_text(OtherText::unknown(stored.memory), core);
        }
        Measure::Done
    }

    fn unverified(&self, digest: &ImageDigest) -> Option<usize> {
        let unverified = |stored: &Stored<H>| stored.digest == *digest && stored.measured == Measured::Before;
        self.stored.iter().position(unverified)
    }

    /// Returns an image's layout, and the memory that begins with the image. The layout is computed once, as the image
    /// never changes.
    ///
    /// # Errors
    /// Returns [`ManagementError::NoImage`], or [`ManagementError::ImageRejected`] if the image is invalid.
    pub fn plan(&mut self, digest: &ImageDigest) -> Result<(ImagePlan, SharedOf<H>), ManagementError> {
        let stored =
            self.stored.iter_mut().find(|stored| stored.digest == *digest).ok_or(ManagementError::NoImage)?;
        if let Some(plan) = &stored.plan {
            return Ok((plan.clone(), stored.memory.clone()));
        }
        let bytes = stored.memory.read(stored.len_bytes as usize);
        let plan = ImagePlan::check(bytes).map_err(ManagementError::ImageRejected)?;
        let pages = stored.memory.read(stored.len_bytes.next_multiple_of(PAGE_SIZE) as usize);
        let plan = stored.plan.insert(plan.sharing(pages)).clone();
        Ok((plan, stored.memory.clone()))
    }

    /// Returns the memory from which a cell on `node` maps the text of the image: `image` if that is on the node, else
    /// a copy there, else `image` again if there is no memory for a copy.
    pub fn on_node(
        &mut self,
        digest: &ImageDigest,
        image: SharedOf<H>,
        node: NodeId,
        core: &mut TrustedCore<H>,
    ) -> SharedOf<H> {
        let is_near = |text: &SharedOf<H>| core.inventory().memory.node_of(text.range().start) == Some(node);
        if is_near(&image) {
            return image;
        }
        let is_copy = |text: &&OtherText<H>| text.copy_of == Some(*digest) && is_near(&text.memory);
        if let Some(copy) = self.other_texts.iter().find(is_copy) {
            return copy.memory.clone();
        }
        let Some(stored) = self.stored.iter().find(|stored| stored.digest == *digest) else { return image };
        let Some(mut own) = core.take_store_memory_on(image.range().len_bytes, node) else { return image };
        own.write(0, image.read(stored.len_bytes.next_multiple_of(PAGE_SIZE) as usize));
        let copy = own.share();
        self.other_texts.push(OtherText { copy_of: Some(*digest), memory: copy.clone(), cells: 0 });
        copy
    }

    /// Returns information on all stored images, the least recently used first.
    pub fn list(&self) -> Vec<ImageInfo> {
        let info = |stored: &Stored<H>| ImageInfo {
            digest: stored.digest,
            len_bytes: stored.len_bytes,
            cells: stored.cells,
        };
        self.stored.iter().map(info).collect()
    }

    /// Updates the numbers of cells that use each image, by `cells_of`, and map each other memory. An image that becomes
    /// idle counts as most recently used.
    pub fn count(&mut self, core: &mut TrustedCore<H>, cells_of: impl Fn(&ImageDigest) -> u32) {
        let mut released = Vec::new();
        for stored in &mut self.stored {
            let before = core::mem::replace(&mut stored.cells, cells_of(&stored.digest));
            if before > 0 && stored.is_idle() {
                released.push(stored.digest);
            }
        }
        released.iter().for_each(|digest| self.touch(digest));
        for text in core::mem::take(&mut self.other_texts) {
            let range = text.memory.range();
            let cells = core.cells().filter(|(_, cell)| cell.text() == Some(range)).count() as u32;
            self.release_text(OtherText { cells, ..text }, core);
        }
        self.trim(core);
    }

    /// Evicts idle images except `except` until `len_bytes` bytes are available, or none is idle.
    pub fn make_room(&mut self, len_bytes: u64, except: Option<&ImageDigest>, core: &mut TrustedCore<H>) {
        while core.inventory().memory.available() < len_bytes && self.evict_idle(except, core) {}
    }

    /// Returns the bytes of memory of idle images.
    pub fn idle_bytes(&self) -> u64 {
        self.stored.iter().filter(|stored| stored.is_idle()).map(Stored::memory_bytes).sum()
    }

    /// Returns the bytes of memory of an image if it is idle, otherwise 0.
    pub fn idle_bytes_of(&self, digest: &ImageDigest) -> u64 {
        let idle = self.stored.iter().find(|stored| stored.digest == *digest && stored.is_idle());
        idle.map_or(0, Stored::memory_bytes)
    }

    /// Returns the bytes of memory of all images, and of the other memory that cells map.
    pub fn memory_bytes(&self) -> u64 {
        self.stored.iter().map(Stored::memory_bytes).sum::<u64>() + self.other_text_bytes(|_| true)
    }

    /// Returns the bytes of these that only cells in quarantine map.
    pub fn stuck_bytes(&self) -> u64 {
        let stored = self.stored.iter().filter(|stored| stored.is_stuck()).map(Stored::memory_bytes);
        stored.sum::<u64>() + self.other_text_bytes(|text| text.cells == 0)
    }

    fn other_text_bytes(&self, of: impl Fn(&OtherText<H>) -> bool) -> u64 {
        self.other_texts.iter().filter(|text| of(text)).map(|text| text.memory.range().len_bytes).sum()
    }

    /// Returns memory to the inventory, unless cells still map it.
    fn release_text(&mut self, text: OtherText<H>, core: &mut TrustedCore<H>) {
        let OtherText { copy_of, memory, cells } = text;
        match memory.into_memory() {
            Ok(own) => core.put_store_memory(own),
            Err(memory) => self.other_texts.push(OtherText { copy_of, memory, cells }),
        }
    }

    /// Evicts the least recently used idle image, if a block of `len_bytes` bytes would be free without idle images.
    /// Returns whether an image was evicted.
    pub fn evict_for(&mut self, len_bytes: u64, core: &mut TrustedCore<H>) -> bool {
        let idle = self.stored.iter().filter(|stored| stored.is_idle()).map(|stored| stored.memory.range());
        let idle: Vec<PhysRange> = idle.collect();
        core.inventory().memory.has_block_with(len_bytes, &idle) && self.evict_idle(None, core)
    }

    /// Evicts the least recently used idle image except `except`. Returns whether there was one.
    fn evict_idle(&mut self, except: Option<&ImageDigest>, core: &mut TrustedCore<H>) -> bool {
        let idle = |stored: &Stored<H>| stored.is_idle() && Some(&stored.digest) != except;
        let oldest = self.stored.iter().position(idle).map(|index| self.stored.remove(index));
        oldest.map(|stored| self.release_text(OtherText::unknown(stored.memory), core)).is_some()
    }

    /// Makes an image the most recently used one.
    fn touch(&mut self, digest: &ImageDigest) {
        if let Some(index) = self.stored.iter().position(|stored| stored.digest == *digest) {
            let stored = self.stored.remove(index);
            self.stored.push(stored);
        }
    }

    fn store(&mut self, complete: Complete<H::Memory>, core: &mut TrustedCore<H>) {
        let Complete { memory: own, len_bytes, digest } = complete;
        // The uploaded image replaces a recovered one that is not hashed yet.
        if let Some(index) = self.unverified(&digest) {
            let unverified = self.stored.remove(index);
            self.release_text(OtherText::unknown(unverified.memory), core);
        }
        // The image is stored already: one copy suffices.
        if self.stored.iter().any(|stored| stored.digest == digest) {
            core.put_store_memory(own);
            return self.touch(&digest);
        }
        self.stored.push(Stored {
            digest,
            measured: Measured::Yes,
            memory: own.share(),
            len_bytes,
            plan: None,
            cells: 0,
        });
        self.trim(core);
    }

    /// Evicts idle images beyond the limits of number and memory, except the newest image.
    fn trim(&mut self, core: &mut TrustedCore<H>) {
        let newest = self.stored.last().map(|stored| stored.digest);
        let most = (core.inventory().memory.total() / IDLE_SHARE).max(CHUNK);
        let count = |stored: &[Stored<H>]| stored.iter().filter(|stored| stored.is_idle()).count();
        while (count(&self.stored) > MAX_IDLE || self.idle_bytes() > most)
            && self.evict_idle(newest.as_ref(), core)
        {}
    }
}

#[cfg(test)]
mod tests;
