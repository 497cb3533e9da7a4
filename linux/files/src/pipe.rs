//! Pipes and named pipes.
//!
//! A pipe is a queue of parts of frames, at most one for each page of its capacity, as in Linux. A write copies to frames of
//! the pipe, and adds to the last one if the whole rest of a page fits there; `splice` and its relatives add references to
//! frames of files and programs, which nothing is added to.

use crate::Errno;
use crate::events::{Events, Pollee};
use crate::metadata::{InodeKind, Metadata, new_anonymous_inode};
use crate::object::FileObject;
use crate::open_file::OpenFile;
use crate::outcome::Outcome;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use isola_linux_abi::{numbers as linux, requests};
use isola_linux_memory::{FramePart, UserBuffer};
use isola_memory::frame::{FRAME_SIZE, Frame};
use spin::Mutex;

/// The capacity of a new pipe, in bytes.
pub const PIPE_CAPACITY: usize = 65536;
/// The largest capacity that `F_SETPIPE_SZ` sets (`/proc/sys/fs/pipe-max-size`).
pub const MOST_PIPE_CAPACITY: usize = 1 << 20;
/// A write of at most this many bytes is not divided (`PIPE_BUF`).
pub const PIPE_BUF: usize = 4096;

/// The most frames that a pipe keeps for its next writes, with those in use: those of [`PIPE_CAPACITY`].
const MOST_SPARE: usize = PIPE_CAPACITY / FRAME_SIZE;

/// The bytes between the ends of a pipe.
pub struct Pipe {
    state: Mutex<PipeState>,
    pollee: Pollee,
    inode: u64,
}

struct PipeState {
    parts: VecDeque<PipePart>,
    /// The most parts.
    slots: usize,
    /// Frames of the pipe for the next writes.
    spare: Vec<Frame>,
    readers: usize,
    writers: usize,
    /// The number of opens by readers and by writers so far: an open of a named pipe that waits for the other side sees an
    /// end that is already closed again.
    opened: (u64, u64),
}

/// Bytes in a pipe: never none.
pub(crate) struct PipePart {
    pub part: FramePart,
    /// The frame is the pipe's own, and bytes may be added.
    is_own: bool,
}

impl PipePart {
    /// Creates a part that refers to a frame of others.
    pub fn of(part: FramePart) -> Self {
        Self { part, is_own: false }
    }
}

impl PipeState {
    fn has_room(&self) -> bool {
        self.parts.len() < self.slots
    }

    fn len(&self) -> usize {
        self.parts.iter().map(|part| part.part.len).sum()
    }

    /// Copies bytes of the buffer to the pipe, as many as fit.
    fn put(&mut self, buffer: &mut UserBuffer) {
        let rest = buffer.len() % FRAME_SIZE;
        if let Some(PipePart { part, is_own: true }) = self.parts.back_mut()
            && rest > 0
            && part.offset + part.len + rest <= FRAME_SIZE
        {
            copy_to(&part.frame, part.offset + part.len, buffer, rest);
            part.len += rest;
        }
        while !buffer.is_empty() && self.has_room() {
            let frame = self.spare.pop().unwrap_or_else(Frame::zeroed);
            let len = buffer.len().min(FRAME_SIZE);
            copy_to(&frame, 0, buffer, len);
            self.parts.push_back(PipePart { part: FramePart { frame, offset: 0, len }, is_own: true });
        }
    }

    /// Copies bytes of the pipe to the buffer.
    fn take(&mut self, buffer: &mut UserBuffer) -> usize {
        let mut count = 0;
        while !buffer.is_empty()
            && let Some(PipePart { part, .. }) = self.parts.front_mut()
        {
            let now = part.len.min(buffer.len());
            let mut from = part.offset;
            buffer.advance(now, |to| {
                to.frame.copy_from(to.offset, &part.frame, from, to.len);
                from += to.len;
            });
            (part.offset, part.len) = (part.offset + now, part.len - now);
            count += now;
            if part.len == 0 {
                self.remove_first();
            }
        }
        count
    }

