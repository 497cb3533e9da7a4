//! The pages of a volume's files.

use super::write_back::Unwritten;
use super::{PAGE, VolumeInode, errno};
use crate::Errno;
use crate::inode::WritePosition;
use crate::metadata::InodeKind;
use crate::open_file::MOST_OFFSET;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::rc::Rc;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::hash::Hasher;
use core::ops::Range;
use core::sync::atomic::Ordering;
use isola_linux_memory::{BoxFuture, PageSource, UserBuffer};
use isola_memory::frame::{FRAME_SIZE, Frame};
use isola_volumes::{FileError, FileId, FileSystem, SharedFile};
use siphasher::sip::SipHasher13;

/// The pages that one read of the volume fetches.
const READ_AHEAD: u64 = 16;
/// The bytes that one operation of the volume writes.
const WRITE_LEN: usize = 128 * 1024;

/// The pages of a file that are in memory.
#[derive(Default)]
pub(super) struct Pages {
    pub(super) frames: BTreeMap<u64, Frame>,
    /// The pages that a shared mapping may change, with a hash of the contents that were written last. A mapping may change
    /// a page again without notice, so a page stays in the table while the inode is in use.
    mapped: BTreeMap<u64, Option<u64>>,
    /// The pages that the volume does not have yet, and what they change besides: [`write_back`](super::write_back).
    pub(super) dirty: BTreeSet<u64>,
    pub(super) unwritten: Option<Unwritten>,
    /// The error that dirty pages met.
    pub(super) error: Option<Errno>,
}

impl Pages {
    pub fn count(&self) -> u64 {
        self.frames.len() as u64
    }

    /// Returns the number of pages that are in no mapping and no call, and not dirty.
    pub fn unused_count(&self) -> u64 {
        let is_used = |index: &u64| self.mapped.contains_key(index) || self.dirty.contains(index);
        self.frames.iter().filter(|(index, frame)| !frame.is_shared() && !is_used(index)).count() as u64
    }

    /// Removes those of these pages that `choose` selects.
    pub fn drop_unused_if(&mut self, choose: impl Fn(&Frame) -> bool) -> Vec<(u64, Frame)> {
        let is_used = |index: &u64| self.mapped.contains_key(index) || self.dirty.contains(index);
        let unused = |index: &u64, frame: &mut Frame| !frame.is_shared() && !is_used(index) && choose(frame);
        self.frames.extract_if(.., unused).collect()
    }
}

fn hash_of(bytes: &[u8]) -> u64 {
    let mut hasher = SipHasher13::new();
    hasher.write(bytes);
    hasher.finish()
}

impl VolumeInode {
    pub(super) fn len(&self) -> u64 {
        self.metadata.lock().len
    }

    pub(super) fn page(&self, index: u64) -> Option<Frame> {
        self.pages.lock().frames.get(&index).cloned()
    }

    /// Returns the open file of the volume.
    async fn open_file(&self, known: Option<SharedFile>) -> Result<SharedFile, Errno> {
        if let Some(file) = known {
            return Ok(file);
        }
        self.shared.check_open()?;
        let (volume, id) = (self.shared.volume, self.id);
        let open =
            volume.with(move |volume| async move { Ok(Rc::new(volume.open_number(id).await?).share()) });
        open.await.map_err(errno)
    }

    /// Reads the pages around `index` from the volume.
    pub(super) async fn read_pages(&self, index: u64) -> Result<Frame, Errno> {
        let held = self.file.hold().await;
        if index >= self.len().div_ceil(PAGE) {
            return Err(Errno::EFAULT);
        }
        if let Some(frame) = self.page(index) {
            return Ok(frame);
        }
        let known = held.get().clone();
        let file = self.open_file(known).await?;
        *held.get() = Some(file.clone());
        self.read_pages_held(&file, index).await
    }

    /// Reads the pages around `index`, which is within the file, with the file held.
    pub(super) async fn read_pages_held(&self, file: &SharedFile, index: u64) -> Result<Frame, Errno> {
        let page_count = self.len().div_ceil(PAGE);
        let first = index - index % READ_AHEAD;
        let count = READ_AHEAD.min(page_count - first);
        let (mut done, len) = (0, count as usize * FRAME_SIZE);
        let mut frames = Vec::<Frame>::with_capacity(count as usize);
        while done < len {
            let offset = first * PAGE + done as u64;
            // The frames keep the contents.
            let chain = file.read_once(offset, len - done).await.map_err(errno)?;
            if chain.is_empty() {
                break;
            }
            for part in chain.parts() {
                let mut rest = &part[..];
                while !rest.is_empty() && done < len {
                    let at = done % FRAME_SIZE;
                    let now = rest.len().min(FRAME_SIZE - at);
                    match frames.last() {
                        Some(frame) if at > 0 => frame.write(at, &rest[..now]),
                        _ => frames.push(Frame::of_bytes(&rest[..now])),
                    }
                    rest = &rest[now..];
                    done += now;
                }
            }
        }
        // Behind the volume's end of the file.
        frames.resize_with(count as usize, Frame::zeroed);
        let mut pages = self.pages.lock();
        let before = pages.count();
        for (page, frame) in (first..).zip(frames) {
            pages.frames.entry(page).or_insert(frame);
        }
        let added = pages.count() - before;
        let frame = pages.frames.get(&index).cloned().ok_or(Errno::EIO);
        drop(pages);
        // While `frame` is in use, its page stays.
        self.shared.add_pages(added);
        frame
    }

