//! Random sequences of calls, on the file system in memory, an overlay and a volume, and on the host's: all return the
//! same. Afterwards the volume's file system is whole.

mod common;

use common::{IN_FIBER, System, now};
use isola_block::{BlockDevice, BlockSettings};
use isola_block_cache::{BlockCache, CacheSettings};
use isola_events::{exit, run, spawn_task};
use isola_hosted::Settings;
use isola_linux_abi::numbers as linux;
use isola_linux_files::{
    CallerIds, Errno, FileSystem, MountFlags, MountedFileSystem, Namespace, OpenFile, OverlayFs, TmpFs,
    TmpFsOptions, VolumeChanges, VolumeFs,
};
use isola_linux_memory::UserBuffer;
use isola_need::{LONG, Need, need};
use isola_storage_sim::{SimDisk, power};
use isola_volumes::{Access, Volume};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use rustix::fs::{self, AtFlags, FallocateFlags, Mode, OFlags, RenameFlags};
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::sync::Arc;

/// The folders above the working directory, which paths with `..` stay below.
const ABOVE: [&str; 4] = ["w", "w/x", "w/x/y", "w/x/y/z"];

#[derive(Clone, Debug)]
enum Call {
    Open { path: String, flags: u32 },
    Close { file: usize },
    Read { file: usize, len: usize },
    Write { file: usize, byte: u8, len: usize },
    ReadAt { file: usize, offset: u64, len: usize },
    WriteAt { file: usize, offset: u64, byte: u8, len: usize },
    Seek { file: usize, offset: i64, whence: u32 },
    Truncate { file: usize, len: i64 },
    Allocate { file: usize, mode: u32, offset: i64, len: i64 },
    MakeDirectory(String),
    RemoveDirectory(String),
    Unlink(String),
    Rename { from: String, to: String, flags: u32 },
    Link { from: String, to: String, flags: u32 },
    Symlink { target: String, path: String },
    ReadLink(String),
    Stat { path: String, flags: u32 },
    List(String),
}

fn component() -> impl Strategy<Value = String> {
    prop_oneof![
        12 => "[a-c]",
        1 => Just(".".to_string()),
        1 => Just("..".to_string()),
        1 => Just("n".repeat(255)),
        1 => Just("n".repeat(256)),
    ]
}

fn path() -> impl Strategy<Value = String> {
    let parts = prop::collection::vec(component(), 1..4);
    (parts, prop::bool::weighted(0.1), prop::bool::weighted(0.1)).prop_map(|(parts, trailing, double)| {
        let mut path = parts.join(if double { "//" } else { "/" });
        if trailing {
            path.push('/');
        }
        path
    })
}

/// A target of a symbolic link, without `..`.
fn target() -> impl Strategy<Value = String> {
    prop::collection::vec("[a-c]", 1..3).prop_map(|parts| parts.join("/"))
}

fn offset() -> impl Strategy<Value = u64> {
    prop_oneof![8 => 0u64..20_000, 1 => Just(4096u64), 1 => Just(8192u64), 1 => Just(1u64 << 40)]
}

fn flags() -> impl Strategy<Value = u32> {
    let optional = |flag: u32, probability| {
        prop::bool::weighted(probability).prop_map(move |is| if is { flag } else { 0 })
    };
    let mode = prop_oneof![1 => Just(linux::O_RDONLY), 1 => Just(linux::O_WRONLY), 3 => Just(linux::O_RDWR)];
    (
        mode,
        optional(linux::O_CREAT, 0.6),
        optional(linux::O_EXCL, 0.2),
        optional(linux::O_TRUNC, 0.2),
        optional(linux::O_APPEND, 0.2),
        optional(linux::O_DIRECTORY, 0.1),
        optional(linux::O_NOFOLLOW, 0.2),
        optional(linux::O_PATH, 0.05),
    )
        .prop_map(|(mode, a, b, c, d, e, f, g)| mode | a | b | c | d | e | f | g)
        // The result of O_EXCL without O_CREAT is undefined.
        .prop_map(|flags| if flags & linux::O_CREAT == 0 { flags & !linux::O_EXCL } else { flags })
}