    fn remove_first(&mut self) {
        if let Some(PipePart { part, is_own: true }) = self.parts.pop_front()
            && self.parts.len() + self.spare.len() < MOST_SPARE
            && !part.frame.is_shared()
        {
            self.spare.push(part.frame);
        }
    }
}

/// Copies bytes from the buffer to a frame.
fn copy_to(frame: &Frame, offset: usize, buffer: &mut UserBuffer, len: usize) {
    let mut to = offset;
    buffer.advance(len, |from| {
        frame.copy_from(to, &from.frame, from.offset, from.len);
        to += from.len;
    });
}

impl Pipe {
    /// Creates a pipe without ends.
    pub fn new() -> Arc<Self> {
        let state = PipeState {
            parts: VecDeque::new(),
            slots: PIPE_CAPACITY / FRAME_SIZE,
            // So that a read need not allocate.
            spare: Vec::with_capacity(MOST_SPARE),
            readers: 0,
            writers: 0,
            opened: (0, 0),
        };
        Arc::new(Self { state: Mutex::new(state), pollee: Pollee::new(), inode: new_anonymous_inode() })
    }

    /// Opens an end, or both, by the access mode of `flags`.
    fn end(self: &Arc<Self>, flags: u32) -> Arc<PipeEnd> {
        let mode = flags & linux::O_ACCMODE;
        let (reads, writes) = (mode != linux::O_WRONLY, mode != linux::O_RDONLY);
        let mut state = self.state.lock();
        if reads {
            state.readers += 1;
            state.opened.0 += 1;
        }
        if writes {
            state.writers += 1;
            state.opened.1 += 1;
        }
        drop(state);
        self.pollee.notify(Events::IN | Events::OUT);
        Arc::new(PipeEnd { pipe: self.clone(), reads, writes })
    }

    /// Opens a named pipe. Without `O_NONBLOCK`, it waits for the other side.
    pub(crate) fn open(self: &Arc<Self>, flags: u32) -> Outcome<'static, Option<Arc<dyn FileObject>>> {
        let is_nonblocking = flags & linux::O_NONBLOCK != 0;
        let mode = flags & linux::O_ACCMODE;
        let opened = {
            let state = self.state.lock();
            if mode == linux::O_WRONLY && is_nonblocking && state.readers == 0 {
                return Outcome::error(Errno::ENXIO);
            }
            state.opened
        };
        let end = self.end(flags);
        let is_there = move |pipe: &Self| {
            let state = pipe.state.lock();
            match mode {
                linux::O_RDONLY => state.writers > 0 || state.opened.1 != opened.1,
                linux::O_WRONLY => state.readers > 0 || state.opened.0 != opened.0,
                _ => true,
            }
        };
        if is_nonblocking || is_there(self) {
            return Outcome::ok(Some(end));
        }
        Outcome::of(async move {
            let ready = || if is_there(&end.pipe) { Events::IN } else { Events::NONE };
            end.pipe.pollee.wait(Events::IN, ready).await;
            let end: Arc<dyn FileObject> = end.clone();
            Ok(Some(end))
        })
    }
}

/// Creates a pipe: its end for reading and its end for writing, with status flags as `pipe2` has them.
///
/// # Errors
/// [`Errno::EINVAL`] for flags that are not supported, such as packets (`O_DIRECT`).
pub fn pipe(flags: u32) -> Result<(Arc<OpenFile>, Arc<OpenFile>), Errno> {
    if flags & !(linux::O_CLOEXEC | linux::O_NONBLOCK) != 0 {
        return Err(Errno::EINVAL);
    }
    let status = flags & linux::O_NONBLOCK;
    let pipe = Pipe::new();
    let open = |mode| OpenFile::of_object(pipe.end(mode), mode | status);
    Ok((open(linux::O_RDONLY), open(linux::O_WRONLY)))
}

