//! The images that are kept, so that a cell is created, and created once more, from one that was sent before.
//!
//! An image is kept once, whatever number of cells was made from it: it is known by its SHA-256, which
//! was measured as it came. It is *used* by the cells that were made from it and have not ended, and by those
//! that wait to be started again, and is kept for them. An *idle* one gives way to whatever wants its memory, the
//! one that was used longest ago first. At most [`MAX_IDLE`] idle ones are kept, of at most an eighth of all
//! memory together; one beyond that is kept while nothing is newer, as somebody has just sent it.
//!
//! Cells stand on what of their image they only read and execute: it is in their address spaces, where it is kept. Each of
//! them *has* the memory as this store has it ([`SharedPages`]), until it is taken apart; so there is no way to have it back
//! before that, whatever the counts here say: a cell in quarantine, which may still execute, is not counted, and its
//! image is there, *stuck* where nobody else uses it.
//!
//! Two kinds of memory are here beside the images, for the cells that stand on it, and go with the last of them: *copies* of
//! images, on NUMA nodes of cells that would have to fetch their code from another node; and what was an image, and
//! cannot be used as one any more, as its digest is another than it was, or nobody knows it.
//!
//! So there are at most [`MAX_CELLS`](isola_abi::management::MAX_CELLS) used ones, each of at most
//! [`MAX_IMAGE`](isola_abi::management::MAX_IMAGE), in whole chunks and once a node, beside what is stuck; and the idle ones
//! take nothing from anybody.

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

/// Most images that are kept for nobody.
pub const MAX_IDLE: usize = 8;

/// Bytes that are measured in a slice: a quarter of a million instructions' work, by the count for a processor without
/// instructions for SHA.
const SLICE: u64 = 4 << 10;

/// The part of all memory that images may take that are kept for nobody.
const IDLE_SHARE: u64 = 8;

/// The images, and one that is on its way in.
pub struct Images<M: Pages> {
    /// Those that were used or sent last come last.
    kept: Vec<Kept<M>>,
    /// What else cells stand on.
    beside: Vec<Beside<M>>,
    staged: Option<Staged<M>>,
    /// How far the measuring of a kept image is.
    proof: Option<Proof>,
}

/// How much of a kept image is measured.
struct Proof {
    digest: ImageDigest,
    measured: Sha256,
    done: u64,
}

/// What came of a slice of measuring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// There was nothing to measure.
    Idle,
    /// Not all of the image is measured.
    Begun,
    /// It is, and kept or given up.
    Done,
}

/// Where an image is kept, and what it was measured to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptImage {
    /// The memory.
    pub memory: PhysRange,
    /// The image's length.
    pub len_bytes: u64,
    /// Its SHA-256.
    pub digest: ImageDigest,
}

/// Whether an image's bytes were measured by this supervisor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Measured {
    Yes,
    /// Another one says that it has.
    ByAnother,
}

struct Kept<M: Pages> {
    digest: ImageDigest,
    measured: Measured,
    memory: M::Shared,
    len_bytes: u64,
    /// How to load it, once somebody has wanted that.
    plan: Option<ImagePlan>,
    /// The cells that use it.
    cells: u32,
}

/// What cells stand on that is not an image that is kept.
struct Beside<M: Pages> {
    /// Of which it is a copy, if it is one.
    copy_of: Option<ImageDigest>,
    memory: M::Shared,
    /// The cells that stand on it.
    cells: u32,
}

impl<M: Pages> Beside<M> {
    /// What was an image.
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

    /// Whether something stands on it that is no cell any more, and yet not taken apart.
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
    /// No images.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes room for an image that is about to come, which takes the place of one that was on its way.
    ///
    /// # Errors
    /// [`ManagementError::ImageRejected`] for a length that no image has, [`ManagementError::MemoryExhausted`]:
    /// then what was on its way still is.
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

    /// Takes the next bytes of the image that is on its way. Once all of them are [measured](Self::measure) it is kept.
    ///
    /// # Errors
    /// [`ManagementError::NoImage`] where none is on its way, [`ManagementError::OutOfLimits`].
    pub fn append(&mut self, offset: u64, bytes: &[u8]) -> Result<(), ManagementError> {
        self.staged.as_mut().ok_or(ManagementError::NoImage)?.append(offset, bytes)
    }

    /// Whether bytes have come that are not measured.
    pub fn is_measuring(&self) -> bool {
        self.staged.as_ref().is_some_and(Staged::is_behind)
    }

    /// Whether no image of that digest is kept of which only another supervisor says that it is the one.
    pub fn is_measured(&self, digest: &ImageDigest) -> bool {
        self.unproven(digest).is_none()
    }

    /// Measures a slice of the image that is on its way in, or else of the `wanted` one.
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

    /// Gives up the image that is on its way.
    pub fn forget_staged(&mut self, memory: &mut Memory<M>) {
        if let Some(staged) = self.staged.take() {
            staged.release(memory);
        }
    }

    /// Images that another supervisor has kept, and what else cells stand on. None of them is used before it was measured.
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

    /// Where all images are.
    pub fn kept(&self) -> Vec<KeptImage> {
        let kept = |kept: &Kept<M>| {
            let (memory, len_bytes, digest) = (kept.memory.range(), kept.len_bytes, kept.digest);
            KeptImage { memory, len_bytes, digest }
        };
        self.kept.iter().map(kept).collect()
    }

    /// Measures a slice of an image of which only another supervisor says that it is the one. Where it is not, it is
    /// given up.
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