fn call() -> impl Strategy<Value = Call> {
    let file = 0usize..4;
    prop_oneof![
        6 => (path(), flags()).prop_map(|(path, flags)| Call::Open { path, flags }),
        1 => file.clone().prop_map(|file| Call::Close { file }),
        3 => (file.clone(), 0usize..9000).prop_map(|(file, len)| Call::Read { file, len }),
        4 => (file.clone(), 1u8.., 0usize..9000).prop_map(|(file, byte, len)| Call::Write { file, byte, len }),
        2 => (file.clone(), offset(), 0usize..9000)
            .prop_map(|(file, offset, len)| Call::ReadAt { file, offset, len }),
        3 => (file.clone(), offset(), 1u8.., 0usize..9000)
            .prop_map(|(file, offset, byte, len)| Call::WriteAt { file, offset, byte, len }),
        3 => (file.clone(), prop_oneof![-5000i64..20_000, Just(i64::MAX), Just(i64::MIN)], 0u32..7)
            .prop_map(|(file, offset, whence)| Call::Seek { file, offset, whence }),
        2 => (file.clone(), prop_oneof![9 => 0i64..20_000, 1 => Just(-1i64)])
            .prop_map(|(file, len)| Call::Truncate { file, len }),
        2 => (file, prop_oneof![Just(0u32), Just(1), Just(3), Just(2), Just(16), Just(17)], -1i64..20_000, 0i64..20_000)
            .prop_map(|(file, mode, offset, len)| Call::Allocate { file, mode, offset, len }),
        3 => path().prop_map(Call::MakeDirectory),
        2 => path().prop_map(Call::RemoveDirectory),
        2 => path().prop_map(Call::Unlink),
        4 => (path(), path(), prop_oneof![4 => Just(0u32), 1 => Just(1), 2 => Just(2), 1 => Just(3)])
            .prop_map(|(from, to, flags)| Call::Rename { from, to, flags }),
        2 => (path(), path(), prop_oneof![3 => Just(0u32), 1 => Just(linux::AT_SYMLINK_FOLLOW)])
            .prop_map(|(from, to, flags)| Call::Link { from, to, flags }),
        2 => (target(), path()).prop_map(|(target, path)| Call::Symlink { target, path }),
        1 => path().prop_map(Call::ReadLink),
        2 => (path(), prop_oneof![Just(0u32), Just(linux::AT_SYMLINK_NOFOLLOW)])
            .prop_map(|(path, flags)| Call::Stat { path, flags }),
        1 => path().prop_map(Call::List),
    ]
}

/// The result of a call, as both sides return it.
type Result = std::result::Result<Vec<u8>, u16>;

fn host<T>(result: rustix::io::Result<T>, value: impl FnOnce(T) -> Vec<u8>) -> Result {
    result.map(value).map_err(|error| error.raw_os_error() as u16)
}

fn own<T>(result: std::result::Result<T, Errno>, value: impl FnOnce(T) -> Vec<u8>) -> Result {
    result.map(value).map_err(Errno::number)
}

fn number(number: u64) -> Vec<u8> {
    number.to_le_bytes().to_vec()
}

fn none<T>(_: T) -> Vec<u8> {
    Vec::new()
}

struct Host {
    directory: OwnedFd,
    files: Vec<Option<OwnedFd>>,
    /// Whether the allocated blocks are compared.
    blocks: bool,
}

struct Own {
    system: System,
    directory: i32,
    files: Vec<Option<Arc<OpenFile>>>,
    blocks: bool,
}