    /// Copies bytes of cached pages. Returns their number, and whether the rest has to be read.
    pub(super) fn read_cached(&self, offset: u64, buffer: &mut UserBuffer) -> (usize, Option<u64>) {
        let mut count = 0;
        loop {
            let at = offset.saturating_add(count as u64);
            let left = self.len().saturating_sub(at);
            if buffer.is_empty() || left == 0 {
                return (count, None);
            }
            let Some(frame) = self.page(at / PAGE) else { return (count, Some(at / PAGE)) };
            let mut from = (at % PAGE) as usize;
            let now = ((PAGE - at % PAGE).min(left) as usize).min(buffer.len());
            buffer.advance(now, |part| {
                part.frame.copy_from(part.offset, &frame, from, part.len);
                from += part.len;
            });
            count += now;
        }
    }

    /// Changes the contents on the volume, with the file held, and takes over the new attributes.
    async fn change_held(
        &self,
        file: &SharedFile,
        change: impl FnOnce(&mut dyn FileSystem, FileId) -> Result<(), FileError> + Send + 'static,
    ) -> Result<(), Errno> {
        let (attributes, outcome) = file.change(change).await.map_err(errno)?;
        self.shared.refresh(&[attributes]);
        outcome.map_err(errno)
    }

    /// Changes the contents on the volume, and then its pages by `see`, whether or not the change succeeded.
    pub(super) async fn change(
        &self,
        change: impl FnOnce(&mut dyn FileSystem, FileId) -> Result<(), FileError> + Send + 'static,
        see: impl FnOnce(&mut Pages),
    ) -> Result<(), Errno> {
        self.shared.check_changes()?;
        self.check_file()?;
        let held = self.file.hold().await;
        let known = held.get().clone();
        let file = self.open_file(known).await?;
        self.write_dirty_held(&file).await?;
        let outcome = self.change_held(&file, change).await;
        let mut pages = self.pages.lock();
        let before = pages.count();
        see(&mut pages);
        let removed = before - pages.count();
        drop(pages);
        self.shared.pages.fetch_sub(removed, Ordering::Relaxed);
        outcome
    }

    fn check_file(&self) -> Result<(), Errno> {
        match self.kind {
            InodeKind::File => Ok(()),
            InodeKind::Directory => Err(Errno::EISDIR),
            _ => Err(Errno::EINVAL),
        }
    }

    /// Writes to the volume, and to the pages in memory. Returns the number of bytes and the offset behind them.
    pub(super) async fn write(
        &self,
        position: WritePosition,
        buffer: &mut UserBuffer,
    ) -> Result<(usize, u64), Errno> {
        self.shared.check_changes()?;
        self.check_file()?;
        if self.shared.dirty.load(Ordering::Relaxed) >= self.shared.most_dirty() {
            // An error is that of the file whose pages these are.
            let _ = self.shared.write_back().await;
        }
        let start_of = |inode: &Self| match position {
            WritePosition::At(offset) => offset,
            WritePosition::End => inode.len(),
        };
        {
            let held = self.file.hold().await;
            let known = held.get().clone();
            let file = self.open_file(known).await?;
            // Dirty pages need it.
            *held.get() = Some(file.clone());
            let start = start_of(self);
            let count = self.gather(&file, start, buffer).await?;
            if count > 0 || buffer.is_empty() {
                return Ok((count, start + count as u64));
            }
        }
        self.shared.make_room(buffer.len() as u64).await?;
        let held = self.file.hold().await;
        let known = held.get().clone();
        let file = self.open_file(known).await?;
        let start = start_of(self);
        let mut at = start;
        while !buffer.is_empty() {
            let most = MOST_OFFSET.saturating_sub(at).min(WRITE_LEN as u64) as usize;
            let mut bytes = alloc::vec![0; buffer.len().min(most)];
            if bytes.is_empty() {
                return if at == start { Err(Errno::EFBIG) } else { break };
            }
            // The buffer advances with the bytes that were written.
            buffer.clone().read(&mut bytes);
            let len = bytes.len();
            let written = Arc::<[u8]>::from(bytes);
            let on_volume = written.clone();
            let outcome = self.change_held(&file, move |volume, id| volume.write(id, at, &on_volume)).await;
            if let Err(error) = outcome {
                // A part may have been written: it is read from the volume again, but for pages that are mapped.
                self.see_written(at, &written, self.len());
                return if at == start { Err(error) } else { break };
            }
            self.see_written(at, &written, u64::MAX);
            self.shared.count_names();
            buffer.advance(len, |_| {});
            at += len as u64;
        }
        Ok(((at - start) as usize, at))
    }

