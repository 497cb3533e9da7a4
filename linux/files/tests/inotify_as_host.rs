//! Random sequences of calls with watches, on the file system in memory and on the host's: `inotify` reports the same.

mod common;

use common::{CWD, System, now, read, write};
use isola_linux_abi::numbers as linux;
use isola_linux_files::{CallerIds, Errno, InodeKind, Inotify, OpenFile, TimeChange, Timestamp};
use isola_linux_memory::UserBuffer;
use proptest::prelude::*;
use rustix::fs::{self, AtFlags, Mode, OFlags, RenameFlags, Timespec, Timestamps, inotify};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

#[derive(Clone, Debug)]
enum Call {
    Watch { path: String, mask: u32 },
    Unwatch(i32),
    Open { path: String, flags: u32 },
    Close(usize),
    Read(usize),
    Write(usize),
    Truncate(usize),
    List(usize),
    Permissions(String),
    Times { path: String, accessed: bool, modified: bool },
    MakeDirectory(String),
    RemoveDirectory(String),
    Unlink(String),
    Rename { from: String, to: String, flags: u32 },
    Link { from: String, to: String },
    Symlink(String),
}

fn path() -> impl Strategy<Value = String> {
    prop_oneof![
        3 => "[ab]",
        3 => "d/[ab]",
        1 => Just("d".to_string()),
        1 => Just("e".to_string()),
        1 => Just(".".to_string()),
    ]
}

fn mask() -> impl Strategy<Value = u32> {
    prop_oneof![
        8 => Just(linux::IN_ALL_EVENTS),
        1 => Just(linux::IN_ALL_EVENTS | linux::IN_ONESHOT),
        3 => Just(linux::IN_ALL_EVENTS | linux::IN_EXCL_UNLINK),
        1 => Just(linux::IN_ALL_EVENTS | linux::IN_ONLYDIR),
        1 => Just(linux::IN_ALL_EVENTS | linux::IN_DONT_FOLLOW),
        1 => Just(linux::IN_MOVE | linux::IN_MASK_ADD),
        1 => Just(linux::IN_ATTRIB | linux::IN_MASK_CREATE),
        1 => Just(linux::IN_CREATE | linux::IN_DELETE),
        1 => Just(linux::IN_MASK_CREATE | linux::IN_MASK_ADD | linux::IN_OPEN),
        1 => Just(0),
        1 => Just(0x1000),
        1 => Just(linux::IN_IGNORED),
    ]
}

fn call() -> impl Strategy<Value = Call> {
    let flags = prop_oneof![
        Just(linux::O_RDONLY),
        Just(linux::O_RDWR),
        Just(linux::O_RDWR | linux::O_CREAT),
        Just(linux::O_WRONLY | linux::O_CREAT | linux::O_TRUNC),
        Just(linux::O_RDONLY | linux::O_DIRECTORY),
        Just(linux::O_PATH),
    ];
    let file = 0usize..4;
    prop_oneof![
        4 => (path(), mask()).prop_map(|(path, mask)| Call::Watch { path, mask }),
        1 => (0i32..4).prop_map(Call::Unwatch),
        8 => (path(), flags).prop_map(|(path, flags)| Call::Open { path, flags }),
        4 => file.clone().prop_map(Call::Close),
        2 => file.clone().prop_map(Call::Read),
        3 => file.clone().prop_map(Call::Write),
        2 => file.clone().prop_map(Call::Truncate),
        1 => file.prop_map(Call::List),
        2 => path().prop_map(Call::Permissions),
        1 => (path(), any::<bool>(), any::<bool>())
            .prop_map(|(path, accessed, modified)| Call::Times { path, accessed, modified }),
        2 => path().prop_map(Call::MakeDirectory),
        2 => path().prop_map(Call::RemoveDirectory),
        4 => path().prop_map(Call::Unlink),
        4 => (path(), path(), prop_oneof![4 => Just(0u32), 1 => Just(1u32), 2 => Just(2)])
            .prop_map(|(from, to, flags)| Call::Rename { from, to, flags }),
        2 => (path(), path()).prop_map(|(from, to)| Call::Link { from, to }),
        1 => path().prop_map(Call::Symlink),
    ]
}

/// An event: watch, mask, the number of the first event with its cookie, name with its padding.
type Event = (i32, u32, Option<usize>, Vec<u8>);