impl Host {
    fn execute(&mut self, call: &Call) -> Option<Result> {
        let at = self.directory.as_fd();
        let file = |file: &usize| self.files[*file].as_ref().map(AsFd::as_fd);
        Some(match call {
            Call::Open { path, flags } => {
                let mode = Mode::from_raw_mode(0o777);
                let opened = fs::openat(at, path, OFlags::from_bits_retain(*flags), mode);
                match opened {
                    Ok(file) => {
                        let free = self.files.iter().position(Option::is_none).unwrap_or(0);
                        self.files[free] = Some(file);
                        Ok(number(free as u64))
                    }
                    Err(error) => Err(error.raw_os_error() as u16),
                }
            }
            Call::Close { file } => Ok(vec![u8::from(self.files[*file].take().is_some())]),
            Call::Read { file: index, len } => {
                let mut bytes = vec![0; *len];
                let read = rustix::io::read(file(index)?, &mut bytes);
                host(read, |len| bytes[..len].to_vec())
            }
            Call::Write { file: index, byte, len } => {
                host(rustix::io::write(file(index)?, &vec![*byte; *len]), |len| number(len as u64))
            }
            Call::ReadAt { file: index, offset, len } => {
                let mut bytes = vec![0; *len];
                let read = rustix::io::pread(file(index)?, &mut bytes, *offset);
                host(read, |len| bytes[..len].to_vec())
            }
            Call::WriteAt { file: index, offset, byte, len } => {
                host(rustix::io::pwrite(file(index)?, &vec![*byte; *len], *offset), |len| number(len as u64))
            }
            Call::Seek { file: index, offset, whence } => {
                // rustix has no raw `whence`.
                let file = file(index)?;
                let to = match (*whence, u64::try_from(*offset)) {
                    (0, Ok(offset)) => fs::SeekFrom::Start(offset),
                    (1, _) => fs::SeekFrom::Current(*offset),
                    (2, _) => fs::SeekFrom::End(*offset),
                    (3, Ok(offset)) => fs::SeekFrom::Data(offset),
                    (4, Ok(offset)) => fs::SeekFrom::Hole(offset),
                    _ => return None,
                };
                host(fs::seek(file, to), number)
            }
            Call::Truncate { file: index, len } => {
                let len = u64::try_from(*len).ok()?;
                host(fs::ftruncate(file(index)?, len), none)
            }
            Call::Allocate { file: index, mode, offset, len } => {
                let (offset, len) = (u64::try_from(*offset).ok()?, u64::try_from(*len).ok()?);
                // Linux's own file system in memory does not support these.
                if *mode & 16 != 0 {
                    return None;
                }
                let mode = FallocateFlags::from_bits_retain(*mode);
                host(fs::fallocate(file(index)?, mode, offset, len), none)
            }
            Call::MakeDirectory(path) => host(fs::mkdirat(at, path, Mode::from_raw_mode(0o777)), none),
            Call::RemoveDirectory(path) => host(fs::unlinkat(at, path, AtFlags::REMOVEDIR), none),
            Call::Unlink(path) => host(fs::unlinkat(at, path, AtFlags::empty()), none),
            Call::Rename { from, to, flags } => {
                let flags = RenameFlags::from_bits_retain(*flags);
                host(fs::renameat_with(at, from, at, to, flags), none)
            }
            Call::Link { from, to, flags } => {
                host(fs::linkat(at, from, at, to, AtFlags::from_bits_retain(*flags)), none)
            }
            Call::Symlink { target, path } => host(fs::symlinkat(target, at, path), none),
            Call::ReadLink(path) => host(fs::readlinkat(at, path, Vec::new()), |target| target.into_bytes()),
            Call::Stat { path, flags } => {
                host(fs::statat(at, path, AtFlags::from_bits_retain(*flags)), |stat| {
                    let is_file = stat.st_mode & linux::S_IFMT == linux::S_IFREG;
                    let size = if is_file { stat.st_size as u64 } else { 0 };
                    let blocks = if is_file && self.blocks { stat.st_blocks as u64 } else { 0 };
                    format!("{:o} {} {size} {blocks}", stat.st_mode, stat.st_nlink).into_bytes()
                })
            }
            Call::List(path) => {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY;
                let directory = match fs::openat(at, path, flags, Mode::empty()) {
                    Ok(directory) => directory,
                    Err(error) => return Some(Err(error.raw_os_error() as u16)),
                };
                let entries = fs::Dir::new(directory).expect("a directory that can be read");
                let mut names: Vec<_> = entries
                    .map(|entry| entry.expect("an entry").file_name().to_str().expect("text").to_string())
                    .collect();
                names.sort();
                names.retain(|name| name != "." && name != "..");
                Ok(names.join(" ").into_bytes())
            }
        })
    }
}

impl Own {
    fn new(system: System) -> Self {
        let directory =
            system.descriptor("/w/x/y/z", linux::O_RDONLY | linux::O_DIRECTORY).expect("the folder");
        Self { system, directory, files: (0..4).map(|_| None).collect(), blocks: true }
    }

