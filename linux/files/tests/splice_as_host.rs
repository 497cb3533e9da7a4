//! Random sequences of calls on pipes and files, in memory and on the host: `splice` and its relatives do the same.

mod common;

use common::{System, now, write};
use isola_linux_abi::numbers as linux;
use isola_linux_files::splice::{PipeWait, TransferEnd, copy_file_range, send_file, splice, tee};
use isola_linux_files::{Errno, Events, OpenFile, PipeEnd, pipe};
use proptest::prelude::*;
use rustix::event::{PollFd, PollFlags};
use rustix::fs::{self, Mode, OFlags, SeekFrom};
use rustix::pipe::{PipeFlags, SpliceFlags};
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// The files: the reading and writing ends of two pipes, then two files.
const FILES: usize = 6;

#[derive(Clone, Debug)]
enum Call {
    Write { file: usize, len: usize },
    Read { file: usize, len: usize },
    Seek { file: usize, offset: u64 },
    Splice { from: usize, from_offset: Option<u64>, to: usize, to_offset: Option<u64>, len: usize },
    Tee { from: usize, to: usize, len: usize },
    SendFile { from: usize, offset: Option<u64>, to: usize, len: usize },
    CopyRange { from: usize, from_offset: Option<u64>, to: usize, to_offset: Option<u64>, len: usize },
    Capacity { file: usize, len: usize },
    Ready(usize),
    CloseReader(usize),
}

fn len() -> impl Strategy<Value = usize> {
    prop_oneof![1 => Just(0usize), 4 => 1usize..300, 3 => 3000usize..5000, 2 => Just(4096usize), 2 => 1usize..100_000]
}

fn offset() -> impl Strategy<Value = Option<u64>> {
    prop_oneof![2 => Just(None), 1 => (0u64..20_000).prop_map(Some)]
}

fn call() -> impl Strategy<Value = Call> {
    let file = || 0..FILES;
    prop_oneof![
        6 => (file(), len()).prop_map(|(file, len)| Call::Write { file, len }),
        6 => (file(), len()).prop_map(|(file, len)| Call::Read { file, len }),
        2 => (file(), 0u64..20_000).prop_map(|(file, offset)| Call::Seek { file, offset }),
        8 => (file(), offset(), file(), offset(), len())
            .prop_map(|(from, from_offset, to, to_offset, len)| Call::Splice { from, from_offset, to, to_offset, len }),
        3 => (file(), file(), len()).prop_map(|(from, to, len)| Call::Tee { from, to, len }),
        3 => (file(), offset(), file(), len())
            .prop_map(|(from, offset, to, len)| Call::SendFile { from, offset, to, len }),
        3 => (file(), offset(), file(), offset(), len())
            .prop_map(|(from, from_offset, to, to_offset, len)| Call::CopyRange { from, from_offset, to, to_offset, len }),
        1 => (file(), prop_oneof![Just(1usize), Just(4097), Just(16_384), Just(131_072)])
            .prop_map(|(file, len)| Call::Capacity { file, len }),
        3 => file().prop_map(Call::Ready),
        1 => (0usize..2).prop_map(Call::CloseReader),
    ]
}

/// The bytes that a write of the test writes, which differ from call to call.
fn contents(len: usize, index: usize) -> Vec<u8> {
    (0..len).map(|at| (at / 7 + index * 31) as u8).collect()
}

/// The number that a call returns, and the bytes that it read.
type Answer = Result<(i64, Vec<u8>), i32>;

struct Cell {
    files: [Option<Arc<OpenFile>>; FILES],
}

impl Cell {
    fn new() -> Self {
        let system = System::new();
        let file = |name| system.open(name, linux::O_RDWR | linux::O_CREAT).ok();
        let [(a, b), (c, d)] = [pipe(linux::O_NONBLOCK).unwrap(), pipe(linux::O_NONBLOCK).unwrap()];
        Self { files: [Some(a), Some(b), Some(c), Some(d), file("/a"), file("/b")] }
    }

    fn file(&self, index: usize) -> Result<&Arc<OpenFile>, Errno> {
        self.files[index].as_ref().ok_or(Errno::EBADF)
    }