fn events(bytes: &[u8]) -> Vec<Event> {
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    let (mut events, mut cookies, mut at) = (Vec::new(), Vec::new(), 0);
    while at < bytes.len() {
        let (cookie, len) = (word(at + 8), word(at + 12) as usize);
        cookies.push(cookie);
        // Implementations number moves as they like: which events belong to the same move is to be equal.
        let of_move = (cookie != 0).then(|| cookies.iter().position(|other| *other == cookie).unwrap());
        events.push((word(at) as i32, word(at + 4), of_move, bytes[at + 16..at + 16 + len].to_vec()));
        at += 16 + len;
    }
    events
}

/// The two implementations of the calls.
trait Side {
    fn call(&mut self, call: &Call) -> Result<i64, i32>;
    fn events(&mut self) -> Vec<Event>;
}

struct Cell {
    system: System,
    instance: Arc<OpenFile>,
    files: Vec<Arc<OpenFile>>,
}

impl Cell {
    fn new() -> Self {
        let system = System::new();
        system.mkdir("w").unwrap();
        now(system.caller().change_directory(b"w")).unwrap();
        let instance = Inotify::open(linux::IN_NONBLOCK, 0).unwrap();
        Self { system, instance, files: Vec::new() }
    }

    fn file(&self, index: usize) -> Result<&Arc<OpenFile>, Errno> {
        self.files.get(index).filter(|file| !file.is_path()).ok_or(Errno::EBADF)
    }

    fn is_directory(&self, index: usize) -> bool {
        self.files.get(index).is_some_and(|file| file.kind() == InodeKind::Directory)
    }

    fn try_call(&mut self, call: &Call) -> Result<i64, Errno> {
        let system = &self.system;
        let caller = system.caller();
        match call {
            Call::Watch { path, mask } => {
                let inotify = self.instance.object_as::<Inotify>().unwrap();
                return now(inotify.add_watch(&caller, path.as_bytes(), *mask)).map(i64::from);
            }
            Call::Unwatch(number) => self.instance.object_as::<Inotify>().unwrap().remove_watch(*number)?,
            Call::Open { path, flags } => {
                let file = system.open(path, *flags)?;
                self.files.push(file);
            }
            Call::Close(index) if *index < self.files.len() => drop(self.files.remove(*index)),
            Call::Close(_) => return Err(Errno::EBADF),
            Call::Read(index) => return read(self.file(*index)?, 100).map(|bytes| bytes.len() as i64),
            Call::Write(index) => return write(self.file(*index)?, b"bytes").map(|count| count as i64),
            Call::Truncate(index) => now(self.file(*index)?.truncate(3))?,
            Call::List(index) => {
                let mut buffer = UserBuffer::of_bytes(&[0; 4096]);
                now(self.file(*index)?.read_entries(&mut buffer, CallerIds::default()))?;
            }
            Call::Permissions(path) => now(caller.chmod_at(CWD, path.as_bytes(), 0o700, 0))?,
            Call::Times { path, accessed, modified } => {
                let time = |is| {
                    if is {
                        TimeChange::To(Timestamp { seconds: 1, nanoseconds: 0 })
                    } else {
                        TimeChange::Keep
                    }
                };
                now(caller.set_times_at(CWD, path.as_bytes(), time(*accessed), time(*modified), 0))?;
            }
            Call::MakeDirectory(path) => system.mkdir(path)?,
            Call::RemoveDirectory(path) => system.rmdir(path)?,
            Call::Unlink(path) => system.unlink(path)?,
            Call::Rename { from, to, flags } => system.rename(from, to, *flags)?,
            Call::Link { from, to } => system.link(from, to)?,
            Call::Symlink(path) => system.symlink("a", path)?,
        }
        Ok(0)
    }
}

impl Side for Cell {
    fn call(&mut self, call: &Call) -> Result<i64, i32> {
        self.try_call(call).map_err(|error| error.number().into())
    }

    fn events(&mut self) -> Vec<Event> {
        match read(&self.instance, 60_000) {
            Ok(bytes) => events(&bytes),
            Err(error) => {
                assert_eq!(error, Errno::EAGAIN);
                Vec::new()
            }
        }
    }
}

struct Host {
    folder: OwnedFd,
    instance: OwnedFd,
    files: Vec<(OwnedFd, bool)>,
    _temporary: tempfile::TempDir,
}

impl Host {
    fn new() -> Self {
        let temporary = tempfile::tempdir().unwrap();
        let folder = fs::open(temporary.path(), OFlags::RDONLY, Mode::empty()).unwrap();
        let instance = inotify::init(inotify::CreateFlags::NONBLOCK).unwrap();
        Self { folder, instance, files: Vec::new(), _temporary: temporary }
    }

