//! Bytes that move between files and pipes by references to their pages: `splice`, `tee`, `sendfile`, `copy_file_range`.
//!
//! A pipe gets references to the frames of a file, so a later write to the file changes the bytes in the pipe, as in Linux.
//! Bytes that leave a pipe or file for another file are copied once, from frame to frame. Files without pages, such as
//! sockets and generated ones, are read into new frames.
//!
//! Each call advances `done` with the bytes that have arrived, so that a call that is interrupted knows them. Bytes that
//! were taken from a pipe and have not arrived return to it.

use crate::Errno;
use crate::events::Events;
use crate::metadata::InodeKind;
use crate::open_file::OpenFile;
use crate::pipe::{PipeEnd, PipePart};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use isola_linux_abi::numbers as linux;
use isola_linux_memory::{FramePart, UserBuffer, zero_frame};
use isola_memory::frame::{FRAME_SIZE, Frame};

/// The most pages that move at once between two files.
const PAGES_AT_ONCE: usize = 16;

/// A file from or to which bytes move.
#[derive(Debug)]
pub struct TransferEnd<'a> {
    /// The file.
    pub file: &'a OpenFile,
    /// The offset, which the transfer advances; `None` for the file's own position.
    pub offset: Option<u64>,
}

impl TransferEnd<'_> {
    fn pipe(&self) -> Option<&PipeEnd> {
        self.file.object_as::<PipeEnd>()
    }

    fn advance(&mut self, count: usize) {
        if let Some(offset) = &mut self.offset {
            *offset = offset.saturating_add(count as u64);
        }
    }

    /// Writes at the offset or position.
    async fn write(&self, buffer: &mut UserBuffer) -> Result<usize, Errno> {
        match self.offset {
            Some(offset) => self.file.write_at(offset, buffer).await,
            None => self.file.write(buffer).await,
        }
    }
}

/// Whether a transfer waits for a pipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PipeWait {
    /// It waits.
    Wait,
    /// It fails with [`Errno::EAGAIN`].
    Fail,
}

impl PipeWait {
    fn or_nonblocking(self, file: &OpenFile) -> Self {
        if file.is_nonblocking() { Self::Fail } else { self }
    }

    /// Waits for an event of the pipe, or fails.
    async fn wait(self, file: &OpenFile, events: Events) -> Result<(), Errno> {
        match self {
            Self::Fail => Err(Errno::EAGAIN),
            Self::Wait => {
                file.wait(events).await;
                Ok(())
            }
        }
    }
}

/// Bytes that were taken from a pipe. Those that are left return to it.
struct TakenBytes<'a> {
    pipe: &'a PipeEnd,
    buffer: UserBuffer,
}

impl Drop for TakenBytes<'_> {
    fn drop(&mut self) {
        let left = parts_of(&mut self.buffer);
        if !left.is_empty() {
            self.pipe.return_parts(left.into_iter().map(PipePart::of).collect());
        }
    }
}

/// Returns the parts of a buffer from its position on.
pub(crate) fn parts_of(buffer: &mut UserBuffer) -> VecDeque<FramePart> {
    let mut parts = VecDeque::new();
    buffer.advance(buffer.len(), |part| parts.push_back(part.clone()));
    parts
}

/// Moves at most `len` bytes, of which one side is a pipe (`splice`). It waits for the first bytes only.
///
/// # Errors
/// [`Errno::EBADF`], [`Errno::ESPIPE`] for an offset of a pipe, [`Errno::EINVAL`] if no side is a pipe, both are the same, or
/// the target is open for appends; [`Errno::EAGAIN`], [`Errno::EPIPE`], and those of the file.
pub async fn splice(
    from: &mut TransferEnd<'_>,
    to: &mut TransferEnd<'_>,
    len: usize,
    wait: PipeWait,
    done: &mut usize,
) -> Result<(), Errno> {
    let has_pipe_offset = |end: &TransferEnd<'_>| end.pipe().is_some() && end.offset.is_some();
    if has_pipe_offset(from) || has_pipe_offset(to) {
        return Err(Errno::ESPIPE);
    }
    check_access(from.file, to.file)?;
    match (from.pipe(), to.pipe()) {
        (None, None) => Err(Errno::EINVAL),
        (Some(source), Some(target)) => {
            if source.is_same_pipe(target) {
                return Err(Errno::EINVAL);
            }
            let wait = wait.or_nonblocking(from.file).or_nonblocking(to.file);
            between_pipes(from.file, source, to.file, target, len, wait, TransferKind::Move, done).await
        }
        (Some(source), None) => {
            if to.file.flags() & linux::O_APPEND != 0 {
                return Err(Errno::EINVAL);
            }
            from_pipe(from.file, source, to, len, wait, done).await
        }
        (None, Some(target)) => to_pipe(from, to.file, target, len, wait, done).await,
    }
}