    fn execute(&mut self, call: &Call) -> Result {
        let (caller, at) = (self.system.caller(), self.directory);
        let file = |file: &usize| self.files[*file].clone().expect("the host has this file");
        match call {
            Call::Open { path, flags } => match now(caller.open_at(at, path.as_bytes(), *flags, 0o777)) {
                Ok(file) => {
                    let free = self.files.iter().position(Option::is_none).unwrap_or(0);
                    self.files[free] = Some(file);
                    Ok(number(free as u64))
                }
                Err(error) => Err(error.number()),
            },
            Call::Close { file } => Ok(vec![u8::from(self.files[*file].take().is_some())]),
            Call::Read { file: index, len } => own(common::read(&file(index), *len), |bytes| bytes),
            Call::Write { file: index, byte, len } => {
                own(common::write(&file(index), &vec![*byte; *len]), |len| number(len as u64))
            }
            Call::ReadAt { file: index, offset, len } => {
                let file = file(index);
                let mut buffer = UserBuffer::of_bytes(&vec![0; *len]);
                let mut bytes = buffer.clone();
                own(now(file.read_at(*offset, &mut buffer)), |len| bytes.read_all()[..len].to_vec())
            }
            Call::WriteAt { file: index, offset, byte, len } => {
                let mut buffer = UserBuffer::of_bytes(&vec![*byte; *len]);
                own(now(file(index).write_at(*offset, &mut buffer)), |len| number(len as u64))
            }
            Call::Seek { file: index, offset, whence } => {
                own(now(file(index).seek(*offset, *whence)), number)
            }
            Call::Truncate { file: index, len } => own(now(file(index).truncate(*len)), none),
            Call::Allocate { file: index, mode, offset, len } => {
                own(now(file(index).allocate(*mode, *offset, *len)), none)
            }
            Call::MakeDirectory(path) => own(now(caller.make_directory_at(at, path.as_bytes(), 0o777)), none),
            Call::RemoveDirectory(path) => {
                own(now(caller.unlink_at(at, path.as_bytes(), linux::AT_REMOVEDIR)), none)
            }
            Call::Unlink(path) => own(now(caller.unlink_at(at, path.as_bytes(), 0)), none),
            Call::Rename { from, to, flags } => {
                own(now(caller.rename_at(at, from.as_bytes(), at, to.as_bytes(), *flags)), none)
            }
            Call::Link { from, to, flags } => {
                own(now(caller.link_at(at, from.as_bytes(), at, to.as_bytes(), *flags)), none)
            }
            Call::Symlink { target, path } => {
                own(now(caller.make_symlink_at(target.as_bytes(), at, path.as_bytes())), none)
            }
            Call::ReadLink(path) => own(now(caller.read_link_at(at, path.as_bytes())), |target| target),
            Call::Stat { path, flags } => own(now(caller.stat_at(at, path.as_bytes(), *flags)), |metadata| {
                let is_file = metadata.mode() & linux::S_IFMT == linux::S_IFREG;
                let size = if is_file { metadata.len } else { 0 };
                let blocks = if is_file && self.blocks { metadata.blocks } else { 0 };
                format!("{:o} {} {size} {blocks}", metadata.mode(), metadata.links).into_bytes()
            }),
            Call::List(path) => {
                let opened =
                    now(caller.open_at(at, path.as_bytes(), linux::O_RDONLY | linux::O_DIRECTORY, 0));
                own(opened.and_then(|file| names(&file)), |names| names.join(" ").into_bytes())
            }
        }
    }
}

fn names(file: &OpenFile) -> std::result::Result<Vec<String>, Errno> {
    let mut buffer = UserBuffer::of_bytes(&[0; 65536]);
    let mut bytes = buffer.clone();
    let len = now(file.read_entries(&mut buffer, CallerIds::default()))?;
    let bytes = &bytes.read_all()[..len];
    let (mut names, mut at) = (Vec::new(), 0);
    while at < bytes.len() {
        let entry_len = usize::from(u16::from_le_bytes([bytes[at + 16], bytes[at + 17]]));
        let name = bytes[at + 19..at + entry_len].split(|byte| *byte == 0).next().expect("a name");
        names.push(String::from_utf8(name.to_vec()).expect("text"));
        at += entry_len;
    }
    names.sort();
    names.retain(|name| name != "." && name != "..");
    Ok(names)
}

/// Returns a folder on the host's own file system in memory, if there is one.
fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a temporary folder")
}

