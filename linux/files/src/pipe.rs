//! Pipes and named pipes.

use crate::Errno;
use crate::events::{Events, Pollee};
use crate::metadata::{InodeKind, Metadata, new_anonymous_inode};
use crate::object::FileObject;
use crate::open_file::OpenFile;
use crate::outcome::Outcome;
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use isola_linux_abi::{numbers as linux, requests};
use isola_linux_memory::UserBuffer;
use spin::Mutex;

/// The capacity of a new pipe, in bytes.
pub const PIPE_CAPACITY: usize = 65536;
/// The largest capacity that `F_SETPIPE_SZ` sets (`/proc/sys/fs/pipe-max-size`).
pub const MOST_PIPE_CAPACITY: usize = 1 << 20;
/// A write of at most this many bytes is not divided (`PIPE_BUF`).
pub const PIPE_BUF: usize = 4096;

/// The bytes between the ends of a pipe.
pub struct Pipe {
    state: Mutex<PipeState>,
    pollee: Pollee,
    inode: u64,
}

struct PipeState {
    ring: Ring,
    capacity: usize,
    readers: usize,
    writers: usize,
    /// The number of opens by readers and by writers so far: an open of a named pipe that waits for the other side sees an
    /// end that is already closed again.
    opened: (u64, u64),
}

/// A queue of bytes, which grows with its contents.
#[derive(Default)]
struct Ring {
    bytes: Box<[u8]>,
    start: usize,
    len: usize,
}

impl Ring {
    /// Makes space for `len` bytes in all.
    fn reserve(&mut self, len: usize) {
        if len <= self.bytes.len() {
            return;
        }
        let mut bytes = alloc::vec![0; len.next_power_of_two().max(PIPE_BUF)].into_boxed_slice();
        let first = self.len.min(self.bytes.len() - self.start);
        bytes[..first].copy_from_slice(&self.bytes[self.start..self.start + first]);
        bytes[first..self.len].copy_from_slice(&self.bytes[..self.len - first]);
        (self.bytes, self.start) = (bytes, 0);
    }

    fn put(&mut self, buffer: &mut UserBuffer, len: usize) {
        self.reserve(self.len + len);
        let mut left = len;
        while left > 0 {
            let end = (self.start + self.len) % self.bytes.len();
            let now = left.min(self.bytes.len() - end);
            buffer.read(&mut self.bytes[end..end + now]);
            self.len += now;
            left -= now;
        }
    }

    fn take(&mut self, buffer: &mut UserBuffer, len: usize) {
        let mut left = len;
        while left > 0 {
            let now = left.min(self.bytes.len() - self.start);
            buffer.write(&self.bytes[self.start..self.start + now]);
            self.start = (self.start + now) % self.bytes.len();
            self.len -= now;
            left -= now;
        }
        if self.len == 0 {
            self.start = 0;
        }
    }
}

impl Pipe {
    /// Creates a pipe without ends.
    pub fn new() -> Arc<Self> {
        let state = PipeState {
            ring: Ring::default(),
            capacity: PIPE_CAPACITY,
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
        self.pipe.state.lock().capacity
    }

    /// Sets the capacity, rounded up to a power of two of at least a page (`F_SETPIPE_SZ`). Returns it.
    ///
    /// # Errors
    /// [`Errno::EBUSY`] if the pipe has more bytes, [`Errno::EPERM`] above [`MOST_PIPE_CAPACITY`].
    pub fn set_capacity(&self, capacity: usize) -> Result<usize, Errno> {
        if capacity > MOST_PIPE_CAPACITY {
            return Err(Errno::EPERM);
        }
        let capacity = capacity.next_power_of_two().max(PIPE_BUF);
        let mut state = self.pipe.state.lock();
        if state.ring.len > capacity {
            return Err(Errno::EBUSY);
        }
        state.capacity = capacity;
        drop(state);
        self.pipe.pollee.notify(Events::OUT);
        Ok(capacity)
    }
}

impl Drop for PipeEnd {
    fn drop(&mut self) {
        let mut state = self.pipe.state.lock();
        state.readers -= usize::from(self.reads);
        state.writers -= usize::from(self.writes);
        let left = if state.readers == 0 && state.writers == 0 {
            core::mem::take(&mut state.ring)
        } else {
            Ring::default()
        };
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
        let len = state.ring.len.min(buffer.len());
        if len == 0 {
            return if state.writers == 0 { Ok(0) } else { Err(Errno::EAGAIN) };
        }
        state.ring.take(buffer, len);
        let has_space = state.capacity - state.ring.len >= PIPE_BUF;
        drop(state);
        if has_space {
            self.pipe.pollee.notify(Events::OUT);
        }
        Ok(len)
    }

    fn write(&self, buffer: &mut UserBuffer) -> Result<usize, Errno> {
        let mut state = self.pipe.state.lock();
        if state.readers == 0 {
            return Err(Errno::EPIPE);
        }
        if buffer.is_empty() {
            return Ok(0);
        }
        let space = state.capacity - state.ring.len;
        if space == 0 || buffer.len() <= PIPE_BUF && space < buffer.len() {
            return Err(Errno::EAGAIN);
        }
        let len = space.min(buffer.len());
        state.ring.put(buffer, len);
        drop(state);
        self.pipe.pollee.notify(Events::IN);
        Ok(len)
    }

    fn ready(&self) -> Events {
        let state = self.pipe.state.lock();
        let mut events = Events::NONE;
        if self.reads {
            if state.ring.len > 0 {
                events = events | Events::IN;
            }
            if state.writers == 0 {
                events = events | Events::HUP;
            }
        }
        if self.writes {
            if state.capacity - state.ring.len >= PIPE_BUF {
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
        let len = self.pipe.state.lock().ring.len as i32;
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