/// Moves bytes from a file to a pipe, as many as there is room for.
async fn to_pipe(
    from: &mut TransferEnd<'_>,
    to: &OpenFile,
    target: &PipeEnd,
    len: usize,
    wait: PipeWait,
    done: &mut usize,
) -> Result<(), Errno> {
    let wait = wait.or_nonblocking(to);
    let room = loop {
        match target.room() {
            Err(Errno::EAGAIN) => wait.wait(to, Events::OUT).await?,
            room => break room?,
        }
    };
    if len == 0 {
        return Ok(());
    }
    if from.pipe().is_some() {
        return Err(Errno::EINVAL);
    }
    let mut parts: VecDeque<_> = from.read_parts(len, room).await?.into_iter().map(PipePart::of).collect();
    while !parts.is_empty() {
        match target.put_parts(&mut parts) {
            // Another writer has used the room. Bytes of a file without offsets would be lost.
            Err(Errno::EAGAIN) if *done > 0 && from.file.has_offsets() => break,
            Err(Errno::EAGAIN) => to.wait(Events::OUT).await,
            put => *done += put?,
        }
    }
    if from.file.has_offsets() {
        from.move_to(from.start().await?.saturating_add(*done as u64)).await;
    }
    Ok(())
}

/// Whether bytes stay in the pipe that they come from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TransferKind {
    Copy,
    Move,
}

/// Copies references to at most `len` bytes from one pipe to another (`tee`).
///
/// # Errors
/// [`Errno::EBADF`], [`Errno::EINVAL`] if the files are not two pipes, [`Errno::EAGAIN`], [`Errno::EPIPE`].
pub async fn tee(
    from: &OpenFile,
    to: &OpenFile,
    len: usize,
    wait: PipeWait,
    done: &mut usize,
) -> Result<(), Errno> {
    check_access(from, to)?;
    let pipes = (from.object_as::<PipeEnd>(), to.object_as::<PipeEnd>());
    let (Some(source), Some(target)) = pipes else { return Err(Errno::EINVAL) };
    if source.is_same_pipe(target) {
        return Err(Errno::EINVAL);
    }
    let wait = wait.or_nonblocking(from).or_nonblocking(to);
    between_pipes(from, source, to, target, len, wait, TransferKind::Copy, done).await
}

#[expect(clippy::too_many_arguments, reason = "two files, each with its pipe")]
async fn between_pipes(
    from: &OpenFile,
    source: &PipeEnd,
    to: &OpenFile,
    target: &PipeEnd,
    len: usize,
    wait: PipeWait,
    kind: TransferKind,
    done: &mut usize,
) -> Result<(), Errno> {
    loop {
        match source.parts(len) {
            Err(Errno::EAGAIN) => {
                wait.wait(from, Events::IN).await?;
                continue;
            }
            Err(error) => return Err(error),
            Ok(parts) if parts.is_empty() => return Ok(()),
            Ok(_) => {}
        }
        let room = match target.room() {
            Err(Errno::EAGAIN) => {
                wait.wait(to, Events::OUT).await?;
                continue;
            }
            room => room?,
        };
        let mut parts = match kind {
            TransferKind::Copy => source.parts(len),
            TransferKind::Move => source.take_parts(len, room),
        }?;
        let put = target.put_parts(&mut parts);
        if kind == TransferKind::Move && !parts.is_empty() {
            source.return_parts(parts);
        }
        match put {
            Err(Errno::EAGAIN) => {}
            put => {
                *done = put?;
                return Ok(());
            }
        }
    }
}

/// Moves bytes from a pipe to a file.
async fn from_pipe(
    file: &OpenFile,
    pipe: &PipeEnd,
    to: &mut TransferEnd<'_>,
    len: usize,
    wait: PipeWait,
    done: &mut usize,
) -> Result<(), Errno> {
    let wait = wait.or_nonblocking(file);
    while *done < len {
        let parts = match pipe.take_parts(len - *done, usize::MAX) {
            Err(Errno::EAGAIN) if *done > 0 => break,
            Err(Errno::EAGAIN) => {
                wait.wait(file, Events::IN).await?;
                continue;
            }
            parts => parts?,
        };
        if parts.is_empty() {
            break;
        }
        let mut taken =
            TakenBytes { pipe, buffer: UserBuffer::new(parts.into_iter().map(|part| part.part).collect()) };
        let before = taken.buffer.len();
        let written = to.write(&mut taken.buffer).await;
        let count = before - taken.buffer.len();
        *done += count;
        to.advance(count);
        match written {
            Err(error) if *done == 0 => return Err(error),
            Ok(_) if taken.buffer.is_empty() => {}
            _ => break,
        }
    }
    Ok(())
}