/// An open end of a pipe, or both ends.
pub struct PipeEnd {
    pipe: Arc<Pipe>,
    reads: bool,
    writes: bool,
}

impl PipeEnd {
    /// Returns the capacity (`F_GETPIPE_SZ`).
    pub fn capacity(&self) -> usize {
        self.pipe.state.lock().slots * FRAME_SIZE
    }

    /// Sets the capacity, rounded up to a power of two of at least a page (`F_SETPIPE_SZ`). Returns it.
    ///
    /// # Errors
    /// [`Errno::EBUSY`] if the pipe has parts for more, [`Errno::EPERM`] above [`MOST_PIPE_CAPACITY`].
    pub fn set_capacity(&self, capacity: usize) -> Result<usize, Errno> {
        if capacity > MOST_PIPE_CAPACITY {
            return Err(Errno::EPERM);
        }
        let capacity = capacity.next_power_of_two().max(PIPE_BUF);
        let mut state = self.pipe.state.lock();
        let slots = capacity / FRAME_SIZE;
        if state.parts.len() > slots {
            return Err(Errno::EBUSY);
        }
        state.slots = slots;
        drop(state);
        self.pipe.pollee.notify(Events::OUT);
        Ok(capacity)
    }

    /// Returns whether both are ends of the same pipe.
    pub(crate) fn is_same_pipe(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.pipe, &other.pipe)
    }

    /// Returns how many parts more the pipe takes.
    ///
    /// # Errors
    /// [`Errno::EAGAIN`] if none, [`Errno::EPIPE`].
    pub(crate) fn room(&self) -> Result<usize, Errno> {
        let state = self.pipe.state.lock();
        match state.slots.saturating_sub(state.parts.len()) {
            _ if state.readers == 0 => Err(Errno::EPIPE),
            0 => Err(Errno::EAGAIN),
            room => Ok(room),
        }
    }

    /// Adds references to the first parts, as many as there is room for, and returns their bytes.
    ///
    /// # Errors
    /// As [`Self::room`].
    pub(crate) fn put_parts(&self, parts: &mut VecDeque<PipePart>) -> Result<usize, Errno> {
        self.room()?;
        let mut count = 0;
        let mut state = self.pipe.state.lock();
        while state.has_room()
            && let Some(part) = parts.pop_front()
        {
            count += part.part.len;
            state.parts.push_back(part);
        }
        drop(state);
        self.pipe.pollee.notify(Events::IN);
        if count == 0 { Err(Errno::EAGAIN) } else { Ok(count) }
    }

    /// Returns the parts of at most `len` bytes, which stay in the pipe: none at the end.
    ///
    /// # Errors
    /// [`Errno::EAGAIN`] if there are none yet.
    pub(crate) fn parts(&self, len: usize) -> Result<VecDeque<PipePart>, Errno> {
        let state = self.pipe.state.lock();
        if state.parts.is_empty() {
            return if state.writers == 0 { Ok(VecDeque::new()) } else { Err(Errno::EAGAIN) };
        }
        let mut left = len;
        let take = |part: &PipePart| {
            let now = part.part.len.min(left);
            left -= now;
            (now > 0).then(|| PipePart::of(FramePart { len: now, ..part.part.clone() }))
        };
        Ok(state.parts.iter().map_while(take).collect())
    }

    /// Removes and returns the parts of at most `len` bytes, and at most `most` parts, as [`Self::parts`].
    ///
    /// # Errors
    /// As [`Self::parts`].
    pub(crate) fn take_parts(&self, len: usize, most: usize) -> Result<VecDeque<PipePart>, Errno> {
        let mut state = self.pipe.state.lock();
        if state.parts.is_empty() {
            return if state.writers == 0 { Ok(VecDeque::new()) } else { Err(Errno::EAGAIN) };
        }
        let (mut taken, mut left) = (VecDeque::new(), len);
        while left > 0
            && taken.len() < most
            && let Some(PipePart { part, .. }) = state.parts.front_mut()
        {
            let now = part.len.min(left);
            left -= now;
            if now == part.len {
                taken.extend(state.parts.pop_front());
            } else {
                taken.push_back(PipePart::of(FramePart { len: now, ..part.clone() }));
                (part.offset, part.len) = (part.offset + now, part.len - now);
            }
        }
        drop(state);
        self.pipe.pollee.notify(Events::OUT);
        Ok(taken)
    }

    /// Puts parts that were taken back to the beginning.
    pub(crate) fn return_parts(&self, parts: VecDeque<PipePart>) {
        let mut state = self.pipe.state.lock();
        for part in parts.into_iter().rev() {
            state.parts.push_front(part);
        }
        drop(state);
        self.pipe.pollee.notify(Events::IN);
    }
}