    fn file(&self, index: usize) -> Result<&OwnedFd, rustix::io::Errno> {
        let file = self.files.get(index).filter(|(_, is_path)| !is_path);
        file.map(|(file, _)| file).ok_or(rustix::io::Errno::BADF)
    }

    fn path(&self, path: &str) -> std::path::PathBuf {
        self._temporary.path().join(path)
    }

    fn try_call(&mut self, call: &Call) -> Result<i64, rustix::io::Errno> {
        let folder = self.folder.as_fd();
        match call {
            Call::Watch { path, mask } => {
                let flags = inotify::WatchFlags::from_bits_retain(*mask);
                return inotify::add_watch(&self.instance, self.path(path), flags).map(i64::from);
            }
            Call::Unwatch(number) => inotify::remove_watch(&self.instance, *number)?,
            Call::Open { path, flags } => {
                let file =
                    fs::openat(folder, path, OFlags::from_bits_retain(*flags), Mode::from_raw_mode(0o666))?;
                self.files.push((file, flags & linux::O_PATH != 0));
            }
            Call::Close(index) if *index < self.files.len() => drop(self.files.remove(*index)),
            Call::Close(_) => return Err(rustix::io::Errno::BADF),
            Call::Read(index) => {
                return rustix::io::read(self.file(*index)?, &mut [0; 100]).map(|count| count as i64);
            }
            Call::Write(index) => {
                return rustix::io::write(self.file(*index)?, b"bytes").map(|count| count as i64);
            }
            Call::Truncate(index) => fs::ftruncate(self.file(*index)?, 3)?,
            Call::List(index) => {
                let mut buffer = Vec::with_capacity(4096);
                let mut entries = fs::RawDir::new(self.file(*index)?, buffer.spare_capacity_mut());
                if let Some(entry) = entries.next() {
                    entry?;
                }
            }
            Call::Permissions(path) => {
                fs::chmodat(folder, path, Mode::from_raw_mode(0o700), AtFlags::empty())?
            }
            Call::Times { path, accessed, modified } => {
                let time =
                    |is| Timespec { tv_sec: 1, tv_nsec: if is { 0 } else { i64::from(linux::UTIME_OMIT) } };
                let times = Timestamps { last_access: time(*accessed), last_modification: time(*modified) };
                fs::utimensat(folder, path, &times, AtFlags::empty())?;
            }
            Call::MakeDirectory(path) => fs::mkdirat(folder, path, Mode::from_raw_mode(0o777))?,
            Call::RemoveDirectory(path) => fs::unlinkat(folder, path, AtFlags::REMOVEDIR)?,
            Call::Unlink(path) => fs::unlinkat(folder, path, AtFlags::empty())?,
            Call::Rename { from, to, flags } => {
                fs::renameat_with(folder, from, folder, to, RenameFlags::from_bits_retain(*flags))?;
            }
            Call::Link { from, to } => fs::linkat(folder, from, folder, to, AtFlags::empty())?,
            Call::Symlink(path) => fs::symlinkat("a", folder, path)?,
        }
        Ok(0)
    }
}

impl Side for Host {
    fn call(&mut self, call: &Call) -> Result<i64, i32> {
        self.try_call(call).map_err(|error| error.raw_os_error())
    }

    fn events(&mut self) -> Vec<Event> {
        let mut bytes = vec![0; 60_000];
        match rustix::io::read(&self.instance, &mut bytes[..]) {
            Ok(count) => events(&bytes[..count]),
            Err(error) => {
                assert_eq!(error, rustix::io::Errno::AGAIN);
                Vec::new()
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn inotify_reports_what_the_host_reports(calls in prop::collection::vec(call(), 1..50)) {
        let (mut cell, mut host) = (Cell::new(), Host::new());
        for (index, call) in calls.iter().enumerate() {
            // The position of a listed directory of the host can be one that `read` refuses.
            if matches!(call, Call::Read(file) if cell.is_directory(*file)) {
                continue;
            }
            let (ours, theirs) = (cell.call(call), host.call(call));
            prop_assert_eq!(ours, theirs, "call {}: {:?} of {:?}", index, call, &calls[..=index]);
            prop_assert_eq!(cell.events(), host.events(), "call {}: {:?} of {:?}", index, call, &calls[..=index]);
        }
    }
}