/// Adds references to the pages of a buffer to a pipe (`vmsplice`). It waits until there is room for the first ones.
///
/// # Errors
/// [`Errno::EBADF`] if the file is no pipe open for writing, [`Errno::EAGAIN`], [`Errno::EPIPE`].
pub async fn splice_memory(
    to: &OpenFile,
    buffer: &mut UserBuffer,
    wait: PipeWait,
    done: &mut usize,
) -> Result<(), Errno> {
    let pipe = to.object_as::<PipeEnd>().filter(|_| to.is_writable()).ok_or(Errno::EBADF)?;
    let wait = wait.or_nonblocking(to);
    let mut parts: VecDeque<_> = parts_of(buffer).into_iter().map(PipePart::of).collect();
    while !parts.is_empty() {
        match pipe.put_parts(&mut parts) {
            Err(Errno::EAGAIN) if *done > 0 && wait == PipeWait::Fail => break,
            Err(Errno::EAGAIN) => wait.wait(to, Events::OUT).await?,
            Err(_) if *done > 0 => break,
            put => *done += put?,
        }
    }
    Ok(())
}

/// Copies at most `len` bytes of a file to another file, pipe or socket (`sendfile`).
///
/// # Errors
/// [`Errno::EBADF`], [`Errno::ESPIPE`] for an offset of a source that has none, [`Errno::EINVAL`] for a source without offsets
/// or a target that is open for appends, and those of the files.
pub async fn send_file(
    from: &mut TransferEnd<'_>,
    to: &mut TransferEnd<'_>,
    len: usize,
    done: &mut usize,
) -> Result<(), Errno> {
    let has_offsets = from.file.has_offsets();
    if from.offset.is_some() && from.file.is_readable() && !has_offsets {
        return Err(Errno::ESPIPE);
    }
    check_access(from.file, to.file)?;
    if let Some(target) = to.file.object_as::<PipeEnd>() {
        return to_pipe(from, to.file, target, len, PipeWait::Wait, done).await;
    }
    if !has_offsets {
        return Err(Errno::EINVAL);
    }
    if to.file.flags() & linux::O_APPEND != 0 {
        return Err(Errno::EINVAL);
    }
    copy(from, to, len, done).await
}

/// Copies at most `len` bytes between regular files (`copy_file_range`).
///
/// # Errors
/// [`Errno::EBADF`], also for a target that is open for appends; [`Errno::EISDIR`], [`Errno::EINVAL`] for other files, and if
/// the regions of one file overlap; [`Errno::EOVERFLOW`]; those of the files.
pub async fn copy_file_range(
    from: &mut TransferEnd<'_>,
    to: &mut TransferEnd<'_>,
    len: usize,
    done: &mut usize,
) -> Result<(), Errno> {
    for kind in [from.file.kind(), to.file.kind()] {
        match kind {
            InodeKind::Directory => return Err(Errno::EISDIR),
            InodeKind::File => {}
            _ => return Err(Errno::EINVAL),
        }
    }
    check_access(from.file, to.file)?;
    if to.file.flags() & linux::O_APPEND != 0 {
        return Err(Errno::EBADF);
    }
    let first = from.start().await?;
    let second = to.start().await?;
    let ends = (first.checked_add(len as u64), second.checked_add(len as u64));
    let most = crate::open_file::MOST_OFFSET;
    let (Some(first_end), Some(second_end)) = ends else { return Err(Errno::EOVERFLOW) };
    if first_end > most || second_end > most {
        return Err(Errno::EOVERFLOW);
    }
    let is_same = match (from.file.inode(), to.file.inode()) {
        (Some(one), Some(other)) => alloc::sync::Arc::ptr_eq(one, other),
        _ => false,
    };
    let first_end = first_end.min(from.file.metadata().len.max(first));
    let second_end = second + (first_end - first);
    if is_same && first < second_end && second < first_end {
        return Err(Errno::EINVAL);
    }
    // At most to the end of the source as it is now, which may be the target.
    copy(from, to, (first_end - first) as usize, done).await
}

