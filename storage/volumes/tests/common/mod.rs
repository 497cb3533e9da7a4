//! Images, a disk in memory with a log of its writes, and the programs of e2fsprogs.
#![allow(dead_code, reason = "each test file uses a part")]

use isola_block::{BlockDevice, BlockError, BlockSettings};
use isola_block_cache::{BlockCache, CacheSettings};
use isola_storage_sim::{Logged, SimDisk};
use isola_test_task::run_task;
use isola_volumes::{Access, Disk, Ext4, FileError, FileId, FileSystem, ListPosition, Services};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Output};
use std::rc::Rc;
use std::time::Duration;

pub fn services() -> Services {
    Services { time: || Duration::from_secs(1_800_000_000), entropy: || 0x9e37_79b9_7f4a_7c15 }
}

/// A disk in memory.
pub struct MemoryDisk {
    pub contents: RefCell<Vec<u8>>,
    pub log: RefCell<Vec<Logged>>,
    pub is_read_only: bool,
    /// The number of writes and flushes after which all fail.
    pub fails_after: Cell<usize>,
    /// Whether reads fail as well then.
    pub reads_fail: Cell<bool>,
}

impl MemoryDisk {
    pub fn new(contents: Vec<u8>) -> Rc<Self> {
        Rc::new(Self {
            contents: RefCell::new(contents),
            log: RefCell::default(),
            is_read_only: false,
            fails_after: Cell::new(usize::MAX),
            reads_fail: Cell::default(),
        })
    }

    fn count(&self) -> Result<(), BlockError> {
        let left = self.fails_after.get().checked_sub(1).ok_or(BlockError::Io)?;
        self.fails_after.set(left);
        Ok(())
    }
}

impl Disk for MemoryDisk {
    fn len(&self) -> u64 {
        self.contents.borrow().len() as u64
    }

    fn is_read_only(&self) -> bool {
        self.is_read_only
    }

    fn read(&self, at: u64, into: &mut [u8]) -> Result<(), BlockError> {
        if self.fails_after.get() == 0 && self.reads_fail.get() {
            return Err(BlockError::Io);
        }
        into.copy_from_slice(&self.contents.borrow()[at as usize..][..into.len()]);
        Ok(())
    }

    fn write(&self, at: u64, from: &[u8]) -> Result<(), BlockError> {
        self.count()?;
        self.contents.borrow_mut()[at as usize..][..from.len()].copy_from_slice(from);
        self.log.borrow_mut().push(Logged::Write { at: at as usize, bytes: from.to_vec() });
        Ok(())
    }

    fn flush(&self) -> Result<(), BlockError> {
        self.count()?;
        self.log.borrow_mut().push(Logged::Flush);
        Ok(())
    }
}

/// Runs a program on a file with these contents, and returns its output and the contents afterwards.
pub fn run_on(contents: &[u8], program: &str, arguments: &[&str]) -> (Output, Vec<u8>) {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), contents).unwrap();
    let output = Command::new(program).args(arguments).arg(file.path()).output().unwrap();
    (output, std::fs::read(file.path()).unwrap())
}

/// Makes an ext4 file system of `len` bytes.
pub fn make_image(len: usize, options: &[&str]) -> Vec<u8> {
    let mut arguments = vec!["-q", "-F", "-t", "ext4"];
    arguments.extend(options);
    let (output, contents) = run_on(&vec![0; len], "mke2fs", &arguments);
    assert!(output.status.success(), "{output:?}");
    contents
}

/// The smallest image with a journal in blocks of 4 KiB.
pub fn small_image() -> Vec<u8> {
    make_image(12 << 20, &["-b", "4096", "-J", "size=4"])
}

/// Makes an ext4 file system of `len` bytes with the contents of a folder.
pub fn make_image_of(len: usize, options: &[&str], folder: &Path) -> Vec<u8> {
    let mut arguments = vec!["-d", folder.to_str().unwrap()];
    arguments.extend(options);
    make_image(len, &arguments)
}

/// Checks a file system that was unmounted.
pub fn check(contents: &[u8]) -> Result<(), String> {
    let (output, _) = run_on(contents, "e2fsck", &["-f", "-n"]);
    match output.status.code() {
        Some(0) => Ok(()),
        _ => Err(String::from_utf8_lossy(&output.stdout).into_owned()),
    }
}

/// Replays the journal and checks the file system. Returns the contents after the replay.
pub fn check_after_power_failure(contents: &[u8]) -> Result<Vec<u8>, String> {
    let (_, replayed) = run_on(contents, "e2fsck", &["-E", "journal_only", "-p"]);
    check(&replayed).map(|()| replayed)
}

pub fn mount(disk: &Rc<MemoryDisk>) -> Result<Ext4, FileError> {
    Ext4::mount(disk.clone(), Access::ReadWrite, services())
}

/// Returns all files with their contents, and all directories with `None`, by path.
pub fn tree(file_system: &mut dyn FileSystem) -> Result<BTreeMap<String, Option<Vec<u8>>>, FileError> {
    let mut all = BTreeMap::new();
    let root = file_system.root();
    add_directory(file_system, root, "", &mut all)?;
    Ok(all)
}

fn add_directory(
    file_system: &mut dyn FileSystem,
    directory: FileId,
    path: &str,
    all: &mut BTreeMap<String, Option<Vec<u8>>>,
) -> Result<(), FileError> {
    let mut position = Some(ListPosition::default());
    while let Some(from) = position {
        let (entries, next) = file_system.list(directory, from, 7)?;
        position = next;
        for entry in entries {
            let name = format!("{path}/{}", String::from_utf8_lossy(&entry.name));
            let metadata = file_system.metadata(entry.id)?;
            match metadata.kind {
                isola_volumes::FileKind::Directory if name == "/lost+found" => {}
                isola_volumes::FileKind::Directory => {
                    all.insert(name.clone(), None);
                    add_directory(file_system, entry.id, &name, all)?;
                }
                _ => {
                    let mut contents = vec![0; metadata.len as usize];
                    let read = file_system.read(entry.id, 0, &mut contents)?;
                    assert_eq!(read, contents.len());
                    all.insert(name, Some(contents));
                }
            }
        }
    }
    Ok(())
}

/// Bytes that differ by file and position.
pub fn data(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at.wrapping_mul(31) ^ (at >> 9) ^ seed.wrapping_mul(97)) as u8).collect()
}

/// Runs `main` in a cell with a disk.
pub fn with_disk<F: Future<Output = ()> + 'static>(
    image: Vec<u8>,
    main: impl Fn(SimDisk) -> F + Sync,
) -> SimDisk {
    let disk = SimDisk::new(image);
    run_task(|| main(disk.clone()));
    disk
}

/// Returns a cache of 1 MiB.
pub fn cache(disk: &SimDisk) -> BlockCache {
    let device = BlockDevice::start(disk.port(), BlockSettings::default()).unwrap();
    let settings = CacheSettings { capacity: 1 << 20, dirty: 256 << 10, seed: 1 };
    BlockCache::new(device, settings).unwrap()
}