    fn try_call(&mut self, index: usize, call: &Call) -> Result<(i64, Vec<u8>), Errno> {
        let end = |file, offset| Ok(TransferEnd { file: self.file(file)?, offset });
        let mut done = 0;
        let answer = |result: Result<(), Errno>, done: usize| match result {
            Err(error) if done == 0 => Err(error),
            _ => Ok((done as i64, Vec::new())),
        };
        match *call {
            Call::Write { file, len } => {
                write(self.file(file)?, &contents(len, index)).map(|count| (count as i64, vec![]))
            }
            Call::Read { file, len } => {
                common::read(self.file(file)?, len).map(|bytes| (bytes.len() as i64, bytes))
            }
            Call::Seek { file, offset } => now(self.file(file)?.seek(offset as i64, linux::SEEK_SET))
                .map(|offset| (offset as i64, vec![])),
            Call::Splice { len: 0, .. } | Call::Tee { len: 0, .. } => Ok((0, vec![])),
            Call::Splice { from, from_offset, to, to_offset, len } => {
                let (mut from, mut to) = (end(from, from_offset)?, end(to, to_offset)?);
                answer(now(splice(&mut from, &mut to, len, PipeWait::Fail, &mut done)), done)
            }
            Call::Tee { from, to, len } => {
                let (from, to) = (self.file(from)?, self.file(to)?);
                answer(now(tee(from, to, len, PipeWait::Fail, &mut done)), done)
            }
            Call::SendFile { from, offset, to, len } => {
                let (mut from, mut to) = (end(from, offset)?, end(to, None)?);
                answer(now(send_file(&mut from, &mut to, len, &mut done)), done)
            }
            Call::CopyRange { from, from_offset, to, to_offset, len } => {
                let (mut from, mut to) = (end(from, from_offset)?, end(to, to_offset)?);
                answer(now(copy_file_range(&mut from, &mut to, len, &mut done)), done)
            }
            Call::Capacity { file, len } => {
                let pipe = self.file(file)?.object_as::<PipeEnd>().ok_or(Errno::EBADF)?;
                pipe.set_capacity(len).map(|capacity| (capacity as i64, vec![]))
            }
            Call::Ready(file) => {
                let events = self.file(file)?.ready() & (Events::IN | Events::OUT | Events::ALWAYS);
                Ok((i64::from(events.0 & 0x1f), vec![]))
            }
            Call::CloseReader(pipe) => {
                self.files[pipe * 2] = None;
                Ok((0, vec![]))
            }
        }
    }
}

struct Host {
    files: [Option<OwnedFd>; FILES],
    _temporary: tempfile::TempDir,
}

impl Host {
    fn new() -> Self {
        let temporary = tempfile::tempdir().unwrap();
        let file = |name| {
            let path = temporary.path().join(name);
            fs::open(path, OFlags::RDWR | OFlags::CREATE, Mode::from_raw_mode(0o666)).ok()
        };
        let pipes = [(); 2].map(|()| rustix::pipe::pipe_with(PipeFlags::NONBLOCK).unwrap());
        let [(a, b), (c, d)] = pipes;
        Self { files: [Some(a), Some(b), Some(c), Some(d), file("a"), file("b")], _temporary: temporary }
    }

    fn file(&self, index: usize) -> Result<&OwnedFd, rustix::io::Errno> {
        self.files[index].as_ref().ok_or(rustix::io::Errno::BADF)
    }

    fn try_call(&mut self, index: usize, call: &Call) -> Result<(i64, Vec<u8>), rustix::io::Errno> {
        let count = |count: usize| (count as i64, vec![]);
        match *call {
            Call::Write { file, len } => {
                rustix::io::write(self.file(file)?, &contents(len, index)).map(count)
            }
            Call::Read { file, len } => {
                let mut bytes = vec![0; len];
                let read = rustix::io::read(self.file(file)?, &mut bytes[..])?;
                bytes.truncate(read);
                Ok((read as i64, bytes))
            }
            Call::Seek { file, offset } => {
                fs::seek(self.file(file)?, SeekFrom::Start(offset)).map(|offset| (offset as i64, vec![]))
            }
            Call::Splice { len: 0, .. } | Call::Tee { len: 0, .. } => Ok((0, vec![])),
            Call::Splice { from, mut from_offset, to, mut to_offset, len } => rustix::pipe::splice(
                self.file(from)?,
                from_offset.as_mut(),
                self.file(to)?,
                to_offset.as_mut(),
                len,
                SpliceFlags::NONBLOCK,
            )
            .map(count),
            Call::Tee { from, to, len } => {
                rustix::pipe::tee(self.file(from)?, self.file(to)?, len, SpliceFlags::NONBLOCK).map(count)
            }
            Call::SendFile { from, mut offset, to, len } => {
                fs::sendfile(self.file(to)?, self.file(from)?, offset.as_mut(), len).map(count)
            }
            Call::CopyRange { from, mut from_offset, to, mut to_offset, len } => {
                let (from, to) = (self.file(from)?, self.file(to)?);
                fs::copy_file_range(from, from_offset.as_mut(), to, to_offset.as_mut(), len).map(count)
            }
            Call::Capacity { file, len } => {
                rustix::pipe::fcntl_setpipe_size(self.file(file)?, len).map(count)
            }
            Call::Ready(file) => {
                let file = self.file(file)?;
                let mut poll = [PollFd::new(file, PollFlags::IN | PollFlags::OUT)];
                rustix::event::poll(&mut poll, Some(&rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 }))?;
                Ok((i64::from(poll[0].revents().bits()), vec![]))
            }
            Call::CloseReader(pipe) => {
                self.files[pipe * 2] = None;
                Ok((0, vec![]))
            }
        }
    }
}

fn answer<E>(result: Result<(i64, Vec<u8>), E>, number: impl Fn(E) -> i32) -> Answer {
    result.map_err(number)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn splices_do_what_the_host_does(calls in prop::collection::vec(call(), 1..60)) {
        let (mut cell, mut host) = (Cell::new(), Host::new());
        for (index, call) in calls.iter().enumerate() {
            let ours = answer(cell.try_call(index, call), |error| error.number().into());
            let theirs = answer(host.try_call(index, call), |error| error.raw_os_error());
            prop_assert_eq!(ours, theirs, "call {}: {:?} of {:?}", index, call, &calls[..=index]);
        }
    }
}
