//! Writes of programs that the page cache gathers, and their way to the volume.
//!
//! A small write changes pages in memory, which are *dirty* until one operation of the volume writes neighbouring ones
//! together. Dirty pages are written by `fsync` and `sync` of anything on the volume, before a rename, a truncation or a
//! change of storage or of the file's times, by the writer that finds as many dirty as [`Shared::most_dirty`] permits, and at
//! the file system's next sync. The journal stays whole in any case: a crash loses contents, never the file system.
//!
//! **Space.** A gathered write must not fail later. Each dirty page takes a credit. Credits are half of the free pages at
//! most, and are counted anew when they are used up: names and metadata take the other half. Without credits all dirty pages
//! are written, and then the write itself, by the volume, which says whether it is full.

use super::{PAGE, Shared, VolumeInode, errno};
use crate::Errno;
use crate::clock::Timestamp;
use crate::metadata::Metadata;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use core::time::Duration;
use isola_linux_memory::UserBuffer;
use isola_memory::frame::{FRAME_SIZE, Frame};
use isola_volumes::{AttributeUpdate, Attributes, FileError, FileId, FileSystem, SharedFile};

/// Writes from this length on go to the volume at once: gathering has no use for them.
pub(super) const DIRECT_LEN: usize = 64 * 1024;
/// Offsets from here on may be behind the longest file of a volume, which only the volume knows.
const MOST_GATHERED_END: u64 = 1 << 40;
/// The pages that one operation of the volume writes.
const BATCH_PAGES: usize = 64;
/// The free pages that a volume keeps (docs/storage.md).
const SPARE_PAGES: u64 = 32;
/// The free pages beyond those of dirty pages and of an operation below which dirty ones are written first.
const MARGIN_PAGES: u64 = 64;
/// The credits that a change of names takes: blocks of directories and of maps.
const CREDITS_OF_NAMES: u64 = 4;

/// What a file's dirty pages change, besides the contents.
#[derive(Clone, Copy)]
pub(super) struct Unwritten {
    /// The length of the file.
    len: u64,
    modified: Timestamp,
}

impl Unwritten {
    /// Changes the attributes that the volume returns to those that programs have to see.
    pub fn adjust(&self, metadata: &mut Metadata) {
        metadata.len = metadata.len.max(self.len);
        metadata.modified = metadata.modified.max(self.modified);
        metadata.changed = metadata.changed.max(self.modified);
    }
}

/// Neighbouring dirty pages.
struct DirtyRun {
    offset: u64,
    bytes: Vec<u8>,
}

impl Shared {
    /// Returns the most dirty pages: half of those in memory, at most 8 MiB.
    pub(super) fn most_dirty(&self) -> u64 {
        (self.most_pages / 2).min(2048)
    }

    /// Takes credits for pages to be dirty. Returns whether there are so many.
    fn take_credits(&self, count: u64) -> bool {
        let take = |credits: u64| credits.checked_sub(count);
        self.credits.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok()
    }

    /// Takes the credits of a change of names.
    pub(super) fn count_names(&self) {
        let take = |credits: u64| Some(credits.saturating_sub(CREDITS_OF_NAMES));
        let _ = self.credits.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
    }

    /// Makes the next gathered write count the free space.
    pub(super) fn forget_credits(&self) {
        self.credits.store(0, Ordering::Relaxed);
    }

    /// Counts the free space, less what dirty pages need.
    async fn renew_credits(&self) -> Result<(), Errno> {
        let space = self.volume.with(|volume| async move { volume.space().await }).await.map_err(errno)?;
        let dirty = self.dirty.load(Ordering::Relaxed);
        let usable = (space.free_bytes / PAGE).saturating_sub(SPARE_PAGES);
        let credits = (usable / 2).saturating_sub(dirty);
        self.credits.store(credits.min(self.most_dirty()), Ordering::Relaxed);
        Ok(())
    }

    /// Writes dirty pages before an operation that uses storage, if there may be too little for both.
    pub(super) async fn make_room(&self, len_bytes: u64) -> Result<(), Errno> {
        let dirty = self.dirty.load(Ordering::Relaxed);
        if dirty == 0 {
            return Ok(());
        }
        let space = self.volume.with(|volume| async move { volume.space().await }).await.map_err(errno)?;
        if space.free_bytes / PAGE < 2 * dirty + len_bytes / PAGE + MARGIN_PAGES {
            // An error is that of the file whose pages these are.
            let _ = self.write_back().await;
            self.forget_credits();
        }
        Ok(())
    }

