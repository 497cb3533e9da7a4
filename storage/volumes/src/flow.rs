//! Files as ends of flows.
//!
//! A source takes cached blocks without a wait, and otherwise requests as much ahead as the flow's window permits. A sink
//! has one write under way: the volume copies the bytes into its blocks.

use crate::file_system::FileError;
use crate::shared::SharedFile;
use crate::volume::File;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::rc::Rc;
use core::fmt;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll, ready};
use isola_events::{CancelOnDrop, start_task};
use isola_flows::{Sink, Source};
use isola_iobuf::Chain;

/// The bytes of a read ahead, and the most of one step through the cache.
const READ_LEN: usize = 128 << 10;

/// The most bytes of a write.
const WRITE_LEN: usize = 256 << 10;

type Writing = Pin<Box<dyn Future<Output = Result<(), FileError>>>>;

/// A read ahead, in a task of its own, which ends when this is dropped.
struct Reading {
    len: usize,
    task: CancelOnDrop<Result<Chain, FileError>>,
}

/// A file from which a flow reads.
#[derive(Clone)]
enum ReadFile {
    /// A file of this core's volume.
    Local(Rc<File>),
    /// A file of another core's volume.
    Shared(SharedFile),
}

impl ReadFile {
    /// Starts to read a part of one version of the file, or of any.
    fn start(&self, version: Option<u64>, offset: u64, len: usize) -> Reading {
        let check = move |(read, found): (Chain, u64)| match version {
            Some(version) if version != found => Err(FileError::Changed),
            _ => Ok(read),
        };
        let task = match self.clone() {
            Self::Local(file) => start_task(async move {
                let read = file.read_chain(offset, len).await?;
                check((read, file.version()))
            }),
            Self::Shared(file) => start_task(async move { check(file.read_chain(offset, len).await?) }),
        };
        Reading { len, task: task.cancel_on_drop() }
    }
}

/// A file as the source of a flow. Dropping it ends the reads ahead.
pub struct FileSource {
    file: ReadFile,
    version: Option<u64>,
    /// The position of the next read.
    next: u64,
    /// The reads under way, in the order of the file.
    ahead: VecDeque<Reading>,
    ahead_bytes: usize,
    /// Bytes that were read beyond what a call wanted.
    rest: Chain,
    /// Whether a read was shorter than requested.
    at_end: bool,
}

impl FileSource {
    fn new(file: ReadFile, offset: u64) -> Self {
        let (ahead, rest) = (VecDeque::new(), Chain::new());
        Self { file, version: None, next: offset, ahead, ahead_bytes: 0, rest, at_end: false }
    }

    /// Makes reads fail with [`FileError::Changed`] unless the file has this [version](File::version): all bytes are then
    /// those of one moment.
    pub fn of_version(mut self, version: u64) -> Self {
        self.version = Some(version);
        self
    }

    /// Takes up to `most` bytes from the cache. Returns `None` if the next byte is not there.
    fn take_cached(&mut self, most: usize, into: &mut Chain) -> Option<Result<usize, FileError>> {
        let ReadFile::Local(file) = &self.file else { return None };
        if self.version.is_some_and(|version| version != file.version()) {
            return Some(Err(FileError::Changed));
        }
        let read = file.append_cached(self.next, most.min(READ_LEN), into)?;
        self.next += read.len as u64;
        (read.len > 0 || read.at_end).then_some(Ok(read.len))
    }

    /// Starts reads until `most` bytes are under way.
    fn read_ahead(&mut self, most: usize) {
        while !self.at_end && self.ahead_bytes < most {
            let len = (most - self.ahead_bytes).min(READ_LEN);
            // Small reads at the end of the window would be small requests of the device.
            if !self.ahead.is_empty() && len < READ_LEN {
                break;
            }
            self.ahead.push_back(self.file.start(self.version, self.next, len));
            self.ahead_bytes += len;
            self.next += len as u64;
        }
    }
}

impl Source for FileSource {
    type Error = FileError;

    fn poll_read(
        &mut self,
        context: &mut Context<'_>,
        most: usize,
        into: &mut Chain,
    ) -> Poll<Result<usize, FileError>> {
        if self.rest.is_empty() && self.ahead.is_empty() {
            if self.at_end {
                return Poll::Ready(Ok(0));
            }
            if let Some(taken) = self.take_cached(most, into) {
                return Poll::Ready(taken);
            }
        }
        if self.rest.is_empty() {
            self.read_ahead(most);
            let Some(front) = self.ahead.front_mut() else { return Poll::Ready(Ok(0)) };
            let (len, read) = (front.len, ready!(Pin::new(&mut front.task).poll(context)));
            let read = read?;
            self.ahead.pop_front();
            self.ahead_bytes -= len;
            if read.len() < len {
                // Later reads begin beyond the end.
                self.at_end = true;
                self.ahead.clear();
                self.ahead_bytes = 0;
            }
            self.rest = read;
        }
        let count = self.rest.len().min(most);
        into.append(self.rest.split_to(count).unwrap_or_default());
        Poll::Ready(Ok(count))
    }
}

/// A file as the sink of a flow.
pub struct FileSink {
    file: Rc<File>,
    next: u64,
    writing: Option<Writing>,
}

impl FileSink {
    /// Completes the write under way.
    fn poll_written(&mut self, context: &mut Context<'_>) -> Poll<Result<(), FileError>> {
        if let Some(writing) = &mut self.writing {
            let written = ready!(writing.as_mut().poll(context));
            self.writing = None;
            written?;
        }
        Poll::Ready(Ok(()))
    }
}

impl Sink for FileSink {
    type Error = FileError;

    fn poll_write(&mut self, context: &mut Context<'_>, from: &mut Chain) -> Poll<Result<usize, FileError>> {
        ready!(self.poll_written(context))?;
        let count = from.len().min(WRITE_LEN);
        let part = from.split_to(count).unwrap_or_default();
        let (file, at) = (self.file.clone(), self.next);
        self.next = at.checked_add(count as u64).ok_or(FileError::TooLarge)?;
        self.writing = Some(Box::pin(async move { file.write(at, part).await }));
        Poll::Ready(Ok(count))
    }

    fn poll_finish(&mut self, context: &mut Context<'_>) -> Poll<Result<(), FileError>> {
        self.poll_written(context)
    }
}

impl File {
    /// Returns a source of the file's bytes from a position on.
    pub fn source(self: &Rc<Self>, offset: u64) -> FileSource {
        FileSource::new(ReadFile::Local(self.clone()), offset)
    }

    /// Returns a sink that writes from a position on. Only a later [`Self::sync`] makes the bytes permanent.
    pub fn sink(self: &Rc<Self>, offset: u64) -> FileSink {
        FileSink { file: self.clone(), next: offset, writing: None }
    }
}

impl SharedFile {
    /// Returns a source of the file's bytes from a position on.
    pub fn source(&self, offset: u64) -> FileSource {
        FileSource::new(ReadFile::Shared(self.clone()), offset)
    }
}

impl fmt::Debug for FileSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileSource").field("next", &self.next).field("ahead", &self.ahead_bytes).finish()
    }
}

impl fmt::Debug for FileSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileSink").field("next", &self.next).finish()
    }
}
