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
//! So there are at most [`MAX_CELLS`](isola_abi::management::MAX_CELLS) used images, each of at most
//! [`MAX_IMAGE`](isola_abi::management::MAX_IMAGE), in whole chunks and once per node, besides stuck ones; idle images
//! take no memory from other uses.

use crate::effects::{Pages, SharedPages};
use crate::image::ImagePlan;
use crate::inventory::{CHUNK, Memory};
use crate::staging::{Complete, Staged};
use alloc::vec;
use alloc::vec::Vec;
use isola_abi::id::{NodeId, PhysRange};
use isola_abi::integrity::ImageDigest;
use isola_abi::layout::PAGE_SIZE;
use isola_abi::management::{ImageInfo, ManagementError};
use isola_abi::size::ByteSize;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// The most idle images.
pub const MAX_IDLE: usize = 8;

/// Bytes hashed in a slice: a quarter of a million instructions' work on a processor without SHA instructions.
const SLICE: u64 = 4 << 10;

/// The divisor of all memory that gives the most memory of idle images.
const IDLE_SHARE: u64 = 8;

/// The stored images, and the upload in progress.
pub struct Images<M: Pages> {
    /// The images, the least recently used or uploaded first.
    kept: Vec<Kept<M>>,
    /// Other memory that cells map.
    beside: Vec<Beside<M>>,
    staged: Option<Staged<M>>,
    /// The progress of hashing a recovered image.
    proof: Option<Proof>,
}

/// The hash of a part of a recovered image.
struct Proof {
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
pub struct KeptImage {
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
    ByAnother,
}

struct Kept<M: Pages> {
    digest: ImageDigest,
    measured: Measured,
    memory: M::Shared,
    len_bytes: u64,
    /// The image's layout, once a cell was created from it.
    plan: Option<ImagePlan>,
    /// The number of cells that use the image.
    cells: u32,
}

/// Memory that cells map, other than stored images.
struct Beside<M: Pages> {
    /// The image of which the memory is a copy, if it is one.
    copy_of: Option<ImageDigest>,
    memory: M::Shared,
    /// The number of cells that map the memory.
    cells: u32,
}

impl<M: Pages> Beside<M> {
    /// Returns the memory of an image that cannot be used any more.
    fn nameless(memory: M::Shared) -> Self {
        Self { copy_of: None, memory, cells: 0 }
    }
}

impl<M: Pages> Kept<M> {
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

impl<M: Pages> Default for Images<M> {
    fn default() -> Self {
        Self { kept: Vec::new(), beside: Vec::new(), staged: None, proof: None }
    }
}

impl<M: Pages> Images<M> {
    /// Returns an empty store.
    pub fn new() -> Self {
        Self::default()
    }

    /// Allocates memory for an upload, which replaces the one in progress.
    ///
    /// # Errors
    /// Returns [`ManagementError::ImageRejected`] for an invalid length, or [`ManagementError::MemoryExhausted`]; the
    /// upload in progress remains then.
    pub fn begin(&mut self, len_bytes: u64, memory: &mut Memory<M>) -> Result<(), ManagementError> {
        Staged::<M>::check(len_bytes)?;
        let taken = loop {
            if let Some(taken) = memory.take_contiguous(len_bytes) {
                break taken;
            }
            if !self.drop_for(len_bytes, memory) {
                let free = ByteSize(memory.available());
                return Err(ManagementError::MemoryExhausted { wanted: ByteSize(len_bytes), free });
            }
        };
        self.forget_staged(memory);
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
        self.unproven(digest).is_none()
    }

    /// Hashes a slice of the upload, or else of the recovered image `wanted`.
    pub fn measure(&mut self, wanted: Option<&ImageDigest>, memory: &mut Memory<M>) -> Measure {
        if let Some(mut staged) = self.staged.take_if(|staged| staged.is_behind()) {
            staged.measure(SLICE);
            match staged.complete() {
                Err(staged) => self.staged = Some(staged),
                Ok(complete) => {
                    self.keep(complete, memory);
                    return Measure::Done;
                }
            }
            return Measure::Begun;
        }
        wanted.map_or(Measure::Idle, |digest| self.prove(digest, memory))
    }