/// The calls that act on one side differently in an overlay, whose copies have holes where the original has zeros, and in
/// files with reserved storage: Linux's file system in memory reports it as a hole until the first write, others as data.
fn is_about_holes(call: &Call) -> bool {
    matches!(call, Call::Seek { whence: 3 | 4, .. })
}

/// Returns whether the call reserves storage.
fn reserves(call: &Call) -> bool {
    matches!(call, Call::Allocate { mode: 0 | 1, .. })
}

struct Pair {
    host: Host,
    own: Own,
    /// Whether a file may have reserved storage.
    has_reserved: bool,
    root: Arc<dyn FileSystem>,
    _folder: tempfile::TempDir,
}

impl Pair {
    fn new() -> Self {
        Self::with(TmpFs::new(TmpFsOptions::of_len(64 << 20)))
    }

    fn with(root: Arc<dyn FileSystem>) -> Self {
        let folder = folder();
        let system = system(root.clone());
        for above in ABOVE {
            std::fs::create_dir(folder.path().join(above)).expect("a new folder");
            system.mkdir(&format!("/{above}")).expect("a new folder");
        }
        let directory = File::open(folder.path().join(ABOVE[3])).expect("the folder").into();
        let host = Host { directory, files: (0..4).map(|_| None).collect(), blocks: true };
        Self { host, own: Own::new(system), has_reserved: false, root, _folder: folder }
    }

    /// Closes all files, and continues with an overlay above the file system.
    fn put_overlay(&mut self) {
        self.host.files.fill_with(|| None);
        let upper = TmpFs::new(TmpFsOptions::of_len(64 << 20));
        self.own = Own::new(system(OverlayFs::new(&*self.root, upper)));
        self.own.blocks = false;
        self.host.blocks = false;
    }

    fn execute(&mut self, calls: &[Call]) -> std::result::Result<(), TestCaseError> {
        for (index, call) in calls.iter().enumerate() {
            if (self.has_reserved || !self.own.blocks) && is_about_holes(call) {
                continue;
            }
            self.has_reserved |= reserves(call);
            let Some(expected) = self.host.execute(call) else { continue };
            let is = self.own.execute(call);
            prop_assert_eq!(&is, &expected, "call {} of {:#?}", index, &calls[..=index]);
        }
        Ok(())
    }

    /// Compares the contents of all open files.
    fn compare_contents(self) -> std::result::Result<(), TestCaseError> {
        for (host, own) in self.host.files.into_iter().zip(self.own.files) {
            let (Some(host), Some(own)) = (host, own) else { continue };
            if own.is_path() || own.metadata().mode() & linux::S_IFMT != linux::S_IFREG || !own.is_readable()
            {
                continue;
            }
            let host = File::from(host);
            let len = host.metadata().expect("metadata").len().min(1 << 20) as usize;
            let mut expected = vec![0; len];
            host.read_exact_at(&mut expected, 0).expect("the contents");
            prop_assert!(now(own.read_bytes(0, len)).expect("the contents") == expected);
        }
        Ok(())
    }
}

fn system(root: Arc<dyn FileSystem>) -> System {
    let system = System::of(Namespace::new(MountedFileSystem::new(root), b"root", MountFlags::default()));
    // The processes of this test share the mask of the host's side.
    rustix::process::umask(Mode::empty());
    system.view.set_umask(0);
    system
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn calls_return_what_linux_returns(calls in prop::collection::vec(call(), 1..60)) {
        let mut pair = Pair::new();
        pair.execute(&calls)?;
        pair.compare_contents()?;
    }

    #[test]
    fn an_overlay_returns_what_linux_returns(
        lower in prop::collection::vec(call(), 1..40),
        calls in prop::collection::vec(call(), 1..40),
    ) {
        let mut pair = Pair::new();
        pair.execute(&lower)?;
        pair.put_overlay();
        pair.execute(&calls)?;
        pair.compare_contents()?;
    }
}

/// The sequences of calls on a volume, and those of the long variant.
const CASES_ON_VOLUME: [u32; 2] = [16, 200];

/// One of this number of power failures is checked, without the long variant.
const CHECKED_CUT: usize = 5;

fn is_long() -> bool {
    std::env::var_os(LONG).is_some()
}