    /// Writes the dirty pages of all files.
    pub(super) async fn write_back(&self) -> Result<(), Errno> {
        let dirty = core::mem::take(&mut self.unsynced.lock().dirty);
        let mut outcome = Ok(());
        for (_, inode) in dirty {
            // Nothing can read a file any more that has neither a name nor a user besides this list.
            let is_gone = inode.metadata.lock().links == 0 && Arc::strong_count(&inode) == 1;
            if is_gone {
                inode.forget_dirty();
            } else {
                outcome = outcome.and(inode.write_dirty().await);
            }
        }
        outcome
    }
}

impl VolumeInode {
    /// Writes to pages in memory. Returns the number of bytes; 0 if the volume has to be asked.
    pub(super) async fn gather(
        &self,
        file: &SharedFile,
        start: u64,
        buffer: &mut UserBuffer,
    ) -> Result<usize, Errno> {
        let end = start.saturating_add(buffer.len() as u64);
        if buffer.len() >= DIRECT_LEN || buffer.is_empty() || end > MOST_GATHERED_END {
            return Ok(0);
        }
        let (first, last) = (start / PAGE, (end - 1) / PAGE);
        let new_dirty = {
            let pages = self.pages.lock();
            (first..=last).filter(|index| !pages.dirty.contains(index)).count() as u64
        };
        if !self.shared.take_credits(new_dirty) {
            self.write_dirty_held(file).await?;
            self.shared.renew_credits().await?;
            // Its pages are not dirty any more.
            if !self.shared.take_credits(last - first + 1) {
                return Ok(0);
            }
        }
        let len = self.len();
        let mut at = start;
        while !buffer.is_empty() {
            let now = buffer.len().min((PAGE - at % PAGE) as usize);
            let index = at / PAGE;
            let covers = at.is_multiple_of(PAGE) && (now as u64 == PAGE || at + now as u64 >= len);
            let known = self.page(index);
            let frame = match known {
                Some(frame) => Ok(frame),
                None if covers || index >= len.div_ceil(PAGE) => self.add_page(index),
                None => self.read_pages_held(file, index).await,
            };
            let frame = match frame {
                Ok(frame) => frame,
                Err(_) if at > start => break,
                Err(error) => return Err(error),
            };
            let mut to = (at % PAGE) as usize;
            buffer.advance(now, |part| {
                frame.copy_from(to, &part.frame, part.offset, part.len);
                to += part.len;
            });
            at += now as u64;
            self.set_dirty(index, at);
        }
        self.note_dirty();
        Ok((at - start) as usize)
    }

    /// Adds a page of zeros.
    fn add_page(&self, index: u64) -> Result<Frame, Errno> {
        let frame = Frame::try_zeroed().ok_or(Errno::ENOMEM)?;
        self.pages.lock().frames.insert(index, frame.clone());
        self.shared.add_pages(1);
        Ok(frame)
    }

    /// Marks a page as dirty, of a file that has at least `end` bytes now.
    fn set_dirty(&self, index: u64, end: u64) {
        let mut pages = self.pages.lock();
        let mut metadata = self.metadata.lock();
        if pages.dirty.insert(index) {
            self.shared.dirty.fetch_add(1, Ordering::Relaxed);
            if index >= metadata.len.div_ceil(PAGE) {
                // Programs take a file without storage for one of zeros.
                metadata.blocks += PAGE / 512;
            }
        }
        let modified = Timestamp::now();
        metadata.len = metadata.len.max(end);
        (metadata.modified, metadata.changed) = (modified, modified);
        pages.unwritten = Some(Unwritten { len: metadata.len, modified });
    }

    /// Keeps the file until its dirty pages are written.
    fn note_dirty(&self) {
        let own = self.shared.inodes.lock().get(&self.id.0).and_then(Weak::upgrade);
        if let Some(own) = own {
            let known = self.shared.unsynced.lock().dirty.insert(self.id.0, own);
            // Not under the lock.
            drop(known);
        }
        self.shared.note_change();
    }

    /// Drops the dirty pages of a file that nothing can read.
    fn forget_dirty(&self) {
        let mut pages = self.pages.lock();
        let dirty = core::mem::take(&mut pages.dirty);
        pages.unwritten = None;
        self.shared.dirty.fetch_sub(dirty.len() as u64, Ordering::Relaxed);
    }

    /// Writes the dirty pages.
    pub(super) async fn write_dirty(&self) -> Result<(), Errno> {
        let held = self.file.hold().await;
        let known = held.get().clone();
        // A file with dirty pages is open.
        match known {
            Some(file) => self.write_dirty_held(&file).await,
            None => Ok(()),
        }
    }