    /// Discards the upload in progress.
    pub fn forget_staged(&mut self, memory: &mut Memory<M>) {
        if let Some(staged) = self.staged.take() {
            staged.release(memory);
        }
    }

    /// Returns a store with the images of a failed supervisor, none of which is used before it is hashed, and the other
    /// memory that recovered cells map.
    pub fn resume(images: Vec<(KeptImage, M::Shared)>, texts: Vec<M::Shared>) -> Self {
        let beside = texts.into_iter().map(Beside::nameless).collect();
        let mut all = Self { beside, ..Self::new() };
        for (KeptImage { len_bytes, digest, .. }, memory) in images {
            if (1..=memory.range().len_bytes).contains(&len_bytes) {
                all.kept.push(Kept {
                    digest,
                    measured: Measured::ByAnother,
                    memory,
                    len_bytes,
                    plan: None,
                    cells: 0,
                });
            } else {
                all.beside.push(Beside::nameless(memory));
            }
        }
        all
    }

    /// Returns the locations of all stored images.
    pub fn kept(&self) -> Vec<KeptImage> {
        let kept = |kept: &Kept<M>| {
            let (memory, len_bytes, digest) = (kept.memory.range(), kept.len_bytes, kept.digest);
            KeptImage { memory, len_bytes, digest }
        };
        self.kept.iter().map(kept).collect()
    }

    /// Hashes a slice of a recovered image. If its digest turns out wrong, discards the image.
    fn prove(&mut self, digest: &ImageDigest, memory: &mut Memory<M>) -> Measure {
        let Some(index) = self.unproven(digest) else { return Measure::Idle };
        let Some(kept) = self.kept.get_mut(index) else { return Measure::Idle };
        let mut proof = self.proof.take().filter(|proof| proof.digest == *digest).unwrap_or_else(|| Proof {
            digest: *digest,
            measured: Sha256::new(),
            done: 0,
        });
        let end = (proof.done + SLICE).min(kept.len_bytes);
        let bytes = kept.memory.read(end as usize);
        proof.measured.update(bytes.get(proof.done as usize..).unwrap_or_default());
        proof.done = end;
        if end < kept.len_bytes {
            self.proof = Some(proof);
            return Measure::Begun;
        }
        if proof.measured.finalize().as_slice() == digest.0 {
            kept.measured = Measured::Yes;
        } else {
            let kept = self.kept.remove(index);
            self.give_up(Beside::nameless(kept.memory), memory);
        }
        Measure::Done
    }

    fn unproven(&self, digest: &ImageDigest) -> Option<usize> {
        let unproven = |kept: &Kept<M>| kept.digest == *digest && kept.measured == Measured::ByAnother;
        self.kept.iter().position(unproven)
    }

    /// Returns the memory of all images, and the other memory that cells map.
    #[cfg(test)]
    pub(crate) fn into_memory(self) -> Vec<M::Shared> {
        let beside = self.beside.into_iter().map(|beside| beside.memory);
        self.kept.into_iter().map(|kept| kept.memory).chain(beside).collect()
    }

    /// Returns the ranges of all memory of the store, including the upload in progress.
    #[cfg(test)]
    pub(crate) fn ranges(&self) -> Vec<PhysRange> {
        let kept = self.kept.iter().map(|kept| kept.memory.range());
        let beside = self.beside.iter().map(|beside| beside.memory.range());
        kept.chain(beside).chain(self.staged.iter().map(Staged::range)).collect()
    }