/// The calls between two syncs of a volume.
const SYNC_AFTER: usize = 12;

/// Executes calls on a new volume. Returns its disk afterwards.
fn execute_on_volume(
    (disk, device): &(SimDisk, BlockDevice),
    image: &[u8],
    calls: &[Call],
) -> std::result::Result<Vec<u8>, TestCaseError> {
    disk.edit(|bytes| bytes.copy_from_slice(image));
    disk.take_log();
    let settings = CacheSettings { capacity: 1 << 20, dirty: 256 << 10, seed: 1 };
    let cache = BlockCache::new(device.clone(), settings).expect("a cache");
    let volume = now(Volume::mount(cache, Access::ReadWrite)).expect("a volume");
    let execute = || {
        // So few pages that they are dropped and read again.
        let files = now(VolumeFs::new(volume.share(), VolumeChanges::Permitted, 8)).expect("its files");
        let mut pair = Pair::with(files.clone());
        pair.own.blocks = false;
        pair.host.blocks = false;
        for part in calls.chunks(SYNC_AFTER) {
            pair.execute(part)?;
            prop_assert_eq!(now(files.sync()), Ok(()));
        }
        pair.compare_contents()
    };
    let outcome = execute();
    // All files were closed.
    let unmounted = now(volume.unmount());
    outcome?;
    prop_assert_eq!(unmounted, Ok(()));
    Ok(disk.contents())
}

/// Checks that a file system is whole, after the journal was replayed and files without names were released.
fn check(disk: &[u8], folder: &std::path::Path) -> std::result::Result<(), TestCaseError> {
    let file = folder.join("disk");
    std::fs::write(&file, disk).expect("a written disk");
    let e2fsck = |options: &[&str]| Command::new("e2fsck").args(options).arg(&file).output().expect("e2fsck");
    e2fsck(&["-p"]);
    let output = e2fsck(&["-f", "-n"]);
    prop_assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    Ok(())
}

/// Executes calls on a new volume, and checks it afterwards, and after power failures in between.
fn check_volume(
    disk: &(SimDisk, BlockDevice),
    image: &[u8],
    calls: &[Call],
    folder: &std::path::Path,
) -> std::result::Result<(), TestCaseError> {
    check(&execute_on_volume(disk, image, calls)?, folder)?;
    let log = disk.0.take_log();
    let (mut outcome, mut cuts) = (Ok(()), 0);
    power::with_random_losses(image, &log, 4096, 1, log.len() as u64, |position, contents| {
        cuts += 1;
        if outcome.is_ok() && (is_long() || cuts % CHECKED_CUT == 0) {
            outcome = check(contents, folder)
                .map_err(|error| TestCaseError::fail(format!("after {position} of {}: {error}", log.len())));
        }
    });
    outcome
}

#[test]
fn a_volume_returns_what_linux_returns() {
    if !need(Need::E2fsprogs) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("image");
    std::fs::write(&file, vec![0; 16 << 20]).expect("a file");
    let mut mke2fs = Command::new("mke2fs");
    let status = mke2fs.args(["-q", "-F", "-t", "ext4", "-b", "4096", "-J", "size=4"]).arg(&file).status();
    assert!(status.expect("mke2fs").success());
    let image = std::fs::read(&file).expect("the image");
    let test = move || {
        IN_FIBER.set(true);
        let cases = CASES_ON_VOLUME[usize::from(is_long())];
        let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
        let sequences = prop::collection::vec(call(), 1..60);
        let disk = SimDisk::new(image.clone());
        let device = BlockDevice::start(disk.port(), BlockSettings::default()).expect("a device");
        let disk = (disk, device);
        let outcome = TestRunner::new(config)
            .run(&sequences, |calls| check_volume(&disk, &image, &calls, folder.path()));
        if let Err(error) = &outcome {
            eprintln!("{error}");
        }
        exit(i32::from(outcome.is_err()));
    };
    let test = std::sync::Mutex::new(Some(test));
    let codes = isola_hosted::run(Settings::default(), Vec::new(), |_| {
        let test = test.lock().expect("the test").take().expect("one core");
        spawn_task(
            async move { isola_fibers::spawn_fiber_with_stack(8 << 20, test).expect("a fiber").await },
        )
        .detach();
        run()
    });
    assert_eq!(codes, [0]);
}