    /// Writes the dirty pages, with the file held.
    ///
    /// If the volume does not take them, the file is as the volume has it.
    pub(super) async fn write_dirty_held(&self, file: &SharedFile) -> Result<(), Errno> {
        loop {
            let (runs, count, unwritten) = self.next_runs();
            let Some(unwritten) = unwritten else { return Ok(()) };
            let modified = unwritten.modified;
            let write = move |volume: &mut dyn FileSystem, id: FileId| {
                for run in &runs {
                    volume.write(id, run.offset, &run.bytes)?;
                }
                keep_time(volume, id, modified)
            };
            let outcome = file.change(write).await;
            self.shared.dirty.fetch_sub(count, Ordering::Relaxed);
            let (attributes, outcome) = match outcome {
                Ok((attributes, outcome)) => (Some(attributes), outcome),
                Err(error) => (None, Err(error)),
            };
            if let Err(error) = outcome {
                self.give_up_dirty(attributes.as_ref(), errno(error));
                return Err(errno(error));
            }
            let is_clean = {
                let mut pages = self.pages.lock();
                if pages.dirty.is_empty() {
                    pages.unwritten = None;
                }
                pages.dirty.is_empty()
            };
            if is_clean {
                self.see_written_attributes(attributes.as_ref());
                return Ok(());
            }
        }
    }

    /// Takes the next dirty pages, up to [`BATCH_PAGES`]. Returns their contents and number.
    fn next_runs(&self) -> (Vec<DirtyRun>, u64, Option<Unwritten>) {
        let len = self.len();
        let mut pages = self.pages.lock();
        let Some(unwritten) = pages.unwritten else { return (Vec::new(), 0, None) };
        let mut runs: Vec<DirtyRun> = Vec::new();
        let mut count = 0;
        while count < BATCH_PAGES as u64 {
            let Some(index) = pages.dirty.pop_first() else { break };
            count += 1;
            let offset = index * PAGE;
            let now = len.saturating_sub(offset).min(PAGE) as usize;
            let Some(frame) = pages.frames.get(&index).filter(|_| now > 0) else { continue };
            let mut bytes = [0; FRAME_SIZE];
            frame.read(0, &mut bytes[..now]);
            match runs.last_mut() {
                Some(run) if run.offset + run.bytes.len() as u64 == offset => run.bytes.extend(&bytes[..now]),
                _ => runs.push(DirtyRun { offset, bytes: bytes[..now].to_vec() }),
            }
        }
        (runs, count, Some(unwritten))
    }

    /// Drops dirty pages that the volume did not take. The next `fsync` of the file returns the error.
    fn give_up_dirty(&self, attributes: Option<&Attributes>, error: Errno) {
        let mut pages = self.pages.lock();
        let left = core::mem::take(&mut pages.dirty).len() as u64;
        self.shared.dirty.fetch_sub(left, Ordering::Relaxed);
        pages.unwritten = None;
        pages.error = Some(error);
        // The pages are read from the volume again, but for those that are mapped.
        let dropped = pages.drop_unused_if(|_| true);
        if let Some(attributes) = attributes {
            pages.truncate(attributes.len);
        }
        drop(pages);
        self.shared.pages.fetch_sub(dropped.len() as u64, Ordering::Relaxed);
        if let Some(attributes) = attributes {
            self.shared.refresh(core::slice::from_ref(attributes));
        }
    }

    /// Takes over what the write of dirty pages has changed: the storage. Length and times are those of the writes.
    fn see_written_attributes(&self, attributes: Option<&Attributes>) {
        let shown = attributes.and_then(|attributes| self.shared.metadata(attributes));
        let mut metadata = self.metadata.lock();
        if let Some(shown) = shown {
            (metadata.blocks, metadata.links) = (shown.blocks, shown.links);
        }
    }

    /// Returns the error of an earlier write of dirty pages, once.
    pub(super) fn take_error(&self) -> Result<(), Errno> {
        self.pages.lock().error.take().map_or(Ok(()), Err)
    }
}

/// Gives a file the time of the program's write, unless the volume has set the same second.
fn keep_time(volume: &mut dyn FileSystem, id: FileId, modified: Timestamp) -> Result<(), FileError> {
    let wanted = Duration::from_secs(u64::try_from(modified.seconds).unwrap_or_default());
    if volume.metadata(id)?.modified.as_secs() == wanted.as_secs() {
        return Ok(());
    }
    volume.update(
        id,
        &AttributeUpdate { permissions: None, owner: None, accessed: None, modified: Some(wanted) },
    )
}