impl Drop for PipeEnd {
    fn drop(&mut self) {
        let mut state = self.pipe.state.lock();
        state.readers -= usize::from(self.reads);
        state.writers -= usize::from(self.writes);
        let is_last = state.readers == 0 && state.writers == 0;
        let left = is_last.then(|| (core::mem::take(&mut state.parts), core::mem::take(&mut state.spare)));
        drop(state);
        drop(left);
        self.pipe.pollee.notify(Events::IN | Events::OUT | Events::HUP | Events::ERR);
    }
}

impl FileObject for PipeEnd {
    fn read(&self, buffer: &mut UserBuffer) -> Result<usize, Errno> {
        if buffer.is_empty() {
            return Ok(0);
        }
        let mut state = self.pipe.state.lock();
        let len = state.take(buffer);
        if len == 0 {
            return if state.writers == 0 { Ok(0) } else { Err(Errno::EAGAIN) };
        }
        let has_room = state.has_room();
        drop(state);
        if has_room {
            self.pipe.pollee.notify(Events::OUT);
        }
        Ok(len)
    }

    fn write(&self, buffer: &mut UserBuffer) -> Result<usize, Errno> {
        if buffer.is_empty() {
            return Ok(0);
        }
        let mut state = self.pipe.state.lock();
        if state.readers == 0 {
            return Err(Errno::EPIPE);
        }
        let left = buffer.len();
        state.put(buffer);
        drop(state);
        if buffer.len() == left {
            return Err(Errno::EAGAIN);
        }
        self.pipe.pollee.notify(Events::IN);
        Ok(left - buffer.len())
    }

    fn ready(&self) -> Events {
        let state = self.pipe.state.lock();
        let mut events = Events::NONE;
        if self.reads {
            if !state.parts.is_empty() {
                events = events | Events::IN;
            }
            if state.writers == 0 {
                events = events | Events::HUP;
            }
        }
        if self.writes {
            if state.has_room() {
                events = events | Events::OUT;
            }
            if state.readers == 0 {
                events = events | Events::ERR;
            }
        }
        events
    }

    fn pollee(&self) -> Option<&Pollee> {
        Some(&self.pipe.pollee)
    }

    fn control<'a>(&'a self, request: u32, _argument: u64, buffer: &'a mut UserBuffer) -> Outcome<'a, u64> {
        if request != requests::FIONREAD {
            return Outcome::error(Errno::ENOTTY);
        }
        let len = self.pipe.state.lock().len() as i32;
        buffer.write(&len.to_ne_bytes());
        Outcome::ok(0)
    }

    fn metadata(&self) -> Metadata {
        Metadata::anonymous(InodeKind::Fifo, self.pipe.inode, 0o600)
    }

    fn description(&self) -> Vec<u8> {
        alloc::format!("pipe:[{}]", self.pipe.inode).into_bytes()
    }

    fn reopen(&self, flags: u32) -> Option<Result<Arc<dyn FileObject>, Errno>> {
        let end: Arc<dyn FileObject> = self.pipe.end(flags);
        Some(Ok(end))
    }
}