    /// Returns an image's layout, and the memory that begins with the image. The layout is computed once, as the image
    /// never changes.
    ///
    /// # Errors
    /// Returns [`ManagementError::NoImage`], or [`ManagementError::ImageRejected`] if the image is invalid.
    pub fn plan(&mut self, digest: &ImageDigest) -> Result<(ImagePlan, M::Shared), ManagementError> {
        let kept =
            self.kept.iter_mut().find(|kept| kept.digest == *digest).ok_or(ManagementError::NoImage)?;
        if let Some(plan) = &kept.plan {
            return Ok((plan.clone(), kept.memory.clone()));
        }
        let bytes = kept.memory.read(kept.len_bytes as usize);
        let plan = ImagePlan::check(bytes).map_err(ManagementError::ImageRejected)?;
        let pages = kept.memory.read(kept.len_bytes.next_multiple_of(PAGE_SIZE) as usize);
        let plan = kept.plan.insert(plan.sharing(pages)).clone();
        Ok((plan, kept.memory.clone()))
    }

    /// Returns the memory from which a cell on `node` maps the text of the image: `image` if that is on the node, else
    /// a copy there, else `image` again if there is no memory for a copy.
    pub fn on_node(
        &mut self,
        digest: &ImageDigest,
        image: M::Shared,
        node: NodeId,
        memory: &mut Memory<M>,
    ) -> M::Shared {
        let is_near = |text: &M::Shared| memory.node_of(text.range().start) == Some(node);
        if is_near(&image) {
            return image;
        }
        let is_copy = |beside: &&Beside<M>| beside.copy_of == Some(*digest) && is_near(&beside.memory);
        if let Some(copy) = self.beside.iter().find(is_copy) {
            return copy.memory.clone();
        }
        let Some(kept) = self.kept.iter().find(|kept| kept.digest == *digest) else { return image };
        let Some(mut own) = memory.take_contiguous_on(image.range().len_bytes, node) else { return image };
        own.write(0, image.read(kept.len_bytes.next_multiple_of(PAGE_SIZE) as usize));
        let copy = own.share();
        self.beside.push(Beside { copy_of: Some(*digest), memory: copy.clone(), cells: 0 });
        copy
    }

    /// Returns information on all stored images, the least recently used first.
    pub fn list(&self) -> Vec<ImageInfo> {
        let info =
            |kept: &Kept<M>| ImageInfo { digest: kept.digest, len_bytes: kept.len_bytes, cells: kept.cells };
        self.kept.iter().map(info).collect()
    }

    /// Updates the numbers of cells that use each image and map each other memory. An image that becomes idle counts as
    /// most recently used.
    pub fn count(
        &mut self,
        memory: &mut Memory<M>,
        cells_of: impl Fn(&ImageDigest) -> u32,
        cells_on: impl Fn(PhysRange) -> u32,
    ) {
        let mut released = Vec::new();
        for kept in &mut self.kept {
            let before = core::mem::replace(&mut kept.cells, cells_of(&kept.digest));
            if before > 0 && kept.is_idle() {
                released.push(kept.digest);
            }
        }
        released.iter().for_each(|digest| self.touch(digest));
        for beside in core::mem::take(&mut self.beside) {
            let cells = cells_on(beside.memory.range());
            self.give_up(Beside { cells, ..beside }, memory);
        }
        self.trim(memory);
    }

    /// Evicts idle images except `except` until `len_bytes` bytes are available, or none is idle.
    pub fn make_room(&mut self, len_bytes: u64, except: Option<&ImageDigest>, memory: &mut Memory<M>) {
        while memory.available() < len_bytes && self.drop_idle(except, memory) {}
    }

    /// Returns the bytes of memory of idle images.
    pub fn idle_bytes(&self) -> u64 {
        self.kept.iter().filter(|kept| kept.is_idle()).map(Kept::memory_bytes).sum()
    }

    /// Returns the bytes of memory of an image if it is idle, otherwise 0.
    pub fn idle_bytes_of(&self, digest: &ImageDigest) -> u64 {
        let idle = self.kept.iter().find(|kept| kept.digest == *digest && kept.is_idle());
        idle.map_or(0, Kept::memory_bytes)
    }