fn check_access(from: &OpenFile, to: &OpenFile) -> Result<(), Errno> {
    if from.is_readable() && to.is_writable() { Ok(()) } else { Err(Errno::EBADF) }
}

async fn copy(
    from: &mut TransferEnd<'_>,
    to: &mut TransferEnd<'_>,
    len: usize,
    done: &mut usize,
) -> Result<(), Errno> {
    // A file can be both ends: then each has a position of its own during the call, as in Linux.
    let first = from.start().await?;
    let second = if to.file.has_offsets() { Some(to.start().await?) } else { None };
    while *done < len {
        let parts = from.file.page_parts(first + *done as u64, len - *done, PAGES_AT_ONCE).await;
        let parts = match parts {
            Err(_) if *done > 0 => break,
            parts => parts?,
        };
        if parts.is_empty() {
            break;
        }
        let mut buffer = UserBuffer::new(parts.into());
        let before = buffer.len();
        let written = match second {
            Some(second) => to.file.write_at(second + *done as u64, &mut buffer).await,
            None => to.file.write(&mut buffer).await,
        };
        *done += before - buffer.len();
        from.move_to(first + *done as u64).await;
        if let Some(second) = second {
            to.move_to(second + *done as u64).await;
        }
        match written {
            Err(error) if *done == 0 => return Err(error),
            Ok(_) if buffer.is_empty() => {}
            _ => break,
        }
    }
    Ok(())
}

impl TransferEnd<'_> {
    /// Returns the offset at which the transfer begins.
    async fn start(&self) -> Result<u64, Errno> {
        match self.offset {
            Some(offset) => Ok(offset),
            None => self.file.seek(0, linux::SEEK_CUR).await,
        }
    }

    /// Reads at most `len` bytes and `most` pages. The offset or position stays, unless the file has none.
    async fn read_parts(&self, len: usize, most: usize) -> Result<VecDeque<FramePart>, Errno> {
        if self.file.has_offsets() {
            return self.file.page_parts(self.start().await?, len, most).await;
        }
        if self.offset.is_some() {
            return Err(Errno::ESPIPE);
        }
        let mut buffer = new_buffer(len.min(most * FRAME_SIZE));
        let mut contents = buffer.clone();
        let count = self.file.read(&mut buffer).await?;
        let mut parts = VecDeque::new();
        contents.advance(count, |part| parts.push_back(part.clone()));
        Ok(parts)
    }

    /// Sets the offset or position behind bytes that have arrived.
    async fn move_to(&mut self, offset: u64) {
        match &mut self.offset {
            Some(own) => *own = offset,
            // The position was valid, and the bytes before it exist.
            None => drop(self.file.seek(offset as i64, linux::SEEK_SET).await),
        }
    }
}

fn new_buffer(len: usize) -> UserBuffer {
    let part = |at: usize| FramePart { frame: Frame::zeroed(), offset: 0, len: (len - at).min(FRAME_SIZE) };
    UserBuffer::new((0..len).step_by(FRAME_SIZE).map(part).collect::<Vec<_>>())
}

impl OpenFile {
    /// Returns references to the pages of at most `len` bytes from an offset, at most `most` pages: none at the end. Contents
    /// without pages are copied.
    async fn page_parts(&self, offset: u64, len: usize, most: usize) -> Result<VecDeque<FramePart>, Errno> {
        const PAGE: u64 = FRAME_SIZE as u64;
        let mut parts = VecDeque::new();
        let Ok(source) = self.pages() else {
            let mut buffer = new_buffer(len.min(most * FRAME_SIZE));
            let mut contents = buffer.clone();
            let count = self.read_at(offset, &mut buffer).await?;
            contents.advance(count, |part| parts.push_back(part.clone()));
            return Ok(parts);
        };
        let end = self.metadata().len.min(offset.saturating_add(len as u64));
        let mut at = offset;
        while at < end && parts.len() < most {
            let (index, start) = (at / PAGE, (at % PAGE) as usize);
            let frame = match source.frame(index) {
                Some(frame) => frame,
                None if source.is_memory() => zero_frame(),
                // Bytes that are read already count.
                None => match source.fetch(index).await {
                    Err(_) if !parts.is_empty() => break,
                    frame => {
                        frame.map_err(|error| if error == Errno::EFAULT { Errno::EIO } else { error })?
                    }
                },
            };
            let now = (FRAME_SIZE - start).min((end - at) as usize);
            parts.push_back(FramePart { frame, offset: start, len: now });
            at += now as u64;
        }
        if at > offset {
            self.was_read();
        }
        Ok(parts)
    }
}