    /// Copies written bytes to the pages in memory, up to the file's end.
    fn see_written(&self, offset: u64, bytes: &[u8], end: u64) {
        let pages = self.pages.lock();
        let last = offset.saturating_add(bytes.len() as u64).min(end);
        for (index, frame) in pages.frames.range(offset / PAGE..last.div_ceil(PAGE).max(offset / PAGE)) {
            let from = (index * PAGE).max(offset);
            let to = ((index + 1) * PAGE).min(last);
            let part = &bytes[(from - offset) as usize..(to - offset) as usize];
            frame.write((from % PAGE) as usize, part);
        }
    }

    /// Writes the pages in a range that shared mappings have changed.
    pub(super) async fn write_mapped(&self, range: Range<u64>) -> Result<(), Errno> {
        let held = self.file.hold().await;
        let candidates: Vec<(u64, Option<u64>)> =
            self.pages.lock().mapped.range(range).map(|(index, hash)| (*index, *hash)).collect();
        if candidates.is_empty() {
            return Ok(());
        }
        let known = held.get().clone();
        let file = self.open_file(known).await?;
        for (index, written) in candidates {
            let Some(frame) = self.page(index) else { continue };
            let len = self.len().saturating_sub(index * PAGE).min(PAGE) as usize;
            let mut bytes = alloc::vec![0; len];
            frame.read(0, &mut bytes);
            let hash = hash_of(&bytes);
            if len == 0 || written == Some(hash) {
                continue;
            }
            self.change_held(&file, move |volume, id| volume.write(id, index * PAGE, &bytes)).await?;
            if let Some(entry) = self.pages.lock().mapped.get_mut(&index) {
                *entry = Some(hash);
            }
        }
        Ok(())
    }
}

impl Pages {
    /// Makes a range zeros: whole pages are removed, which a mapping does not notice.
    pub(super) fn clear(&mut self, offset: u64, end: u64) {
        for (index, frame) in self.frames.range(offset / PAGE..) {
            let (from, to) = ((index * PAGE).max(offset), (index * PAGE).saturating_add(PAGE).min(end));
            if from >= to {
                break;
            }
            frame.clear((from % PAGE) as usize, (to - from) as usize);
        }
    }

    /// Drops what is behind a new end.
    pub(super) fn truncate(&mut self, len: u64) {
        drop(self.frames.split_off(&len.div_ceil(PAGE)));
        drop(self.mapped.split_off(&len.div_ceil(PAGE)));
        drop(self.dirty.split_off(&len.div_ceil(PAGE)));
        self.clear(len, u64::MAX);
    }
}

impl PageSource for VolumeInode {
    fn frame(&self, index: u64) -> Option<Frame> {
        self.page(index)
    }

    fn frames(&self, first: u64, end: u64, see: &mut dyn FnMut(u64, &Frame)) {
        self.pages.lock().frames.range(first..end.max(first)).for_each(|(index, frame)| see(*index, frame));
    }

    fn fetch(&self, index: u64) -> BoxFuture<'_, Result<Frame, Errno>> {
        alloc::boxed::Box::pin(self.read_pages(index))
    }

    fn mark_dirty(&self, index: u64) {
        if self.shared.changes == super::VolumeChanges::Refused {
            return;
        }
        self.pages.lock().mapped.entry(index).or_default();
        let own = self.shared.inodes.lock().get(&self.id.0).and_then(alloc::sync::Weak::upgrade);
        if let Some(own) = own {
            // The last reference to the earlier entry is not dropped under the lock: `own` is another one.
            self.shared.unsynced.lock().mapped.insert(self.id.0, own.clone());
            drop(own);
        }
        self.shared.note_change();
    }

    fn sync(&self, first: u64, count: u64) -> BoxFuture<'_, Result<(), Errno>> {
        alloc::boxed::Box::pin(async move {
            self.write_mapped(first..first.saturating_add(count)).await?;
            self.shared.sync().await
        })
    }

    fn path(&self) -> Vec<u8> {
        alloc::format!("/#{}", self.id.0).into_bytes()
    }

    fn identity(&self) -> (u64, u64) {
        (self.shared.device.encoded(), self.id.0)
    }
}