    /// Returns the bytes of memory of all images, and of the other memory that cells map.
    pub fn memory_bytes(&self) -> u64 {
        self.kept.iter().map(Kept::memory_bytes).sum::<u64>() + self.beside_bytes(|_| true)
    }

    /// Returns the bytes of these that only cells in quarantine map.
    pub fn stuck_bytes(&self) -> u64 {
        let kept = self.kept.iter().filter(|kept| kept.is_stuck()).map(Kept::memory_bytes);
        kept.sum::<u64>() + self.beside_bytes(|beside| beside.cells == 0)
    }

    fn beside_bytes(&self, of: impl Fn(&Beside<M>) -> bool) -> u64 {
        self.beside.iter().filter(|beside| of(beside)).map(|beside| beside.memory.range().len_bytes).sum()
    }

    /// Returns memory to the inventory, unless cells still map it.
    fn give_up(&mut self, beside: Beside<M>, memory: &mut Memory<M>) {
        let Beside { copy_of, memory: text, cells } = beside;
        match text.into_memory() {
            Ok(own) => memory.put(vec![own]),
            Err(text) => self.beside.push(Beside { copy_of, memory: text, cells }),
        }
    }

    /// Evicts the least recently used idle image, if a block of `len_bytes` bytes would be free without idle images.
    /// Returns whether an image was evicted.
    pub fn drop_for(&mut self, len_bytes: u64, memory: &mut Memory<M>) -> bool {
        let idle = self.kept.iter().filter(|kept| kept.is_idle()).map(|kept| kept.memory.range());
        let idle: Vec<PhysRange> = idle.collect();
        memory.has_block_with(len_bytes, &idle) && self.drop_idle(None, memory)
    }

    /// Evicts the least recently used idle image except `except`. Returns whether there was one.
    fn drop_idle(&mut self, except: Option<&ImageDigest>, memory: &mut Memory<M>) -> bool {
        let idle = |kept: &Kept<M>| kept.is_idle() && Some(&kept.digest) != except;
        let oldest = self.kept.iter().position(idle).map(|index| self.kept.remove(index));
        oldest.map(|kept| self.give_up(Beside::nameless(kept.memory), memory)).is_some()
    }

    /// Makes an image the most recently used one.
    fn touch(&mut self, digest: &ImageDigest) {
        if let Some(index) = self.kept.iter().position(|kept| kept.digest == *digest) {
            let kept = self.kept.remove(index);
            self.kept.push(kept);
        }
    }

    fn keep(&mut self, complete: Complete<M>, memory: &mut Memory<M>) {
        let Complete { memory: own, len_bytes, digest } = complete;
        // The uploaded image replaces a recovered one that is not hashed yet.
        if let Some(index) = self.unproven(&digest) {
            let unproven = self.kept.remove(index);
            self.give_up(Beside::nameless(unproven.memory), memory);
        }
        // The image is stored already: one copy suffices.
        if self.kept.iter().any(|kept| kept.digest == digest) {
            memory.put(vec![own]);
            return self.touch(&digest);
        }
        self.kept.push(Kept {
            digest,
            measured: Measured::Yes,
            memory: own.share(),
            len_bytes,
            plan: None,
            cells: 0,
        });
        self.trim(memory);
    }

    /// Evicts idle images beyond the limits of number and memory, except the newest image.
    fn trim(&mut self, memory: &mut Memory<M>) {
        let newest = self.kept.last().map(|kept| kept.digest);
        let most = (memory.total() / IDLE_SHARE).max(CHUNK);
        let count = |kept: &[Kept<M>]| kept.iter().filter(|kept| kept.is_idle()).count();
        while (count(&self.kept) > MAX_IDLE || self.idle_bytes() > most)
            && self.drop_idle(newest.as_ref(), memory)
        {}
    }
}