    /// The memory of all images, and what else cells stand on.
    #[cfg(test)]
    pub(crate) fn into_memory(self) -> Vec<M::Shared> {
        let beside = self.beside.into_iter().map(|beside| beside.memory);
        self.kept.into_iter().map(|kept| kept.memory).chain(beside).collect()
    }

    /// Where all of it is, and the image that is on its way in.
    #[cfg(test)]
    pub(crate) fn ranges(&self) -> Vec<PhysRange> {
        let kept = self.kept.iter().map(|kept| kept.memory.range());
        let beside = self.beside.iter().map(|beside| beside.memory.range());
        kept.chain(beside).chain(self.staged.iter().map(Staged::range)).collect()
    }

    /// How to load an image, and the memory that it begins. Nothing in that changes, so it is looked through once.
    ///
    /// # Errors
    /// [`ManagementError::NoImage`]; [`ManagementError::ImageRejected`] where it is none that can be loaded.
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

    /// What a cell on that node stands on that is made of this image, kept in `image`: a copy on the node, where the image is
    /// on another one and there is memory for a copy.
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

    /// What is known of all images, in the order of their use.
    pub fn list(&self) -> Vec<ImageInfo> {
        let info =
            |kept: &Kept<M>| ImageInfo { digest: kept.digest, len_bytes: kept.len_bytes, cells: kept.cells };
        self.kept.iter().map(info).collect()
    }

    /// Enters how many cells use each image, and stand on each other memory here, once that has changed; images that nobody
    /// uses any more have been used last.
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

    /// Gives memory back until so many bytes are available, or no image is idle but `except`.
    pub fn make_room(&mut self, len_bytes: u64, except: Option<&ImageDigest>, memory: &mut Memory<M>) {
        while memory.available() < len_bytes && self.drop_idle(except, memory) {}
    }

    /// Bytes of memory that idle images take.
    pub fn idle_bytes(&self) -> u64 {
        self.kept.iter().filter(|kept| kept.is_idle()).map(Kept::memory_bytes).sum()
    }

    /// Bytes of memory that an image takes where it is idle.
    pub fn idle_bytes_of(&self, digest: &ImageDigest) -> u64 {
        let idle = self.kept.iter().find(|kept| kept.digest == *digest && kept.is_idle());
        idle.map_or(0, Kept::memory_bytes)
    }

    /// Bytes of memory that all images take, with what else cells stand on.
    pub fn memory_bytes(&self) -> u64 {
        self.kept.iter().map(Kept::memory_bytes).sum::<u64>() + self.beside_bytes(|_| true)
    }

    /// Of that, bytes that no cell uses, and that something stands on which did not come back.
    pub fn stuck_bytes(&self) -> u64 {
        let kept = self.kept.iter().filter(|kept| kept.is_stuck()).map(Kept::memory_bytes);
        kept.sum::<u64>() + self.beside_bytes(|beside| beside.cells == 0)
    }

    fn beside_bytes(&self, of: impl Fn(&Beside<M>) -> bool) -> u64 {
        self.beside.iter().filter(|beside| of(beside)).map(|beside| beside.memory.range().len_bytes).sum()
    }

    /// Puts memory back, when nobody stands on it any more.
    fn give_up(&mut self, beside: Beside<M>, memory: &mut Memory<M>) {
        let Beside { copy_of, memory: text, cells } = beside;
        match text.into_memory() {
            Ok(own) => memory.put(vec![own]),
            Err(text) => self.beside.push(Beside { copy_of, memory: text, cells }),
        }
    }

    /// Gives up the idle image that was used longest ago, if so many bytes can be had in one block without idle images.
    /// Returns whether there was one.
    pub fn drop_for(&mut self, len_bytes: u64, memory: &mut Memory<M>) -> bool {
        let idle = self.kept.iter().filter(|kept| kept.is_idle()).map(|kept| kept.memory.range());
        let idle: Vec<PhysRange> = idle.collect();
        memory.has_block_with(len_bytes, &idle) && self.drop_idle(None, memory)
    }

    /// Gives up the idle image that was used longest ago, but not `except`. Returns whether there was one.
    fn drop_idle(&mut self, except: Option<&ImageDigest>, memory: &mut Memory<M>) -> bool {
        let idle = |kept: &Kept<M>| kept.is_idle() && Some(&kept.digest) != except;
        let oldest = self.kept.iter().position(idle).map(|index| self.kept.remove(index));
        oldest.map(|kept| self.give_up(Beside::nameless(kept.memory), memory)).is_some()
    }

    /// An image is used now.
    fn touch(&mut self, digest: &ImageDigest) {
        if let Some(index) = self.kept.iter().position(|kept| kept.digest == *digest) {
            let kept = self.kept.remove(index);
            self.kept.push(kept);
        }
    }

    fn keep(&mut self, complete: Complete<M>, memory: &mut Memory<M>) {
        let Complete { memory: own, len_bytes, digest } = complete;
        // One that only another supervisor has measured gives way to this one.
        if let Some(index) = self.unproven(&digest) {
            let unproven = self.kept.remove(index);
            self.give_up(Beside::nameless(unproven.memory), memory);
        }
        // The same once more: one copy is enough, and it has just been asked for.
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

    /// Gives up idle images until they are few, and take little. The last one stays.
    fn trim(&mut self, memory: &mut Memory<M>) {
        let newest = self.kept.last().map(|kept| kept.digest);
        let most = (memory.total() / IDLE_SHARE).max(CHUNK);
        let count = |kept: &[Kept<M>]| kept.iter().filter(|kept| kept.is_idle()).count();
        while (count(&self.kept) > MAX_IDLE || self.idle_bytes() > most)
            && self.drop_idle(newest.as_ref(), memory)
        {}
    }
}
